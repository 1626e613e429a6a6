"""The journal of a run (R7): intents committed durably before files move, outcomes after, both in one transaction.

An intent is for one chunk of a plan; those of a batch of chunks are committed together. A crash leaves at most one
batch open a run; `settle_open` asks the disk what became of its files. `RunTally` counts outcomes for the run's row,
and `recount` makes the same counts from the chunks.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, cast

import structlog
from sqlalchemy import Table, func, insert, select, update

from app.cleanup.chunks import Chunk, ChunkWriter, added_to, count_chunks, names_in_state, read_chunk, read_chunks
from app.cleanup.disk import StoreRoot, hold_quarantine
from app.cleanup.items import ItemRow
from app.cleanup.plan import Group, reason_key
from app.cleanup.ports import SIZE, Inventory
from app.cleanup.removal import LEFT_BEHIND, Outcome, look, restore, same_file, settle, sync_directory
from app.cleanup.tables import CleanupIntent, CleanupRun, PlanChunk
from app.clock import Clock
from app.database import Database
from app.errors import TierkeeperError
from app.records.facts import FileFact, display_name

log = structlog.get_logger()

REMOVED = frozenset({"quarantined", "deleted"})
#: States of records whose file lies in quarantine.
WAITING = frozenset({"quarantined", LEFT_BEHIND})
_FAILED_SHOWN = 100
#: Chunks that leave the inventory in one transaction: each rewrites most of an index over hashes.
_TOLD_AT_ONCE = 24
_CHUNK = cast(Table, PlanChunk.__table__)


@dataclass
class RunTally:
    """Counts of one run, kept in step with its row."""

    removed_records: int = 0
    removed_bytes: int = 0
    deleted_bytes: int = 0
    added_records: int = 0
    added_bytes: int = 0
    waiting_records: int = 0
    waiting_bytes: int = 0
    by_reason: dict[str, list[int]] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)
    failed: list[dict[str, Any]] = field(default_factory=list)
    failed_total: int = 0

    def count(self, item: ItemRow, outcome: Outcome) -> None:
        """Adds one outcome."""
        state = outcome.state
        if state in REMOVED:
            self.add_removed(reason_key(item.why, item.cls, item.reason), 1, item.size)
            if state == "deleted":
                self.deleted_bytes += item.size
        elif is_failure(state, outcome.errno):
            self.failed_total += 1
            self.note_failure(item, outcome.errno, outcome.detail)
        else:
            self.skipped["changed" if state == LEFT_BEHIND else state] += 1
        if state in WAITING:
            self.waiting_records += 1
            self.waiting_bytes += item.size

    def count_all(self, items: Sequence[ItemRow], outcomes: Sequence[Outcome]) -> None:
        """Adds outcomes of the first items; what was removed is added up by kind, which is nearly all of it."""
        removed: dict[tuple[str, str, str, str | None], list[int]] = {}
        for item, outcome in zip(items, outcomes, strict=False):
            if outcome.state not in REMOVED:
                self.count(item, outcome)
                continue
            key = (outcome.state, item.why, item.cls, item.reason)
            sizes = removed.get(key)
            if sizes is None:
                sizes = removed[key] = []
            sizes.append(item.size)
        for (state, why, cls, reason), sizes in removed.items():
            size = sum(sizes)
            self.add_removed(reason_key(why, cls, reason), len(sizes), size)
            if state in WAITING:
                self.waiting_records += len(sizes)
                self.waiting_bytes += size
            else:
                self.deleted_bytes += size

    def add_found(self, groups: Sequence[Group]) -> None:
        """Records that the run found by itself and goes over, too."""
        self.added_records += sum(len(group.rows) for group in groups)
        self.added_bytes += sum(row[SIZE] for group in groups for row in group.rows)

    def add_removed(self, reason: str, records: int, size: int) -> None:
        self.removed_records += records
        self.removed_bytes += size
        pair = self.by_reason.setdefault(reason, [0, 0])
        pair[0] += records
        pair[1] += size

    def note_failure(self, item: ItemRow, number: int | None, detail: str | None) -> None:
        if len(self.failed) < _FAILED_SHOWN:
            self.failed.append({"name": display_name(item.name), "errno": number, "message": detail or "failed"})

    def values(self) -> dict[str, Any]:
        """Columns of `cleanup_run`."""
        return {
            "removed_records": self.removed_records,
            "removed_bytes": self.removed_bytes,
            "deleted_bytes": self.deleted_bytes,
            "added_records": self.added_records,
            "added_bytes": self.added_bytes,
            "waiting_records": self.waiting_records,
            "waiting_bytes": self.waiting_bytes,
            "by_reason": {k: list(v) for k, v in self.by_reason.items()},
            "skipped": dict(self.skipped),
            "failed": list(self.failed),
            "failed_total": self.failed_total,
        }


def is_failure(state: str, number: int | None) -> bool:
    """Whether an outcome is the disk's fault (a file with a newer one in its place is not)."""
    return state == "failed" or (state == LEFT_BEHIND and number != errno.EEXIST)


class Journal:
    """The journal of one run over the chunks of its plan."""

    def __init__(self, db: Database, clock: Clock, *, run_id: int, plan_id: int) -> None:
        self._db = db
        self._clock = clock
        self.run_id = run_id
        self.plan_id = plan_id
        self._open: list[tuple[int, Chunk]] = []

    def chunks(self, round_no: int | None = None) -> Iterator[Chunk]:
        """Chunks of the plan (or of one round), in order; each is read when the one before is done."""
        return read_chunks(self._db, self.plan_id, round_no=round_no)

    def turn(self, kind: str, chunks: Sequence[Chunk], tally: RunTally | None) -> None:
        """Durably: saves the chunks that are under way and settles their intents, and opens intents for the next ones.

        One commit for both: what costs is the wait for the disk, not the rows.
        """
        now = self._clock()
        with self._db.write(durable=True) as session:
            for _, done in self._open:
                done.save(session)
            if self._open:
                idents = [ident for ident, _ in self._open]
                session.execute(update(CleanupIntent).where(CleanupIntent.id.in_(idents)).values(settled_at=now))
            if tally is not None:
                session.execute(update(CleanupRun).where(CleanupRun.id == self.run_id).values(**tally.values()))
            rows = [
                CleanupIntent(
                    run_id=self.run_id, kind=kind, plan_id=self.plan_id, first_seq=chunk.first_seq, opened_at=now
                )
                for chunk in chunks
            ]
            session.add_all(rows)
            session.flush()
            opened = [(row.id, chunk) for row, chunk in zip(rows, chunks, strict=True)]
        self._open = opened

    def append(self, groups: Sequence[Group], round_no: int, tally: RunTally) -> None:
        """Adds records that a run found by itself (second pass), and counts them with the run."""
        with self._db.read() as session:
            last = session.scalar(
                select(func.max(_CHUNK.c.first_seq + _CHUNK.c.records)).where(_CHUNK.c.plan_id == self.plan_id)
            )
        writer = ChunkWriter(self.plan_id, first_seq=last or 1, round_no=round_no)
        rows = [row for group in groups for row in writer.add(group)]
        rows.extend(writer.rest())
        tally.add_found(groups)
        with self._db.write() as session:
            session.execute(insert(_CHUNK), rows)
            session.execute(update(CleanupRun).where(CleanupRun.id == self.run_id).values(**tally.values()))

    def failed_files(self) -> frozenset[tuple[bytes, int]]:
        """(name, inode) of records that could not be removed: trying again in the same run would fail again."""
        if not any(counted.state == "failed" for counted in count_chunks(self._db, self.plan_id)):
            return frozenset()
        chunks = read_chunks(self._db, self.plan_id)
        return frozenset((row.name, row.inode) for chunk in chunks for row in chunk.in_state("failed"))


def settle_open(
    db: Database,
    clock: Clock,
    root: StoreRoot,
    *,
    run_id: int,
    folder_of_round: Callable[[int], bytes],
    restored: Callable[[list[FileFact]], None],
) -> int:
    """Asks the disk about every record of a run's open intents, writes what it says, and recounts the run.

    `folder_of_round(n)` names the quarantine folder of a round, relative to the store; `restored` is told of files that
    a restore that was cut off had put back. Returns how many intents were settled. Raises OSError or StoreError when
    the disk cannot be asked; then they stay open.
    """
    query = select(CleanupIntent).where(CleanupIntent.run_id == run_id, CleanupIntent.settled_at.is_(None))
    with db.read() as session:
        intents = list(session.scalars(query.order_by(CleanupIntent.id)))
    for intent in intents:
        chunk = read_chunk(db, intent.plan_id, intent.first_seq)
        if chunk is not None:
            items = chunk.in_state(*(("planned",) if intent.kind == "remove" else WAITING))
            folder = folder_of_round(chunk.round)
            root.verify()
            hold_quarantine(root, folder)
            outcomes = [_found(root, intent.kind, item, folder, chunk) for item in items]
            sync_directory(root.directory.fd)
            back = facts_of(root, items, outcomes)
            if back:
                restored(back)
            root.verify()  # what was found of files whose folder was taken away meanwhile is not what is
            chunk.set(outcomes, clock())
        with db.write(durable=True) as session:
            if chunk is not None:
                chunk.save(session)
            session.execute(update(CleanupIntent).where(CleanupIntent.id == intent.id).values(settled_at=clock()))
    for plan_id in {intent.plan_id for intent in intents}:
        recount(db, run_id, plan_id)
    return len(intents)


def facts_of(root: StoreRoot, items: Sequence[ItemRow], outcomes: Sequence[Outcome]) -> list[FileFact]:
    """Facts, as of now, of the records that are back in the directory. Raises OSError."""
    back = {o.seq for o in outcomes if o.state == "restored"}
    found = [(item.name, look(root, item.name)) for item in items if item.seq in back]
    return [FileFact.of(name, facts) for name, facts in found if facts is not None]


def _found(root: StoreRoot, kind: str, item: ItemRow, folder: bytes, chunk: Chunk) -> Outcome:
    """Where a file is after a removal, a restore or a purge that was cut off."""
    if kind == "remove":
        return settle(root, folder, item)
    inside, present = look(root, item.name, folder), look(root, item.name)
    if inside is None:
        back = kind == "restore" and present is not None and same_file(present, item)
        return Outcome(item.seq, "restored" if back else "purged" if kind == "purge" else "vanished")
    if kind == "restore" and present is not None and same_file(present, item):
        return restore(root, folder, item)  # both names lead to it: drops the one in quarantine
    index = item.seq - chunk.first_seq
    note = chunk.notes.get(index)
    return Outcome(item.seq, chunk.state_of(index), *(note or (None, None)))


def recount(db: Database, run_id: int, plan_id: int) -> RunTally:
    """Makes a run's counts anew from its chunks, and writes them."""
    tally = RunTally()
    gone, gone_bytes = Counter[str](), Counter[str]()
    unclear = False
    tally.added_records, tally.added_bytes = added_to(db, plan_id)
    for counted in count_chunks(db, plan_id):
        state, records, size = counted.state, counted.records, counted.bytes
        cls, reason, why, _ = counted.kind
        if state == "deleted":
            tally.deleted_bytes += size
        # What was restored or purged later was removed by the run all the same.
        if state in REMOVED or state in ("restored", "purged"):
            tally.add_removed(reason_key(why, cls, reason), records, size)
        elif state in ("failed", LEFT_BEHIND):
            unclear = True
        elif state != "planned":
            tally.skipped[state] += records
        if state in WAITING:
            tally.waiting_records += records
            tally.waiting_bytes += size
        gone[state] += records
        gone_bytes[state] += size
    if unclear:
        _count_failures(db, plan_id, tally)
    with db.write() as session:
        session.execute(
            update(CleanupRun)
            .where(CleanupRun.id == run_id)
            .values(
                **tally.values(),
                restored_records=gone["restored"],
                purged_records=gone["purged"],
                purged_bytes=gone_bytes["purged"],
            )
        )
    return tally


def _count_failures(db: Database, plan_id: int, tally: RunTally) -> None:
    for chunk in read_chunks(db, plan_id):
        for item in chunk.in_state("failed", LEFT_BEHIND):
            index = item.seq - chunk.first_seq
            number, detail = chunk.notes.get(index) or (None, None)
            if is_failure(chunk.state_of(index), number):
                tally.failed_total += 1
                tally.note_failure(item, number, detail)
            else:
                tally.skipped["changed"] += 1


def tell_removed(db: Database, inventory: Inventory, run_id: int) -> None:
    """What left the directory by a run leaves the inventory, in parts, each once, however often this is called.

    Before every scan of the run's own, and at its end: a scan must not take for vanished what the run removed. Never
    raises: a scan would find out, too. No chunk may be under way.
    """
    with db.read() as session:
        plan_id, store_id, told_before = session.execute(
            select(CleanupRun.plan_id, CleanupRun.store_id, CleanupRun.told_before).where(CleanupRun.id == run_id)
        ).one()
    if plan_id is None:
        return
    parts = names_in_state(db, plan_id, REMOVED, from_seq=told_before)
    while several := list(islice(parts, _TOLD_AT_ONCE)):
        try:
            inventory.removed(store_id, [record for records, _ in several for record in records], run_id)
        except TierkeeperError as error:
            log.warning("cleanup.inventory_not_told", run=run_id, why=error.detail)
            return
        with db.write() as session:
            session.execute(update(CleanupRun).where(CleanupRun.id == run_id).values(told_before=several[-1][1]))
