# SPDX-License-Identifier: Apache-2.0
"""What comes back from a request, and how it is put together from the library's chunks."""
from __future__ import annotations

import dataclasses
from typing import Any

from . import _native
from .sampling_params import RequestOutputKind, SamplingParams
from .tokenizer import Tokenizer


@dataclasses.dataclass
class Logprob:
    """Log-probability of a token at its place, its rank there (1: the most likely; None: unknown) and its text."""
    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclasses.dataclass
class CompletionOutput:
    """One output. token_ids: [n_tokens]. logprobs: [n_tokens] of {token id: Logprob}, the sampled token first, or
    None. finish_reason: None while it runs, "stop", "length", "abort" or "repetition". stop_reason: the stop string
    or stop id that ended it, None for the end of text."""
    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclasses.dataclass
class RequestMetrics:
    """Seconds of CLOCK_MONOTONIC (time.monotonic)."""
    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None


@dataclasses.dataclass
class RequestOutput:
    """A request and its outputs. prompt: None for a prompt of ids. prompt_logprobs: [n_prompt], the first None."""
    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    num_cached_tokens: int | None = None
    metrics: RequestMetrics | None = None


def _seconds(ns: int) -> float | None:
    return ns * 1e-9 if ns else None


class Collector:
    """Chunks of one request, joined."""

    def __init__(self, request_id: str, params: SamplingParams, tokenizer: Tokenizer):
        self.params, self.tokenizer = params, tokenizer
        self.samples = [CompletionOutput(i, "", [], None if params.logprobs is None else 0.0,
                                         None if params.logprobs is None else [])
                        for i in range(params.n)]
        self.whole = RequestOutput(request_id, None, [], self.samples, False)
        self.told = [(0, 0)] * params.n  # characters and tokens that a delta has given
        self.error: str | None = None

    def _logprobs(self, chunk: Any) -> list[dict[int, Logprob]]:
        out = []
        for i in range(chunk.n_ids):
            found: dict[int, Logprob] = {}
            for k in range(chunk.logprob_start[i], chunk.logprob_start[i + 1]):
                token = chunk.logprob_ids[k]  # the sampled one comes first, and maybe again among the best
                if token not in found:
                    found[token] = Logprob(chunk.logprobs[k], chunk.logprob_ranks[k] or None,
                                           self.tokenizer.piece(token))
            out.append(found)
        return out

    def take(self, chunk: Any) -> None:
        if chunk.kind == _native.KIND_PROMPT:
            per_token = self._logprobs(chunk)
            self.whole.prompt_logprobs = [None, *per_token[1:]]
            return
        s = self.samples[chunk.index]
        s.token_ids.extend(chunk.ids[:chunk.n_ids])
        if self.params.detokenize:
            s.text += _native.text_at(chunk.text, chunk.text_bytes)
        if s.logprobs is not None and chunk.n_ids:
            s.logprobs.extend(self._logprobs(chunk))
            s.cumulative_logprob = chunk.cumulative_logprob
        self.whole.num_cached_tokens = chunk.n_cached
        self.whole.metrics = RequestMetrics(chunk.arrival_ns * 1e-9, _seconds(chunk.scheduled_ns),
                                            _seconds(chunk.first_token_ns), _seconds(chunk.last_token_ns))
        if chunk.finish:
            s.finish_reason = _native.lib.tern_finish_name(chunk.finish).decode()
            s.stop_reason = (_native.text_at(chunk.stop_text, chunk.stop_text_bytes) if chunk.stop_text
                             else chunk.stop_id if chunk.stop_id >= 0 else None)
            if chunk.error:
                self.error = chunk.error.decode("utf-8", "replace")
        self.whole.finished = bool(chunk.last)

    def snapshot(self) -> RequestOutput:
        """What a stream yields now, by the kind of output that was asked for; the user's to keep."""
        kind = self.params.output_kind
        outputs = []
        for i, s in enumerate(self.samples):
            text, ids, logprobs = s.text, list(s.token_ids), None if s.logprobs is None else list(s.logprobs)
            if kind is RequestOutputKind.DELTA:
                n_text, n_ids = self.told[i]
                self.told[i] = (len(text), len(ids))
                text, ids = text[n_text:], ids[n_ids:]
                logprobs = None if logprobs is None else logprobs[n_ids:]
            outputs.append(dataclasses.replace(s, text=text, token_ids=ids, logprobs=logprobs))
        return dataclasses.replace(self.whole, outputs=outputs)
