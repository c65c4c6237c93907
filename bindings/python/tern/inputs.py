# SPDX-License-Identifier: Apache-2.0
"""What a prompt may be: a text, {"prompt": text}, {"prompt_token_ids": ids}, or a list of ids."""
from __future__ import annotations

from typing import Any, List, Sequence, TypedDict, Union


class TextPrompt(TypedDict):
    prompt: str


class TokensPrompt(TypedDict, total=False):
    prompt_token_ids: List[int]
    prompt: str


PromptType = Union[str, List[int], TextPrompt, TokensPrompt]


def is_ids(v: Any) -> bool:
    return isinstance(v, (list, tuple)) and bool(v) and all(isinstance(i, int) and not isinstance(i, bool) for i in v)


def one_prompt(v: Any) -> tuple[str | None, Sequence[int] | None]:
    """(text, None) or (None or text, ids); TypeError or ValueError otherwise."""
    if isinstance(v, str):
        return v, None
    if is_ids(v):
        return None, v
    if isinstance(v, dict):
        unknown = set(v) - {"prompt", "prompt_token_ids"}
        if unknown:
            raise ValueError(f"a prompt may have prompt or prompt_token_ids, not {', '.join(sorted(unknown))}")
        if v.get("prompt_token_ids") is not None:
            if not is_ids(v["prompt_token_ids"]):
                raise ValueError("prompt_token_ids: expected a list of token ids that is not empty")
            return v.get("prompt"), v["prompt_token_ids"]
        if isinstance(v.get("prompt"), str):
            return v["prompt"], None
    raise TypeError(f"a prompt is a text, a list of token ids or a dict of either, not {type(v).__name__}")


def many_prompts(v: Any) -> list[Any]:
    if isinstance(v, (str, dict)) or is_ids(v):
        return [v]
    if isinstance(v, Sequence):
        return list(v)
    raise TypeError(f"prompts are a prompt or a sequence of them, not {type(v).__name__}")
