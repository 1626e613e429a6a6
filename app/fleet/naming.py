"""Names of targets: given ones are checked, missing ones are made from the host or the directory."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection

from app.errors import InvalidInput

_LABEL_KEY = re.compile(r"^[A-Za-z][A-Za-z0-9_./-]{0,62}$")
_HEADER_NAME = re.compile(r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}$")
# They are ours, or decide where a request ends up or how it is framed.
_FORBIDDEN_HEADERS = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "cookie", "upgrade", "te", "trailer", "expect"}
)


def check_name(name: str) -> str:
    """The name as stored: trimmed, visible, one line. Raises InvalidInput naming ``name``."""
    cleaned = unicodedata.normalize("NFC", name.strip())
    if not cleaned:
        raise InvalidInput.field("name", "is empty; give a name or leave it out to use the host")
    if len(cleaned) > 120:
        raise InvalidInput.field("name", "is longer than 120 characters")
    if any(unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") for c in cleaned):
        raise InvalidInput.field("name", f"{cleaned!r} has invisible or control characters in it")
    return cleaned


def free_name(wanted: str, taken: Collection[str], alternative: str | None = None) -> str:
    """`wanted`, or `alternative`, or `wanted` with a number: the first that is free (letter case does not count)."""
    used = {name.casefold() for name in taken}
    wanted = wanted[:110]
    for name in (wanted, alternative):
        if name and name.casefold() not in used:
            return name[:120]
    number = 2
    while f"{wanted}-{number}".casefold() in used:
        number += 1
    return f"{wanted}-{number}"


def check_labels(labels: dict[str, str]) -> dict[str, str]:
    """Labels as stored. Raises InvalidInput naming the label."""
    for key, value in labels.items():
        if not _LABEL_KEY.match(key):
            raise InvalidInput.field("labels", f"{key[:80]!r} must be letters, digits and _ . / - after a letter")
        if len(value) > 200 or any(unicodedata.category(c) in ("Cc", "Cs") for c in value):
            raise InvalidInput.field(f"labels.{key}", "must be one line of at most 200 characters")
    return dict(labels)


def check_headers(headers: dict[str, str]) -> dict[str, str]:
    """Extra request headers as stored. Raises InvalidInput naming the header, never showing its value."""
    for name, value in headers.items():
        if not _HEADER_NAME.match(name):
            raise InvalidInput.field("headers", f"{name[:80]!r} is no header name")
        if name.lower() in _FORBIDDEN_HEADERS:
            raise InvalidInput.field(f"headers.{name}", "is set by the panel itself and cannot be given")
        if len(value) > 4000 or not value.isascii() or any(ord(c) < 32 or ord(c) == 127 for c in value):
            raise InvalidInput.field(f"headers.{name}", "must be one line of at most 4,000 ASCII characters")
    return dict(headers)


def check_secret(field: str, value: str | None) -> str | None:
    """An API key as stored. Raises InvalidInput without showing it."""
    if value is None:
        return None
    key = value.strip()
    if not key or not key.isascii() or any(ord(c) <= 32 or ord(c) == 127 for c in key):
        raise InvalidInput.field(field, "must be ASCII without blanks (the value is not shown)")
    return key
