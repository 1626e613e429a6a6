"""Schedules and firings as the API shows and takes them; the shapes shared by all long work are re-exported."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from app.shapes import ApiModel, InputModel, LabelText, Page, Progress, WorkView

__all__ = [
    "ApiModel",
    "FiringView",
    "InputModel",
    "LabelText",
    "Page",
    "Progress",
    "ScheduleInput",
    "SchedulePatch",
    "ScheduleView",
    "WorkView",
]


class FiringView(ApiModel):
    """One firing. outcome: started, late, manual, overlap (refused), skipped (a blackout window) or error."""

    id: str
    schedule_id: str
    scheduled_for: str
    fired_at: str
    outcome: str
    detail: str | None
    work_kind: str | None
    work_id: str | None


class ScheduleView(ApiModel):
    """A schedule with its next three firings (none while paused)."""

    id: str
    name: str
    kind: str
    target_id: str
    cron: str
    timezone: str
    paused: bool
    options: dict[str, Any]
    created_at: str
    next_firings: list[str]
    last_firing: FiringView | None


class ScheduleInput(InputModel):
    """kind: scan (target: a store; options: gentle), policy (a policy), acceptance (an engine; options: the body of the
    run without its engine), canary (an engine; no options: all its canaries are read back).
    """

    name: LabelText = Field(min_length=1, max_length=120)
    kind: str
    target_id: str
    cron: str = Field(max_length=200)
    timezone: str = Field("UTC", max_length=64)
    paused: bool = False
    options: dict[str, Any] = Field(default_factory=dict)


class SchedulePatch(InputModel):
    name: LabelText | None = Field(None, min_length=1, max_length=120)
    cron: str | None = Field(None, max_length=200)
    timezone: str | None = Field(None, max_length=64)
    paused: bool | None = None
    options: dict[str, Any] | None = None
