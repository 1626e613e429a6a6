"""Schedules that did not do what they were to do."""

from __future__ import annotations

from app.alerts.inputs import Moment, ScheduleInput
from app.alerts.model import Fact


def schedule_kept(moment: Moment, schedule: ScheduleInput) -> Fact:
    """Rule: how long ago the first firing after the last one was due, and how the last one went."""
    if schedule.paused:
        return Fact("schedule_kept", schedule.subject, quiet="paused")
    overdue = max(0.0, moment.now - schedule.due) if schedule.due is not None else 0.0
    refused = schedule.outcome in ("error", "overlap")
    return Fact(
        "schedule_kept",
        schedule.subject,
        {"overdue": overdue, "refused": float(refused)},
        {"outcome": schedule.outcome or "never", "detail": schedule.detail or "", "kind": schedule.kind},
    )
