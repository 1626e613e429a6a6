"""Runs of the checks, what they found (only changes are kept), the settings they saw, and texts that were pasted."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, Index
from sqlalchemy.orm import Mapped, mapped_column

from app.database import Base
from app.scheduling.work import WorkColumns


class CheckRun(WorkColumns, Base):
    """One run over one server-engine pair or over all. `request` is what it was asked, `counts` verdict -> findings."""

    __tablename__ = "check_run"

    server_id: Mapped[int | None] = mapped_column(default=None)
    engine_id: Mapped[int | None] = mapped_column(default=None)
    request: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    pairs: Mapped[int] = mapped_column(default=0)
    counts: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)


class CheckResult(Base):
    """One finding and how long it stayed the same: a changed verdict or value ends the row and begins another.

    `ended_at` null is the present one. Targets are kept by id, so that history survives what was forgotten.
    """

    __tablename__ = "check_result"
    __table_args__ = (Index("ix_check_result_pair", "server_id", "engine_id", "ended_at"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    server_id: Mapped[int | None]
    engine_id: Mapped[int | None]
    check_id: Mapped[str]
    subject: Mapped[str]
    verdict: Mapped[str]
    title: Mapped[str]
    evidence: Mapped[str]
    fix: Mapped[str]
    source: Mapped[str]
    why: Mapped[str]
    configured: Mapped[str | None]
    effective: Mapped[str | None]
    origin: Mapped[str | None]
    first_at: Mapped[float]
    last_at: Mapped[float]
    last_run_id: Mapped[int]
    ended_at: Mapped[float | None] = mapped_column(default=None, index=True)


class CheckSetting(Base):
    """One setting of one target and how long it had one value (null: not told)."""

    __tablename__ = "check_setting"
    __table_args__ = (Index("ix_check_setting_target", "side", "target_id", "ended_at"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    side: Mapped[str]  # server | engine
    target_id: Mapped[int]
    name: Mapped[str]
    value: Mapped[str | None]
    first_at: Mapped[float]
    last_at: Mapped[float]
    ended_at: Mapped[float | None] = mapped_column(default=None)


class CheckInput(Base):
    """A pasted text (secrets masked) that later runs of the same target use too.

    `process_start` is that of the target when it was pasted: a log says nothing about a later process.
    """

    __tablename__ = "check_input"

    side: Mapped[str] = mapped_column(primary_key=True)  # server | engine
    target_id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(primary_key=True)  # log | environment | commands
    text: Mapped[str]
    entered_at: Mapped[float]
    entered_by: Mapped[str]
    process_start: Mapped[float | None] = mapped_column(default=None)
