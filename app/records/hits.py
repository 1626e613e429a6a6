"""Were records read back in a span of time? (RULES.md C8) From the samples that polls left.

The counters are a server's, not a model's: a hit of any model counts, which errs on the careful side. A time without a
sample counts as a hit: no counter counts as yes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session, aliased

from app.database import Database
from app.telemetry.tables import Sample1h, Sample5m, SampleRaw, Series

#: Series of the telemetry room: hit tokens since the poll before, and the seconds that covers.
HITS, INTERVAL = "hit_tokens", "interval_seconds"
_SLACK = 2.0


@dataclass(frozen=True)
class Covered:
    """Hit tokens in (start, end], epoch seconds."""

    start: float
    end: float
    hits: float


def first_possible_hit(spans: Iterable[Covered], start: float, end: float) -> float | None:
    """The earliest time in [start, end] from which a hit cannot be excluded; None when there was none."""
    known_until = start
    for span in sorted(spans, key=lambda span: (span.start, span.end)):
        if span.end <= known_until:
            continue
        if span.start >= end:
            break
        if span.start > known_until + _SLACK:
            return known_until
        if span.hits > 0:
            return max(start, span.start)
        known_until = span.end
    return None if known_until + _SLACK >= end else known_until


class HitSamples:
    """Reads the samples of a store's servers."""

    def __init__(self, db: Database, server_ids: Sequence[int]) -> None:
        self._db = db
        self._server_ids = server_ids

    def __call__(self, _model: str, start: float, end: float) -> float | None:
        """`app.records.timeline.HitEvidence`. Without any server nothing is known."""
        if not self._server_ids:
            return start
        with self._db.read() as session:
            found = [
                first_possible_hit(_covered(session, server_id, start), start, end) for server_id in self._server_ids
            ]
        possible = [at for at in found if at is not None]
        return min(possible, default=None)


def _covered(session: Session, server_id: int, start: float) -> list[Covered]:
    query = select(Series.metric, Series.id).where(
        Series.target_kind == "server", Series.target_id == server_id, Series.metric.in_((HITS, INTERVAL))
    )
    ids = {str(metric): int(ident) for metric, ident in session.execute(query)}
    if HITS not in ids or INTERVAL not in ids:
        return []
    raw = _raw(session, ids[HITS], ids[INTERVAL], start)
    oldest = min((span.start for span in raw), default=float("inf"))
    rolled: list[Covered] = []
    for table, width in ((Sample5m, 300.0), (Sample1h, 3600.0)):
        if oldest <= start + _SLACK:
            break
        more = _rolled(session, table, width, ids[HITS], ids[INTERVAL], start, oldest)
        oldest = min([oldest, *(span.start for span in more)])
        rolled += more
    return rolled + raw


def _raw(session: Session, hits: int, interval: int, start: float) -> list[Covered]:
    """Polls up to the first that saw a hit; one span where they follow each other without a gap."""
    seen, took = aliased(SampleRaw), aliased(SampleRaw)
    since = int(start * 1000)
    first = session.scalar(
        select(func.min(SampleRaw.at)).where(SampleRaw.series_id == hits, SampleRaw.at >= since, SampleRaw.value > 0)
    )
    both = (
        select(seen.at, took.value, seen.value)
        .join(took, (took.at == seen.at) & (took.series_id == interval))
        .where(seen.series_id == hits, seen.at >= since)
        .order_by(seen.at)
    )
    quiet = both if first is None else both.where(seen.at < first)
    spans: list[Covered] = []
    begins = session.execute(quiet.limit(1)).one_or_none()
    if begins is not None:
        rows = quiet.order_by(None).subquery()
        last, covered = session.execute(select(func.max(rows.c[0]), func.sum(rows.c[1]))).one()
        opened = begins[0] / 1000 - begins[1]
        if covered >= last / 1000 - opened - _SLACK:
            spans.append(Covered(opened, last / 1000, 0.0))
        else:
            spans += [Covered(at / 1000 - seconds, at / 1000, 0.0) for at, seconds, _ in session.execute(quiet)]
    if first is not None:
        hit = session.execute(both.where(seen.at == first)).one_or_none()
        if hit is not None:
            spans.append(Covered(hit[0] / 1000 - hit[1], hit[0] / 1000, hit[2]))
    return spans


def _rolled(
    session: Session,
    table: type[Sample5m] | type[Sample1h],
    width: float,
    hits: int,
    interval: int,
    start: float,
    until: float,
) -> list[Covered]:
    rows = session.execute(
        select(table.series_id, table.at, table.sum)
        .where(table.series_id.in_((hits, interval)), table.at > int((start - width) * 1000))
        .order_by(table.at)
    )
    seconds: dict[int, float] = {}
    values: dict[int, float] = {}
    for series, at, total in rows:
        (seconds if series == interval else values)[at] = total
    # A bucket that polls cover only in part says nothing of the rest.
    return [
        Covered(at / 1000, min(at / 1000 + width, until), value)
        for at, value in values.items()
        if at / 1000 < until and (value > 0 or seconds.get(at, 0.0) >= 0.95 * width - _SLACK)
    ]
