"""Careful reading of JSON that a target sent: a value of the wrong type is unknown (`None`), never a crash.

Numbers keep within what a database column holds (64 bits), texts are valid Unicode without NUL and of bounded length:
names from servers end up in rows, on pages and in file names.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from app.errors import TargetError

MAX_DEPTH = 64
MAX_TEXT = 4096
_INT64 = 2**63


def loads(body: bytes | str, what: str, *, max_depth: int = MAX_DEPTH) -> object:
    """Parse JSON; `what` names the answer in the message (``"/status of http://…"``).

    Raises TargetError ``unreadable`` for anything that is not JSON or nests deeper than `max_depth`.
    """
    try:
        value: object = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise TargetError("unreadable", f"{what} is not JSON: {_reason(error)}") from error
    brackets = body.count(b"[") + body.count(b"{") if isinstance(body, bytes) else body.count("[") + body.count("{")
    if brackets > max_depth and _depth_exceeds(value, max_depth):
        raise TargetError("unreadable", f"{what} nests deeper than {max_depth} levels")
    return value


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos}"
    if isinstance(error, RecursionError):
        return "it nests too deeply"
    return "the bytes are not valid text" if isinstance(error, UnicodeError) else "a number in it is too long"


def _depth_exceeds(value: object, limit: int) -> bool:
    level: list[object] = [value]
    for _ in range(limit):
        deeper: list[object] = []
        for item in level:
            if isinstance(item, dict):
                deeper.extend(item.values())
            elif isinstance(item, list):
                deeper.extend(item)
        if not deeper:
            return False
        level = deeper
    return any(isinstance(item, (dict, list)) for item in level)


def mapping(value: object) -> Mapping[str, object]:
    """The value if it is a JSON object, else an empty one (use `isinstance` where absence matters)."""
    return value if isinstance(value, dict) else {}


def sequence(value: object) -> list[object]:
    """The value if it is a JSON array, else an empty one."""
    return value if isinstance(value, list) else []


def clean_text(value: str) -> str:
    """Valid Unicode without NUL: lone surrogates (legal in JSON escapes) and NUL become U+FFFD."""
    if value.isascii():
        return value.replace("\0", "\N{REPLACEMENT CHARACTER}")
    sound = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return sound.replace("\0", "\N{REPLACEMENT CHARACTER}")


def text(value: object, *, limit: int = MAX_TEXT) -> str | None:
    """A cleaned string, or None when it is not one or longer than `limit` (cutting a name would make another name)."""
    if not isinstance(value, str) or len(value) > limit:
        return None
    return clean_text(value)


def integer(value: object) -> int | None:
    """A whole number within 64 bits; ``3.0`` counts, booleans and texts do not."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        value = int(value) if value.is_integer() else None
    if isinstance(value, int) and -_INT64 <= value < _INT64:
        return value
    return None


def count(value: object) -> int | None:
    """A whole number from 0."""
    number_ = integer(value)
    return number_ if number_ is not None and number_ >= 0 else None


def number(value: object) -> float | None:
    """A finite float; booleans and texts are none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if math.isfinite(result) else None


def plausible(value: float) -> bool:
    """Whether a counter or a gauge can have this value: finite, not below zero, within 64 bits."""
    return 0 <= value < _INT64


def share(value: float | None) -> float | None:
    """A ratio from 0 to 1; a hair above is rounding, anything else is nonsense and unknown."""
    return min(1.0, value) if value is not None and 0 <= value <= 1 + 1e-6 else None


def ratio(value: object) -> float | None:
    """A number from 0 to 1."""
    return share(number(value))


def boolean(value: object) -> bool | None:
    """True or False only if it is exactly that."""
    return value if isinstance(value, bool) else None


def whole_number_text(value: str | None) -> int | None:
    """An integer printed as a label value (``"512"``); ``"None"``, ``""`` and anything else is unknown."""
    if value is None or len(value) > 20 or not value.isascii() or not value.lstrip("-").isdigit():
        return None
    try:
        return integer(int(value))
    except ValueError:
        return None
