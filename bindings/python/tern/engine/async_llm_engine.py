# SPDX-License-Identifier: Apache-2.0
"""Async generators over an engine in this process.

The engine has threads of its own, so nothing here starts one: its queue's descriptor is one more thing that the event
loop watches. A generator that is left (a task is cancelled, `break` with aclose) ends its request within a step."""
from __future__ import annotations

import asyncio
import json
from typing import Any, AsyncGenerator, Iterable

from .._native import TernError
from ..inputs import one_prompt
from ..outputs import RequestOutput
from ..sampling_params import RequestOutputKind, SamplingParams
from ..tokenizer import Tokenizer
from .arg_utils import AsyncEngineArgs, EngineArgs
from .core import Engine, Metrics, Queue, Request, chat_options, reset_prefix_cache

LONG_PROMPT = 16 * 1024  # characters; longer ones are tokenized beside the loop


class _Stream:
    def __init__(self, request: Request):
        self.request = request
        self.news = asyncio.Event()


class AsyncLLMEngine:
    """Many requests at once from one event loop.

        engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model="models/tern-poet"))
        async for output in engine.generate("春", SamplingParams(max_tokens=20), request_id="1"):
            print(output.outputs[0].text)

    All methods belong to the loop's thread. close (or shutdown) ends what runs; so does the garbage collector."""

    def __init__(self, engine_args: EngineArgs):
        self._engine = Engine(engine_args)
        self._queue = Queue()
        self._streams: dict[int, _Stream] = {}
        self._by_id: dict[str, _Stream] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs, **ignored: Any) -> AsyncLLMEngine:
        """Opens the model and reads its weights. FileNotFoundError, ValueError (what does not fit) or OSError."""
        for name in ignored:
            if name not in ("start_engine_loop", "usage_context", "stat_loggers"):
                raise TypeError(f"from_engine_args() got an unexpected keyword argument '{name}'")
        return cls(engine_args)

    # ---- the loop ----

    def _attach(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return loop
        if self._loop is not None and not self._loop.is_closed():
            if self._streams:
                raise TernError("the engine is used by another event loop")
            self._loop.remove_reader(self._queue.fd)
        self._loop = loop
        loop.add_reader(self._queue.fd, self._pump)
        return loop

    def _pump(self) -> None:
        """All chunks that are there, to the streams that wait for them."""
        if self._queue.closed:
            return
        while chunk := self._queue.next(0):
            stream = self._streams.get(chunk.request)
            if stream is not None:
                stream.request.collector.take(chunk)
                stream.news.set()

    # ---- requests ----

    async def generate(self, prompt: Any, sampling_params: SamplingParams | None = None, request_id: str = "",
                       *, priority: int = 0) -> AsyncGenerator[RequestOutput, None]:
        """Yields the outputs as they grow: cumulative text by default, see SamplingParams.output_kind.

        prompt: a text, {"prompt": text}, {"prompt_token_ids": ids} or a list of ids. Without parameters: the
        model's defaults. ValueError: a prompt or a parameter that is not possible, or a request_id that runs."""
        async for output in self._run(prompt, sampling_params, request_id, priority, None):
            yield output

    async def chat(self, messages: list[dict[str, Any]], sampling_params: SamplingParams | None = None,
                   request_id: str = "", *, tools: list[dict[str, Any]] | None = None,
                   chat_template_kwargs: dict[str, Any] | None = None) -> AsyncGenerator[RequestOutput, None]:
        """The same for a conversation, rendered with the chat template."""
        options = chat_options(True, False, tools, chat_template_kwargs)
        async for output in self._run(json.dumps(messages), sampling_params, request_id, 0, options):
            yield output

    async def _run(self, prompt: Any, params: SamplingParams | None, request_id: str, priority: int,
                   chat: bytes | None) -> AsyncGenerator[RequestOutput, None]:
        loop = self._attach()
        if request_id and request_id in self._by_id:
            raise ValueError(f"a request with the id {request_id!r} is running")
        request = self._engine.prepare(request_id, prompt, params, priority, chat)
        stream, key = _Stream(request), request.handle
        assert key is not None
        self._streams[key] = stream  # before the start: chunks may come at once
        if request_id:
            self._by_id[request_id] = stream
        try:
            collector = request.collector
            final_only = collector.params.output_kind is RequestOutputKind.FINAL_ONLY
            finished = False
            text, ids = (prompt, None) if chat is not None else one_prompt(prompt)
            is_long = len(ids or text or "") > LONG_PROMPT
            if is_long or (params is not None and params.structured_outputs is not None):
                await _beside(loop, request, self._queue)
            else:
                request.start(self._queue)
            while not finished:
                await stream.news.wait()
                stream.news.clear()
                finished = collector.whole.finished
                if collector.error and finished:
                    raise TernError(collector.error)
                if finished or not final_only:
                    yield collector.snapshot()
        finally:
            self._streams.pop(key, None)
            self._by_id.pop(request_id, None)
            request.close()

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Ends requests; their generators yield one last output, with finish_reason "abort". Unknown ids: nothing."""
        for one in [request_id] if isinstance(request_id, str) else request_id:
            stream = self._by_id.get(one)
            if stream is not None:
                stream.request.cancel()

    # ---- the rest ----

    async def get_tokenizer(self) -> Tokenizer:
        return self._engine.tokenizer

    def metrics(self) -> Metrics:
        """Running and waiting outputs, KV blocks in use and in all, tokens, prefix hits; renewed once a step."""
        return self._engine.metrics()

    async def reset_prefix_cache(self) -> bool:
        return reset_prefix_cache(self._engine)

    async def check_health(self) -> None:
        """TernError when the engine is closed."""
        self._engine.metrics()

    @property
    def is_running(self) -> bool:
        return not self._engine.closed

    @property
    def errored(self) -> bool:
        return False

    def shutdown(self) -> None:
        """Ends what runs and frees the model. Generators that wait get one last output or TernError."""
        if self._engine.closed:
            return
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._queue.fd)
        self._engine.close()
        self._pump()  # the last words of what ran
        self._queue.close()

    close = shutdown

    def __enter__(self) -> AsyncLLMEngine:
        return self

    def __exit__(self, *_: Any) -> None:
        self.shutdown()

    async def __aenter__(self) -> AsyncLLMEngine:
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.shutdown()


async def _beside(loop: asyncio.AbstractEventLoop, request: Request, queue: Queue) -> None:
    """Starts a request on a thread: its text is long, or a grammar is to be compiled. Who is cancelled meanwhile
    still waits for it, so that the request can be closed then."""
    start = loop.run_in_executor(None, request.start, queue)
    try:
        await asyncio.shield(start)
    except asyncio.CancelledError:
        await asyncio.wait([start])
        raise


__all__ = ["AsyncEngineArgs", "AsyncLLMEngine"]
