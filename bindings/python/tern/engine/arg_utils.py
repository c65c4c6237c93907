# SPDX-License-Identifier: Apache-2.0
"""Options of an engine: those of `tern serve`, as keywords with underscores."""
from __future__ import annotations

import dataclasses
import json
from typing import Any

from .. import _native


def _words(value: Any) -> list[str]:
    """The text of a value as on the command line; several for a list."""
    if isinstance(value, bool):
        return ["true" if value else "false"]
    if isinstance(value, dict):
        return [json.dumps(value)]
    if isinstance(value, (list, tuple)):
        return [w for v in value for w in _words(v)]
    return [str(value)]


@dataclasses.dataclass(init=False)
class EngineArgs:
    """Options of an engine; None is the default of `tern serve`.

    Every option of `tern serve` that concerns the engine is a keyword, those that are no fields here too (they are
    in `extra`). Raises TypeError for a name nobody knows (with the nearest) and ValueError for a value that is not
    possible. What only matters on GPUs is accepted, with one warning in the log `tern`."""
    model: str
    tokenizer: str | None = None
    dtype: str | None = None
    quantization: str | None = None
    quantization_inputs: str | None = None
    max_model_len: int | str | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_memory_bytes: int | str | None = None
    kv_cache_dtype: str | None = None
    num_gpu_blocks_override: int | None = None
    block_size: int | None = None
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    long_prefill_token_threshold: int | None = None
    scheduling_policy: str | None = None
    enforce_eager: bool | None = None
    seed: int | None = None
    max_logprobs: int | None = None
    generation_config: str | None = None
    override_generation_config: dict[str, Any] | None = None
    chat_template: str | None = None
    structured_outputs_config: dict[str, Any] | None = None
    speculative_config: dict[str, Any] | None = None
    threads: int | None = None
    cpu_mask: str | None = None
    log_level: str | None = None
    trust_remote_code: bool | None = None
    tensor_parallel_size: int | None = None
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __init__(self, model: str, **options: Any):
        self.model = str(model)
        self.extra = dict(options.pop("extra", None) or {})
        names = {f.name for f in dataclasses.fields(self)} - {"model", "extra"}
        for name in names:
            setattr(self, name, options.pop(name, None))
        self.extra.update(options)
        _native.lib.tern_options_free(self._native())

    def _native(self) -> int:
        """Checked tern_options, to be freed."""
        handle = _native.new(_native.lib.tern_options_new)
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in ("model", "extra")}
        try:
            for name, value in {**values, **self.extra}.items():
                if value is not None:
                    self._set(handle, name, value)
            _native.lib.tern_options_set_log(handle, _native.LOG, None)
        except BaseException:
            _native.lib.tern_options_free(handle)
            raise
        return handle

    def _set(self, handle: int, name: str, value: Any) -> None:
        for word in _words(value):
            try:
                _native.attempt(_native.lib.tern_options_set, handle, _native.name(name), _native.name(word))
            except _native._Failed as e:
                if e.code == _native.UNSUPPORTED and value is False:
                    return  # not asking for what is not there
                if e.code == _native.NOT_FOUND:
                    raise TypeError(f"{type(self).__name__}: {e}") from None
                raise ValueError(str(e)) from None


@dataclasses.dataclass(init=False)
class AsyncEngineArgs(EngineArgs):
    """The same for AsyncLLMEngine."""
