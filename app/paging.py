"""Opaque ids and page tokens.

A page token is the sort key of the last row, bound to the list that handed it out.

A token of another list, a truncated one or an invented one is refused (400); the checksum tells mistakes, it is no
secret: the values only ever become bound SQL parameters.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Sequence

from app.errors import BadToken, NotFound

DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 500

CursorValue = str | int | float | None


def encode_cursor(list_name: str, values: Sequence[CursorValue]) -> str:
    """A token for the page after the row with these sort values. `list_name` must include filters and order."""
    body = json.dumps(list(values), separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(_check(list_name, body) + body).decode().rstrip("=")


def decode_cursor(list_name: str, token: str) -> list[CursorValue]:
    """The values of `encode_cursor`. Raises BadToken for anything else."""
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        check, body = raw[:8], raw[8:]
        if check != _check(list_name, body):
            raise ValueError
        values = json.loads(body)
    except (ValueError, binascii.Error) as error:
        raise BadToken(
            f"page_token {token[:40]!r} was not handed out by this list with these filters; start again without it"
        ) from error
    if not isinstance(values, list):
        raise BadToken("page_token is damaged; start again without it")
    return values


def _check(list_name: str, body: bytes) -> bytes:
    return hashlib.sha256(list_name.encode() + b"\0" + body).digest()[:8]


def parse_id(kind: str, text: str) -> int:
    """The row id behind an opaque id. Whatever names nothing, however formed, is NotFound."""
    if not text.isascii() or not text.isdecimal() or len(text) > 18 or (text.startswith("0") and text != "0"):
        raise NotFound.of(kind, text[:80])
    return int(text)
