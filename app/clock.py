"""The one source of time. Domain code takes a `Clock`; only the edges make a real one."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from datetime import UTC, datetime

#: Epoch seconds, UTC.
Clock = Callable[[], float]

system_clock: Clock = time.time


@functools.lru_cache(maxsize=4096)  # of a fleet a page writes thousands, most of them the same as a moment ago
def iso(seconds: float | None) -> str | None:
    """RFC 3339 in UTC with milliseconds, ``2026-11-30T08:12:02.125Z``; None stays None.

    A time that no calendar holds (from a file or a server that lies) is None too: one such value must never take a
    whole list down.
    """
    if seconds is None:
        return None
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def iso_ns(nanoseconds: int | None) -> str | None:
    """RFC 3339 of a file time in integer nanoseconds."""
    try:
        return None if nanoseconds is None else iso(nanoseconds / 1e9)
    except OverflowError:
        return None


def parse_iso(text: str) -> float:
    """Epoch seconds of an RFC 3339 text. A text without an offset is refused: it would be a guess.

    Raises ValueError with a sentence for the user.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not an RFC 3339 time such as 2026-11-30T08:12:02Z") from error
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no UTC offset; end it with Z, as in 2026-11-30T08:12:02Z")
    return moment.timestamp()
