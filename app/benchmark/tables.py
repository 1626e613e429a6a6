"""Benchmark runs and every request they made."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from app.database import Base
from app.scheduling.work import WorkColumns

_ACTIVE = text("state IN ('queued', 'running')")


class BenchmarkRun(WorkColumns, Base):
    """One measurement. Targets may be forgotten later; the run keeps their names."""

    __tablename__ = "benchmark_run"
    # Two at once would be each other's foreign traffic: the database refuses the second on one engine.
    __table_args__ = (
        Index(
            "uq_benchmark_run_active_engine", "engine_id", unique=True, sqlite_where=_ACTIVE, postgresql_where=_ACTIVE
        ),
    )

    engine_id: Mapped[int | None] = mapped_column(ForeignKey("engine.id", ondelete="SET NULL"), index=True)
    baseline_engine_id: Mapped[int | None] = mapped_column(ForeignKey("engine.id", ondelete="SET NULL"), default=None)
    server_id: Mapped[int | None] = mapped_column(ForeignKey("server.id", ondelete="SET NULL"), default=None)
    engine_name: Mapped[str]
    baseline_engine_name: Mapped[str | None] = mapped_column(default=None)
    server_name: Mapped[str | None] = mapped_column(default=None)
    run_key: Mapped[str] = mapped_column(unique=True)  # the run's part of every cache salt: tk-<run_key>-<scenario…>
    form: Mapped[str] = mapped_column(index=True)
    shape: Mapped[str]
    experiment: Mapped[str | None] = mapped_column(default=None, index=True)
    experiment_mode: Mapped[str | None] = mapped_column(default=None)
    # The body with every default filled in (schemas.BenchmarkInput).
    request: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    # {scenario: {"before": snapshot, "after": snapshot}}
    snapshots: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    scope: Mapped[dict[str, Any] | None] = mapped_column(JSON, default=None)
    verdict: Mapped[str | None] = mapped_column(default=None, index=True)
    headline: Mapped[str | None] = mapped_column(default=None)
    findings: Mapped[list[dict[str, Any]]] = mapped_column(JSON, default=list)
    result: Mapped[dict[str, Any] | None] = mapped_column(JSON, default=None)  # schemas.ResultView
    stage: Mapped[str] = mapped_column(default="")  # what it does just now, for people
    deadline_seconds: Mapped[float]


class BenchmarkSample(Base):
    """One request of a run. Times in seconds."""

    __tablename__ = "benchmark_sample"
    __table_args__ = (Index("ix_benchmark_sample_run", "run_id", "id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("benchmark_run.id", ondelete="CASCADE"))
    scenario: Mapped[str]  # a | b, and a2 | b2 for the repeat that shows the noise
    repeat: Mapped[int]  # 0 is the run that is not measured
    phase: Mapped[str]
    position: Mapped[int]
    key: Mapped[str]
    engine_name: Mapped[str]
    salt: Mapped[str]
    started_at: Mapped[float]
    offset_seconds: Mapped[float]
    planned_offset_seconds: Mapped[float | None] = mapped_column(default=None)
    total_seconds: Mapped[float]
    http_status: Mapped[int | None] = mapped_column(default=None)
    error: Mapped[str | None] = mapped_column(default=None)
    ttft_seconds: Mapped[float | None] = mapped_column(default=None)
    latency_seconds: Mapped[float | None] = mapped_column(default=None)
    itl_seconds: Mapped[list[float]] = mapped_column(JSON, default=list)
    prompt_tokens: Mapped[int | None] = mapped_column(default=None)
    output_tokens: Mapped[int | None] = mapped_column(default=None)
    cached_tokens: Mapped[int | None] = mapped_column(default=None)
    reachable_tokens: Mapped[int | None] = mapped_column(default=None)
