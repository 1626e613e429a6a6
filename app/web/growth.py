"""How soon a store is full, and whether its growth is steady enough to say so. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from app.clock import parse_iso
from app.records.schemas import GrowthPointView, SummaryView
from app.web.words import CLASS_ORDER

#: A slope whose standard error is above this part of it says little about next week.
STEADY = 0.25
_LEAST_POINTS = 4


@dataclass(frozen=True)
class Outlook:
    """`hours` until full at the growth of the last scans (None: not foreseen). `steady`: whether the scans lie on a
    line; else `soonest` and `latest` are the hours at twice the standard error (latest None: maybe never)."""

    hours: float | None
    steady: bool = False
    soonest: float | None = None
    latest: float | None = None
    reason: str = ""


def outlook(summary: SummaryView, points: Sequence[GrowthPointView]) -> Outlook:
    """The outlook of a store by its summary and what was on it at the end of each scan, oldest first."""
    growth, hours = summary.growth_bytes_per_hour, summary.full_in_hours
    if growth is None or hours is None or growth <= 0:
        return Outlook(None, reason=summary.growth_reason or "")
    error = _standard_error(points)
    if error is None:
        return Outlook(hours, reason="fewer than four scans: too few to tell how steady the growth is")
    if error <= STEADY * growth:
        return Outlook(hours, steady=True)
    low, high = growth - 2 * error, growth + 2 * error
    room = hours * growth
    return Outlook(
        hours,
        soonest=room / high,
        latest=room / low if low > 0 else None,
        reason="the growth between the last scans differs much",
    )


def _standard_error(points: Sequence[GrowthPointView]) -> float | None:
    """Of the slope, in bytes an hour; what went away between two scans does not count as shrinking."""
    xs: list[float] = []
    ys: list[float] = []
    before = 0.0
    for point in points:
        count = point.by_class.get("total")
        if count is None:
            continue
        grown = ys[-1] + max(0.0, count.bytes - before) if ys else float(count.bytes)
        before = float(count.bytes)
        xs.append(parse_iso(point.at) / 3600)
        ys.append(grown)
    if len(xs) < _LEAST_POINTS:
        return None
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    if spread == 0:
        return None
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    rest = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in zip(xs, ys, strict=True))
    return math.sqrt(rest / (len(xs) - 2) / spread)


@dataclass(frozen=True)
class ClassLayers:
    """Bytes by class over the last scans, as parts of `high` (bytes, the largest sum), bottom first; no pins."""

    layers: tuple[tuple[str, tuple[float, ...]], ...] = ()
    high: int = 0
    first: str | None = None
    last: str | None = None
    pins: tuple[object, ...] = ()


def class_layers(points: Sequence[GrowthPointView]) -> ClassLayers:
    """What a chart of bytes by class shows; nothing before the second scan. `points`: oldest first."""
    if len(points) < 2:
        return ClassLayers()
    sizes = {
        key: [point.by_class[key].bytes if key in point.by_class else 0 for point in points]
        for key in CLASS_ORDER
        if key != "foreign"
    }
    high = max(sum(column) for column in zip(*sizes.values(), strict=True))
    if high <= 0:
        return ClassLayers()
    layers = tuple((key, tuple(v / high for v in values)) for key, values in sizes.items() if any(values))
    return ClassLayers(layers, high, points[0].at, points[-1].at)
