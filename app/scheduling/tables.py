"""Schedules are our rows; APScheduler only wakes us. Each firing is claimed by inserting its row."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, ForeignKey, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from app.database import Base


class Schedule(Base):
    """When something is to happen: a scan of a store, a run of a policy, an acceptance run of an engine."""

    __tablename__ = "schedule"
    __table_args__ = (UniqueConstraint("kind", "name"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    kind: Mapped[str] = mapped_column(index=True)  # scan | policy | acceptance | canary
    target_id: Mapped[int]
    cron: Mapped[str]  # five fields, read as Debian's cron reads them
    timezone: Mapped[str] = mapped_column(default="UTC")
    paused: Mapped[bool] = mapped_column(default=False)
    options: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)  # body of the work to start
    created_at: Mapped[float]
    # Nothing before this is caught up: creation, last edit or resume.
    armed_at: Mapped[float]


class Firing(Base):
    """One firing of a schedule. The unique pair is the claim: two processes never run it twice."""

    __tablename__ = "firing"
    __table_args__ = (UniqueConstraint("schedule_id", "scheduled_for"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    schedule_id: Mapped[int] = mapped_column(ForeignKey("schedule.id", ondelete="CASCADE"), index=True)
    scheduled_for: Mapped[float]
    fired_at: Mapped[float]
    # started | late (started after its time) | overlap (the last one still ran) | error | manual
    outcome: Mapped[str]
    detail: Mapped[str | None] = mapped_column(default=None)
    work_kind: Mapped[str | None] = mapped_column(default=None)
    work_id: Mapped[int | None] = mapped_column(default=None)
