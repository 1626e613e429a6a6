"""Geometry of one line over a logarithmic axis, such as a time against a number of records. Pure, as `app.web.svg`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from app.web.svg import nice_step, position


@dataclass(frozen=True)
class Point:
    """One measured point: where it lies (percent from the left, from the top) and what it says."""

    x: float
    y: float
    at: float
    value: float


@dataclass(frozen=True)
class Curve:
    """Points in the order of the axis, the segments between neighbours, ticks as (value, percent)."""

    points: tuple[Point, ...]
    segments: tuple[tuple[Point, Point], ...]
    across: tuple[tuple[float, float], ...]
    up: tuple[tuple[float, float], ...]


def log_curve(pairs: Sequence[tuple[float, float | None]]) -> Curve | None:
    """`pairs`: (at > 0, value). A value nobody knows is no point, and no line goes over it. None below two points.

    The value axis starts at 0: a flat line is to look flat.
    """
    placed = sorted((at, value) for at, value in pairs if at > 0)
    known = [value for _, value in placed if value is not None and math.isfinite(value)]
    if len(known) < 2 or placed[0][0] == placed[-1][0]:
        return None
    step = nice_step(max(known), 4)
    top = max(math.ceil(max(known) / step), 1) * step
    first, last = math.log10(placed[0][0]), math.log10(placed[-1][0])
    drawn = [
        None
        if value is None or not math.isfinite(value)
        else Point(position(math.log10(at), first, last), round(100 - position(value, 0, top), 3), at, value)
        for at, value in placed
    ]
    steps = [i * step for i in range(round(top / step) + 1)]
    return Curve(
        points=tuple(point for point in drawn if point),
        segments=tuple((a, b) for a, b in pairwise(drawn) if a and b),
        across=tuple((at, position(math.log10(at), first, last)) for at, _ in placed),
        up=tuple((round(v, 6), round(100 - position(v, 0, top), 3)) for v in steps),
    )
