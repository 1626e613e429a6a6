"""Geometry of the server-drawn pictures. Pure: numbers in, numbers and path texts out; the macros draw them.

Paths use a viewBox that stretches; everything that must not stretch (dots, marks) is placed in percent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

TIERS = ("l0", "l1", "l2", "rc")


@dataclass(frozen=True)
class Segment:
    """A part of a stacked bar; `x` and `width` in percent of the bar."""

    key: str
    x: float
    width: float


@dataclass(frozen=True)
class Ribbon:
    """One band of the token picture, from the source bar to its lane."""

    tier: str
    share: float
    path: str
    end_y: float
    end_height: float


@dataclass(frozen=True)
class Flow:
    """The token picture; `height` is that of the viewBox, whose width is 100."""

    ribbons: tuple[Ribbon, ...]
    height: float
    source_y: float
    source_height: float


@dataclass(frozen=True)
class Sparkline:
    """A line with gaps. `lines` and `areas` are path texts for a viewBox of 100 by `height`."""

    lines: tuple[str, ...]
    areas: tuple[str, ...]
    height: float
    low: float
    high: float
    last_x: float | None  # percent
    last_y: float | None  # percent


@dataclass(frozen=True)
class Dots:
    """One row of a distribution: positions in percent."""

    label: str
    dots: tuple[float, ...]
    low: float
    high: float
    median: float


@dataclass(frozen=True)
class Distribution:
    """Rows over one common axis from `minimum` to `maximum`."""

    rows: tuple[Dots, ...]
    minimum: float
    maximum: float
    ticks: tuple[tuple[float, float], ...]  # (value, percent)


def clamp(value: float, low: float = 0.0, high: float = 100.0) -> float:
    """`value` inside [low, high]; NaN becomes `low`."""
    if math.isnan(value):
        return low
    return min(max(value, low), high)


def ratio(value: float | None, whole: float | None) -> float | None:
    """value / whole; None where either is unknown or the whole is not positive."""
    if value is None or whole is None or whole <= 0:
        return None
    return value / whole


def stack(parts: Sequence[tuple[str, float]], whole: float, *, minimum: float = 0.6) -> tuple[Segment, ...]:
    """Parts of a stacked bar. A part that is not zero gets at least `minimum` percent, so that it can be seen."""
    if whole <= 0:
        return ()
    wanted = [(key, max(value / whole * 100, minimum)) for key, value in parts if value > 0]
    total = sum(width for _, width in wanted)
    shrink = 100 / total if total > 100 else 1.0
    segments, x = [], 0.0
    for key, width in wanted:
        segments.append(Segment(key, round(x, 3), round(width * shrink, 3)))
        x += width * shrink
    return tuple(segments)


def flow(shares: Mapping[str, float], *, height: float = 256.0, gap: float = 3.0) -> Flow:
    """The token picture: one ribbon for each of l0, l1, l2, rc (shares 0..1, their sum at most 1).

    Every tier keeps its lane of a quarter of the height, so that nothing moves but the ribbons when numbers change.
    """
    lane = height / len(TIERS)
    thickness = height * 0.56
    present = [t for t in TIERS if shares.get(t, 0.0) > 0]
    source_height = thickness + gap * max(len(present) - 1, 0)
    start = (height - source_height) / 2
    ends = _lanes([(TIERS.index(t), clamp(shares[t], 0, 1) * thickness) for t in present], lane, height)
    ribbons, y = [], start
    for tier, (end_y, _) in zip(present, ends, strict=True):
        share = clamp(shares[tier], 0, 1)
        size = max(share * thickness, 1.5)
        ribbons.append(Ribbon(tier, share, _band(y, end_y, size), round(end_y, 2), round(size, 2)))
        y += size + gap
    return Flow(tuple(ribbons), height, round(start, 2), round(source_height, 2))


def _lanes(items: Sequence[tuple[int, float]], lane: float, height: float) -> list[tuple[float, float]]:
    """Top and size of each ribbon's end: centred in its lane, pushed apart and back inside where they are too thick."""
    placed: list[tuple[float, float]] = []
    floor = 0.0
    for index, size in items:
        top = max((index + 0.5) * lane - size / 2, floor)
        placed.append((top, size))
        floor = top + size + 1
    ceiling = height
    for i in range(len(placed) - 1, -1, -1):
        top, size = placed[i]
        top = max(min(top, ceiling - size), 0.0)
        placed[i] = (top, size)
        ceiling = top - 1
    return placed


def _band(y0: float, y1: float, size: float) -> str:
    a, b, c, d = (f"{v:.2f}" for v in (y0, y1, y1 + size, y0 + size))
    return f"M0 {a}C52 {a} 46 {b} 100 {b}V{c}C46 {c} 52 {d} 0 {d}Z"


def sparkline(
    points: Sequence[float | None], *, height: float = 40.0, low: float | None = None, high: float | None = None
) -> Sparkline:
    """A line over equally spaced points; None leaves a gap. The scale is the data's unless given."""
    known = [p for p in points if p is not None and math.isfinite(p)]
    if not known:
        return Sparkline((), (), height, 0.0, 0.0, None, None)
    bottom = min(known) if low is None else low
    top = max(known) if high is None else high
    span = (top - bottom) or 1.0
    step = 100 / max(len(points) - 1, 1)
    runs: list[list[tuple[float, float]]] = [[]]
    for i, value in enumerate(points):
        if value is None or not math.isfinite(value):
            runs.append([])
        else:
            flat = height if low is not None and value <= low else height / 2
            y = height - clamp((value - bottom) / span, 0, 1) * height if top > bottom else flat
            runs[-1].append((round(i * step, 2), round(y, 2)))
    runs = [run for run in runs if run]
    lines = tuple(
        # A single known point between gaps still has to be seen.
        "M" + "L".join(f"{x:g} {y:g}" for x, y in (run if len(run) > 1 else [run[0], (run[0][0] + 0.3, run[0][1])]))
        for run in runs
    )
    areas = tuple(
        f"M{run[0][0]:g} {height:g}L" + "L".join(f"{x:g} {y:g}" for x, y in run) + f"L{run[-1][0]:g} {height:g}Z"
        for run in runs
    )
    ends_known = points[-1] is not None and math.isfinite(points[-1])
    last = runs[-1][-1] if ends_known else None
    return Sparkline(
        lines,
        areas,
        height,
        bottom,
        top,
        last[0] if last else None,
        round(last[1] / height * 100, 2) if last else None,
    )


def stacked(
    layers: Sequence[tuple[str, Sequence[float | None]]], *, height: float = 40.0, high: float = 1.0
) -> tuple[tuple[str, str], ...]:
    """Areas on top of each other, bottom first: (key, path text). A point unknown in any layer is a gap in all."""
    if not layers or high <= 0:
        return ()
    count = min(len(points) for _, points in layers)
    step = 100 / max(count - 1, 1)
    below = [0.0] * count
    known = [all(p[i] is not None and math.isfinite(p[i] or 0.0) for _, p in layers) for i in range(count)]
    paths: list[tuple[str, str]] = []
    for key, points in layers:
        above = [b + (points[i] or 0.0) if known[i] else b for i, b in enumerate(below)]
        for start, end in _runs(known):
            upper = [(i * step, _y(above[i], high, height)) for i in range(start, end)]
            lower = [(i * step, _y(below[i], high, height)) for i in reversed(range(start, end))]
            paths.append((key, "M" + "L".join(f"{x:.2f} {y:.2f}" for x, y in upper + lower) + "Z"))
        below = above
    return tuple(paths)


def _y(value: float, high: float, height: float) -> float:
    return height - clamp(value / high, 0, 1) * height


def _runs(known: Sequence[bool]) -> list[tuple[int, int]]:
    runs, start = [], None
    for i, ok in enumerate([*known, False]):
        if ok and start is None:
            start = i
        elif not ok and start is not None:
            runs.append((start, i))
            start = None
    return runs


def position(value: float, start: float, end: float) -> float:
    """Where `value` lies between `start` and `end`, in percent, clamped."""
    return 0.0 if end <= start else round(clamp((value - start) / (end - start) * 100), 3)


def distribution(rows: Sequence[tuple[str, Sequence[float]]]) -> Distribution | None:
    """Dots of every arm over one axis that starts at 0; None when there is no value at all."""
    values = [v for _, items in rows for v in items if math.isfinite(v)]
    if not values:
        return None
    step = nice_step(max(values), 5)
    maximum = math.ceil(max(values) / step) * step
    ticks = tuple((round(i * step, 6), position(i * step, 0, maximum)) for i in range(round(maximum / step) + 1))
    drawn = []
    for label, items in rows:
        finite = sorted(v for v in items if math.isfinite(v))
        if finite:
            middle = len(finite) // 2
            median = finite[middle] if len(finite) % 2 else (finite[middle - 1] + finite[middle]) / 2
            drawn.append(
                Dots(
                    label,
                    tuple(position(v, 0, maximum) for v in finite),
                    position(finite[0], 0, maximum),
                    position(finite[-1], 0, maximum),
                    position(median, 0, maximum),
                )
            )
    return Distribution(tuple(drawn), 0.0, maximum, ticks)


def nice_step(maximum: float, steps: int) -> float:
    """A round step (1, 2, 2.5 or 5 times a power of ten) so that about `steps` of them reach `maximum`."""
    if maximum <= 0 or not math.isfinite(maximum):
        return 1.0
    rough = maximum / steps
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * f for f in (1, 2, 2.5, 5, 10) if power * f >= rough * 0.9999)


class Reading(Protocol):
    """One reading-back of a canary."""

    @property
    def at(self) -> str: ...

    @property
    def outcome(self) -> str: ...

    @property
    def max_abs_difference(self) -> float | None: ...


@dataclass(frozen=True)
class Beat:
    """One bar, in percent of the picture. `value` is what its height shows."""

    x: float
    y: float
    width: float
    height: float
    outcome: str
    at: str
    value: float | None


@dataclass(frozen=True)
class Beats:
    """Bars over time and what the full height stands for."""

    bars: tuple[Beat, ...]
    maximum: float


#: A bar that shows nothing measured still has to be seen, and so has one of zero.
LOWEST_BAR = 18.0
#: Differences are drawn against at least this many nat (the usual tolerance): noise must not look like a fault.
LOWEST_SCALE = 0.1


def beats(history: Sequence[Reading], *, most: int = 60) -> Beats:
    """The last readings as bars, oldest first: as high as the largest difference, full where none was measured."""
    shown = history[-most:]
    known = [r.max_abs_difference for r in shown if r.max_abs_difference is not None]
    maximum = max([*known, LOWEST_SCALE])
    slot = 100 / max(len(shown), 20)
    bars = []
    for i, reading in enumerate(shown):
        value = reading.max_abs_difference
        part = 1.0 if value is None else clamp(value / maximum, 0, 1)
        height = LOWEST_BAR + (100 - LOWEST_BAR) * part
        bars.append(
            Beat(
                round(i * slot, 3),
                round(100 - height, 2),
                round(slot * 0.7, 3),
                round(height, 2),
                reading.outcome,
                reading.at,
                value,
            )
        )
    return Beats(tuple(bars), maximum)


class Happened(Protocol):
    """What a chart marks: when (RFC 3339), how it is coloured, and what it was."""

    @property
    def at(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def text(self) -> str: ...


def marks(events: Sequence[Happened]) -> list[tuple[str, str, str]]:
    """(time, kind, text) of what the charts of a page mark, oldest first."""
    return sorted((event.at, event.kind, event.text) for event in events)
