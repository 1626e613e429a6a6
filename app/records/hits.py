"""Were records read back in a span of time? (RULES.md C8) From the samples that polls left.

The counters are a server's, not a model's: a hit of any model counts, which errs on the careful side. A time without a
sample counts as a hit: no counter counts as yes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session, aliased

from app.database import Database
from app.telemetry.tables import Sample1h, Sample5m, SampleRaw, Series

#: Series of the telemetry room: hit tokens since the poll before, and the seconds that covers.
HITS, INTERVAL = "hit_tokens", "interval_seconds"
_SLACK = 2.0
#: Stretches remembered at most; there are a few for each change of a layout.
_MEMORY = 20_000


@dataclass(frozen=True)
class Covered:
    """Hit tokens in (start, end], epoch seconds."""

    start: float
    end: float
    hits: float


class Looked(NamedTuple):
    """What spans say of a stretch: until when there was certainly no hit, the earliest one that cannot be excluded
    (None: there was none), and whether a sample shows it (else it is only not known)."""

    quiet_until: float
    possible: float | None
    shown: bool


def look(spans: Iterable[Covered], start: float, end: float, quiet_until: float | None = None) -> Looked:
    """Looks at [start, end]; `quiet_until`: up to where an earlier look found no hit."""
    known_until = start if quiet_until is None else max(start, quiet_until)
    for span in sorted(spans, key=lambda span: (span.start, span.end)):
        if span.end <= known_until:
            continue
        if span.start >= end:
            break
        if span.start > known_until + _SLACK:
            return Looked(known_until, known_until, False)
        if span.hits > 0:
            return Looked(known_until, max(start, span.start), True)
        known_until = span.end
    return Looked(known_until, None if known_until + _SLACK >= end else known_until, False)


def first_possible_hit(spans: Iterable[Covered], start: float, end: float) -> float | None:
    """The earliest time in [start, end] from which a hit cannot be excluded; None when there was none."""
    return look(spans, start, end).possible


class HitMemory:
    """What samples have shown of a server's past: more samples come, but these do not change any more.

    Without it every judgement of a store would read all polls since the last change of a layout again.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[int, float], Looked] = {}
        self._lock = threading.Lock()

    def recall(self, server_id: int, start: float) -> Looked | None:
        """What was found from this time on, if anything."""
        with self._lock:
            return self._seen.get((server_id, start))

    def keep(self, server_id: int, start: float, found: Looked) -> None:
        """A hit that a sample shows is kept as it is, else how far there was none."""
        with self._lock:
            if len(self._seen) > _MEMORY:
                self._seen.clear()
            before = self._seen.get((server_id, start))
            if before is None or found.shown or found.quiet_until > before.quiet_until:
                self._seen[server_id, start] = found

    def forget(self, server_id: int) -> None:
        """The server is gone, and its number may come back for another one."""
        with self._lock:
            self._seen = {key: found for key, found in self._seen.items() if key[0] != server_id}


class HitSamples:
    """Reads the samples of a store's servers; with a memory only those that it has not seen."""

    def __init__(self, db: Database, server_ids: Sequence[int], memory: HitMemory | None = None) -> None:
        self._db = db
        self._server_ids = server_ids
        self._memory = HitMemory() if memory is None else memory

    def __call__(self, _model: str, start: float, end: float) -> float | None:
        """`app.records.timeline.HitEvidence`. Without any server nothing is known."""
        if not self._server_ids:
            return start
        found = [self._of(server_id, start, end) for server_id in self._server_ids]
        possible = [at for at in found if at is not None]
        return min(possible, default=None)

    def _of(self, server_id: int, start: float, end: float) -> float | None:
        before = self._memory.recall(server_id, start)
        if before is not None and before.shown and before.possible is not None and before.possible < end:
            return before.possible
        if before is not None and before.quiet_until + _SLACK >= end:
            return None
        quiet_until = start if before is None else before.quiet_until
        with self._db.read() as session:
            found = look(_covered(session, server_id, quiet_until), start, end, quiet_until)
        self._memory.keep(server_id, start, found)
        return found.possible


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
