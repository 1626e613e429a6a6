"""When a store is full, in one wording for every page, and the chart of its classes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.records.schemas import GrowthPointView, SummaryView
from app.web import formats
from app.web.words import CLASS_ORDER

#: A growth that may be this part of itself off (twice its standard error) still makes a forecast.
STEADY = 0.5
_LEAST_SCANS = 4


@dataclass(frozen=True)
class Outlook:
    """`hours` until full at the growth of the last scans (None: not foreseen; `reason` says why). `steady`: the scans
    lie on a line; else it nearly always takes `soonest` to `latest` hours (latest None: maybe never), where known."""

    hours: float | None
    steady: bool = False
    soonest: float | None = None
    latest: float | None = None
    reason: str = ""

    @property
    def text(self) -> str:
        """How long: ``3.4 d``, ``2 d to 9 d``, ``2 d or longer``, ``about 3.4 d`` or ``not foreseen``."""
        if self.hours is None:
            return "not foreseen"
        if self.steady:
            return _span(self.hours)
        if self.soonest is None:
            return f"about {_span(self.hours)}"
        if self.latest is None:
            return f"{_span(self.soonest)} or longer"
        return f"{_span(self.soonest)} to {_span(self.latest)}"


def _span(hours: float) -> str:
    return formats.duration(hours * 3600)


def outlook(summary: SummaryView) -> Outlook:
    """The outlook of a store, by its summary alone."""
    growth, hours = summary.growth_bytes_per_hour, summary.full_in_hours
    if growth is None or hours is None or growth <= 0:
        reason = summary.growth_reason or ("it does not grow" if growth is not None else "")
        return Outlook(None, reason=reason)
    pace = f"growing by {formats.disk(growth)} an hour"
    error = summary.growth_error_bytes_per_hour
    if error is None:
        return Outlook(hours, reason=f"{pace}; two scans cannot tell how steadily")
    by = f"by {summary.growth_scans} scans"
    if error <= STEADY * growth and summary.growth_scans >= _LEAST_SCANS:
        return Outlook(hours, steady=True, reason=f"{pace}, {by}")
    return Outlook(
        hours,
        soonest=summary.full_in_hours_soonest,
        latest=summary.full_in_hours_latest,
        reason=f"{pace}, give or take {formats.disk(error)}, {by}",
    )


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
