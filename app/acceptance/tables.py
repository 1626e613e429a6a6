"""Acceptance runs with everything they saw, and the canaries that were made from them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, ForeignKey, Index, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from app.database import Base
from app.scheduling.work import WorkColumns
from app.vault import SecretJson

_ACTIVE = text("state IN ('queued', 'running')")


class AcceptanceRun(WorkColumns, Base):
    """One acceptance test of one engine with its cache server. What decided it is frozen in this row.

    The engine and the server may be forgotten later; the run keeps their names.
    """

    __tablename__ = "acceptance_run"
    # At most one active run per server: the database refuses the second, whoever asks.
    __table_args__ = (
        Index(
            "uq_acceptance_run_active_server", "server_id", unique=True, sqlite_where=_ACTIVE, postgresql_where=_ACTIVE
        ),
    )

    engine_id: Mapped[int | None] = mapped_column(ForeignKey("engine.id", ondelete="SET NULL"), index=True)
    server_id: Mapped[int | None] = mapped_column(ForeignKey("server.id", ondelete="SET NULL"))
    second_engine_id: Mapped[int | None] = mapped_column(ForeignKey("engine.id", ondelete="SET NULL"), default=None)
    engine_name: Mapped[str]
    server_name: Mapped[str]
    run_key: Mapped[str] = mapped_column(unique=True)  # the run's part of every cache salt: tk-<run_key>-<prompt>
    profile: Mapped[str]
    # The request with every default filled in (schemas.AcceptanceRequest, plus the profile's numbers).
    request: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    # Layouts, versions, settings and prompt digests in force when the run began: what history is compared by.
    frozen: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    verdict: Mapped[str | None] = mapped_column(default=None, index=True)
    headline: Mapped[str | None] = mapped_column(default=None)  # one line for people
    # [{code, severity, arm, text, fix}], most severe first (verdict.Finding).
    findings: Mapped[list[dict[str, Any]]] = mapped_column(JSON, default=list)
    arms: Mapped[list[dict[str, Any]]] = mapped_column(JSON, default=list)  # schemas.ArmView
    comparisons: Mapped[list[dict[str, Any]]] = mapped_column(JSON, default=list)  # schemas.ComparisonView
    evidence: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    deadline_seconds: Mapped[float]
    # What a person is asked to do just now, and whether they said that it is done.
    waiting_for: Mapped[str | None] = mapped_column(default=None)
    continued: Mapped[bool] = mapped_column(default=False)


class RestartHook(Base):
    """How this operator restarts a cache server and an engine. Actions as schemas.HookAction."""

    __tablename__ = "restart_hook"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    server_action: Mapped[dict[str, Any] | None] = mapped_column(SecretJson, default=None)
    engine_action: Mapped[dict[str, Any] | None] = mapped_column(SecretJson, default=None)
    timeout_seconds: Mapped[float] = mapped_column(default=300.0)
    created_at: Mapped[float]
    updated_at: Mapped[float]
    revision: Mapped[int] = mapped_column(default=1)


class AcceptanceStep(Base):
    """One line of the live step list."""

    __tablename__ = "acceptance_step"
    __table_args__ = (UniqueConstraint("run_id", "position"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("acceptance_run.id", ondelete="CASCADE"))
    position: Mapped[int]
    name: Mapped[str]  # "preflight", "arm:cold", "drain", …
    title: Mapped[str]
    state: Mapped[str] = mapped_column(default="waiting")  # waiting | running | done | failed | skipped
    detail: Mapped[str] = mapped_column(default="")
    done: Mapped[int] = mapped_column(default=0)
    total: Mapped[int | None] = mapped_column(default=None)
    started_at: Mapped[float | None] = mapped_column(default=None)
    finished_at: Mapped[float | None] = mapped_column(default=None)


class AcceptancePrompt(Base):
    """One prompt of a run, as it was sent."""

    __tablename__ = "acceptance_prompt"
    __table_args__ = (UniqueConstraint("run_id", "key"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("acceptance_run.id", ondelete="CASCADE"))
    key: Mapped[str]  # "p03", and "p03v" for its variant, "p03m" for its control
    kind: Mapped[str]  # codeword | arithmetic | continuation | own | probe | control
    digest: Mapped[str]  # sha256 of what was sent, 16 hex
    # {"text": …} or {"token_ids": […]} or {"messages": […]}, and "ignore_eos"
    content: Mapped[dict[str, Any]] = mapped_column(JSON)
    expected: Mapped[str | None] = mapped_column(default=None)
    scoring: Mapped[str | None] = mapped_column(default=None)  # exact | contains | regex | number
    max_tokens: Mapped[int]


class AcceptanceAnswer(Base):
    """One request of a run and what came back. Token counts are null where nothing said them."""

    __tablename__ = "acceptance_answer"
    __table_args__ = (Index("ix_acceptance_answer_run_arm", "run_id", "arm", "prompt_key"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("acceptance_run.id", ondelete="CASCADE"))
    arm: Mapped[str]
    prompt_key: Mapped[str]
    repeat: Mapped[int] = mapped_column(default=0)  # 0 = the arm itself, 1… = repeated colds for the noise floor
    probe: Mapped[bool] = mapped_column(default=False)
    salt: Mapped[str]
    started_at: Mapped[float]
    http_status: Mapped[int | None] = mapped_column(default=None)
    error: Mapped[str | None] = mapped_column(default=None)
    ttft_seconds: Mapped[float | None] = mapped_column(default=None)
    total_seconds: Mapped[float | None] = mapped_column(default=None)
    prompt_tokens: Mapped[int | None] = mapped_column(default=None)
    completion_tokens: Mapped[int | None] = mapped_column(default=None)
    local_tokens: Mapped[int | None] = mapped_column(default=None)
    external_tokens: Mapped[int | None] = mapped_column(default=None)
    expected_external_tokens: Mapped[int | None] = mapped_column(default=None)
    evidence_source: Mapped[str] = mapped_column(default="none")
    score: Mapped[float | None] = mapped_column(default=None)
    text: Mapped[str] = mapped_column(default="")
    # {"token_ids", "tokens", "logprobs", "top": [[[token, logprob], …], …], "finish_reason"}
    data: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)


class Canary(Base):
    """One kept prompt (RULES.md E7): its salt names its records, its answer is what they must still give."""

    __tablename__ = "canary"
    __table_args__ = (UniqueConstraint("engine_id", "salt"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    engine_id: Mapped[int] = mapped_column(ForeignKey("engine.id", ondelete="CASCADE"), index=True)
    server_id: Mapped[int | None] = mapped_column(ForeignKey("server.id", ondelete="SET NULL"), default=None)
    store_id: Mapped[int | None] = mapped_column(ForeignKey("store.id", ondelete="SET NULL"), default=None)
    run_id: Mapped[int | None] = mapped_column(ForeignKey("acceptance_run.id", ondelete="SET NULL"), default=None)
    name: Mapped[str]
    salt: Mapped[str]
    layout_fingerprint: Mapped[str | None] = mapped_column(default=None)  # of the epoch it was written in
    content: Mapped[dict[str, Any]] = mapped_column(JSON)
    max_tokens: Mapped[int]
    answer: Mapped[dict[str, Any]] = mapped_column(JSON)
    # The record files of this prompt: [{store_id, name, size, sha256}].
    records: Mapped[list[dict[str, Any]]] = mapped_column(JSON, default=list)
    frozen: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)  # versions and layout when it was kept
    tolerance: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)  # {mode, max_abs_nats, near_tie_gap_nats}
    created_at: Mapped[float]
    created_by: Mapped[str]
    # The outcome of the last check, for lists: ok | lost | drift | wrong | invalid | error | never.
    last_outcome: Mapped[str] = mapped_column(default="never")
    last_checked_at: Mapped[float | None] = mapped_column(default=None)


class CanaryRun(WorkColumns, Base):
    """One keeping of new canaries, or one reading-back of an engine's canaries."""

    __tablename__ = "canary_run"
    __table_args__ = (
        Index("uq_canary_run_active_engine", "engine_id", unique=True, sqlite_where=_ACTIVE, postgresql_where=_ACTIVE),
    )

    engine_id: Mapped[int | None] = mapped_column(ForeignKey("engine.id", ondelete="SET NULL"))
    server_id: Mapped[int | None] = mapped_column(ForeignKey("server.id", ondelete="SET NULL"), default=None)
    purpose: Mapped[str]  # create | check
    run_key: Mapped[str] = mapped_column(unique=True)
    source_run_id: Mapped[int | None] = mapped_column(
        ForeignKey("acceptance_run.id", ondelete="SET NULL"), default=None
    )
    count: Mapped[int] = mapped_column(default=0)  # create: how many prompts to keep
    canary_ids: Mapped[list[int]] = mapped_column(JSON, default=list)
    reason: Mapped[str] = mapped_column(default="by hand")  # by hand | schedule | restart | upgrade | cleanup | retry
    # Process starts and versions of engine and server when it was asked for: what a later restart is noticed by.
    basis: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    outcome: Mapped[str | None] = mapped_column(default=None)  # the worst of its checks
    findings: Mapped[list[dict[str, Any]]] = mapped_column(JSON, default=list)


class CanaryCheck(Base):
    """What one canary gave in one reading-back: the points of its history chart."""

    __tablename__ = "canary_check"

    id: Mapped[int] = mapped_column(primary_key=True)
    canary_id: Mapped[int] = mapped_column(ForeignKey("canary.id", ondelete="CASCADE"), index=True)
    canary_run_id: Mapped[int] = mapped_column(ForeignKey("canary_run.id", ondelete="CASCADE"), index=True)
    at: Mapped[float]
    outcome: Mapped[str]  # ok | lost | drift | wrong | invalid | error
    reason: Mapped[str]
    expected_tokens: Mapped[int | None] = mapped_column(default=None)
    external_tokens: Mapped[int | None] = mapped_column(default=None)
    mean_abs_difference: Mapped[float | None] = mapped_column(default=None)
    max_abs_difference: Mapped[float | None] = mapped_column(default=None)
    kept_max_abs_difference: Mapped[float | None] = mapped_column(default=None)
    detail: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
