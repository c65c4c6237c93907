# SPDX-License-Identifier: Apache-2.0
"""Offline generation: prompts in, outputs back when all are done."""
from __future__ import annotations

import itertools
import json
from typing import Any, Sequence

from . import _native
from .engine.arg_utils import EngineArgs
from .engine.core import Engine, Metrics, Queue, Request, chat_options, reset_prefix_cache
from .inputs import PromptType, many_prompts
from .outputs import RequestOutput
from .sampling_params import SamplingParams
from .tokenizer import Tokenizer

WAIT_MS = 100  # how long Ctrl-C may have to wait


class LLM:
    """A model in this process.

        llm = LLM(model="models/tern-poet", max_model_len=512)
        outputs = llm.generate(["春", "秋"], SamplingParams(temperature=0.8, max_tokens=40))
        print(outputs[0].prompt, outputs[0].outputs[0].text)

    Every option of `tern serve` that concerns the engine is a keyword, see EngineArgs. Opening reads the weights.
    Raises FileNotFoundError (no such model), ValueError (a value that is not possible, a model that does not fit),
    TypeError (a keyword nobody knows, with the nearest), OSError.

    Several live in one process. `with LLM(...) as llm`, close() or the garbage collector frees the model. Any thread
    may call it; calls of several threads run together."""

    def __init__(self, model: str, *, tokenizer: str | None = None, dtype: str = "auto",
                 quantization: str | None = None, max_model_len: int | str | None = None, enforce_eager: bool = False,
                 seed: int | None = None, gpu_memory_utilization: float | None = None,
                 tensor_parallel_size: int | None = None, trust_remote_code: bool | None = None, **options: Any):
        self._engine = Engine(EngineArgs(
            model, tokenizer=tokenizer, dtype=dtype, quantization=quantization, max_model_len=max_model_len,
            enforce_eager=enforce_eager, seed=seed, gpu_memory_utilization=gpu_memory_utilization,
            tensor_parallel_size=tensor_parallel_size, trust_remote_code=trust_remote_code or None, **options))
        self._ids = itertools.count()

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> LLM:
        llm = cls.__new__(cls)
        llm._engine = Engine(engine_args)
        llm._ids = itertools.count()
        return llm

    # ---- generation ----

    def generate(self, prompts: PromptType | Sequence[PromptType],
                 sampling_params: SamplingParams | Sequence[SamplingParams] | None = None, *,
                 use_tqdm: bool | Any = True, priority: list[int] | None = None) -> list[RequestOutput]:
        """Completes prompts; the outputs are in their order.

        prompts: one or a list of: text, {"prompt": text}, {"prompt_token_ids": ids}, ids.
        sampling_params: for all of them, or a list with one for each; None: the model's defaults.
        use_tqdm is accepted; no progress is printed.
        ValueError: a prompt that is empty or leaves no room, a parameter that is not possible; then nothing of the
        call goes on running. KeyboardInterrupt ends all of it as well."""
        del use_tqdm
        return self._run([(p, None) for p in many_prompts(prompts)], sampling_params, priority)

    def chat(self, messages: Sequence[Any], sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
             use_tqdm: bool | Any = True, *, chat_template: str | None = None,
             chat_template_content_format: str = "auto", add_generation_prompt: bool = True,
             continue_final_message: bool = False, tools: list[dict[str, Any]] | None = None,
             chat_template_kwargs: dict[str, Any] | None = None) -> list[RequestOutput]:
        """Answers a conversation (a list of {"role", "content"}) or several (a list of such lists); .prompt of an
        output is the rendered text. A chat_template of one call is refused: give it to LLM()."""
        del use_tqdm, chat_template_content_format
        if chat_template is not None:
            raise ValueError("chat_template: a template belongs to the engine, LLM(chat_template=...)")
        if not messages:
            raise ValueError("messages: a conversation has at least one message")
        many = list(messages) if isinstance(messages[0], (list, tuple)) else [messages]
        options = chat_options(add_generation_prompt and not continue_final_message, continue_final_message, tools,
                               chat_template_kwargs)
        return self._run([(json.dumps(list(m)), options) for m in many], sampling_params, None)

    def _run(self, prompts: list[tuple[Any, bytes | None]],
             sampling_params: SamplingParams | Sequence[SamplingParams] | None,
             priority: list[int] | None) -> list[RequestOutput]:
        many = isinstance(sampling_params, Sequence)
        params: list[SamplingParams | None] = list(sampling_params) if many else [sampling_params] * len(prompts)
        if len(params) != len(prompts):
            raise ValueError("The lengths of prompts and sampling_params must be the same.")
        if priority is not None and len(priority) != len(prompts):
            raise ValueError("The lengths of prompts and priority must be the same.")
        queue = Queue()
        requests: list[Request] = []
        try:
            for i, (prompt, chat) in enumerate(prompts):
                try:
                    requests.append(self._engine.prepare(str(next(self._ids)), prompt, params[i],
                                                         priority[i] if priority else 0, chat))
                    requests[-1].start(queue)
                except (TypeError, ValueError) as e:
                    raise type(e)(f"prompt {i}: {e}" if len(prompts) > 1 else str(e)) from None
            _collect(queue, requests)
        finally:
            for request in requests:
                request.close()
            queue.close()
        for request in requests:
            if request.collector.error:
                raise _native.TernError(request.collector.error)
        return [request.collector.whole for request in requests]

    # ---- the rest ----

    def get_tokenizer(self) -> Tokenizer:
        return self._engine.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """The model's own (generation_config.json), as generate() takes them without any."""
        return self._engine.default_params()

    def metrics(self) -> Metrics:
        """Running and waiting outputs, KV blocks in use and in all, tokens, prefix hits; renewed once a step."""
        return self._engine.metrics()

    def reset_prefix_cache(self) -> bool:
        """Forgets cached prompts; False when some are in use."""
        return reset_prefix_cache(self._engine)

    def close(self) -> None:
        """Frees the model; what runs on other threads ends with finish_reason "abort"."""
        self._engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _collect(queue: Queue, requests: list[Request]) -> None:
    by_handle = {r.handle: r.collector for r in requests}
    while (chunk := queue.next(WAIT_MS)) is not False:
        if chunk is not None:
            by_handle[chunk.request].take(chunk)
