"""Schedules: rows, claims, and the APScheduler that wakes us (one process: the one holding the serve lock).

A firing is claimed by inserting (schedule, scheduled_for): zero rows inserted means another process has it. A firing
missed while no panel ran is made up once at the next start and marked `late`; a firing whose predecessor still runs
is refused and kept as `overlap`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.interval import IntervalTrigger
from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.audit.service import AuditService
from app.clock import Clock
from app.database import Database, insert_ignore
from app.errors import Conflict, InvalidInput, NotFound, TierkeeperError
from app.paging import decode_cursor, encode_cursor, parse_id
from app.scheduling.cron import DebianCronTrigger, due_between, last_due, validate_cron, validate_timezone
from app.scheduling.jobs import told_in_a_line
from app.scheduling.runner import WorkRunner
from app.scheduling.schemas import FiringView, Page, ScheduleInput, SchedulePatch, ScheduleView
from app.scheduling.tables import Firing, Schedule
from app.scheduling.views import firing_view, schedule_view
from app.scheduling.work import ACTIVE_STATES, Skipped

log = structlog.get_logger()


@dataclass(frozen=True)
class StartedWork:
    """What a firing started: the runner's kind and the row id; None ids mean nothing had to be done."""

    kind: str
    id: int


#: Starts the work of a schedule: (target id, options, actor) -> what was started.
Fire = Callable[[int, Mapping[str, Any], str], StartedWork | None]
#: Checks that a target exists and the options fit, before a schedule is stored; raises InvalidInput or NotFound.
Check = Callable[[int, Mapping[str, Any]], None]
#: Tells the owner of a schedule that it was paused or goes on, so that both say the same: (target id, paused, actor).
OnPause = Callable[[int, bool, str], None]


class SchedulingService:
    """Schedule rows and their firings."""

    def __init__(self, *, db: Database, clock: Clock, audit: AuditService, runner: WorkRunner) -> None:
        self._db = db
        self._clock = clock
        self._audit = audit
        self._runner = runner
        self._kinds: dict[str, tuple[Fire, Check]] = {}
        self._on_pause: dict[str, OnPause] = {}
        self._scheduler: BackgroundScheduler | None = None
        self._heartbeat: float | None = None

    def register(self, kind: str, fire: Fire, check: Check, on_pause: OnPause | None = None) -> None:
        """Makes a kind of schedule known (called once at wiring)."""
        self._kinds[kind] = (fire, check)
        if on_pause is not None:
            self._on_pause[kind] = on_pause

    # waking up

    def start(self) -> None:
        """Starts waking, and makes up what was missed while no panel ran."""
        scheduler = BackgroundScheduler(
            timezone="UTC",
            # Jobs that are late tell of trouble late: they wait for none of the long ones.
            executors={"default": ThreadPoolExecutor(4), "prompt": ThreadPoolExecutor(3)},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        )
        self._scheduler = scheduler
        self.every(15.0, "heartbeat", self._beat, prompt=True)
        self._beat()
        with self._db.read() as session:
            rows = list(session.scalars(select(Schedule)))
        for row in rows:
            self._arm(row)
            self._make_up(row)
        scheduler.start()

    def stop(self) -> None:
        if self._scheduler is not None:
            self._scheduler.shutdown(wait=False)
            self._scheduler = None

    def every(self, seconds: float, name: str, job: Callable[[], object], *, prompt: bool = False) -> None:
        """A job that is code, such as roll-ups: runs every `seconds` in a thread, never twice at once. `prompt`: it is
        short and must not wait for a thread that a long one has."""
        if self._scheduler is None:
            raise RuntimeError("start() first")
        trigger, executor = IntervalTrigger(seconds=seconds), "prompt" if prompt else "default"
        self._scheduler.add_job(
            told_in_a_line(name, job), trigger, id=f"code:{name}", replace_existing=True, executor=executor
        )

    def alive(self, *, within_seconds: float = 60.0) -> bool:
        """Whether the scheduler's heartbeat is recent."""
        return self._heartbeat is not None and self._clock() - self._heartbeat < within_seconds

    def _beat(self) -> None:
        self._heartbeat = self._clock()

    def _arm(self, row: Schedule) -> None:
        if self._scheduler is None:
            return
        job_id = f"schedule:{row.id}"
        if row.paused:
            if self._scheduler.get_job(job_id):
                self._scheduler.remove_job(job_id)
            return
        self._scheduler.add_job(
            self._wake, DebianCronTrigger(row.cron, row.timezone), args=[row.id], id=job_id, replace_existing=True
        )

    def _disarm(self, schedule_id: int) -> None:
        if self._scheduler is not None and self._scheduler.get_job(f"schedule:{schedule_id}"):
            self._scheduler.remove_job(f"schedule:{schedule_id}")

    def _wake(self, schedule_id: int) -> None:
        with self._db.read() as session:
            row = session.get(Schedule, schedule_id)
        if row is None or row.paused:
            return
        due = last_due(row.cron, row.timezone, row.armed_at - 1, self._clock())
        if due is not None:
            self.fire(schedule_id, due)

    def _make_up(self, row: Schedule) -> None:
        if row.paused:
            return
        with self._db.read() as session:
            last = session.scalar(
                select(Firing.scheduled_for)
                .where(Firing.schedule_id == row.id, Firing.outcome != "manual")
                .order_by(Firing.scheduled_for.desc())
                .limit(1)
            )
        missed = due_between(row.cron, row.timezone, max(last or 0.0, row.armed_at), self._clock())
        if missed:
            told = f"{len(missed)} firings were missed while no panel ran, made up once" if len(missed) > 1 else None
            self.fire(row.id, missed[-1], late=True, told=told)

    def fire(
        self,
        schedule_id: int,
        scheduled_for: float,
        *,
        late: bool = False,
        manual_by: str | None = None,
        told: str | None = None,
    ) -> bool:
        """Claims and starts one firing; False when somebody else has it. Never raises for what the work says.

        `told`: what there is to say of a firing that starts.
        """
        now = self._clock()
        outcome = "manual" if manual_by else "late" if late else "started"
        with self._db.write() as session:
            row = session.get(Schedule, schedule_id)
            if row is None:
                return False
            claimed = insert_ignore(
                session,
                Firing.__table__,  # type: ignore[arg-type]
                [{"schedule_id": schedule_id, "scheduled_for": scheduled_for, "fired_at": now, "outcome": outcome}],
            )
            if not claimed:
                return False
            previous = session.execute(
                select(Firing.work_kind, Firing.work_id)
                .where(Firing.schedule_id == schedule_id, Firing.work_id.is_not(None))
                .order_by(Firing.id.desc())
                .limit(1)
            ).one_or_none()
            before = (str(previous[0]), int(previous[1] or 0)) if previous else None
            kind, target_id, options = row.kind, row.target_id, dict(row.options)
        if before is not None and self._under_way(*before):
            self._settle(schedule_id, scheduled_for, "overlap", f"{before[0]} {before[1]} still runs", None)
            return False
        try:
            started = self._kinds[kind][0](target_id, options, manual_by or f"schedule:{schedule_id}")
        except Skipped as reason:
            self._settle(schedule_id, scheduled_for, "skipped", str(reason), None)
            return False
        except TierkeeperError as error:
            self._settle(schedule_id, scheduled_for, "error", error.detail, None)
            return False
        except Exception as error:
            log.exception("schedule.firing_failed", schedule=schedule_id)
            self._settle(schedule_id, scheduled_for, "error", f"{type(error).__name__}: {error}", None)
            return False
        self._settle(schedule_id, scheduled_for, outcome, told if started else "nothing to do", started)
        return True

    def _under_way(self, kind: str, work_id: int) -> bool:
        if (self._runner.state_of(kind, work_id) or "") not in ACTIVE_STATES:
            return False
        self._runner.recover()  # its process may be gone
        return (self._runner.state_of(kind, work_id) or "") in ACTIVE_STATES

    def _settle(
        self, schedule_id: int, scheduled_for: float, outcome: str, detail: str | None, work: StartedWork | None
    ) -> None:
        with self._db.write() as session:
            session.execute(
                update(Firing)
                .where(Firing.schedule_id == schedule_id, Firing.scheduled_for == scheduled_for)
                .values(
                    outcome=outcome,
                    detail=detail,
                    work_kind=work.kind if work else None,
                    work_id=work.id if work else None,
                )
            )

    # rows

    def create(self, body: ScheduleInput, *, actor: str) -> ScheduleView:
        """Stores a schedule. Raises InvalidInput, NotFound (target) or Conflict (name)."""
        self._validate(body.kind, parse_id(body.kind, body.target_id), body.options)
        now = self._clock()
        row = Schedule(
            name=body.name,
            kind=body.kind,
            target_id=parse_id(body.kind, body.target_id),
            cron=validate_cron(body.cron),
            timezone=validate_timezone(body.timezone),
            paused=body.paused,
            options=body.options,
            created_at=now,
            armed_at=now,
        )
        try:
            with self._db.write() as session:
                session.add(row)
                session.flush()
                self._audit.record(
                    session,
                    actor=actor,
                    action="schedule.create",
                    target_kind="schedule",
                    target_id=row.id,
                    detail=body.model_dump(),
                )
        except IntegrityError as error:
            raise Conflict(f"name: another {body.kind} schedule is already called {body.name!r}") from error
        self._arm(row)
        return self._view(row)

    def set_for(
        self, kind: str, target_id: int, *, name: str, cron: str | None, timezone: str, enabled: bool, actor: str
    ) -> None:
        """Keeps the one schedule that a policy (or other owner) carries in itself in step with it; None removes it."""
        now = self._clock()
        with self._db.write() as session:
            row = session.scalar(select(Schedule).where(Schedule.kind == kind, Schedule.target_id == target_id))
            if cron is None:
                if row is not None:
                    session.delete(row)
                    self._disarm(row.id)
                return
            if row is None:
                row = Schedule(name=name, kind=kind, target_id=target_id, created_at=now, options={}, armed_at=now)
                session.add(row)
            changed = (row.cron, row.timezone, row.paused) != (cron, timezone, not enabled)
            row.name, row.cron, row.timezone, row.paused = name, validate_cron(cron), timezone, not enabled
            if changed:
                row.armed_at = now
            session.flush()
            self._audit.record(
                session,
                actor=actor,
                action="schedule.set",
                target_kind="schedule",
                target_id=row.id,
                detail={"kind": kind, "target_id": target_id, "cron": cron, "enabled": enabled},
            )
        self._arm(row)

    def get(self, schedule_id: int) -> ScheduleView:
        with self._db.read() as session:
            row = self._row(session, schedule_id)
        return self._view(row)

    def list_schedules(self, *, page_size: int, page_token: str | None, kind: str | None = None) -> Page[ScheduleView]:
        list_name = f"schedules|{kind}"
        query = select(Schedule).order_by(Schedule.id).limit(page_size + 1)
        if kind:
            query = query.where(Schedule.kind == kind)
        if page_token:
            query = query.where(Schedule.id > decode_cursor(list_name, page_token)[0])
        with self._db.read() as session:
            rows = list(session.scalars(query))
        token = encode_cursor(list_name, [rows[page_size - 1].id]) if len(rows) > page_size else None
        return Page(items=[self._view(row) for row in rows[:page_size]], next_page_token=token)

    def patch(self, schedule_id: int, body: SchedulePatch, *, actor: str) -> ScheduleView:
        now = self._clock()
        with self._db.write() as session:
            row = self._row(session, schedule_id)
            kind, target_id = row.kind, row.target_id
            if body.name is not None:
                row.name = body.name
            if body.cron is not None:
                row.cron = validate_cron(body.cron)
            if body.timezone is not None:
                row.timezone = validate_timezone(body.timezone)
            if body.options is not None:
                self._validate(row.kind, row.target_id, body.options)
                row.options = body.options
            if body.paused is not None:
                row.paused = body.paused
            row.armed_at = now
            self._audit.record(
                session,
                actor=actor,
                action="schedule.update",
                target_kind="schedule",
                target_id=schedule_id,
                detail=body.model_dump(exclude_none=True),
            )
        if body.paused is not None and kind in self._on_pause:
            self._on_pause[kind](target_id, body.paused, actor)
        self._arm(row)
        return self._view(row)

    def delete(self, schedule_id: int, *, actor: str) -> None:
        with self._db.write() as session:
            row = self._row(session, schedule_id)
            if row.kind == "policy":
                raise Conflict(
                    f"the schedule {row.name!r} belongs to a policy and would come back with it: clear the policy's "
                    "schedule (or pause it here)"
                )
            session.delete(row)
            self._audit.record(
                session, actor=actor, action="schedule.delete", target_kind="schedule", target_id=schedule_id
            )
        self._disarm(schedule_id)

    def run_now(self, schedule_id: int, *, actor: str) -> FiringView:
        """Fires once now, paused or not; the firing says what came of it."""
        now = self._clock()
        self.get(schedule_id)
        self.fire(schedule_id, now, manual_by=actor)
        with self._db.read() as session:
            row = session.scalar(select(Firing).where(Firing.schedule_id == schedule_id, Firing.scheduled_for == now))
        if row is None:
            raise Conflict("another firing of this schedule was claimed at the same instant; look at its firings")
        return firing_view(row)

    def firings(self, schedule_id: int, *, page_size: int, page_token: str | None) -> Page[FiringView]:
        """Newest first."""
        list_name = f"firings|{schedule_id}"
        self.get(schedule_id)
        query = select(Firing).where(Firing.schedule_id == schedule_id).order_by(Firing.id.desc()).limit(page_size + 1)
        if page_token:
            query = query.where(Firing.id < decode_cursor(list_name, page_token)[0])
        with self._db.read() as session:
            rows = list(session.scalars(query))
        token = encode_cursor(list_name, [rows[page_size - 1].id]) if len(rows) > page_size else None
        return Page(items=[firing_view(row) for row in rows[:page_size]], next_page_token=token)

    def recent_firings(self, count: int) -> list[FiringView]:
        """The newest firings of all schedules."""
        with self._db.read() as session:
            return [firing_view(row) for row in session.scalars(select(Firing).order_by(Firing.id.desc()).limit(count))]

    def _validate(self, kind: str, target_id: int, options: Mapping[str, Any]) -> None:
        if kind not in self._kinds:
            raise InvalidInput.field("kind", f"{kind!r} is not one of {', '.join(sorted(self._kinds))}")
        self._kinds[kind][1](target_id, options)

    @staticmethod
    def _row(session: Session, schedule_id: int) -> Schedule:
        row = session.get(Schedule, schedule_id)
        if row is None:
            raise NotFound.of("schedule", schedule_id)
        return row

    def _view(self, row: Schedule) -> ScheduleView:
        with self._db.read() as session:
            last = session.scalar(
                select(Firing).where(Firing.schedule_id == row.id).order_by(Firing.id.desc()).limit(1)
            )
        return schedule_view(row, last, self._clock())
