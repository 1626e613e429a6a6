"""Geometry of the strip chart: one row a pass, every request a dot, in the order of asking. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.acceptance.stats import quantile

WIDTH, HEIGHT = 100.0, 40.0


@dataclass(frozen=True)
class Strip:
    """One row. `path` has a dot for each request (viewBox 100 by 40), `median_y` the height of its median in percent.

    `highest` is the value of the upper edge, the same for all rows, milliseconds.
    """

    label: str
    path: str
    count: int
    median: float | None
    low: float | None
    high: float | None
    median_y: float | None
    highest: float


def draw(label: str, points: Sequence[tuple[int, float]], highest: float) -> Strip:
    """A row of (position, milliseconds). Dots are strokes of almost no length: stretching does not deform them."""
    values = [ms for _, ms in points]
    last = max((position for position, _ in points), default=0)
    parts: list[str] = []
    for position, ms in sorted(points):
        x = WIDTH / 2 if last == 0 else 1 + position / last * (WIDTH - 2)
        parts.append(f"M{x:.1f} {_y(ms, highest):.1f}h.01")
    middle = quantile(values, 0.5)
    return Strip(
        label=label,
        path="".join(parts),
        count=len(values),
        median=middle,
        low=min(values, default=None),
        high=max(values, default=None),
        median_y=None if middle is None else round(_y(middle, highest) / HEIGHT * 100, 2),
        highest=highest,
    )


def _y(ms: float, highest: float) -> float:
    share = ms / highest if highest > 0 else 0.0
    return HEIGHT - 2 - min(max(share, 0.0), 1.0) * (HEIGHT - 4)
