"""What waits in quarantine of a run, by what it was when it was taken: for whoever puts it back."""

from __future__ import annotations

from sqlalchemy import or_, select

from app.cleanup.chunks import count_chunks, read_chunks
from app.cleanup.journal import WAITING
from app.cleanup.schemas import Count
from app.cleanup.selection import ItemFilter
from app.cleanup.tables import CleanupIntent, CleanupRun, QuarantineJob
from app.database import Database
from app.scheduling.work import ACTIVE_STATES


def outcomes_of(db: Database, plan_id: int) -> dict[str, int]:
    """{state: records} of the chunks that a run has touched. Reads no record."""
    found: dict[str, int] = {}
    for counted in count_chunks(db, plan_id):
        found[counted.state] = found.get(counted.state, 0) + counted.records
    return found


def waiting_kinds(db: Database, plan_id: int, wanted: ItemFilter | None = None) -> dict[str, Count]:
    """{reason, or class where there is none: count} of what waits; of a selection, where one is given.

    Without a selection the chunks' tallies are read, not the records.
    """
    found: dict[str, Count] = {}

    def add(key: str, records: int, size: int) -> None:
        count = found.setdefault(key, Count(records=0, bytes=0))
        count.records += records
        count.bytes += size

    if wanted is None:
        for counted in count_chunks(db, plan_id):
            if counted.state in WAITING:
                add(counted.kind[1] or counted.kind[0], counted.records, counted.bytes)
        return found
    for chunk in read_chunks(db, plan_id):
        for item in chunk.in_state(*WAITING):
            if wanted.takes(item):
                add(item.reason or item.cls, 1, item.size)
    return found


def is_tied(db: Database, store_id: int) -> bool:
    """Whether work on a store's files is under way or unsettled, or records of it wait in quarantine."""
    jobs = select(QuarantineJob.run_id).where(QuarantineJob.state.in_(ACTIVE_STATES))
    unsettled = select(CleanupIntent.run_id).where(CleanupIntent.settled_at.is_(None))
    query = select(CleanupRun.id).where(
        CleanupRun.store_id == store_id,
        or_(
            CleanupRun.state.in_(ACTIVE_STATES),
            CleanupRun.waiting_records > 0,
            CleanupRun.id.in_(jobs),
            CleanupRun.id.in_(unsettled),
        ),
    )
    with db.read() as session:
        return session.scalar(query.limit(1)) is not None
