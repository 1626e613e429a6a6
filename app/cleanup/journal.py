"""The journal of a run (R7): intents committed durably before files move, outcomes after, both in one transaction.

A crash leaves at most one open intent a run; `settle_open` asks the disk what became of its files. Items are rows of
`plan_item`; `RunTally` counts outcomes for the run's row, and `recount` makes the same counts from the items.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import structlog
from sqlalchemy import Table, func, insert, select, update
from sqlalchemy.orm import Session

from app.cleanup.disk import StoreRoot
from app.cleanup.items import ItemRow
from app.cleanup.plan import reason_key
from app.cleanup.ports import Inventory
from app.cleanup.removal import LEFT_BEHIND, Outcome, look, restore, same_file, settle, sync_directory
from app.cleanup.tables import CleanupIntent, CleanupRun, PlanItem
from app.clock import Clock
from app.database import Database
from app.errors import TierkeeperError
from app.records.facts import FileFact, display_name

log = structlog.get_logger()

REMOVED = frozenset({"quarantined", "deleted"})
#: States of items whose file lies in quarantine.
WAITING = frozenset({"quarantined", LEFT_BEHIND})
_FAILED_SHOWN = 100
_AT_ONCE = 500
_NAMES_AT_ONCE = 5000
_ITEM = cast(Table, PlanItem.__table__)


_SELECT = f"SELECT {', '.join(ItemRow._fields)} FROM plan_item"  # noqa: S608 (our own words)
ROW_COLUMNS = tuple(_ITEM.c[name] for name in ItemRow._fields)


@dataclass
class RunTally:
    """Counts of one run, kept in step with its row."""

    removed_records: int = 0
    removed_bytes: int = 0
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
            self.removed_records += 1
            self.removed_bytes += item.size
            key = reason_key(item.why, item.cls, item.reason)
            pair = self.by_reason.setdefault(key, [0, 0])
            pair[0] += 1
            pair[1] += item.size
        elif is_failure(outcome):
            self.failed_total += 1
            if len(self.failed) < _FAILED_SHOWN:
                self.failed.append(
                    {"name": display_name(item.name), "errno": outcome.errno, "message": outcome.detail or "failed"}
                )
        else:
            self.skipped["changed" if state == LEFT_BEHIND else state] += 1
        if state in WAITING:
            self.waiting_records += 1
            self.waiting_bytes += item.size

    def values(self) -> dict[str, Any]:
        """Columns of `cleanup_run`."""
        return {
            "removed_records": self.removed_records,
            "removed_bytes": self.removed_bytes,
            "waiting_records": self.waiting_records,
            "waiting_bytes": self.waiting_bytes,
            "by_reason": {k: list(v) for k, v in self.by_reason.items()},
            "skipped": dict(self.skipped),
            "failed": list(self.failed),
            "failed_total": self.failed_total,
        }


def is_failure(outcome: Outcome) -> bool:
    """Whether an outcome is the disk's fault (a file with a newer one in its place is not)."""
    return outcome.state == "failed" or (outcome.state == LEFT_BEHIND and outcome.errno != errno.EEXIST)


class Journal:
    """The journal of one run over the items of its plan."""

    def __init__(self, db: Database, clock: Clock, *, run_id: int, plan_id: int) -> None:
        self._db = db
        self._clock = clock
        self.run_id = run_id
        self.plan_id = plan_id
        self._open: tuple[int, list[ItemRow]] | None = None

    def batches(self, *, state: str, size: int, round_no: int | None = None) -> Iterator[list[ItemRow]]:
        """Items in a state, in their order; each batch is read when the one before is done."""
        last = 0
        where = f"plan_id = {int(self.plan_id)} AND state = '{state}'"
        if round_no is not None:
            where += f" AND round = {int(round_no)}"
        while True:
            # As text and without Core's row processing: this is a tenth of what a run costs.
            query = f"{_SELECT} WHERE {where} AND seq > {int(last)} ORDER BY seq LIMIT {int(size)}"
            with self._db.read() as session:
                rows = list(map(ItemRow._make, session.connection().exec_driver_sql(query)))
            if not rows:
                return
            last = rows[-1].seq
            yield rows

    def turn(self, kind: str, items: list[ItemRow], outcomes: Sequence[Outcome], tally: RunTally | None) -> None:
        """Durably: settles the open intent with these outcomes, and opens one for the next items ([] = none)."""
        now = self._clock()
        with self._db.write(durable=True) as session:
            self._settle(session, outcomes, now)
            if tally is not None:
                session.execute(update(CleanupRun).where(CleanupRun.id == self.run_id).values(**tally.values()))
            if not items:
                return
            row = CleanupIntent(run_id=self.run_id, kind=kind, seqs=ranges([i.seq for i in items]), opened_at=now)
            session.add(row)
            session.flush()
            self._open = (row.id, items)

    def _settle(self, session: Session, outcomes: Sequence[Outcome], now: float) -> None:
        if self._open is None:
            return
        intent_id, items = self._open
        apply_outcomes(session, self.plan_id, items, outcomes, now)
        session.execute(update(CleanupIntent).where(CleanupIntent.id == intent_id).values(settled_at=now))
        self._open = None

    def note(self, items: list[ItemRow], outcomes: Sequence[Outcome]) -> None:
        """Outcomes of items that no intent was needed for (nothing was touched)."""
        if outcomes:
            with self._db.write() as session:
                apply_outcomes(session, self.plan_id, items, outcomes, self._clock())

    def append(self, rows: Sequence[ItemRow]) -> None:
        """Adds items that a run found by itself (second pass); their `seq` are given by `next_seq`."""
        with self._db.write() as session:
            session.execute(
                insert(_ITEM), [{**row._asdict(), "plan_id": self.plan_id, "state": "planned"} for row in rows]
            )

    def failed_files(self) -> frozenset[tuple[bytes, int]]:
        """(name, inode) of items that could not be removed: trying again in the same run would fail again."""
        query = select(_ITEM.c.name, _ITEM.c.inode).where(_ITEM.c.plan_id == self.plan_id, _ITEM.c.state == "failed")
        with self._db.read() as session:
            return frozenset((name, inode) for name, inode in session.execute(query))

    def next_seq(self) -> int:
        """The first free number."""
        with self._db.read() as session:
            return (session.scalar(select(func.max(_ITEM.c.seq)).where(_ITEM.c.plan_id == self.plan_id)) or 0) + 1


def apply_outcomes(
    session: Session, plan_id: int, items: Sequence[ItemRow], outcomes: Sequence[Outcome], now: float
) -> None:
    """Writes what became of items; those without an outcome stay as they were."""
    groups: dict[tuple[str, int | None, str | None], list[int]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome[1:], []).append(outcome.seq)
    whole = len(outcomes) == len(items) and len(ranges([item.seq for item in items])) == 1
    for position, (what, seqs) in enumerate(sorted(groups.items(), key=lambda group: -len(group[1]))):
        values = dict(zip(("state", "errno", "detail"), what, strict=True)) | {"changed_at": now}
        base = update(_ITEM).where(_ITEM.c.plan_id == plan_id).values(values)
        if whole and position == 0:
            # Nearly all of a batch goes the same way: one statement over its range; the others correct it below.
            session.execute(base.where(_ITEM.c.seq >= items[0].seq, _ITEM.c.seq <= items[-1].seq))
            continue
        for start in range(0, len(seqs), _AT_ONCE):
            session.execute(base.where(_ITEM.c.seq.in_(seqs[start : start + _AT_ONCE])))


def ranges(numbers: Sequence[int]) -> list[list[int]]:
    """Inclusive ranges of rising numbers: [1, 2, 3, 7] -> [[1, 3], [7, 7]]."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found


def open_intents(db: Database, run_id: int) -> list[tuple[int, str, list[list[int]]]]:
    """(id, kind, ranges of seq) of a run's intents that were never settled."""
    query = select(CleanupIntent.id, CleanupIntent.kind, CleanupIntent.seqs).where(
        CleanupIntent.run_id == run_id, CleanupIntent.settled_at.is_(None)
    )
    with db.read() as session:
        return [(row[0], row[1], row[2]) for row in session.execute(query.order_by(CleanupIntent.id))]


def settle_open(
    db: Database,
    clock: Clock,
    root: StoreRoot,
    *,
    run_id: int,
    plan_id: int,
    folder_of_round: Callable[[int], bytes],
    restored: Callable[[list[FileFact]], None],
) -> int:
    """Asks the disk about every item of a run's open intents, writes what it says, and recounts the run.

    `folder_of_round(n)` names the quarantine folder of a round, relative to the store; `restored` is told of files that
    a restore that was cut off had put back. Returns how many intents were settled. Raises OSError or StoreError when
    the disk cannot be asked; then they stay open.
    """
    intents = open_intents(db, run_id)
    for intent_id, kind, spans in intents:
        items: list[ItemRow] = []
        for low, high in spans:
            query = select(*ROW_COLUMNS).where(_ITEM.c.plan_id == plan_id, _ITEM.c.seq >= low, _ITEM.c.seq <= high)
            with db.read() as session:
                items += [ItemRow(*row) for row in session.execute(query.order_by(_ITEM.c.seq))]
        outcomes = [_found(root, kind, item, folder_of_round(item.round)) for item in items]
        sync_directory(root.directory.fd)
        back = facts_of(root, items, outcomes)
        if back:
            restored(back)
        now = clock()
        with db.write(durable=True) as session:
            apply_outcomes(session, plan_id, items, outcomes, now)
            session.execute(update(CleanupIntent).where(CleanupIntent.id == intent_id).values(settled_at=now))
    if intents:
        recount(db, run_id, plan_id)
    return len(intents)


def facts_of(root: StoreRoot, items: Sequence[ItemRow], outcomes: Sequence[Outcome]) -> list[FileFact]:
    """Facts, as of now, of the items that are back in the directory. Raises OSError."""
    back = {o.seq for o in outcomes if o.state == "restored"}
    found = [(item.name, look(root, item.name)) for item in items if item.seq in back]
    return [FileFact.of(name, facts) for name, facts in found if facts is not None]


def _found(root: StoreRoot, kind: str, item: ItemRow, folder: bytes) -> Outcome:
    """Where a file is after a removal, a restore or a purge that was cut off."""
    if kind == "remove":
        return settle(root, folder, item)
    inside, present = look(root, item.name, folder), look(root, item.name)
    if inside is None:
        back = kind == "restore" and present is not None and same_file(present, item)
        return Outcome(item.seq, "restored" if back else "purged" if kind == "purge" else "vanished")
    if kind == "restore" and present is not None and same_file(present, item):
        return restore(root, folder, item)  # both names lead to it: drops the one in quarantine
    return Outcome(item.seq, "quarantined")


def recount(db: Database, run_id: int, plan_id: int) -> RunTally:
    """Makes a run's counts anew from its items, and writes them."""
    tally = RunTally()
    gone = Counter[str]()
    gone_bytes = Counter[str]()
    counted = (_ITEM.c.state, _ITEM.c.why, _ITEM.c.cls, _ITEM.c.reason, _ITEM.c.errno)
    groups = select(*counted, func.count(), func.sum(_ITEM.c.size)).where(_ITEM.c.plan_id == plan_id).group_by(*counted)
    with db.read() as session:
        rows = session.execute(groups).all()
        failed = session.execute(
            select(_ITEM.c.name, _ITEM.c.errno, _ITEM.c.detail)
            .where(_ITEM.c.plan_id == plan_id, _ITEM.c.state == "failed")
            .order_by(_ITEM.c.seq)
            .limit(_FAILED_SHOWN)
        ).all()
    for state, why, cls, reason, number, count, size in rows:
        # What was restored or purged later was removed by the run all the same.
        if state in REMOVED or state in ("restored", "purged"):
            tally.removed_records += count
            tally.removed_bytes += size
            pair = tally.by_reason.setdefault(reason_key(why, cls, reason), [0, 0])
            pair[0] += count
            pair[1] += size
        elif is_failure(Outcome(0, state, number)):
            tally.failed_total += count
        elif state != "planned":
            tally.skipped["changed" if state == LEFT_BEHIND else state] += count
        if state in WAITING:
            tally.waiting_records += count
            tally.waiting_bytes += size
        gone[state] += count
        gone_bytes[state] += size
    tally.failed = [
        {"name": display_name(name), "errno": number, "message": detail or "failed"} for name, number, detail in failed
    ]
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


def tell_removed(db: Database, inventory: Inventory, run_id: int) -> None:
    """What left the directory by a run leaves the inventory, in parts. Never raises: a scan would find out, too."""
    with db.read() as session:
        found = session.execute(select(CleanupRun.plan_id, CleanupRun.store_id).where(CleanupRun.id == run_id)).one()
    plan_id, store_id = found
    last = 0
    while plan_id is not None:
        query = (
            select(_ITEM.c.seq, _ITEM.c.name)
            .where(_ITEM.c.plan_id == plan_id, _ITEM.c.seq > last, _ITEM.c.state.in_(REMOVED))
            .order_by(_ITEM.c.seq)
            .limit(_NAMES_AT_ONCE)
        )
        with db.read() as session:
            rows = session.execute(query).all()
        if not rows:
            return
        last = rows[-1][0]
        try:
            inventory.removed(store_id, [name for _, name in rows], run_id)
        except TierkeeperError as error:
            log.warning("cleanup.inventory_not_told", run=run_id, why=error.detail)
            return
