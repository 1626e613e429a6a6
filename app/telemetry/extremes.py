"""Lowest and highest of each bucket of a chart, so that what was short survives the mean."""

from __future__ import annotations

import math

from sqlalchemy.orm import Session

from app.telemetry.history import Bucket, Request, buckets, series_ids, value_of
from app.telemetry.metrics import Metric


def extremes(
    session: Session, kind: str, target_id: int, request: Request
) -> tuple[list[float | None], list[float | None]] | None:
    """Lowest and highest of each bucket, so that a spike survives; None where there are no buckets, or for a ratio or
    a mean (what each poll's was is not kept). Of a gauge they are exact; of a rate they are what was surely reached:
    some poll was at least as high, and some poll at most as low."""
    metric = request.metric
    if request.step == 0.0 or metric.kind not in ("gauge", "rate"):
        return None
    ids = series_ids(session, kind, target_id, (metric.series, *metric.divisor))
    sums = buckets(session, list(ids.values()), request.start, request.end, request.step, request.source)
    step = round(request.step * 1000)
    numbers = range(math.floor(request.start * 1000 / step), math.ceil(request.end * 1000 / step))
    found = [_limits(metric, {name: sums[i].get(number * step) for name, i in ids.items()}) for number in numbers]
    return [low for low, _ in found], [high for _, high in found]


def _limits(metric: Metric, cells: dict[str, Bucket | None]) -> tuple[float | None, float | None]:
    mean, main = value_of(metric, cells), cells.get(metric.series)
    if mean is None or main is None:
        return None, None
    if metric.kind == "gauge":
        return main.min, main.max
    seconds = cells.get(metric.divisor[0])
    if seconds is None or seconds.min <= 0:
        return mean, mean
    low, high = min(mean, main.min / seconds.min), max(mean, main.max / seconds.max)
    return (low, min(1.0, high)) if metric.unit == "ratio" else (low, high)
