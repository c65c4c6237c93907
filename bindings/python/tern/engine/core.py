# SPDX-License-Identifier: Apache-2.0
"""The native engine and its requests, shared by LLM and AsyncLLMEngine."""
from __future__ import annotations

import ctypes as c
import dataclasses
from typing import Any

from .. import _native
from ..inputs import one_prompt
from ..outputs import Collector
from ..sampling_params import SamplingParams
from ..tokenizer import Tokenizer, chat_options, encoded, id_array
from .arg_utils import EngineArgs

lib = _native.lib


@dataclasses.dataclass(frozen=True)
class Metrics:
    """Counters of an engine at one moment; blocks are KV cache blocks of block_tokens tokens, prefix_queries and
    prefix_hits count prompt tokens."""
    running: int
    waiting: int
    blocks: int
    blocks_in_use: int
    block_tokens: int
    kv_usage: float
    prefix_queries: int
    prefix_hits: int
    prompt_tokens: int
    output_tokens: int
    finished: int
    aborted: int
    preemptions: int
    steps: int


class Engine(_native.Owned):
    """An open model with its weights."""

    def __init__(self, args: EngineArgs):
        options = args._native()
        try:
            handle = _native.new(lib.tern_engine_open, _native.name(str(args.model)), options)
        finally:
            lib.tern_options_free(options)
        super().__init__(handle, lib.tern_engine_close)
        try:
            _native.call(lib.tern_engine_load, handle)
        except BaseException:
            self.close()
            raise
        info = _native.Info(size=c.sizeof(_native.Info))
        _native.call(lib.tern_engine_info, handle, c.byref(info))
        self.max_model_len: int = info.max_model_len
        self.vocab_size: int = info.vocab_size
        self.quantization: str = info.quantization.decode()
        self.numerics_id: str = info.numerics_id.decode()
        self.tokenizer = Tokenizer(self)

    def metrics(self) -> Metrics:
        m = _native.Metrics(size=c.sizeof(_native.Metrics))
        _native.call(lib.tern_engine_metrics, self.handle, c.byref(m))
        return Metrics(**{f.name: getattr(m, f.name) for f in dataclasses.fields(Metrics)})

    def default_params(self) -> SamplingParams:
        """The model's own, from its generation_config.json."""
        handle = _native.new(lib.tern_params_new, self.handle)
        values: dict[str, Any] = {}
        try:
            for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens"):
                v = c.c_double()
                _native.call(lib.tern_params_get_number, handle, name.encode(), c.byref(v))
                values[name] = int(v.value) if name in ("top_k", "max_tokens") else v.value
        finally:
            lib.tern_params_free(handle)
        if values["max_tokens"] == -1:
            del values["max_tokens"]
        return SamplingParams(**values)

    def prepare(self, request_id: str, prompt: Any, params: SamplingParams | None, priority: int = 0,
                chat: bytes | None = None) -> Request:
        """A request that is still to be started, of a prompt or (with chat options) of a conversation."""
        params = params if params is not None else self.default_params()
        if not isinstance(params, SamplingParams):
            raise TypeError(f"sampling_params: expected SamplingParams, not {type(params).__name__}")
        handle = _native.new(lib.tern_request_new, self.handle)
        try:
            if chat is not None:
                messages = encoded(prompt)
                _native.call(lib.tern_request_set_chat, handle, messages, len(messages), chat)
            else:
                self._set_prompt(handle, prompt, params)
            lib.tern_request_set_priority(handle, priority)
        except BaseException:
            lib.tern_request_close(handle)
            raise
        return Request(self, handle, request_id, params)

    def _set_prompt(self, handle: int, prompt: Any, params: SamplingParams) -> None:
        text, ids = one_prompt(prompt)
        keep = params.truncate_prompt_tokens
        if keep is not None:
            ids = list(self.tokenizer.encode(text or "") if ids is None else ids)[-keep:]
        if ids is not None:
            _native.call(lib.tern_request_set_ids, handle, id_array(ids), len(ids))
        else:
            raw = encoded(text or "")
            _native.call(lib.tern_request_set_text, handle, raw, len(raw))


class Request:
    """A request and what it has brought so far."""

    def __init__(self, engine: Engine, handle: int, request_id: str, params: SamplingParams):
        self.engine = engine
        self.handle: int | None = handle
        self.collector = Collector(request_id, params, engine.tokenizer)

    def start(self, queue: Queue) -> None:
        """Hands it to the engine. From now on chunks may come to the queue, before this has returned, too."""
        settings = self.collector.params._native(self.engine.handle)
        n = c.c_size_t()
        try:
            _native.call(lib.tern_request_start, self.handle, settings, queue.handle)
        finally:
            lib.tern_params_free(settings)
        whole = self.collector.whole
        whole.prompt_token_ids = lib.tern_request_prompt_ids(self.handle, c.byref(n))[:n.value]
        address = lib.tern_request_prompt_text(self.handle, c.byref(n))
        whole.prompt = _native.text_at(address, n.value) if address else None

    def cancel(self) -> None:
        if self.handle is not None:
            lib.tern_request_cancel(self.handle)

    def close(self) -> None:
        """Ends it if it runs; doesn't wait."""
        if self.handle is not None:
            handle, self.handle = self.handle, None
            lib.tern_request_close(handle)


class Queue(_native.Owned):
    """Where the chunks of several requests come together. One thread takes from it."""

    def __init__(self) -> None:
        super().__init__(_native.new(lib.tern_queue_new), lib.tern_queue_free)
        self._chunk = _native.Chunk(size=c.sizeof(_native.Chunk))

    def next(self, timeout_ms: int) -> Any:
        """A chunk, good until the next call; None when the time is over; False when no request runs."""
        rc = _native.call(lib.tern_queue_next, self.handle, timeout_ms, c.byref(self._chunk))
        return self._chunk if rc == _native.CHUNK else None if rc == _native.NOTHING else False

    @property
    def fd(self) -> int:
        return lib.tern_queue_fd(self.handle)


def reset_prefix_cache(engine: Engine) -> bool:
    return _native.call(lib.tern_engine_reset_prefix_cache, engine.handle) == 1


__all__ = ["Engine", "Metrics", "Queue", "Request", "chat_options", "reset_prefix_cache"]
