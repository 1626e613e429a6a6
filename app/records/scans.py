"""Scan rows: queueing, running, listing. The walk runs in a worker thread, outside every database session."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.audit.service import AuditService
from app.clock import Clock, iso
from app.database import Database
from app.errors import Conflict, NotFound
from app.fleet.service import FleetService
from app.fleet.targets import StoreTarget
from app.paging import decode_cursor, encode_cursor
from app.records.classify import Context
from app.records.distribution import keep_counts
from app.records.epochs import sync_observed
from app.records.inventory_file import Inventory
from app.records.judging import judge_inventory
from app.records.knowledge import Knowledge, KnowledgeSource
from app.records.scan_work import ScanOutcome, alignments, inventory_lock, scan_directory
from app.records.schemas import ScanView
from app.records.store_dir import ClockProbe, StoreDirectory
from app.records.store_directories import StoreDirectories
from app.records.summary import mount_view
from app.records.tables import GrowthPoint, RemovedByRuns, Scan
from app.records.timeline import NS, OBSERVATION_GAP
from app.scheduling.runner import WorkContext, WorkKind, WorkRunner
from app.scheduling.work import ACTIVE_STATES, INTERRUPTED
from app.shapes import Page, Progress

KIND = "scan"
_LOOK_SECONDS = 0.3
_SETTLE_STEP = 0.25
_SETTLE_AT_MOST = 45.0


class ScanDesk:
    """Everything about scans of stores."""

    def __init__(
        self,
        *,
        db: Database,
        clock: Clock,
        runner: WorkRunner,
        fleet: FleetService,
        audit: AuditService,
        knowledge: KnowledgeSource,
        directories: StoreDirectories,
        path_of: Callable[[int], Path],
        poll_seconds: float,
        rest: Callable[[float], None] = time.sleep,
    ) -> None:
        self._db = db
        self._clock = clock
        self._runner = runner
        self._fleet = fleet
        self._audit = audit
        self._knowledge = knowledge
        self._directories = directories
        self._path_of = path_of
        self._poll_seconds = poll_seconds
        self._rest = rest
        runner.register(WorkKind(KIND, Scan, self._run))

    def start(self, store_id: int, *, actor: str, gentle: bool) -> ScanView:
        """Queues and submits; Conflict while another scan of the store is active."""
        self._fleet.store_target(store_id)
        self._runner.recover()
        with self._db.write() as session:
            active = session.scalar(select(Scan.id).where(Scan.store_id == store_id, Scan.state.in_(ACTIVE_STATES)))
            if active is not None:
                raise Conflict(f"scan {active} of this store is under way; wait for it or cancel it")
            row = Scan(
                store_id=store_id, gentle=gentle, created_at=self._clock(), requested_by=actor, progress_unit="files"
            )
            self._runner.queue(session, row)
            self._audit.record(
                session,
                actor=actor,
                action="scan.start",
                target_kind="store",
                target_id=store_id,
                detail={"scan": row.id, "gentle": gentle},
            )
        self._runner.submit(KIND, row.id)
        return self.get(row.id)

    def get(self, scan_id: int) -> ScanView:
        """Raises NotFound."""
        with self._db.read() as session:
            row = session.get(Scan, scan_id)
        if row is None:
            raise NotFound.of("scan", scan_id)
        return scan_view(row)

    def page(self, *, page_size: int, page_token: str | None, store_id: int | None) -> Page[ScanView]:
        """Newest first."""
        if store_id is not None:
            self._fleet.store_target(store_id)
        name = f"scans|{store_id}"
        query = select(Scan).order_by(Scan.id.desc()).limit(page_size + 1)
        if store_id is not None:
            query = query.where(Scan.store_id == store_id)
        if page_token:
            query = query.where(Scan.id < decode_cursor(name, page_token)[0])
        with self._db.read() as session:
            rows = list(session.scalars(query))
        more = len(rows) > page_size
        rows = rows[:page_size]
        return Page(
            items=[scan_view(row) for row in rows],
            next_page_token=encode_cursor(name, [rows[-1].id]) if more else None,
        )

    def cancel(self, scan_id: int, *, actor: str) -> ScanView:
        """Sets the cancel flag; idempotent."""
        view = self.get(scan_id)
        if view.state in ACTIVE_STATES:
            with self._db.write() as session:
                self._audit.record(
                    session, actor=actor, action="scan.cancel", target_kind="scan", target_id=scan_id, detail={}
                )
            self._runner.cancel(KIND, scan_id)
        return self.get(scan_id)

    # running

    def _run(self, work: WorkContext) -> None:
        with self._db.read() as session:
            row = session.get(Scan, work.id)
            last = self._last_total(session, row.store_id if row is not None else -1)
        if row is None:
            return
        store = self._fleet.store_target(row.store_id)
        path = self._path_of(store.id)
        known: list[Knowledge] = []

        def context_of(probe: ClockProbe) -> Context:
            known.append(self._knowledge.load(store, probe))
            return known[-1].context

        temp_dirs = self._knowledge.load(store).temp_dirs
        with StoreDirectory.open(store.path) as directory:
            # Before anything is written there: it may be the mount point of a volume that is away.
            proven = self._directories.check(store.id, directory, follow=True)
            outcome = scan_directory(
                directory,
                path,
                clock=self._clock,
                context_of=context_of,
                temp_dirs=temp_dirs,
                tick=_Ticker(work, last),
                gentle=row.gentle,
                proven=proven,
                rest=self._rest,
            )
            self._directories.remember(store.id, directory)
        final = self._settle(store, path, outcome, known[-1], work)
        self._finish(work, store, path, outcome, final)

    def _last_total(self, session: Session, store_id: int) -> int | None:
        """How many files the last scan saw: what progress is measured against."""
        return session.scalar(
            select(Scan.files_seen)
            .where(Scan.store_id == store_id, Scan.state == "succeeded")
            .order_by(Scan.id.desc())
            .limit(1)
        )

    def _settle(
        self, store: StoreTarget, path: Path, outcome: ScanOutcome, known: Knowledge, work: WorkContext
    ) -> Knowledge:
        """Records of the last seconds cannot be judged before the polls that follow them: waits for those.

        Only while the servers are being polled, and never longer than the window of C3 and two polls.
        """
        began = self._clock()
        deadline = began + min(_SETTLE_AT_MOST, known.margin_seconds + 2 * self._poll_seconds + 1.0)
        while known.context.fresh and self._clock() < deadline:
            newest = _newest_unseen(path, known)
            if newest is None or known.newest_poll is None:
                break
            needed = min(newest, began) + known.margin_seconds
            while known.newest_poll is not None and self._latest(store, known) <= max(needed, known.newest_poll):
                now = self._clock()
                if now >= deadline:
                    return known
                work.check_cancel()
                self._rest(_SETTLE_STEP)
                if self._clock() <= now:
                    return known  # a clock that stands still brings no poll
            known = self._knowledge.load(store, outcome.probe)
            with inventory_lock(path, wait=True), Inventory.require(path) as inventory:
                judge_inventory(inventory, known.context, alignments(inventory))
        return known

    def _latest(self, store: StoreTarget, known: Knowledge) -> float:
        latest = self._knowledge.latest_poll(store)
        return known.newest_poll or 0.0 if latest is None else latest

    def _finish(
        self, work: WorkContext, store: StoreTarget, path: Path, outcome: ScanOutcome, known: Knowledge
    ) -> None:
        totals = outcome.totals
        with Inventory.require(path) as inventory:
            with inventory.write():
                inventory.set_meta(
                    judged_at=known.built_at,
                    judged_poll=known.newest_poll,
                    judged_acts=self._knowledge.acts_version(store.id),
                )
            keep_counts(inventory)
            counts: dict[str, list[int]] = {}
            for cohort in inventory.cohorts().values():
                count = counts.setdefault(cohort.cls, [0, 0])
                count[0] += cohort.records
                count[1] += cohort.bytes
        counts["foreign"] = [totals.foreign, totals.foreign_bytes]
        counts["total"] = [totals.records, totals.bytes]
        now = self._clock()
        with self._db.write() as session:
            row = session.get_one(Scan, work.id)
            removed = session.get(RemovedByRuns, store.id)
            row.rescan = outcome.rescan
            row.files_seen, row.records, row.bytes = totals.files, totals.records, totals.bytes
            row.allocated_bytes = totals.blocks * 512
            row.foreign, row.foreign_bytes = totals.foreign, totals.foreign_bytes
            row.foreign_examples = totals.examples
            row.added, row.changed = totals.added, totals.changed
            row.vanished, row.vanished_bytes = totals.vanished, totals.vanished_bytes
            if removed is not None:
                row.removed_by_runs, row.removed_by_runs_bytes = removed.records, removed.bytes
                session.delete(removed)
            row.unreadable = outcome.unreadable
            row.walk_seconds = outcome.walk_seconds
            row.clock_difference = outcome.probe.difference if outcome.probe.measured else None
            row.clock_measured = outcome.probe.measured
            row.mount = mount_view(outcome.mount).model_dump()
            session.add_all(
                GrowthPoint(store_id=store.id, scan_id=row.id, at=now, cls=cls, records=records, bytes=size)
                for cls, (records, size) in counts.items()
            )
            sync_observed(session, store.id, known.timeline, now)
        work.progress(totals.files, totals.files, "files")


class _Ticker:
    """Progress and cancelling, at most a few times a second."""

    def __init__(self, work: WorkContext, total: int | None) -> None:
        self._work = work
        self._total = total
        self._last = 0.0

    def __call__(self, files: int) -> None:
        now = time.monotonic()
        if now - self._last < _LOOK_SECONDS:
            return
        self._last = now
        self._work.check_cancel()
        total = self._total if self._total is not None and self._total >= files else None
        self._work.progress(files, total, "files")


def _newest_unseen(path: Path, known: Knowledge) -> float | None:
    """When the newest record was written whose class waits for a poll; None when none does."""
    if known.newest_poll is None:
        return None
    with Inventory.require(path) as inventory:
        waiting = [
            cohort.max_mtime / NS
            for cohort in inventory.cohorts().values()
            if cohort.records > 0
            and cohort.reason == OBSERVATION_GAP
            and cohort.max_mtime / NS + known.margin_seconds >= known.newest_poll
        ]
    return max(waiting, default=None)


def scan_view(row: Scan) -> ScanView:
    """A scan towards the outside."""
    seconds = None
    if row.started_at is not None and row.finished_at is not None:
        seconds = max(0.0, row.finished_at - row.started_at)
    walk = row.walk_seconds
    done = row.walk_seconds is not None
    return ScanView(
        id=str(row.id),
        state=row.state,
        progress=Progress(done=row.progress_done, total=row.progress_total, unit=row.progress_unit or "files"),
        error=row.error if row.state != INTERRUPTED or row.error else "the panel was stopped",
        created_at=iso(row.created_at) or "",
        started_at=iso(row.started_at),
        finished_at=iso(row.finished_at),
        requested_by=row.requested_by,
        store_id=str(row.store_id),
        rescan=row.rescan,
        gentle=row.gentle,
        files_seen=row.files_seen if done else row.progress_done,
        records=row.records,
        bytes=row.bytes,
        allocated_bytes=row.allocated_bytes,
        seconds=seconds,
        files_per_second=row.files_seen / walk if walk else None,
        foreign=row.foreign,
        foreign_examples=row.foreign_examples,
        added=row.added,
        changed=row.changed,
        vanished=row.vanished,
        vanished_bytes=row.vanished_bytes,
        removed_by_runs=row.removed_by_runs,
        unreadable=row.unreadable,
        clock_difference_seconds=row.clock_difference,
        clock_measured=row.clock_measured,
    )
