"""Samples as a chart wants them: the right table for the step and the age, gaps as None, ratios exact.

Step and table: below two poll intervals the raw points come as they were polled; a wider step is a bucket that begins
at a multiple of the step. From 5 minutes (or beyond the raw data's age) the 5-minute table is read, from an hour the
hourly one; what is not rolled up yet comes from the finer table, so that the newest points are never missing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.clock import iso
from app.errors import InvalidInput
from app.telemetry.metrics import CATALOGUE, Metric
from app.telemetry.rollup import DEFAULT_KEPT, FIVE_MINUTES, HOUR, Kept, marks
from app.telemetry.tables import Sample1h, Sample5m, SampleRaw, Series

Source = Literal["raw", "5m", "1h"]

DEFAULT_SPAN_SECONDS = 3600.0
MAX_POINTS = 5000
#: The first moment of the year 9999: from there on time zones lead out of the calendar.
_NO_CALENDAR = 253_370_764_800.0
WANTED_POINTS = 300
#: A ratio over less than this is mostly holes: requests come in bursts.
RATIO_STEP_SECONDS = 60.0
#: Raw points further apart than this many poll intervals have a gap between them.
GAP_INTERVALS = 2.5
#: Buckets narrower than this many poll intervals would now and then be empty: the points come as polled instead.
RAW_BELOW_INTERVALS = 2.0
#: A sum counts only if its part of the polls is known: a bucket half of which is unknown has no true ratio.
KNOWN_PART = 0.9
_NICE_STEPS = (10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 604800)


@dataclass(frozen=True)
class Request:
    """One question about one metric. Times are epoch seconds; `step` 0 means raw points as polled."""

    metric: Metric
    start: float
    end: float
    step: float
    source: Source

    @property
    def span(self) -> tuple[float, float, float, Source]:
        """What is read of each series; questions that share it share a query."""
        return self.start, self.end, self.step, self.source


@dataclass(slots=True)
class Bucket:
    """Sums over one span of one series."""

    count: int = 0
    sum: float = 0.0
    min: float = math.inf
    max: float = -math.inf

    def add(self, count: int, total: float, low: float, high: float) -> None:
        self.count += count
        self.sum += total
        self.min = min(self.min, low)
        self.max = max(self.max, high)


def plan(
    kind: str,
    name: str,
    *,
    start: float | None,
    end: float | None,
    step: float | None,
    now: float,
    interval: float,
    kept: Kept = DEFAULT_KEPT,
) -> Request:
    """Checks a question and chooses step and table. Raises InvalidInput naming metric, from, to or step."""
    metric = CATALOGUE[kind].get(name)
    if metric is None:
        known = ", ".join(sorted(CATALOGUE[kind]))
        raise InvalidInput.field("metric", f"{name[:60]!r} is no metric of the kind {kind}; known are {known}")
    end = now if end is None else end
    start = end - DEFAULT_SPAN_SECONDS if start is None else start
    for field, at in (("to", end), ("from", start)):
        if not 0 <= at < _NO_CALENDAR:
            raise InvalidInput.field(field, f"{iso(at) or at} is no time between the years 1970 and 9998")
    if start >= end:
        raise InvalidInput.field("from", f"{iso(start)} is not before `to` ({iso(end)})")
    asked = "from" if step is None else "step"
    if step is not None and (step <= 0 or not math.isfinite(step)):
        raise InvalidInput.field("step", "must be a number of seconds above 0")
    if step is None:
        step = _nice((end - start) / WANTED_POINTS, interval, metric)
    floor = FIVE_MINUTES if now - start > kept.raw else 0
    floor = HOUR if now - start > kept.five_minutes else floor
    step = max(step, floor / 1000)
    if step < RAW_BELOW_INTERVALS * interval and not floor:
        step = 0.0
    if (end - start) / (step or interval) > MAX_POINTS:
        way_out = "a later `from`, or a longer `step`"
        raise InvalidInput.field(asked, f"would give more than {MAX_POINTS} points; choose {way_out}")
    source: Source = "1h" if step * 1000 >= HOUR else "5m" if step * 1000 >= FIVE_MINUTES else "raw"
    if source != "raw":
        # A bucket must be made of whole buckets of its table.
        width = (HOUR if source == "1h" else FIVE_MINUTES) / 1000
        step = math.ceil(step / width) * width
    return Request(metric, start, end, step, source)


def _nice(wanted: float, interval: float, metric: Metric) -> float:
    least = RATIO_STEP_SECONDS if metric.kind == "ratio" else 0.0
    wanted = max(wanted, least)
    if wanted < RAW_BELOW_INTERVALS * interval:
        return interval
    return float(next((step for step in _NICE_STEPS if step >= wanted), _NICE_STEPS[-1]))


def read(
    session: Session, kind: str, target_id: int, request: Request, interval: float
) -> list[tuple[float, float | None]]:
    """The points of one metric, oldest first, as (epoch seconds, value or None)."""
    ids = series_ids(session, kind, target_id, (request.metric.series, *request.metric.divisor))
    if request.metric.series not in ids:
        return _empty(request)
    if request.step == 0.0:
        return _raw_points(_raw_values(session, list(ids.values()), request), ids, request, interval)
    sums = buckets(session, list(ids.values()), request.start, request.end, request.step, request.source)
    return _bucket_points(request, ids, sums)


def read_many(
    session: Session, kind: str, target_ids: Sequence[int], requests: Sequence[Request], interval: float
) -> list[dict[int, list[tuple[float, float | None]]]]:
    """What `read` gives, for many targets and metrics: one query for all their series, one for each span and step (for
    each metric where it is shown as it was polled)."""
    names = {name for request in requests for name in (request.metric.series, *request.metric.divisor)}
    query = select(Series.target_id, Series.metric, Series.id).where(
        Series.target_kind == kind, Series.target_id.in_(target_ids), Series.metric.in_(names)
    )
    ids: dict[int, dict[str, int]] = {ident: {} for ident in target_ids}
    for target_id, name, series_id in session.execute(query):
        ids[target_id][name] = series_id
    wanted: dict[tuple[float, float, float, Source], set[int]] = defaultdict(set)
    for request in requests:
        if request.step:
            wanted[request.span] |= {i for found in ids.values() for i in _of_metric(found, request.metric).values()}
    sums = {span: buckets(session, sorted(series), *span) for span, series in wanted.items()}
    result = []
    for request in requests:
        points = {}
        owned = {target_id: _of_metric(found, request.metric) for target_id, found in ids.items()}
        as_polled: _RawValues = {}
        if not request.step:
            wanted_raw = [i for own in owned.values() if request.metric.series in own for i in own.values()]
            as_polled = _raw_values(session, wanted_raw, request)
        for target_id, own in owned.items():
            if request.step or request.metric.series not in own:
                points[target_id] = _bucket_points(request, own, sums.get(request.span, {}))
            else:
                points[target_id] = _raw_points(as_polled, own, request, interval)
        result.append(points)
    return result


def _of_metric(ids: Mapping[str, int], metric: Metric) -> dict[str, int]:
    return {name: ids[name] for name in (metric.series, *metric.divisor) if name in ids}


def _bucket_points(
    request: Request, ids: dict[str, int], sums: dict[int, dict[int, Bucket]]
) -> list[tuple[float, float | None]]:
    if request.metric.series not in ids:
        return _empty(request)
    step = round(request.step * 1000)
    points = []
    for number in range(math.floor(request.start * 1000 / step), math.ceil(request.end * 1000 / step)):
        cells = {name: sums[series_id].get(number * step) for name, series_id in ids.items()}
        points.append((number * step / 1000, value_of(request.metric, cells)))
    return points


def buckets(
    session: Session, series_ids: Sequence[int], start: float, end: float, step: float, source: Source
) -> dict[int, dict[int, Bucket]]:
    """{series id: {bucket start in milliseconds: sums}} for all whole buckets that touch [start, end)."""
    width = round(step * 1000)
    low = math.floor(start * 1000 / width) * width
    high = math.ceil(end * 1000 / width) * width
    done = marks(session)
    found: dict[int, dict[int, Bucket]] = {series_id: {} for series_id in series_ids}
    parts: list[tuple[type[Any], int, int]] = []
    five, hour = done.get("5m", low), done.get("1h", low)
    if source == "1h":
        parts.append((Sample1h, low, min(high, max(low, hour))))
        low = max(low, min(high, hour))
    if source in ("1h", "5m"):
        parts.append((Sample5m, low, min(high, max(low, five))))
        low = max(low, min(high, five))
    parts.append((SampleRaw, low, high))
    for table, begin, until in parts:
        if begin < until:
            _add_part(session, found, table, series_ids, begin, until, width)
    return found


def _add_part(
    session: Session,
    found: dict[int, dict[int, Bucket]],
    table: type[Any],
    series_ids: Sequence[int],
    begin: int,
    until: int,
    width: int,
) -> None:
    of = table.__table__.c  # plain rows: making each of them by way of the class takes as long as adding them up
    bucket = (of.at // width * width).label("bucket")
    columns: tuple[Any, ...]
    if table is SampleRaw:
        columns = (func.count(), func.sum(of.value), func.min(of.value), func.max(of.value))
    else:
        columns = (func.sum(of["count"]), func.sum(of.sum), func.min(of.min), func.max(of.max))
    query = (
        select(of.series_id, bucket, *columns)
        .where(of.series_id.in_(series_ids), of.at >= begin, of.at < until)
        .group_by(of.series_id, bucket)
    )
    for series_id, at, count, total, low, high in session.execute(query):
        known = found[series_id]
        if at in known:
            known[at].add(count, total, low, high)
        else:
            known[at] = Bucket(count, total, low, high)


#: {series id: [(milliseconds, value)]}
_RawValues = dict[int, list[tuple[int, float]]]


def _raw_values(session: Session, series_ids: Sequence[int], request: Request) -> _RawValues:
    found: _RawValues = defaultdict(list)
    query = select(SampleRaw.series_id, SampleRaw.at, SampleRaw.value).where(
        SampleRaw.series_id.in_(series_ids),
        SampleRaw.at >= round(request.start * 1000),
        SampleRaw.at <= round(request.end * 1000),
    )
    for series_id, at, value in session.execute(query):
        found[series_id].append((at, value))
    return found


def _raw_points(
    values: _RawValues, ids: dict[str, int], request: Request, interval: float
) -> list[tuple[float, float | None]]:
    """The points as they were polled; between two that are too far apart one None says that nothing was known."""
    by_time: dict[int, dict[str, Bucket]] = defaultdict(dict)
    for name, series_id in ids.items():
        for at, value in values.get(series_id, ()):
            by_time[at][name] = Bucket(1, value, value, value)
    times = sorted(by_time)
    gaps = _gaps(times, GAP_INTERVALS * interval * 1000)
    points: list[tuple[float, float | None]] = []
    for index, at in enumerate(times):
        cells = {name: by_time[at].get(name) for name in ids}
        points.append((at / 1000, value_of(request.metric, cells)))
        if index in gaps:
            points.append((at / 1000 + interval, None))
    return points


def _gaps(times: Sequence[int], limit: float) -> set[int]:
    """Indices of points after which nothing was known for long. Points that are evenly far apart (polled at a longer
    interval than now) have no gaps between them."""
    steps = [after - before for before, after in pairwise(times)]
    gaps = set()
    for index, step in enumerate(steps):
        neighbours = steps[max(0, index - 1) : index] + steps[index + 1 : index + 2]
        if step > limit and not any(step / 1.5 <= other <= step * 1.5 for other in neighbours):
            gaps.add(index)
    return gaps


def _empty(request: Request) -> list[tuple[float, float | None]]:
    if request.step == 0.0:
        return []
    step = round(request.step * 1000)
    first, last = math.floor(request.start * 1000 / step), math.ceil(request.end * 1000 / step)
    return [(number * step / 1000, None) for number in range(first, last)]


def value_of(metric: Metric, cells: dict[str, Bucket | None]) -> float | None:
    """The metric's value over one bucket; None where a part is not known or a divisor is zero."""
    main = cells.get(metric.series)
    if main is None or main.count == 0:
        return None
    if metric.kind == "gauge":
        return main.sum / main.count
    if metric.kind == "lowest":
        return main.min
    divisor = 0.0
    for name in metric.divisor:
        cell = cells.get(name)
        if cell is None or main.count < KNOWN_PART * cell.count or cell.count < KNOWN_PART * main.count:
            return None
        divisor += cell.sum
    if divisor <= 0:
        return None
    value = main.sum / divisor
    return min(1.0, value) if metric.unit == "ratio" else value


def oldest(session: Session, kind: str, target_id: int, request: Request) -> float | None:
    """When the first kept sample of the metric was taken; None where there is none."""
    series_id = series_ids(session, kind, target_id, (request.metric.series,)).get(request.metric.series)
    tables: tuple[type[Any], ...] = (SampleRaw, Sample5m, Sample1h)
    found = [session.scalar(select(func.min(t.at)).where(t.series_id == series_id)) for t in tables]
    known = [at for at in found if at is not None]
    return min(known) / 1000 if known else None


def spread(points: Sequence[tuple[float, float | None]], start: float, end: float, count: int) -> list[float | None]:
    """Points over [start, end) as `count` equally spaced values: the mean of what falls into each, else None."""
    cells: list[list[float]] = [[] for _ in range(count)]
    for at, value in points:
        index = math.floor((at - start) / (end - start) * count)
        if value is not None and 0 <= index < count:
            cells[index].append(value)
    return [sum(cell) / len(cell) if cell else None for cell in cells]


def series_ids(session: Session, kind: str, target_id: int, names: Sequence[str]) -> dict[str, int]:
    """{series: its id} of those that this target has."""
    query = select(Series.metric, Series.id).where(
        Series.target_kind == kind, Series.target_id == target_id, Series.metric.in_(names)
    )
    return {row.metric: row.id for row in session.execute(query)}
