"""A sliding window of increments, kept in a few slices so that it can be stored with the snapshot. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.telemetry.packed import pack, plain

WINDOW_SECONDS = 300.0
#: The window is kept in at most about this many slices, whatever the poll interval.
SLICES = 30


@dataclass(frozen=True, slots=True)
class Slice:
    """Increments within (start, end], epoch seconds. A value that is None is not known for this span."""

    start: float
    end: float
    values: Mapping[str, float | None]


def push(window: Sequence[Slice], new: Slice, *, seconds: float = WINDOW_SECONDS) -> tuple[Slice, ...]:
    """The window after one more slice: short neighbours are merged, what ends before the window is dropped."""
    kept = [s for s in window if s.end > new.end - seconds and s.end <= new.start + 1e-6]
    if kept and kept[-1].end >= new.start - 1e-6 and new.end - kept[-1].start <= seconds / SLICES:
        last = kept.pop()
        names = dict.fromkeys([*last.values, *new.values])  # in one order, so that they are held once
        merged = {name: _plus(last.values.get(name), new.values.get(name)) for name in names}
        new = Slice(last.start, new.end, merged)
    before = kept[-1].values if kept else None
    return (*kept, Slice(new.start, new.end, pack(plain(new.values), before)))


def expire(window: Sequence[Slice], now: float, *, seconds: float = WINDOW_SECONDS) -> tuple[Slice, ...]:
    """The slices that still count at `now`."""
    return tuple(s for s in window if now - seconds < s.end <= now + 1.0)


def total(window: Sequence[Slice], name: str) -> float | None:
    """The sum of one value, None as soon as one slice does not know it or there is no slice."""
    return _sum(s.values.get(name) for s in window) if window else None


def covered_seconds(window: Sequence[Slice]) -> float:
    """The time the slices cover."""
    return sum(s.end - s.start for s in window)


def to_json(window: Sequence[Slice]) -> list[Any]:
    return [[s.start, s.end, plain(s.values)] for s in window]


def from_json(stored: object) -> tuple[Slice, ...]:
    """Reads back what `to_json` gave; anything else is an empty window (it only fills again)."""
    if not isinstance(stored, list):
        return ()
    try:
        found: list[Slice] = []
        for start, end, values in stored:
            before = found[-1].values if found else None
            found.append(Slice(float(start), float(end), pack(dict(values), before)))
        return tuple(found)
    except (TypeError, ValueError):
        return ()


def _plus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a + b


def _sum(values: Iterable[float | None]) -> float | None:
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total
