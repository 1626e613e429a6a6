"""What counters grew by, as spans of time: for whoever has to know of a window whether it was covered without a hole.

The last hour comes poll by poll, a day before that by five minutes, the rest by hours. A poll that follows a gap leaves
no increment, so holes show; a bucket that polls cover only in part is left out, for nobody knows which part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.telemetry.history import Bucket, Source, buckets
from app.telemetry.metrics import INTERVAL
from app.telemetry.rollup import FIVE_MINUTES, HOUR
from app.telemetry.tables import SampleRaw, Series

#: Between two spans that are further apart lies a hole, seconds.
SLACK = 2.0
_RAW_SECONDS, _FIVE_SECONDS = 3600.0, 25 * 3600.0
_WHOLE = 0.95


@dataclass(frozen=True)
class Span:
    """[start, end), epoch seconds; `values` by series name, None for what was not known all the time."""

    start: float
    end: float
    values: Mapping[str, float | None]


def spans(
    session: Session, kind: str, target_ids: Sequence[int], names: Sequence[str], start: float, now: float
) -> dict[int, list[Span]]:
    """{target: its spans since `start`, oldest first}; a target that was never counted has none."""
    query = select(Series.id, Series.target_id, Series.metric).where(
        Series.target_kind == kind, Series.target_id.in_(target_ids), Series.metric.in_((*names, INTERVAL))
    )
    series = {row.id: (int(row.target_id), str(row.metric)) for row in session.execute(query)}
    # Whole hours and whole five minutes follow each other without an overlap.
    raw_from = _down(now - _RAW_SECONDS, FIVE_MINUTES)
    five_from = _down(now - _FIVE_SECONDS, HOUR)
    found: dict[int, list[Span]] = {ident: [] for ident in target_ids}
    parts: tuple[tuple[float, float, int, Source], ...] = (
        (start, min(five_from, raw_from), HOUR, "1h"),
        (max(start, five_from), raw_from, FIVE_MINUTES, "5m"),
    )
    for begin, end, width, source in parts:
        if begin < end:
            cells = buckets(session, list(series), begin, end, width / 1000, source)
            _add_buckets(found, series, cells, names, width / 1000, end)
    _add_raw(session, found, series, names, max(start, raw_from))
    return found


def _down(at: float, width: int) -> float:
    return at * 1000 // width * width / 1000


def _add_buckets(
    found: dict[int, list[Span]],
    series: Mapping[int, tuple[int, str]],
    cells: Mapping[int, Mapping[int, Bucket]],
    names: Sequence[str],
    width: float,
    until: float,
) -> None:
    by_time: dict[tuple[int, int], dict[str, Bucket]] = defaultdict(dict)
    for ident, found_buckets in cells.items():
        target, metric = series[ident]
        for at, bucket in found_buckets.items():
            by_time[at, target][metric] = bucket
    for (at, target), values in sorted(by_time.items()):
        covered = values.get(INTERVAL)
        if at / 1000 < until and covered is not None and covered.sum >= _WHOLE * width - SLACK:
            known = {
                name: cell.sum if (cell := values.get(name)) is not None and cell.count == covered.count else None
                for name in names
            }
            found[target].append(Span(at / 1000, at / 1000 + width, known))


def _add_raw(
    session: Session,
    found: dict[int, list[Span]],
    series: Mapping[int, tuple[int, str]],
    names: Sequence[str],
    start: float,
) -> None:
    polls: dict[tuple[int, int], dict[str, float]] = defaultdict(dict)
    query = select(SampleRaw.series_id, SampleRaw.at, SampleRaw.value).where(
        SampleRaw.series_id.in_(list(series)), SampleRaw.at >= round(start * 1000)
    )
    for ident, at, value in session.execute(query):
        target, metric = series[ident]
        polls[at, target][metric] = value
    for (at, target), values in sorted(polls.items()):
        seconds = values.get(INTERVAL)
        if seconds is not None:
            known = {name: values.get(name) for name in names}
            found[target].append(Span(at / 1000 - seconds, at / 1000, known))


def total(found: Sequence[Span], name: str) -> float | None:
    """What a counter grew by in these spans; None where one of them does not tell, or there is none."""
    values = [span.values[name] for span in found]
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def unbroken(found: Sequence[Span], name: str) -> list[Span]:
    """The last of the spans that follow each other without a hole and all tell `name`."""
    kept: list[Span] = []
    for span in reversed(found):
        if span.values[name] is None or (kept and kept[-1].start > span.end + SLACK):
            break
        kept.append(span)
    kept.reverse()
    return kept
