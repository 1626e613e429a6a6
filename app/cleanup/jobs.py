"""Restoring and purging what runs left in quarantine (R5): journalled like the removal, one store at a time."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from app.audit.service import AuditService
from app.cleanup.chunks import Chunk
from app.cleanup.disk import StoreRoot, check_still_that_store, hold_quarantine, store_root
from app.cleanup.footing import FootingLost
from app.cleanup.items import ItemRow
from app.cleanup.journal import WAITING, Journal, facts_of, recount
from app.cleanup.lock import StoreLock
from app.cleanup.lost import account_for_lost
from app.cleanup.passes import folder_of_round
from app.cleanup.ports import Inventory
from app.cleanup.quarantine import folder_path, remove_if_empty
from app.cleanup.recovery import Recovery, folders_of
from app.cleanup.removal import LEFT_BEHIND, Outcome, purge, restore, sync_directory
from app.cleanup.selection import ItemFilter
from app.cleanup.tables import CleanupRun, Plan, PlanChunk, QuarantineJob
from app.clock import Clock
from app.database import Database
from app.errors import NotFound, StoreError
from app.fleet.service import FleetService
from app.records.facts import display_name
from app.scheduling.runner import WorkContext

_FAILED_SHOWN = 100
_DONE = {"restore": "restored", "purge": "purged"}
#: What an errno of a record that goes on waiting is counted as.
_LEFT = {errno.EEXIST: "exists", errno.ESTALE: "changed"}


class JobRunner:
    """Runs `quarantine_job` rows."""

    def __init__(
        self,
        *,
        db: Database,
        clock: Clock,
        inventory: Inventory,
        fleet: FleetService,
        audit: AuditService,
        recovery: Recovery,
        owner: str,
    ) -> None:
        self._db = db
        self._clock = clock
        self._inventory = inventory
        self._fleet = fleet
        self._audit = audit
        self._recovery = recovery
        self._owner = owner

    def execute(self, context: WorkContext) -> None:
        """Runs one row. Raises Cancelled, StoreError, Conflict (store locked), NotFound."""
        with self._db.read() as session:
            job = session.get(QuarantineJob, context.id)
            run = session.get(CleanupRun, job.run_id) if job is not None else None
            plan = session.get(Plan, run.plan_id) if run is not None and run.plan_id is not None else None
        if job is None or run is None or plan is None:
            raise NotFound.of("quarantine job", context.id)
        store = self._fleet.store_target(run.store_id)
        with (
            store_root(self._inventory, store) as root,
            StoreLock(root, owner=self._owner, work=f"{job.kind} of cleanup run {run.id}", clock=self._clock) as lock,
        ):
            self._recovery.settle_store(root, run.store_id)
            before = root.free_bytes()
            try:
                self._go(context, root, lock, job, run, plan)
            except FootingLost as lost:
                place = folders_of(run.folder)
                raise account_for_lost(
                    self._db, self._clock, root, lost, run_id=run.id, plan_id=plan.id, folder_of_round=place
                ) from lost
            finally:
                root.forget_folders()
                self._tidy(root, run)
                recount(self._db, run.id, plan.id)
                self._end(job, before, root.free_bytes())

    def recover(self, job_id: int) -> None:
        """For the work runner: settles the run of a job whose process is gone. Never raises."""
        with self._db.read() as session:
            run_id = session.scalar(select(QuarantineJob.run_id).where(QuarantineJob.id == job_id))
        if run_id is not None:
            self._recovery.recover_run(run_id)

    def _go(
        self, context: WorkContext, root: StoreRoot, lock: StoreLock, job: QuarantineJob, run: CleanupRun, plan: Plan
    ) -> None:
        journal = Journal(self._db, self._clock, run_id=run.id, plan_id=plan.id)
        wanted = ItemFilter.of(job.selection)
        counts, done = Counter[str](), 0
        failed: list[dict[str, Any]] = []
        total = run.waiting_records
        if job.selection:
            total = sum(sum(map(wanted.takes, chunk.in_state(*WAITING))) for chunk in journal.chunks())
        try:
            for number in self._rounds(run):
                folder = folder_path(folder_of_round(run.folder, number))
                check_still_that_store(root, folder, plan.root_device, plan.root_inode)
                hold_quarantine(root, folder)
            for chunk in journal.chunks():
                items = [item for item in chunk.in_state(*WAITING) if wanted.takes(item)]
                if not items:
                    continue
                root.verify()
                folder = folder_path(folder_of_round(run.folder, chunk.round))
                context.check_cancel()
                journal.turn(job.kind, [chunk], None)
                outcomes = self._act(root, job.kind, folder, chunk, items)
                items = items[: len(outcomes)]
                self._count(items, outcomes, counts, failed)
                # The store's lock is ours: nothing can take them before they are held.
                back = facts_of(root, items, outcomes)
                if back:
                    self._inventory.restored(run.store_id, back, run.id, job.requested_by)
                done += len(items)
                context.progress(done, total, "records")
                lock.beat()
                self._save(job.id, counts, failed)
            root.verify()
        except OSError as error:
            raise StoreError(f"stopped: {root.path}: {error.strerror}") from error
        finally:
            journal.turn(job.kind, (), None)
            self._save(job.id, counts, failed)

    def _act(self, root: StoreRoot, kind: str, folder: bytes, chunk: Chunk, items: Sequence[ItemRow]) -> list[Outcome]:
        """Restores or purges the items of a chunk; what could not be done goes on waiting, with its reason.

        Ends early where the quarantine is taken away meanwhile; the next look at it says so.
        """
        act: Callable[..., Outcome] = restore if kind == "restore" else purge
        outcomes: list[Outcome] = []
        try:
            for item in items:
                before = chunk.state_of(item.seq - chunk.first_seq)
                outcome = act(root, folder, item, checked=before != LEFT_BEHIND)
                if outcome.state in ("exists", "failed"):
                    outcome = outcome._replace(state=before)
                elif outcome.state == "changed":
                    # Perhaps a copy of the store is in its place: where the original comes back, it is put back (or
                    # purged) yet.
                    outcome = outcome._replace(state=before, errno=errno.ESTALE)
                elif before == LEFT_BEHIND and outcome.state in _DONE.values():
                    said = f"a file that had taken its place was {outcome.state}"
                    outcome = outcome._replace(state="changed", detail=said)
                outcomes.append(outcome)
        except FootingLost:
            pass
        finally:
            chunk.set(outcomes, self._clock())
        sync_directory(root.directory.fd)
        return outcomes

    @staticmethod
    def _count(
        items: Sequence[ItemRow], outcomes: Sequence[Outcome], counts: Counter[str], failed: list[dict[str, Any]]
    ) -> None:
        for item, outcome in zip(items, outcomes, strict=True):
            counts[outcome.state] += 1
            counts[f"bytes:{outcome.state}"] += item.size
            if outcome.errno is not None and outcome.state in WAITING:
                counts[_LEFT.get(outcome.errno, "failed")] += 1
                if len(failed) < _FAILED_SHOWN:
                    failed.append(
                        {"name": display_name(item.name), "errno": outcome.errno, "message": outcome.detail or ""}
                    )

    def _save(self, job_id: int, counts: Counter[str], failed: list[dict[str, Any]]) -> None:
        done = list(_DONE.values())
        with self._db.write() as session:
            session.execute(
                update(QuarantineJob)
                .where(QuarantineJob.id == job_id)
                .values(
                    records=sum(counts[s] for s in done),
                    bytes=sum(counts[f"bytes:{s}"] for s in done),
                    skipped={w: counts[w] for w in ("exists", "vanished", "changed") if counts[w]},
                    failed=list(failed),
                    failed_total=counts["failed"],
                )
            )

    def _tidy(self, root: StoreRoot, run: CleanupRun) -> None:
        """Folders that hold nothing any more go, so that the quarantine shows only what waits."""
        for number in self._rounds(run):
            remove_if_empty(root, folder_of_round(run.folder, number))

    def _rounds(self, run: CleanupRun) -> set[int]:
        with self._db.read() as session:
            query = select(PlanChunk.round).where(PlanChunk.plan_id == run.plan_id).distinct()
            return {1, *session.scalars(query)}

    def _end(self, job: QuarantineJob, before: int | None, after: int | None) -> None:
        with self._db.write() as session:
            row = session.get(QuarantineJob, job.id)
            if row is None:
                return
            row.free_bytes_before, row.free_bytes_after = before, after

    def ended(self, session: Session, job_id: int, state: str) -> None:
        """For the work runner: the audit trail tells how a job ended, in the unit of work that ends it."""
        job = session.get(QuarantineJob, job_id, populate_existing=True)
        if job is None:
            return
        self._audit.record(
            session,
            actor=job.requested_by,
            action=f"quarantine.{job.kind}",
            target_kind="cleanup_run",
            by_request=False,
            target_id=job.run_id,
            detail={
                "job_id": job_id,
                "state": state,
                "records": job.records,
                "bytes": job.bytes,
                "skipped": job.skipped,
            },
        )
