"""What readiness is judged from, and small arithmetic on it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Point = tuple[float, float | None]


@dataclass(frozen=True)
class SoakFacts:
    """How a pair ran over the last days. Times are epoch seconds, memory bytes; None = not known.

    `up_server`, `up_engine`: (start of a bucket, 1 if every poll in it was answered, 0 if one was not). `restarts` are
    those seen in the window, of both. `failures` counts loads from L2 that failed since the server started.
    """

    window: float
    step: float
    up_server: Sequence[Point] = ()
    up_engine: Sequence[Point] = ()
    started: float | None = None
    restarts: int | None = None
    outages: Sequence[tuple[float, str]] = ()
    failures: float | None = None
    memory_server: Sequence[Point] = ()
    memory_engine: Sequence[Point] = ()


@dataclass(frozen=True)
class DiskFacts:
    """One store of the server. `bounded_by`: policies that keep it from growing; `evicts`: whether its adapter does."""

    store_id: str
    name: str
    scanned_at: float | None
    growth_per_hour: float | None
    full_in_hours: float | None
    bounded_by: Sequence[str] = ()
    evicts: bool | None = None
    reason: str | None = None


def slope_per_hour(points: Sequence[Point], since: float) -> tuple[float, float] | None:
    """(growth an hour, last value) by least squares over what is known from `since` on; None with fewer than three
    points or less than an hour of them."""
    known = [(at, value) for at, value in points if value is not None and at >= since]
    if len(known) < 3 or known[-1][0] - known[0][0] < 3600:
        return None
    mean_at = sum(at for at, _ in known) / len(known)
    mean_value = sum(value for _, value in known) / len(known)
    spread = sum((at - mean_at) ** 2 for at, _ in known)
    slope = sum((at - mean_at) * (value - mean_value) for at, value in known) / spread
    return slope * 3600, known[-1][1]


def seen_hours(points: Sequence[Point], step: float, since: float) -> float:
    """Hours of polls that were answered, from `since` on."""
    return sum(1 for at, value in points if value == 1 and at >= since) * step / 3600
