"""Raw samples to five minutes to hours, and what is dropped when. Called by the scheduler, in a thread.

A bucket keeps count, sum, min, max and last, so that a spike survives and ratios of sums stay exact. Marks say how far
each table is complete. All statements go series by series through the primary key: they never scan a whole table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Table, case, delete, exists, func, select
from sqlalchemy.orm import Session

from app.database import Database, upsert
from app.telemetry.tables import RollUpMark, Sample1h, Sample5m, SampleRaw, Series

FIVE_MINUTES = 300_000
HOUR = 3_600_000
#: A bucket is rolled up this long after its end: polls are written up to a second or two after they happened.
GRACE_SECONDS = 60.0
SERIES_PER_TRANSACTION = 200
ROWS_PER_TRANSACTION = 5000
#: Series of targets that are gone: their samples go in batches, then they.
FORGOTTEN = "forgotten"


@dataclass(frozen=True)
class Kept:
    """How long each table keeps its rows, seconds."""

    raw: float = 48 * 3600.0
    five_minutes: float = 30 * 86400.0
    hours: float = 730 * 86400.0


DEFAULT_KEPT = Kept()


def roll_up(db: Database, now: float) -> int:
    """Brings both tables up to `now` (epoch seconds); returns the number of buckets written. Repeating is harmless."""
    until = round((now - GRACE_SECONDS) * 1000)
    written = _roll(db, "5m", SampleRaw, Sample5m, FIVE_MINUTES, until)
    return written + _roll(db, "1h", Sample5m, Sample1h, HOUR, min(until, _mark(db, "5m") or 0))


def marks(session: Session) -> dict[str, int]:
    """{table: epoch milliseconds up to which it is complete}."""
    return {row.name: row.until for row in session.scalars(select(RollUpMark))}


def retire(db: Database, now: float, kept: Kept = DEFAULT_KEPT, *, rows: int = ROWS_PER_TRANSACTION) -> bool:
    """Drops one batch of what is too old; True while there is more. Nothing goes that is not rolled up yet."""
    with db.read() as session:
        done = marks(session)
    limits = (
        (SampleRaw, min(round((now - kept.raw) * 1000), done.get("5m", 0))),
        (Sample5m, min(round((now - kept.five_minutes) * 1000), done.get("1h", 0))),
        (Sample1h, round((now - kept.hours) * 1000)),
    )
    for table, before in limits:
        if _retire_batch(db, table, before, rows):
            return True
    return _drop_forgotten(db, rows)


def _mark(db: Database, name: str) -> int | None:
    with db.read() as session:
        return session.scalar(select(RollUpMark.until).where(RollUpMark.name == name))


def _roll(db: Database, name: str, source: type[Any], target: type[Any], width: int, until: int) -> int:
    end = until // width * width
    start = _mark(db, name)
    with db.read() as session:
        ids = list(session.scalars(select(Series.id).where(Series.target_kind != FORGOTTEN).order_by(Series.id)))
        if start is None:
            firsts = [session.scalar(select(func.min(source.at)).where(source.series_id == i)) for i in ids]
            start = min((first for first in firsts if first is not None), default=end) // width * width
    written = 0
    if start < end:
        for position in range(0, len(ids), SERIES_PER_TRANSACTION):
            with db.write() as session:
                for series_id in ids[position : position + SERIES_PER_TRANSACTION]:
                    written += _roll_series(session, source, target, series_id, start, end, width)
    if start <= end:
        with db.write() as session:
            upsert(session, _table(RollUpMark), [{"name": name, "until": end}], key=["name"], update=["until"])
    return written


def _roll_series(
    session: Session, source: type[Any], target: type[Any], series_id: int, start: int, end: int, width: int
) -> int:
    """The buckets of one series in [start, end): at most a few hundred rows at a time, grouped by the database."""
    raw = source is SampleRaw
    bucket = source.at // width * width
    newest = func.row_number().over(partition_by=bucket, order_by=source.at.desc()).label("newest")
    inner = (
        select(
            bucket.label("bucket"),
            newest,
            *([source.value.label("last")] if raw else [source.last.label("last")]),
            *(
                [source.value.label("sum"), source.value.label("min"), source.value.label("max")]
                if raw
                else [source.sum.label("sum"), source.min.label("min"), source.max.label("max"), source.count]
            ),
        )
        .where(source.series_id == series_id, source.at >= start, source.at < end)
        .subquery()
    )
    rows = session.execute(
        select(
            inner.c.bucket,
            func.count() if raw else func.sum(inner.c.count),
            func.sum(inner.c.sum),
            func.min(inner.c.min),
            func.max(inner.c.max),
            func.max(case((inner.c.newest == 1, inner.c.last))),
        ).group_by(inner.c.bucket)
    ).all()
    if rows:
        names = ("count", "sum", "min", "max", "last")
        upsert(
            session,
            _table(target),
            [{"series_id": series_id, "at": row[0], **dict(zip(names, row[1:], strict=True))} for row in rows],
            key=["series_id", "at"],
            update=list(names),
        )
    return len(rows)


def _retire_batch(db: Database, table: type[Any], before: int, rows: int) -> bool:
    """Deletes at most `rows` samples older than `before`; True when there may be more."""
    old = exists().where(table.series_id == Series.id, table.at < before)
    with db.write() as session:
        left = rows
        for series_id in session.scalars(select(Series.id).where(old).order_by(Series.id).limit(rows)).all():
            left -= _delete_oldest(session, table, series_id, before, left)
            if left <= 0:
                return True
    return False


def _delete_oldest(session: Session, table: type[Any], series_id: int, before: int, rows: int) -> int:
    oldest = (
        select(table.at)
        .where(table.series_id == series_id, table.at < before)
        .order_by(table.at)
        .limit(rows)
        .subquery()
    )
    last = session.scalar(select(func.max(oldest.c.at)))
    if last is None:
        return 0
    result = session.execute(delete(table).where(table.series_id == series_id, table.at <= last))
    return int(result.rowcount)  # type: ignore[attr-defined]


def _drop_forgotten(db: Database, rows: int) -> bool:
    """The samples of targets that were deleted, then their series."""
    with db.write() as session:
        left = rows
        for series_id in session.scalars(select(Series.id).where(Series.target_kind == FORGOTTEN).limit(rows)).all():
            for table in (SampleRaw, Sample5m, Sample1h):
                left -= _delete_oldest(session, table, series_id, 2**62, left)
                if left <= 0:
                    return True
            session.execute(delete(Series).where(Series.id == series_id))
            left -= 1
            if left <= 0:
                return True
    return False


def _table(entity: type[Any]) -> Table:
    table: Table = entity.__table__
    return table
