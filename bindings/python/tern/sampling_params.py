# SPDX-License-Identifier: Apache-2.0
"""How an answer is sampled; names, defaults and ranges are vLLM's."""
from __future__ import annotations

import copy
import enum
import json
from typing import Any

from . import _native


class RequestOutputKind(enum.Enum):
    """What an async generator yields: everything so far, what is new, or the end alone."""
    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class StructuredOutputsParams:
    """What the output must match; exactly one of json (a schema: dict or text), regex, choice (list of strings),
    grammar (EBNF) and json_object (True)."""

    def __init__(self, *, json: str | dict[str, Any] | None = None, regex: str | None = None,
                 choice: list[str] | None = None, grammar: str | None = None, json_object: bool | None = None,
                 disable_any_whitespace: bool = False, whitespace_pattern: str | None = None,
                 disable_fallback: bool = False):
        self.json, self.regex, self.choice, self.grammar, self.json_object = json, regex, choice, grammar, json_object
        self.disable_any_whitespace, self.whitespace_pattern = disable_any_whitespace, whitespace_pattern
        del disable_fallback  # there is one grammar engine

    def _object(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if v is not None and v is not False}

    def __repr__(self) -> str:
        return f"StructuredOutputsParams({', '.join(f'{k}={v!r}' for k, v in self._object().items())})"


class GuidedDecodingParams(StructuredOutputsParams):
    """The older name."""

    def __init__(self, *, backend: str | None = None, **constraint: Any):
        del backend
        super().__init__(**constraint)


# Members of vLLM's that change no answer here, with the only value that is not refused; None: any.
_WITHOUT_EFFECT: dict[str, Any] = {"best_of": None, "spaces_between_special_tokens": True, "flat_logprobs": None,
                                   "skip_clone": None, "extra_args": None, "output_text_buffer_length": None,
                                   "skip_reading_prefix_cache": None}


class SamplingParams:
    """Sampling parameters of one request.

    Raises ValueError when a value is out of range and TypeError for a name nobody knows, with the nearest one.

    n: outputs per prompt.  temperature: 0 is greedy.  top_p in (0, 1], top_k 0 or -1 off, min_p in [0, 1].
    max_tokens: None for as many as fit.  logprobs: the sampled token's and so many best ones'; -1 all; None none.
    stop: text or texts that end the output and are cut off, stop_token_ids likewise as ids.
    structured_outputs: a StructuredOutputsParams or its dict.  seed: None for the engine's.
    truncate_prompt_tokens: keeps the last so many tokens of the prompt."""

    def __init__(self, *, n: int = 1, presence_penalty: float = 0.0, frequency_penalty: float = 0.0,
                 repetition_penalty: float = 1.0, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0,
                 min_p: float = 0.0, seed: int | None = None, stop: str | list[str] | None = None,
                 stop_token_ids: list[int] | None = None, ignore_eos: bool = False, max_tokens: int | None = 16,
                 min_tokens: int = 0, logprobs: int | None = None, prompt_logprobs: int | None = None,
                 detokenize: bool = True, skip_special_tokens: bool = True, include_stop_str_in_output: bool = False,
                 output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE,
                 structured_outputs: StructuredOutputsParams | dict[str, Any] | None = None,
                 guided_decoding: StructuredOutputsParams | dict[str, Any] | None = None,
                 logit_bias: dict[int, float] | None = None, allowed_token_ids: list[int] | None = None,
                 bad_words: list[str] | None = None, truncate_prompt_tokens: int | None = None, **others: Any):
        self.n = n
        self.presence_penalty, self.frequency_penalty = presence_penalty, frequency_penalty
        self.repetition_penalty = repetition_penalty
        self.temperature, self.top_p, self.top_k, self.min_p = temperature, top_p, top_k, min_p
        self.seed = None if seed == -1 else seed
        self.stop = [stop] if isinstance(stop, str) else list(stop or [])
        self.stop_token_ids = list(stop_token_ids or [])
        self.ignore_eos = ignore_eos
        self.max_tokens, self.min_tokens = max_tokens, min_tokens
        self.logprobs, self.prompt_logprobs = logprobs, prompt_logprobs
        self.detokenize, self.skip_special_tokens = detokenize, skip_special_tokens
        self.include_stop_str_in_output = include_stop_str_in_output
        self.output_kind = output_kind
        self.structured_outputs = structured_outputs if structured_outputs is not None else guided_decoding
        self.logit_bias, self.allowed_token_ids, self.bad_words = logit_bias, allowed_token_ids, list(bad_words or [])
        self.truncate_prompt_tokens = truncate_prompt_tokens
        if truncate_prompt_tokens is not None and truncate_prompt_tokens < 1:
            raise ValueError(f"truncate_prompt_tokens must be at least 1, got {truncate_prompt_tokens}")
        for name, value in others.items():
            _check_other(name, value, self.n)
        _native.lib.tern_params_free(self._native(None))

    def _json(self) -> bytes:
        values: dict[str, Any] = {
            "n": self.n, "presence_penalty": self.presence_penalty, "frequency_penalty": self.frequency_penalty,
            "repetition_penalty": self.repetition_penalty, "temperature": self.temperature, "top_p": self.top_p,
            "top_k": self.top_k, "min_p": self.min_p, "seed": self.seed, "stop": self.stop,
            "stop_token_ids": self.stop_token_ids, "ignore_eos": self.ignore_eos, "max_tokens": self.max_tokens,
            "min_tokens": self.min_tokens, "logprobs": self.logprobs, "prompt_logprobs": self.prompt_logprobs,
            "skip_special_tokens": self.skip_special_tokens,
            "include_stop_str_in_output": self.include_stop_str_in_output,
            "allowed_token_ids": self.allowed_token_ids, "bad_words": self.bad_words}
        if self.logit_bias:
            values["logit_bias"] = {str(k): v for k, v in self.logit_bias.items()}
        constraint = self.structured_outputs
        if constraint is not None:
            values["structured_outputs"] = constraint if isinstance(constraint, dict) else constraint._object()
        try:
            return json.dumps(values, allow_nan=False).encode()
        except (TypeError, ValueError) as e:
            raise ValueError(f"SamplingParams: {e}") from None

    def _native(self, engine: int | None) -> int:
        """A checked tern_params, to be freed; ids and log-probabilities are checked against the engine."""
        handle = _native.new(_native.lib.tern_params_new, None)
        try:
            text = self._json()
            _native.call(_native.lib.tern_params_set_json, handle, text, len(text))
            _native.call(_native.lib.tern_params_check, handle, engine)
        except BaseException:
            _native.lib.tern_params_free(handle)
            raise
        return handle

    @staticmethod
    def from_optional(**values: Any) -> SamplingParams:
        """None leaves a default."""
        return SamplingParams(**{k: v for k, v in values.items() if v is not None or k == "max_tokens"})

    def clone(self) -> SamplingParams:
        return copy.deepcopy(self)

    def __repr__(self) -> str:
        return f"SamplingParams({', '.join(f'{k}={v!r}' for k, v in vars(self).items())})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SamplingParams) and self._json() == other._json()


def _check_other(name: str, value: Any, n: int) -> None:
    if name not in _WITHOUT_EFFECT:
        raise TypeError(f"SamplingParams: {_unknown(name)}")
    only = _WITHOUT_EFFECT[name]
    if (only is not None and value != only) or (name == "best_of" and value not in (None, 1, n)):
        raise ValueError(f"SamplingParams: {name}={value!r} is not supported")


def _unknown(name: str) -> str:
    """The library's line about a name that it doesn't know, with the nearest."""
    handle = _native.new(_native.lib.tern_params_new, None)
    try:
        text = json.dumps({name: None}).encode()
        _native.attempt(_native.lib.tern_params_set_json, handle, text, len(text))
    except _native._Failed as e:
        return str(e)
    finally:
        _native.lib.tern_params_free(handle)
    return f"unexpected keyword '{name}'"
