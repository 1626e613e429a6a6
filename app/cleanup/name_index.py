"""Which plans name a record: an index over the names frozen in plans, made after a plan is.

Planning a million records must stay cheap, so nothing of this is done there: a job of the scheduler follows. Until it
has, the chunks that are not in the index are looked through, so that an answer is whole at any time.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any, cast
from zlib import crc32

from sqlalchemy import Table, exists, insert, select, update

from app.cleanup.chunks import little_endian
from app.cleanup.tables import Plan, PlanChunk, PlanNames
from app.database import Database
from app.scheduling.work import SUCCEEDED

_CHUNK = cast(Table, PlanChunk.__table__)
_NAMES = cast(Table, PlanNames.__table__)
#: Names that are indexed together: bounds memory and the time of one write.
_TOGETHER = 32_000
#: Fewer than this in one go are one row.
_FEW = 4_000
_BITS = 6
_ALL = -1


def index_names(db: Database, rest: Callable[[], None] = lambda: None) -> int:
    """Takes the records of plans that are not in the index into it; returns how many. `rest` is called in between."""
    done = 0
    left = exists().where(_CHUNK.c.plan_id == Plan.id, _CHUNK.c.first_seq >= Plan.indexed_before)
    with db.read() as session:
        plan_ids = session.scalars(select(Plan.id).where(Plan.state == SUCCEEDED, left)).all()
    for plan_id in plan_ids:
        while taken := _next(db, plan_id):
            done += taken
            rest()
    return done


def _next(db: Database, plan_id: int) -> int:
    """Indexes the next records of a plan; returns how many."""
    keys: list[int] = []
    first = None
    with db.read() as session:
        after = session.scalar(select(Plan.indexed_before).where(Plan.id == plan_id))
        if after is None:
            return 0
        query = (
            select(_CHUNK.c.first_seq, _CHUNK.c.names)
            .where(_CHUNK.c.plan_id == plan_id, _CHUNK.c.first_seq >= after)
            .order_by(_CHUNK.c.first_seq)
        )
        last = after
        for first_seq, names in session.execute(query.execution_options(yield_per=1)):
            first = first_seq if first is None else first
            split = names.split(b"\0")
            keys += [crc32(name) << 32 | seq for seq, name in enumerate(split, first_seq)]
            last = first_seq + len(split)
            if len(keys) >= _TOGETHER:
                break
    if first is None:
        return 0
    keys.sort()
    rows = [
        {"plan_id": plan_id, "bucket": bucket, "first_seq": first, "entries": little_endian(array("Q", part)).tobytes()}
        for bucket, part in _buckets(keys)
    ]
    with db.write() as session:
        # Somebody may have forgotten the plan, or a command beside us have indexed it.
        claimed = session.execute(
            update(Plan).where(Plan.id == plan_id, Plan.indexed_before == after).values(indexed_before=last)
        )
        if cast(Any, claimed).rowcount:
            session.execute(insert(_NAMES), rows)
    return len(keys)


def _buckets(keys: list[int]) -> Iterator[tuple[int, list[int]]]:
    if len(keys) < _FEW:
        yield _ALL, keys
        return
    start = 0
    for bucket in range(1 << _BITS):
        end = bisect_left(keys, (bucket + 1) << (64 - _BITS), start)
        if end > start:
            yield bucket, keys[start:end]
        start = end


def plans_naming(db: Database, store_id: int, name: bytes) -> list[tuple[int, int]]:
    """(plan id, number within the plan) of every record of this name in the made plans of a store, oldest first."""
    crc = crc32(name)
    made = select(Plan.id).where(Plan.store_id == store_id, Plan.state == SUCCEEDED)
    buckets = (crc >> (32 - _BITS), _ALL)
    query = select(_NAMES.c.plan_id, _NAMES.c.entries).where(_NAMES.c.plan_id.in_(made), _NAMES.c.bucket.in_(buckets))
    later = (
        select(_CHUNK.c.plan_id, _CHUNK.c.first_seq, _CHUNK.c.names)
        .join(Plan, Plan.id == _CHUNK.c.plan_id)
        .where(Plan.store_id == store_id, Plan.state == SUCCEEDED, _CHUNK.c.first_seq >= Plan.indexed_before)
    )
    found: set[tuple[int, int]] = set()
    with db.read() as session:
        for plan_id, keys in session.execute(query):
            found.update((int(plan_id), seq) for seq in _seqs(keys, crc))
        for plan_id, first_seq, names in session.execute(later.execution_options(yield_per=8)):
            if name in names:
                split = names.split(b"\0")
                found.update((int(plan_id), first_seq + at) for at, other in enumerate(split) if other == name)
    # Two names can have one CRC.
    return sorted(pair for pair in found if _name_of(db, *pair) == name)


def _seqs(keys: bytes, crc: int) -> Iterator[int]:
    values = array("Q")
    values.frombytes(keys)
    values = little_endian(values)
    at = bisect_left(values, crc << 32)
    while at < len(values) and values[at] >> 32 == crc:
        yield values[at] & 0xFFFFFFFF
        at += 1


def _name_of(db: Database, plan_id: int, seq: int) -> bytes | None:
    query = (
        select(_CHUNK.c.first_seq, _CHUNK.c.names)
        .where(_CHUNK.c.plan_id == plan_id, _CHUNK.c.first_seq <= seq)
        .order_by(_CHUNK.c.first_seq.desc())
        .limit(1)
    )
    with db.read() as session:
        row = session.execute(query).first()
    if row is None:
        return None
    names = row.names.split(b"\0")
    return names[seq - row.first_seq] if seq - row.first_seq < len(names) else None
