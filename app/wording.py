"""What pydantic says of an input, in the words of a person who filled in a form. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from json import JSONDecodeError
from typing import Any

_WITHOUT_INPUT = frozenset({"not_text", "missing", "json_invalid", "model_attributes_type", "extra_forbidden"})
_PLAIN: Mapping[str, str] = {
    "missing": "is missing",
    "extra_forbidden": "is not a field here",
    "string_type": "must be a text",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "string_too_long": "must have at most {max_length} characters",
}


def location(error: Mapping[str, Any]) -> tuple[str | int, ...]:
    """The field that one item of ``ValidationError.errors()`` is about; a check of the whole body names it itself."""
    return (*error["loc"], *(error.get("ctx") or {}).get("at", ()))


def plain(error: Mapping[str, Any]) -> str:
    """One sentence about one item of ``ValidationError.errors()``, without the value."""
    kind, given = str(error.get("type", "")), error.get("ctx") or {}
    if kind == "json_invalid":
        return f"is no valid JSON ({given.get('error', 'it cannot be read')})"
    if kind in ("string_too_short", "too_short") and given.get("min_length") == 1:
        return "must not be empty"
    if kind == "string_too_short":
        return f"must have at least {given.get('min_length')} characters"
    if kind in ("too_short", "too_long"):
        least = kind == "too_short"
        bound = given.get("min_length") if least else given.get("max_length")
        return f"must have {'at least' if least else 'at most'} {bound} item{'' if bound == 1 else 's'}"
    if kind in _PLAIN:
        try:
            return _PLAIN[kind].format(**given)
        except (KeyError, IndexError, ValueError):
            pass
    return str(error.get("msg", "cannot be used")).removeprefix("Value error, ")


def json_trouble(error: ValueError | RecursionError) -> str:
    """Why a pasted or read text is no JSON, with the place in it."""
    if isinstance(error, JSONDecodeError):
        return f"is no valid JSON: {error.msg} at line {error.lineno}, column {error.colno}"
    return "is no valid JSON: it is nested too deeply, or holds what no text may hold"


def sentence(error: Mapping[str, Any]) -> str:
    """`plain`, with the value that was given where there is one."""
    if error.get("type") in _WITHOUT_INPUT or error.get("input") in ("", None, [], {}):
        return plain(error)
    shown = repr(error.get("input"))
    return f"{plain(error)} (got {shown if len(shown) <= 80 else shown[:77] + '…'})"
