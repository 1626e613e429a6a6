"""Schedules and firings as the outside sees them."""

from __future__ import annotations

from app.clock import iso
from app.scheduling.cron import next_firings
from app.scheduling.schemas import FiringView, ScheduleView
from app.scheduling.tables import Firing, Schedule


def schedule_view(row: Schedule, last: Firing | None, now: float) -> ScheduleView:
    """With its next firings (none while paused) and the last one; `now` in epoch seconds."""
    upcoming = [] if row.paused else next_firings(row.cron, row.timezone, now)
    return ScheduleView(
        id=str(row.id),
        name=row.name,
        kind=row.kind,
        target_id=str(row.target_id),
        cron=row.cron,
        timezone=row.timezone,
        paused=row.paused,
        options=row.options,
        created_at=iso(row.created_at) or "",
        next_firings=[iso(t) or "" for t in upcoming],
        last_firing=firing_view(last) if last else None,
    )


def firing_view(row: Firing) -> FiringView:
    """One firing; times as RFC 3339."""
    return FiringView(
        id=str(row.id),
        schedule_id=str(row.schedule_id),
        scheduled_for=iso(row.scheduled_for) or "",
        fired_at=iso(row.fired_at) or "",
        outcome=row.outcome,
        detail=row.detail,
        work_kind=row.work_kind,
        work_id=None if row.work_id is None else str(row.work_id),
    )
