# SPDX-License-Identifier: Apache-2.0
"""The model's tokenizer and chat template, by the names that transformers uses."""
from __future__ import annotations

import ctypes as c
import json
from typing import Any, Sequence

from . import _native

lib = _native.lib


def id_array(ids: Sequence[int]) -> Any:
    try:
        for i in ids:
            if not -2**31 <= i < 2**31:  # ctypes would cut it to another token
                raise ValueError(f"{i} is not in any vocabulary")
        return (c.c_int32 * len(ids))(*ids)
    except (TypeError, ValueError) as e:
        raise ValueError(f"token ids: {e}") from None


class Tokenizer:
    """Text to token ids and back. Belongs to an engine and works until that is closed. Thread-safe."""

    def __init__(self, engine: _native.Owned):
        self._engine = engine
        self._pieces: dict[int, str] = {}

    @property
    def _handle(self) -> int:
        return lib.tern_engine_tokenizer(self._engine.handle)

    def __len__(self) -> int:
        return lib.tern_tokenizer_size(self._handle)

    @property
    def vocab_size(self) -> int:
        return len(self)

    @property
    def eos_token_id(self) -> int | None:
        eos = lib.tern_tokenizer_eos_id(self._handle)
        return None if eos < 0 else eos

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of the text; special tokens that it spells become theirs. Nothing is added at either end, as the
        model's own tokenizer has it, whatever add_special_tokens says. ValueError: not UTF-8 (lone surrogates)."""
        del add_special_tokens
        raw = encoded(text)
        ids, n = c.POINTER(c.c_int32)(), c.c_size_t()
        _native.call(lib.tern_tokenizer_encode, self._handle, raw, len(raw), 1, c.byref(ids), c.byref(n))
        try:
            return ids[:n.value]
        finally:
            lib.tern_free(ids)

    def decode(self, token_ids: int | Sequence[int], skip_special_tokens: bool = False) -> str:
        """Text of ids; bytes that are no characters become U+FFFD."""
        ids = id_array([token_ids] if isinstance(token_ids, int) else token_ids)
        text, n = c.c_void_p(), c.c_size_t()
        _native.call(lib.tern_tokenizer_decode, self._handle, ids, len(ids), int(skip_special_tokens), c.byref(text),
                     c.byref(n))
        try:
            return _native.text_at(text.value, n.value)
        finally:
            lib.tern_free(text)

    def piece(self, token_id: int) -> str:
        """Text of one id alone."""
        found = self._pieces.get(token_id)
        if found is None:
            n = c.c_size_t()
            found = _native.text_at(lib.tern_tokenizer_piece(self._handle, token_id, c.byref(n)), n.value)
            self._pieces[token_id] = found
        return found

    def convert_tokens_to_ids(self, token: str) -> int | None:
        found = lib.tern_tokenizer_id(self._handle, encoded(token))
        return None if found < 0 else found

    def apply_chat_template(self, conversation: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None,
                            add_generation_prompt: bool = False, continue_final_message: bool = False,
                            tokenize: bool = True, **kwargs: Any) -> str | list[int]:
        """The prompt of a conversation, as ids or (tokenize=False) as text. kwargs go to the template."""
        messages = encoded(json.dumps(conversation))
        text, n_bytes, ids, n_ids = c.c_void_p(), c.c_size_t(), c.POINTER(c.c_int32)(), c.c_size_t()
        options = chat_options(add_generation_prompt, continue_final_message, tools, kwargs)
        _native.call(lib.tern_tokenizer_chat, self._handle, messages, len(messages), options, c.byref(text),
                     c.byref(n_bytes), c.byref(ids), c.byref(n_ids))
        try:
            return ids[:n_ids.value] if tokenize else _native.text_at(text.value, n_bytes.value)
        finally:
            lib.tern_free(text)
            lib.tern_free(ids)


def encoded(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as e:
        raise ValueError(f"text is not Unicode: {e}") from None


def chat_options(add_generation_prompt: bool, continue_final_message: bool, tools: list[dict[str, Any]] | None,
                 kwargs: dict[str, Any] | None) -> bytes:
    options: dict[str, Any] = {"add_generation_prompt": add_generation_prompt,
                               "continue_final_message": continue_final_message}
    if tools:
        options["tools"] = tools
    if kwargs:
        options["chat_template_kwargs"] = kwargs
    return json.dumps(options).encode()
