"""The rows of other rooms that facts rest on: outcomes of runs, canaries, schedules; and the outbox."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.acceptance.tables import AcceptanceRun, Canary
from app.alerts.inputs import CanaryOutcome, NotifierInput, RunOutcome, ScheduleInput, TestOutcome
from app.alerts.tables import Notification, Notifier
from app.cleanup.tables import CleanupRun
from app.scheduling.cron import next_firings
from app.scheduling.tables import Firing, Schedule
from app.scheduling.work import CANCELLED, TERMINAL_STATES

_DECIDING = ("pass", "pass_with_near_ties", "fail")


@dataclass(frozen=True)
class OtherRows:
    """What `Moment` takes besides the targets."""

    cleanups: Sequence[RunOutcome]
    tests: Sequence[TestOutcome]
    canaries: Sequence[CanaryOutcome]
    schedules: Sequence[ScheduleInput]
    notifiers: Sequence[NotifierInput]


def read(session: Session) -> OtherRows:
    """All of them, in one read session."""
    return OtherRows(
        cleanups=_cleanups(session),
        tests=_tests(session),
        canaries=_canaries(session),
        schedules=_schedules(session),
        notifiers=_notifiers(session),
    )


def _cleanups(session: Session) -> list[RunOutcome]:
    """The last run that ended of each policy, and the last by hand, on each store."""
    ended = sorted(TERMINAL_STATES - {CANCELLED})
    last = (
        select(func.max(CleanupRun.id))
        .where(CleanupRun.state.in_(ended), CleanupRun.finished_at.is_not(None))
        .group_by(CleanupRun.store_id, CleanupRun.policy_id)
    )
    return [
        RunOutcome(
            id=row.id,
            store_id=row.store_id,
            policy=row.policy_name,
            state=row.state,
            verdict=row.verdict,
            finished_at=row.finished_at,
            note=(row.notes or [""])[0] if row.notes else row.error or "",
        )
        for row in session.execute(
            select(
                CleanupRun.id,
                CleanupRun.store_id,
                CleanupRun.policy_name,
                CleanupRun.state,
                CleanupRun.verdict,
                CleanupRun.finished_at,
                CleanupRun.notes,
                CleanupRun.error,
            ).where(CleanupRun.id.in_(last))
        )
    ]


def _tests(session: Session) -> list[TestOutcome]:
    last = (
        select(func.max(AcceptanceRun.id))
        .where(AcceptanceRun.verdict.in_(_DECIDING), AcceptanceRun.engine_id.is_not(None))
        .group_by(AcceptanceRun.engine_id)
    )
    return [
        TestOutcome(row.id, row.engine_id, row.verdict, row.finished_at or row.created_at, row.headline or "")
        for row in session.execute(
            select(
                AcceptanceRun.id,
                AcceptanceRun.engine_id,
                AcceptanceRun.verdict,
                AcceptanceRun.finished_at,
                AcceptanceRun.created_at,
                AcceptanceRun.headline,
            ).where(AcceptanceRun.id.in_(last))
        )
    ]


def _canaries(session: Session) -> list[CanaryOutcome]:
    query = select(Canary.engine_id, Canary.name, Canary.last_outcome, Canary.last_checked_at).order_by(Canary.id)
    return [CanaryOutcome(*row) for row in session.execute(query)]


def _schedules(session: Session) -> list[ScheduleInput]:
    found = []
    for row in session.scalars(select(Schedule).order_by(Schedule.id)):
        firings = select(Firing).where(Firing.schedule_id == row.id).order_by(Firing.id.desc()).limit(1)
        last = session.scalar(firings)
        last_due = session.scalar(
            select(func.max(Firing.scheduled_for)).where(Firing.schedule_id == row.id, Firing.outcome != "manual")
        )
        after = max(last_due or 0.0, row.armed_at)
        due = None if row.paused else next(iter(next_firings(row.cron, row.timezone, after, 1)), None)
        found.append(
            ScheduleInput(
                id=row.id,
                name=row.name,
                kind=row.kind,
                paused=row.paused,
                due=due,
                outcome=last.outcome if last is not None else None,
                detail=last.detail if last is not None else None,
                fired_at=last.fired_at if last is not None else None,
            )
        )
    return found


def _notifiers(session: Session) -> list[NotifierInput]:
    waiting = {
        row.notifier_id: row
        for row in session.execute(
            select(
                Notification.notifier_id,
                func.count().label("waiting"),
                func.min(Notification.created_at).label("oldest"),
            )
            .where(Notification.state.in_(("waiting", "sending")))
            .group_by(Notification.notifier_id)
        )
    }
    found = []
    for row in session.execute(select(Notifier.id, Notifier.name, Notifier.last_error).where(Notifier.enabled)):
        queue = waiting.get(row.id)
        found.append(
            NotifierInput(
                row.id,
                row.name,
                queue.waiting if queue is not None else 0,
                queue.oldest if queue is not None else None,
                row.last_error,
            )
        )
    return found
