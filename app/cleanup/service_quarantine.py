"""Quarantine: what waits, restoring, purging, expiry, and adopting what another panel left."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from sqlalchemy import and_, or_, select
from sqlalchemy.orm import Session

from app.cleanup.adoption import adopt
from app.cleanup.disk import store_root
from app.cleanup.quarantine import Waiting, list_folders, measure
from app.cleanup.schemas import Count, QuarantineEntry, QuarantineJobView, QuarantineView, RunView, SelectionInput
from app.cleanup.selection import ItemFilter, selection_of
from app.cleanup.service_base import ServiceBase
from app.cleanup.tables import CleanupRun, QuarantineJob
from app.cleanup.views import job_view
from app.cleanup.waiting import waiting_kinds
from app.clock import iso
from app.errors import Conflict, NotFound
from app.paging import decode_cursor, encode_cursor
from app.scheduling.schemas import Page
from app.scheduling.work import ACTIVE_STATES, SUCCEEDED

#: A restore or purge of a few thousand records is done when the answer leaves.
INLINE_SECONDS = 5.0
RETRY_SECONDS = 3600.0
#: Where the last purge by the clock found files that are not those it was to purge (a copy of the store), nothing will
#: have changed an hour later.
RETRY_CHANGED_SECONDS = 86_400.0


class QuarantineMethods(ServiceBase):
    """Part of CleanupService."""

    def restore(self, run_id: int, body: SelectionInput | None, *, actor: str) -> QuarantineJobView:
        """Puts records back, never over an existing name, and holds them. Small ones are done on return."""
        return self._start_job(run_id, "restore", body, actor)

    def purge(self, run_id: int, body: SelectionInput | None, *, actor: str) -> QuarantineJobView:
        """Deletes quarantined records for good. Small ones are done on return."""
        return self._start_job(run_id, "purge", body, actor)

    def _start_job(self, run_id: int, kind: str, body: SelectionInput | None, actor: str) -> QuarantineJobView:
        selection = selection_of(body.record_ids, body.filter) if body is not None else {}
        self._runner.recover()
        job_id = self._queue_job(run_id, kind, selection, actor)
        future = self._runner.submit("quarantine", job_id)
        if future is not None:
            with contextlib.suppress(FutureTimeout):  # it goes on; the caller polls it
                future.result(timeout=INLINE_SECONDS)
        return self.get_quarantine_job(job_id)

    def waiting(self, run_id: int, body: SelectionInput | None = None) -> dict[str, Count]:
        """What waits of a run (or what a restore of a selection would take), by what it was when it was taken.

        Keys are reasons, or classes where there is none. Raises NotFound, InvalidInput.
        """
        selection = selection_of(body.record_ids, body.filter) if body is not None else {}
        with self._db.read() as session:
            run = session.get(CleanupRun, run_id)
        if run is None:
            raise NotFound.of("cleanup run", run_id)
        if run.plan_id is None or not run.waiting_records:
            return {}
        return waiting_kinds(self._db, run.plan_id, ItemFilter.of(selection) if selection else None)

    def _queue_job(self, run_id: int, kind: str, selection: Mapping[str, Any], actor: str) -> int:
        with self._db.write() as session:
            run = session.get(CleanupRun, run_id)
            if run is None:
                raise NotFound.of("cleanup run", run_id)
            if run.state in ACTIVE_STATES:
                raise Conflict(f"cleanup run {run_id} is {run.state}; wait for it, or cancel it")
            active = session.scalar(
                select(QuarantineJob.id).where(QuarantineJob.run_id == run_id, QuarantineJob.state.in_(ACTIVE_STATES))
            )
            if active is not None:
                raise Conflict(f"quarantine job {active} of this run is under way; wait for it, or cancel it")
            job = QuarantineJob(
                run_id=run_id, kind=kind, selection=dict(selection), created_at=self._clock(), requested_by=actor
            )
            self._runner.queue(session, job)
            self._audit.record(
                session,
                actor=actor,
                action=f"quarantine.{kind}.start",
                target_kind="cleanup_run",
                target_id=run_id,
                detail={"job_id": job.id, "selection": _short(selection)},
            )
            return job.id

    def get_quarantine_job(self, job_id: int) -> QuarantineJobView:
        """Raises NotFound."""
        with self._db.read() as session:
            return self._job_view(session, self._job_row(session, job_id))

    def list_quarantine_jobs(
        self, *, page_size: int, page_token: str | None, run_id: int | None = None
    ) -> Page[QuarantineJobView]:
        """Newest first."""
        query = select(QuarantineJob)
        if run_id is not None:
            query = query.where(QuarantineJob.run_id == run_id)
        with self._db.read() as session:
            return self._page(
                session,
                query,
                QuarantineJob.id,
                list_name=f"quarantine_jobs|{run_id}",
                page_size=page_size,
                page_token=page_token,
                newest_first=True,
                view=lambda row: self._job_view(session, row),
            )

    def cancel_quarantine_job(self, job_id: int, *, actor: str) -> QuarantineJobView:
        """Stops between two batches. Raises NotFound."""
        self.get_quarantine_job(job_id)
        self._runner.cancel("quarantine", job_id)
        with self._db.write() as session:
            self._audit.record(
                session, actor=actor, action="quarantine.cancel", target_kind="quarantine_job", target_id=job_id
            )
        return self.get_quarantine_job(job_id)

    def quarantine(self, store_id: int, *, page_size: int, page_token: str | None) -> QuarantineView:
        """What waits on the store's disk, also of runs that this panel does not know. Raises NotFound, StoreError.

        Folders of this panel's own runs are counted by the journal, all others on the disk.
        """
        list_name = f"quarantine|{store_id}"
        after = str(decode_cursor(list_name, page_token)[0]) if page_token else ""
        store = self._fleet.store_target(store_id)
        with self._db.read() as session:
            runs = {
                run.folder: run for run in session.scalars(select(CleanupRun).where(CleanupRun.store_id == store_id))
            }
        with store_root(self._inventory, store) as root:
            found: dict[str, list[Waiting]] = {}
            for folder in list_folders(root):
                base = base_folder(folder)
                parts = found.setdefault(base, [])
                if base not in runs:
                    parts.append(measure(root, folder))
        entries = [_entry(name, parts, runs.get(name)) for name, parts in sorted(found.items())]
        rest = [entry for entry in entries if entry.folder > after]
        shown = rest[:page_size]
        for entry in shown:
            if entry.run_id is not None:
                entry.by_reason = self.waiting(int(entry.run_id))
        return QuarantineView(
            items=shown,
            next_page_token=encode_cursor(list_name, [shown[-1].folder]) if len(rest) > page_size else None,
            records=sum(e.records for e in entries),
            bytes=sum(e.bytes for e in entries),
            measured_at=iso(self._clock()) or "",
        )

    def adopt_quarantine(self, store_id: int, folder: str, *, actor: str) -> RunView:
        """Makes a run of a folder whose manifest another panel wrote, so that it can be restored or purged.

        Raises NotFound, StoreError, Conflict (it is known here).
        """
        store = self._fleet.store_target(store_id)
        run_id = adopt(
            self._db, self._clock, self._audit, self._inventory, store, folder, owner=self._runner.owner, actor=actor
        )
        return self.get_run(run_id)

    def get_run(self, run_id: int) -> RunView:
        raise NotImplementedError  # RunMethods

    def purge_expired(self, now: float) -> int:
        """Purges what has waited for its policy's `quarantine_for`; returns how many jobs ended. For the scheduler."""
        # What could not be purged (its store is away) is tried again an hour later, not every minute.
        tried = select(QuarantineJob.run_id).where(
            or_(
                QuarantineJob.created_at > now - RETRY_SECONDS,
                and_(
                    QuarantineJob.created_at > now - RETRY_CHANGED_SECONDS,
                    QuarantineJob.kind == "purge",
                    QuarantineJob.state == SUCCEEDED,
                    QuarantineJob.records == 0,
                ),
            )
        )
        query = select(CleanupRun.id).where(
            CleanupRun.purge_after <= now,
            CleanupRun.waiting_records > 0,
            CleanupRun.state.not_in(ACTIVE_STATES),
            CleanupRun.id.not_in(tried),
        )
        with self._db.read() as session:
            run_ids = session.scalars(query.order_by(CleanupRun.purge_after)).all()
        done = 0
        for run_id in run_ids:
            try:
                job_id = self._queue_job(run_id, "purge", {}, "system")
            except Conflict:
                continue  # somebody restores or purges it just now
            done += bool(self._runner.run_here("quarantine", job_id))
        return done

    def _job_row(self, session: Session, job_id: int) -> QuarantineJob:
        row = session.get(QuarantineJob, job_id)
        if row is None:
            raise NotFound.of("quarantine job", job_id)
        return row

    def _job_view(self, session: Session, row: QuarantineJob) -> QuarantineJobView:
        run = session.get(CleanupRun, row.run_id)
        return job_view(row, store_id=run.store_id if run is not None else 0)


def base_folder(folder: str) -> str:
    """The run's own folder: what came back in a later round lies in `<folder>.<round>`."""
    return folder.split(".", 1)[0]


def _entry(name: str, parts: list[Waiting], run: CleanupRun | None) -> QuarantineEntry:
    if run is not None:
        return QuarantineEntry(
            folder=name,
            run_id=str(run.id),
            policy_name=run.policy_name,
            started_at=iso(run.started_at),
            purge_after=iso(run.purge_after),
            records=run.waiting_records,
            bytes=run.waiting_bytes,
            readable=True,
            reason=None,
        )
    header = next((part.header for part in parts if part.header is not None), None) or {}
    reasons = [part.reason for part in parts if part.reason]
    return QuarantineEntry(
        folder=name,
        run_id=None,
        policy_name=_text(header.get("policy")),
        started_at=_text(header.get("started_at")),
        purge_after=_text(header.get("purge_after")),
        records=sum(part.records for part in parts),
        bytes=sum(part.bytes for part in parts),
        readable=not reasons,
        reason=reasons[0] if reasons else None,
    )


def _text(value: object) -> str | None:
    return value[:200] if isinstance(value, str) else None


def _short(selection: Mapping[str, Any]) -> dict[str, Any]:
    return {k: f"{len(v)} records" if isinstance(v, list) else v for k, v in selection.items()}
