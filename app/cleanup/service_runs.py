"""Runs: starting, showing, cancelling, exporting."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from app.cleanup.chunks import STATES
from app.cleanup.hit_rate import around
from app.cleanup.name_index import index_names
from app.cleanup.schemas import EpisodeView, ItemView, RunView
from app.cleanup.service_base import ServiceBase
from app.cleanup.tables import CleanupEpisode, CleanupRun, Plan, Policy
from app.cleanup.views import episode_view, run_view
from app.cleanup.waiting import outcomes_of, waiting_kinds
from app.clock import iso
from app.errors import Conflict, InvalidInput, NotFound
from app.scheduling.schemas import Page
from app.scheduling.work import ACTIVE_STATES, SUCCEEDED
from app.telemetry.service import TelemetryService

#: Plans that nobody ran, and the records of runs, are kept this long (seconds).
IDLE_PLANS_SECONDS = 7 * 86_400.0
RECORDS_SECONDS = 90 * 86_400.0


class RunMethods(ServiceBase):
    """Part of CleanupService."""

    _telemetry: TelemetryService | None

    def start_run(self, plan_id: int, *, actor: str) -> RunView:
        """Queues a plan's run. Raises NotFound; Conflict when the plan has expired, has run, or is not ready, or while
        another run of the store is active."""
        with self._db.read() as session:
            plan = session.get(Plan, plan_id)
        if plan is None:
            raise NotFound.of("plan", plan_id)
        if plan.state != SUCCEEDED or plan.expires_at is None:
            raise Conflict(f"plan {plan_id} is {plan.state}; only a finished plan can be run")
        if self._clock() > plan.expires_at:
            raise Conflict(f"plan {plan_id} expired at {iso(plan.expires_at)}: the store has changed since; plan again")
        self._runner.recover()
        with self._db.write() as session:
            earlier = session.scalar(select(CleanupRun.id).where(CleanupRun.plan_id == plan_id).limit(1))
            if earlier is not None:
                raise Conflict(f"plan {plan_id} was run already, as run {earlier}; plan again")
            row = self._new_run(
                session,
                actor,
                store_id=plan.store_id,
                policy_id=plan.policy_id,
                policy_name=plan.policy_name,
                plan_id=plan_id,
                trigger="housekeeping" if plan.origin == "housekeeping" else "hand",
            )
            # Known from the first moment on: a run that is killed before it begins has reached none of them.
            row.planned_records, row.planned_bytes = plan.records, plan.bytes
        self._runner.submit("cleanup", row.id)
        return self.get_run(row.id)

    def start_policy_run(self, policy_id: int, *, actor: str, trigger: str = "hand") -> RunView:
        """Queues a run that plans for itself (scanning first where the inventory is old). NotFound, Conflict."""
        return self.get_run(self._start(policy_id, actor, trigger))

    def _start(self, policy_id: int, actor: str, trigger: str) -> int:
        with self._db.read() as session:
            policy = session.get(Policy, policy_id)
        if policy is None:
            raise NotFound.of("policy", policy_id)
        self._runner.recover()
        with self._db.write() as session:
            row = self._new_run(
                session,
                actor,
                store_id=policy.store_id,
                policy_id=policy_id,
                policy_name=policy.name,
                plan_id=None,
                trigger=trigger,
            )
        self._runner.submit("cleanup", row.id)
        return row.id

    def _new_run(
        self,
        session: Session,
        actor: str,
        *,
        store_id: int,
        policy_id: int | None,
        policy_name: str | None,
        plan_id: int | None,
        trigger: str,
    ) -> CleanupRun:
        active = session.execute(
            select(CleanupRun.id, CleanupRun.state).where(
                CleanupRun.store_id == store_id, CleanupRun.state.in_(ACTIVE_STATES)
            )
        ).first()
        if active is not None:
            raise Conflict(f"cleanup run {active[0]} of this store is {active[1]}; wait for it, or cancel it")
        now = self._clock()
        row = CleanupRun(
            store_id=store_id,
            policy_id=policy_id,
            policy_name=policy_name,
            plan_id=plan_id,
            trigger=trigger,
            folder=folder_name(now),
            created_at=now,
            requested_by=actor,
        )
        self._runner.queue(session, row)
        self._audit.record(
            session,
            actor=actor,
            action="cleanup.start",
            target_kind="cleanup_run",
            target_id=row.id,
            detail={"store_id": store_id, "policy": policy_name, "plan_id": plan_id, "trigger": trigger},
        )
        return row

    def get_run(self, run_id: int) -> RunView:
        """Raises NotFound."""
        with self._db.read() as session:
            row = self._run_row(session, run_id)
            view = self._run_view(session, row)
        if row.plan_id is not None and row.waiting_records and row.state not in ACTIVE_STATES:
            view.waiting_by_reason = waiting_kinds(self._db, row.plan_id)
        plan_id = self._finished_plan(run_id)
        if plan_id is not None:
            view.outcomes = self._outcomes(plan_id, view)
        if self._telemetry is None or row.started_at is None or row.finished_at is None:
            return view
        try:
            servers = self._fleet.store_target(row.store_id).server_ids
        except NotFound:
            return view
        view.hit_rate = around(
            self._telemetry, servers, started=row.started_at, finished=row.finished_at, now=self._clock()
        )
        return view

    def list_runs(
        self, *, page_size: int, page_token: str | None, store_id: int | None = None, policy_id: int | None = None
    ) -> Page[RunView]:
        """Newest first."""
        query = select(CleanupRun)
        if store_id is not None:
            query = query.where(CleanupRun.store_id == store_id)
        if policy_id is not None:
            query = query.where(CleanupRun.policy_id == policy_id)
        with self._db.read() as session:
            return self._page(
                session,
                query,
                CleanupRun.id,
                list_name=f"cleanup_runs|{store_id}|{policy_id}",
                page_size=page_size,
                page_token=page_token,
                newest_first=True,
                view=lambda row: self._run_view(session, row),
            )

    def _outcomes(self, plan_id: int, view: RunView) -> dict[str, int]:
        """Records by what became of them; those that the run has not come to are `planned`."""
        found = outcomes_of(self._db, plan_id)
        untouched = view.planned.records + view.added.records - sum(found.values())
        if untouched > 0:
            found["planned"] = found.get("planned", 0) + untouched
        return found

    def run_records(
        self,
        run_id: int,
        *,
        page_size: int,
        page_token: str | None,
        state: str | None = None,
        errno: int | None = None,
    ) -> Page[ItemView]:
        """What became of each record; `state` filters, and `errno` those that failed with it. Raises InvalidInput."""
        plan_id = self._finished_plan(run_id)
        return self._item_page(
            plan_id,
            list_name=f"run_records|{run_id}|{state}|{errno}",
            page_size=page_size,
            page_token=page_token,
            state=_known_state(state, errno),
            errno=errno,
        )

    def export_run_records(
        self, run_id: int, *, state: str | None = None, errno: int | None = None
    ) -> Iterator[ItemView]:
        """All of them, or those that `state` and `errno` leave, streamed. Raises NotFound, InvalidInput at once."""
        state = _known_state(state, errno)
        return self._items(self._finished_plan(run_id), 0, state=state, errno=errno)

    def _finished_plan(self, run_id: int) -> int | None:
        """The plan of a run; None where the run ended while it was still planning, so that nothing was planned."""
        with self._db.read() as session:
            plan_id = self._run_row(session, run_id).plan_id
            plan = None if plan_id is None else session.get(Plan, plan_id)
            return plan_id if plan is not None and plan.state == SUCCEEDED else None

    def index_names(self, rest: Callable[[], None] = lambda: None) -> int:
        """Makes it quick to ask which plans named a record; returns how many it took in. For the scheduler."""
        return index_names(self._db, rest)

    def retire(self, now: float) -> int:
        """Forgets plans that were never run after a week, and the records of runs after the retention.

        A run keeps its counts for ever; its records (what became of each) go when nothing of it waits in quarantine any
        more. Returns how many plans went. For the scheduler, once an hour.
        """
        run_of = select(CleanupRun.plan_id).where(CleanupRun.plan_id.is_not(None))
        idle = select(Plan.id).where(
            Plan.state.not_in(ACTIVE_STATES), Plan.created_at < now - IDLE_PLANS_SECONDS, Plan.id.not_in(run_of)
        )
        told = select(CleanupRun.plan_id).where(
            CleanupRun.plan_id.is_not(None),
            CleanupRun.finished_at < now - RECORDS_SECONDS,
            CleanupRun.waiting_records == 0,
            CleanupRun.state.not_in(ACTIVE_STATES),
            CleanupRun.store_id.not_in(select(CleanupEpisode.store_id).where(CleanupEpisode.closed_at.is_(None))),
        )
        with self._db.read() as session:
            gone = {*session.scalars(idle), *session.scalars(told)}
        for plan_id in sorted(p for p in gone if p is not None):
            with self._db.write() as session:
                session.execute(delete(Plan).where(Plan.id == plan_id))
        return len(gone)

    def cancel_run(self, run_id: int, *, actor: str) -> RunView:
        """Stops between two records; what is in quarantine stays there."""
        self.get_run(run_id)
        self._runner.cancel("cleanup", run_id)
        with self._db.write() as session:
            self._audit.record(
                session, actor=actor, action="cleanup.cancel", target_kind="cleanup_run", target_id=run_id
            )
        return self.get_run(run_id)

    def episodes(self, store_id: int | None = None, *, open_only: bool = True) -> list[EpisodeView]:
        """Caches that may still hold wrong records, oldest first."""
        query = select(CleanupEpisode).order_by(CleanupEpisode.id)
        if store_id is not None:
            query = query.where(CleanupEpisode.store_id == store_id)
        if open_only:
            query = query.where(CleanupEpisode.closed_at.is_(None))
        with self._db.read() as session:
            active = select(CleanupRun.store_id, CleanupRun.id).where(CleanupRun.state.in_(ACTIVE_STATES))
            running = {int(store): int(run) for store, run in session.execute(active)}
            return [episode_view(row, running.get(row.store_id)) for row in session.scalars(query)]

    def _run_row(self, session: Session, run_id: int) -> CleanupRun:
        row = session.get(CleanupRun, run_id)
        if row is None:
            raise NotFound.of("cleanup run", run_id)
        return row

    def _run_view(self, session: Session, row: CleanupRun) -> RunView:
        return run_view(row, store_name=self._store_name(session, row.store_id))


def _known_state(state: str | None, errno: int | None) -> str | None:
    """The state to look for: only what failed has an errno. Raises InvalidInput for a state that is none."""
    if state is not None and state not in STATES:
        raise InvalidInput.field("state", f"{state!r} is not what becomes of a record; use one of {', '.join(STATES)}")
    return "failed" if state is None and errno is not None else state


def folder_name(now: float) -> str:
    """A run's folder in quarantine: two panels with two databases may use one store, so ids alone would collide."""
    return f"run-{datetime.fromtimestamp(now, UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
