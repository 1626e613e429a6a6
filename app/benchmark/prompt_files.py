"""Prompts of the operator's own, from the text of a file. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

#: Characters of one prompt; longer ones are cut.
MAX_TEXT = 200_000


def parse_prompts(raw: str, *, limit: int) -> list[str]:
    """The first prompts of a ShareGPT-style JSON file, a JSON list of texts, or JSON lines with ``prompt``.

    Of a conversation the first turn counts, where an answer follows. Raises ValueError, worded to follow the file's
    name, for anything else.
    """
    try:
        found = _read(raw)
    except ValueError as error:
        raise ValueError(f"is neither JSON nor JSON lines: {error}") from None
    if not isinstance(found, list):
        raise ValueError("must hold a list of conversations or prompts")
    texts = [text for item in found if (text := _text_of(item)) is not None][:limit]
    if not texts:
        raise ValueError("holds no prompt: expected conversations of two turns, texts, or objects with prompt")
    return texts


def _read(raw: str) -> Any:
    try:
        found = json.loads(raw)
    except ValueError:
        lines = [line for line in raw.splitlines() if line.strip()]
        if len(lines) < 2:
            raise
        return [json.loads(line) for line in lines]
    # One line of JSON lines is an object of its own.
    return [found] if isinstance(found, Mapping) and ("prompt" in found or "conversations" in found) else found


def _text_of(item: Any) -> str | None:
    if isinstance(item, Mapping):
        turns = item.get("conversations")
        if isinstance(turns, list):
            first = turns[0] if len(turns) >= 2 else None
            item = first.get("value") if isinstance(first, Mapping) else None
        else:
            item = item.get("prompt")
    return item[:MAX_TEXT] if isinstance(item, str) and item.strip() else None
