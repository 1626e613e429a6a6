"""Samples of many targets added up over one window, each with one query."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy import Row, func, select
from sqlalchemy.orm import Session

from app.telemetry.history import Bucket, Source, buckets, value_of
from app.telemetry.metrics import INTERVAL, Metric
from app.telemetry.rollup import DEFAULT_KEPT, FIVE_MINUTES
from app.telemetry.tables import SampleRaw, Series


def sums(
    session: Session, kind: str, target_ids: Sequence[int], names: Sequence[str], start: float, end: float, now: float
) -> dict[int, dict[str, float]]:
    """{target: {series: sum of its increments in the span}}; a series without any sample there is missing.

    Spans beyond six hours come from the 5-minute table, to its bucket borders.
    """
    source: Source = "raw" if end - start <= 6 * 3600 and now - start <= DEFAULT_KEPT.raw else "5m"
    wanted = [*names, INTERVAL]
    query = select(Series.id, Series.target_id, Series.metric).where(
        Series.target_kind == kind, Series.target_id.in_(target_ids), Series.metric.in_(wanted)
    )
    series = {row.id: (row.target_id, row.metric) for row in session.execute(query)}
    result: dict[int, dict[str, float]] = defaultdict(dict)
    if source == "raw":
        rows = session.execute(
            select(SampleRaw.series_id, func.sum(SampleRaw.value))
            .where(
                SampleRaw.series_id.in_(list(series)),
                SampleRaw.at > round(start * 1000),
                SampleRaw.at <= round(end * 1000),
            )
            .group_by(SampleRaw.series_id)
        ).all()
        for series_id, total in rows:
            target, metric = series[series_id]
            result[target][metric] = total
        return result
    for series_id, found in buckets(session, list(series), start, end, FIVE_MINUTES / 1000, "5m").items():
        if found:
            target, metric = series[series_id]
            result[target][metric] = sum(bucket.sum for bucket in found.values())
    return result


def minute_sums(
    session: Session, series_ids: Sequence[int], start: float, end: float
) -> Sequence[Row[int, int, float]]:
    """(series id, number of the minute since the epoch, sum of its values as polled within (start, end])."""
    raw = SampleRaw.__table__.c
    bucket = (raw.at // 60_000).label("minute")
    query = (
        select(raw.series_id, bucket, func.sum(raw.value))
        .where(raw.series_id.in_(series_ids), raw.at > round(start * 1000), raw.at <= round(end * 1000))
        .group_by(raw.series_id, bucket)
    )
    return session.execute(query).all()


def totals(
    session: Session, kind: str, target_ids: Sequence[int], metrics: Sequence[Metric], start: float, end: float
) -> list[dict[int, float | None]]:
    """For each metric its value over the whole of (start, end], by target, out of the values as polled: one query. A
    target without any sample is missing."""
    series, raw = Series.__table__.c, SampleRaw.__table__.c
    names = {name for metric in metrics for name in (metric.series, *metric.divisor)}
    query = (
        select(series.target_id, series.metric, func.count(), func.sum(raw.value))
        .join_from(Series.__table__, SampleRaw.__table__, raw.series_id == series.id)
        .where(
            series.target_kind == kind,
            series.target_id.in_(target_ids),
            series.metric.in_(names),
            raw.at > round(start * 1000),
            raw.at <= round(end * 1000),
        )
        .group_by(series.target_id, series.metric)  # in the order of their index: nothing is sorted
    )
    found: dict[int, dict[str, Bucket | None]] = defaultdict(dict)
    for target_id, name, count, total in session.execute(query):
        found[target_id][name] = Bucket(count, total)
    return [{target_id: value_of(metric, cells) for target_id, cells in found.items()} for metric in metrics]
