"""The operator's own prompts as they are typed or stand in a file. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from app.errors import InvalidInput


def prompts_in(text: str, *, field: str) -> list[Any]:
    """JSON (a list of texts or of objects as `prompts` of POST /acceptance-runs), JSON lines, or one prompt a line.

    Raises InvalidInput naming `field`, with the line, for what begins as JSON and is none.
    """
    stripped = text.strip()
    if stripped.startswith("["):
        return as_prompts(_json(stripped, field, ""), field)
    if stripped.startswith("{"):
        return json_lines(stripped, field)
    return as_prompts([line.strip() for line in stripped.splitlines() if line.strip()], field)


def json_lines(text: str, field: str) -> list[Any]:
    """Prompts of a text with one JSON value a line. Raises InvalidInput naming `field` and the line."""
    lines = enumerate(text.splitlines(), 1)
    return as_prompts([_json(line, field, f"line {n}: ") for n, line in lines if line.strip()], field)


def as_prompts(found: Any, field: str) -> list[Any]:
    """A list of objects from what was read. Raises InvalidInput naming `field`."""
    if isinstance(found, Mapping) and set(found) == {"prompts"}:
        found = found["prompts"]
    if not isinstance(found, list) or not found:
        raise InvalidInput.field(field, "must hold a list of prompts")
    return [{"prompt": p} if isinstance(p, str) else p for p in found]


def _json(text: str, field: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidInput.field(field, f"{where}is no JSON: {error}") from None
