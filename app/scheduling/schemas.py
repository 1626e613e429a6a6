"""Shapes shared by every kind of long work and every list."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

T = TypeVar("T")


class ApiModel(BaseModel):
    """Base of every response shape. Strict about nothing on the way out; unknown fields are a bug."""

    model_config = ConfigDict(extra="forbid", from_attributes=True)


class InputModel(BaseModel):
    """Base of every request body: unknown fields and lax coercions (false for 0, "1" for 1) are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Progress(ApiModel):
    """How far long work is. `total` is null while it is not known."""

    done: int
    total: int | None
    unit: str


class WorkView(ApiModel):
    """The part every kind of long work shows. Times are RFC 3339 UTC."""

    id: str
    state: str
    progress: Progress
    error: str | None
    created_at: str
    started_at: str | None
    finished_at: str | None
    requested_by: str


class Page(ApiModel, Generic[T]):
    """One page of a list."""

    items: list[T]
    next_page_token: str | None


class FiringView(ApiModel):
    """One firing. outcome: started, late, manual, overlap or error."""

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
    """kind: scan (target: a store), policy (a policy), acceptance (an engine; options: the body of the run)."""

    name: str = Field(min_length=1, max_length=120)
    kind: str
    target_id: str
    cron: str = Field(max_length=200)
    timezone: str = Field("UTC", max_length=64)
    paused: bool = False
    options: dict[str, Any] = Field(default_factory=dict)


class SchedulePatch(InputModel):
    name: str | None = Field(None, min_length=1, max_length=120)
    cron: str | None = Field(None, max_length=200)
    timezone: str | None = Field(None, max_length=64)
    paused: bool | None = None
    options: dict[str, Any] | None = None
