# SPDX-License-Identifier: Apache-2.0
"""libtern through ctypes: the structs and functions of tern.h, and its errors as exceptions.

Every foreign call gives the interpreter's lock back while it runs, so one thread that waits for text stops no other.
The library is the libtern.so beside this file (a wheel brings it), else $TERN_LIBRARY, else the system's."""
from __future__ import annotations

import ctypes as c
import logging
import os
import pathlib
import weakref
from typing import Any

logger = logging.getLogger("tern")

NOTHING, CHUNK, END = 0, 1, 2
KIND_TOKENS, KIND_PROMPT = 0, 1
ALL = c.c_size_t(-1).value


class TernError(RuntimeError):
    """A fault of the engine itself, or a call on one that is closed."""


class Error(c.Structure):
    _fields_ = [("size", c.c_size_t), ("code", c.c_int), ("text", c.c_char * 512)]


class Info(c.Structure):
    _fields_ = [("size", c.c_size_t), ("max_model_len", c.c_int), ("vocab_size", c.c_int), ("max_logprobs", c.c_int),
                ("n_threads", c.c_int), ("weight_bytes", c.c_uint64), ("weight_bytes_per_token", c.c_uint64),
                ("kv_bytes", c.c_uint64), ("model", c.c_char_p), ("architecture", c.c_char_p),
                ("quantization", c.c_char_p), ("numerics_id", c.c_char_p), ("cpu_level", c.c_char_p),
                ("dtype", c.c_char_p)]


class Metrics(c.Structure):
    _fields_ = [("size", c.c_size_t), ("running", c.c_int), ("waiting", c.c_int), ("blocks", c.c_int),
                ("blocks_in_use", c.c_int), ("block_tokens", c.c_int), ("reserved", c.c_int), ("kv_usage", c.c_double),
                ("prefix_queries", c.c_uint64), ("prefix_hits", c.c_uint64), ("prompt_tokens", c.c_uint64),
                ("output_tokens", c.c_uint64), ("finished", c.c_uint64), ("aborted", c.c_uint64),
                ("preemptions", c.c_uint64), ("steps", c.c_uint64)]


class Chunk(c.Structure):
    _fields_ = [("size", c.c_size_t), ("request", c.c_void_p), ("kind", c.c_int), ("index", c.c_int),
                ("finish", c.c_int), ("last", c.c_int), ("text", c.c_void_p), ("text_bytes", c.c_size_t),
                ("ids", c.POINTER(c.c_int32)), ("n_ids", c.c_size_t), ("logprob_start", c.POINTER(c.c_size_t)),
                ("logprob_ids", c.POINTER(c.c_int32)), ("logprobs", c.POINTER(c.c_float)),
                ("logprob_ranks", c.POINTER(c.c_int32)), ("cumulative_logprob", c.c_double),
                ("stop_text", c.c_void_p), ("stop_text_bytes", c.c_size_t), ("stop_id", c.c_int),
                ("n_cached", c.c_int), ("arrival_ns", c.c_uint64), ("scheduled_ns", c.c_uint64),
                ("first_token_ns", c.c_uint64), ("last_token_ns", c.c_uint64), ("error", c.c_char_p),
                ("n_preempted", c.c_int), ("reserved", c.c_int)]


LOG_FN = c.CFUNCTYPE(None, c.c_void_p, c.c_int, c.c_char_p)
_P, _PP, _E, _S = c.c_void_p, c.POINTER(c.c_void_p), c.POINTER(Error), c.c_char_p
_N = c.POINTER(c.c_size_t)
_IDS = c.POINTER(c.c_int32)

_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "tern_version": (_S, []),
    "tern_free": (None, [_P]),
    "tern_options_new": (c.c_int, [_PP, _E]),
    "tern_options_free": (None, [_P]),
    "tern_options_set": (c.c_int, [_P, _S, _S, _E]),
    "tern_options_set_log": (None, [_P, LOG_FN, _P]),
    "tern_engine_open": (c.c_int, [_PP, _S, _P, _E]),
    "tern_engine_load": (c.c_int, [_P, _E]),
    "tern_engine_close": (None, [_P]),
    "tern_engine_info": (c.c_int, [_P, c.POINTER(Info), _E]),
    "tern_engine_metrics": (c.c_int, [_P, c.POINTER(Metrics), _E]),
    "tern_engine_reset_prefix_cache": (c.c_int, [_P, _E]),
    "tern_engine_tokenizer": (_P, [_P]),
    "tern_params_new": (c.c_int, [_PP, _P, _E]),
    "tern_params_free": (None, [_P]),
    "tern_params_set_json": (c.c_int, [_P, _S, c.c_size_t, _E]),
    "tern_params_get_number": (c.c_int, [_P, _S, c.POINTER(c.c_double), _E]),
    "tern_params_check": (c.c_int, [_P, _P, _E]),
    "tern_finish_name": (_S, [c.c_int]),
    "tern_request_new": (c.c_int, [_PP, _P, _E]),
    "tern_request_set_text": (c.c_int, [_P, _S, c.c_size_t, _E]),
    "tern_request_set_ids": (c.c_int, [_P, _IDS, c.c_size_t, _E]),
    "tern_request_set_chat": (c.c_int, [_P, _S, c.c_size_t, _S, _E]),
    "tern_request_set_priority": (None, [_P, c.c_int]),
    "tern_request_start": (c.c_int, [_P, _P, _P, _E]),
    "tern_request_cancel": (None, [_P]),
    "tern_request_close": (None, [_P]),
    "tern_request_prompt_ids": (_IDS, [_P, _N]),
    "tern_request_prompt_text": (c.c_void_p, [_P, _N]),
    "tern_queue_new": (c.c_int, [_PP, _E]),
    "tern_queue_next": (c.c_int, [_P, c.c_int, c.POINTER(Chunk), _E]),
    "tern_queue_fd": (c.c_int, [_P]),
    "tern_queue_free": (None, [_P]),
    "tern_tokenizer_size": (c.c_int, [_P]),
    "tern_tokenizer_eos_id": (c.c_int32, [_P]),
    "tern_tokenizer_is_special": (c.c_int, [_P, c.c_int32]),
    "tern_tokenizer_id": (c.c_int32, [_P, _S]),
    "tern_tokenizer_piece": (c.c_void_p, [_P, c.c_int32, _N]),
    "tern_tokenizer_encode": (c.c_int, [_P, _S, c.c_size_t, c.c_int, c.POINTER(_IDS), _N, _E]),
    "tern_tokenizer_decode": (c.c_int, [_P, _IDS, c.c_size_t, c.c_int, _PP, _N, _E]),
    "tern_tokenizer_chat": (c.c_int, [_P, _S, c.c_size_t, _S, _PP, _N, c.POINTER(_IDS), _N, _E]),
}


def _load() -> c.CDLL:
    beside = pathlib.Path(__file__).with_name("libtern.so")
    name = str(beside) if beside.exists() else os.environ.get("TERN_LIBRARY") or "libtern.so.0"
    try:
        library = c.CDLL(name)
    except OSError as e:
        raise ImportError(f"tern: {e}; install the wheel that `make wheel` builds, set TERN_LIBRARY to a libtern.so, "
                          "or `make install`") from e
    for function, (result, arguments) in _FUNCTIONS.items():
        f = getattr(library, function)
        f.restype, f.argtypes = result, arguments
    return library


lib = _load()


# ---- errors ---------------------------------------------------------------------------------------------------

_EXCEPTIONS: dict[int, type[Exception]] = {-1: ValueError, -2: MemoryError, -3: OSError, -4: ValueError, -5: ValueError,
                                           -6: FileNotFoundError, -7: ValueError}
UNSUPPORTED, NOT_FOUND = -5, -6


class _Failed(Exception):
    """Never leaves the package: a code with its line."""

    def __init__(self, code: int, text: str):
        super().__init__(text)
        self.code = code


def attempt(function: Any, *arguments: Any) -> int:
    """Calls with an error struct; raises _Failed on a negative result."""
    e = Error(size=c.sizeof(Error))
    rc = function(*arguments, c.byref(e))
    if rc < 0:
        raise _Failed(rc, e.text.decode("utf-8", "replace"))
    return rc


def call(function: Any, *arguments: Any) -> int:
    """The same with exceptions for users: ValueError, FileNotFoundError, OSError, MemoryError, TernError."""
    try:
        return attempt(function, *arguments)
    except _Failed as e:
        raise _EXCEPTIONS.get(e.code, TernError)(str(e)) from None


def new(function: Any, *arguments: Any) -> int:
    """A handle that a function of the form f(**out, ..., error) makes."""
    out = c.c_void_p()
    call(function, c.byref(out), *arguments)
    assert out.value is not None
    return out.value


def name(value: str) -> bytes:
    """A path, or the name or value of an option: C ends it at a NUL."""
    if "\0" in value:
        raise ValueError(f"{value!r} has a NUL in it")
    return value.encode("utf-8", "surrogateescape")


def text_at(address: int | None, n_bytes: int) -> str:
    return c.string_at(address, n_bytes).decode("utf-8", "replace") if address else ""


# ---- handles --------------------------------------------------------------------------------------------------

_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)


def _log(_user: Any, level: int, text: bytes) -> None:
    logger.log(_LEVELS[level], "%s", text.decode("utf-8", "replace"))


LOG = LOG_FN(_log)  # lives as long as the module: engines call it until they are closed


class Owned:
    """A native handle that is closed once: by close(), by the garbage collector or at exit."""

    def __init__(self, handle: int, close: Any):
        self._handle: int | None = handle
        self._pid = os.getpid()
        self._finalizer = weakref.finalize(self, _close_here, close, handle, self._pid)

    @property
    def handle(self) -> int:
        if self._handle is None:
            raise TernError("it is closed")
        if os.getpid() != self._pid:
            raise TernError("an engine does not survive a fork: open it in the process that uses it")
        return self._handle

    @property
    def closed(self) -> bool:
        return self._handle is None

    def close(self) -> None:
        self._handle = None
        self._finalizer()


def _close_here(close: Any, handle: int, pid: int) -> None:
    if os.getpid() == pid:  # threads of an engine are not in a forked child
        close(handle)
