"""`Inventory` over RecordsService, and what telemetry knows of the servers of a store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import select

from app.cleanup.planning import Serving
from app.cleanup.policy import DIRTY_REASONS
from app.cleanup.ports import CANARY, RESTORED, Batch, Gone, Selection, StoreTotals
from app.cleanup.tables import CleanupRun
from app.clock import Clock, parse_iso
from app.database import Database
from app.errors import Conflict, StoreError, TierkeeperError
from app.fleet.service import FleetService
from app.lmcache.object_keys import parse_name
from app.records.bulk import Sorting
from app.records.facts import FileFact
from app.records.filters import RecordFilter
from app.records.holds import of_canary
from app.records.service import RecordsService
from app.records.store_dir import StoreDirectory
from app.records.tables import RecordHold, Scan
from app.scheduling.runner import WorkRunner
from app.scheduling.work import ACTIVE_STATES, RUNNING, SUCCEEDED

_WAIT_SECONDS = 0.1
#: How long a scan under way is waited for at most, in turns of that.
_SCAN_TURNS = 1200
_LOOK_TURNS = 50


class RecordsInventory:
    """The inventory that cleanup works on."""

    def __init__(
        self,
        *,
        db: Database,
        clock: Clock,
        records: RecordsService,
        runner: WorkRunner,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._db = db
        self._clock = clock
        self._records = records
        self._runner = runner
        self._wait = wait

    def check_directory(self, store_id: int, directory: StoreDirectory) -> None:
        """Raises StoreError where the directory is not the one the last scan knew."""
        self._records.directories.check(store_id, directory)

    def totals(self, store_id: int) -> StoreTotals:
        """Totals of the last scan."""
        scanned_at = self._records.scanned_at(store_id)
        if scanned_at is None:
            return StoreTotals(0, 0, None)
        records, size, _ = self._records.count_records(store_id, RecordFilter())
        derived, _, _ = self._records.count_records(store_id, RecordFilter(reasons=frozenset({"derived"})))
        return StoreTotals(records, size, scanned_at, derived)

    def select(self, store_id: int, selection: Selection) -> Iterator[Batch]:
        """Streams records in batches of one kind."""
        order: Sorting | None = None
        if selection.least_recent_first:
            order = "written" if selection.by_age else "used"
        for where in self._filters(selection):
            for found in self._records.select_batches(
                store_id, where, oldest_first=order, hard_links=selection.hard_links
            ):
                yield Batch._make(found)

    def _filters(self, selection: Selection) -> list[RecordFilter]:
        if selection.filters is not None:
            return [RecordFilter.from_query(selection.filters)]
        if selection.classes is not None:
            return [
                RecordFilter(classes=frozenset({cls}), reasons=reasons or frozenset())
                for cls, reasons in selection.classes.items()
            ]
        if selection.unused_since_ns is None:
            return [RecordFilter()]
        # Whether a record is old enough is decided by the planner; this only leaves out what clearly is not.
        age = max(self._clock() - selection.unused_since_ns / 1e9 - 1.0, 0.0)
        return [RecordFilter(older_than=age) if selection.by_age else RecordFilter(unused_for=age)]

    def classify_now(self, store_id: int, facts: Sequence[FileFact]) -> list[tuple[str, str | None]]:
        """Class and reason as of now."""
        return [(j.cls, j.reason) for j in self._records.classify_now(store_id, facts)]

    def polled_in_time(self, store_id: int) -> bool:
        """Whether the servers' last polls let a record be called wrong."""
        return self._records.polled_in_time(store_id)

    def held(self, store_id: int) -> Mapping[bytes, str]:
        """Names on hold: canaries by the reason they were held for, all others as restored."""
        names = self._records.holds.names(store_id)
        if not names:
            return {}
        query = select(RecordHold.name, RecordHold.reason).where(RecordHold.store_id == store_id)
        with self._db.read() as session:
            reasons = {bytes(name): str(reason) for name, reason in session.execute(query)}
        return {n: CANARY if of_canary(reasons.get(n, "")) else RESTORED for n in names}

    def refresh(self, store_id: int, check_cancel: Callable[[], None]) -> None:
        """Scans in this thread, or waits for the scan that is under way."""
        scan_id = self._start_scan(store_id)
        # The pool may be full of runs that wait for their scans: whoever claims the row first runs it.
        self._runner.run_here("scan", scan_id)
        turn = 0
        while (state := self._runner.state_of("scan", scan_id)) in ACTIVE_STATES:
            check_cancel()
            self._wait(_WAIT_SECONDS)
            turn += 1
            if turn % _LOOK_TURNS == 0:
                self._runner.recover()  # the process that scans may be gone, and no panel may be there to notice
        if state != SUCCEEDED:
            with self._db.read() as session:
                error = session.scalar(select(Scan.error).where(Scan.id == scan_id))
            raise StoreError(f"the scan before the cleanup ended {state}: {error or 'no reason given'}")

    def _start_scan(self, store_id: int) -> int:
        try:
            return int(self._records.start_scan(store_id, actor="cleanup").id)
        except Conflict:
            query = select(Scan.id).where(Scan.store_id == store_id, Scan.state.in_(ACTIVE_STATES))
            with self._db.read() as session:
                active = session.scalar(query.order_by(Scan.id.desc()).limit(1))
            if active is None:
                return int(self._records.start_scan(store_id, actor="cleanup").id)
            return active

    def check_filter(self, filters: Mapping[str, Any]) -> dict[str, Any]:
        """The filter as given. Raises InvalidInput naming ``filter.<field>``."""
        RecordFilter.from_query(filters, prefix="filter.")
        return dict(filters)

    def removed(self, store_id: int, records: Sequence[Gone], run_id: int) -> None:
        """These left the store through us. A scan under way is waited for: it may have listed them before they went."""
        with self._db.read() as session:
            since = session.scalar(select(CleanupRun.started_at).where(CleanupRun.id == run_id))
        for _ in range(_SCAN_TURNS):
            if not self._scan_under_way(store_id):
                break
            self._wait(_WAIT_SECONDS)
        self._records.removed_by_run(store_id, records, since=since or 0.0)

    def _scan_under_way(self, store_id: int) -> bool:
        query = select(Scan.owner).where(Scan.store_id == store_id, Scan.state == RUNNING)
        with self._db.read() as session:
            owners = session.scalars(query).all()
        return any(self._runner.alive(owner) for owner in owners)

    def restored(self, store_id: int, facts: Sequence[FileFact], run_id: int, actor: str) -> None:
        """These are back, and held. Where wrong ones are among them, what engines store from now on is derived (C8)."""
        self._records.records_restored(store_id, facts, reason=f"restored from cleanup run {run_id}", actor=actor)
        names = [parse_name(fact.name) for fact in facts]
        judged = self._records.classify_now(store_id, facts)
        wrong = {
            parsed.model
            for parsed, now in zip(names, judged, strict=True)
            if parsed is not None and now.reason in DIRTY_REASONS
        }
        for model in sorted(wrong):
            self._records.mark_reopened(store_id, model, self._clock())

    def cleared(self, store_id: int, model_name: str, at: float, run_id: int) -> None:
        """All tiers were clean of wrong records of this (encoded) model."""
        self._records.mark_cleared(store_id, model_name, None, at)


def serving_of(fleet: FleetService, store_id: int) -> Serving:
    """Models that the servers of a store list now and listed before, its engines, and whether its adapter evicts."""
    now: set[str] = set()
    last: dict[str, float] = {}
    known = False
    evicts: bool | None = None
    engines: dict[str, bool | None] = {}
    for server_id in fleet.store_target(store_id).server_ids:
        try:
            server = fleet.get_server(server_id)
        except TierkeeperError:
            continue
        for engine in fleet.engine_targets(server_id):
            engines[engine.name] = fleet.get_engine(engine.id).reset_available
        known = known or server.health.http_up is True
        for layout in server.layouts:
            if layout.live:
                now.add(layout.model_name)
            if layout.last_seen is not None:
                last[layout.model_name] = max(last.get(layout.model_name, 0.0), parse_iso(layout.last_seen))
        for adapter in server.l2:
            if adapter.store_id == str(store_id) and adapter.evicts is not None:
                evicts = bool(evicts) or adapter.evicts
    return Serving(frozenset(now) if known else None, last, evicts, tuple(sorted(engines.items())))
