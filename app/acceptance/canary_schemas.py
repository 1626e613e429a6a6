"""Shapes of canaries towards the outside. Differences are nats, tokens counts; what is not known is null."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from app.acceptance.schemas import FindingView
from app.shapes import ApiModel, InputModel, LabelText, WorkView

CanaryOutcome = Literal["ok", "lost", "drift", "wrong", "invalid", "error", "never"]


class CanaryInput(InputModel):
    """Body of POST /canaries: keep prompts of a passed run."""

    run_id: str
    count: Annotated[int, Field(ge=1, le=20)] = 3


class CanaryCheckView(ApiModel):
    """One point of a canary's history. Differences: what came from the old records against a new cold of the engine;
    `kept_max_abs_difference` against the answer that was kept."""

    canary_id: str
    canary_name: str
    at: str
    outcome: CanaryOutcome
    reason: str
    expected_tokens: int | None
    external_tokens: int | None
    mean_abs_difference: float | None
    max_abs_difference: float | None
    kept_max_abs_difference: float | None


class CanaryView(ApiModel):
    """A kept prompt and how it stands."""

    id: str
    engine_id: str
    name: str
    salt: str
    layout_fingerprint: str | None
    records: int
    created_at: str
    created_by: str
    run_id: str | None
    last_outcome: CanaryOutcome
    last_checked_at: str | None
    history: list[CanaryCheckView]


class CanaryStanding(ApiModel):
    """How all canaries of one engine stand: how many of each last outcome, and when the longest unread was read."""

    kept: int
    outcomes: dict[CanaryOutcome, int]
    checked_at: str | None


class CanaryRunInput(InputModel):
    """Body of POST /canaries/runs: read back an engine's canaries (all, or those named)."""

    engine_id: str
    canary_ids: Annotated[list[str], Field(max_length=200)] | None = None
    reason: Annotated[LabelText, StringConstraints(max_length=40)] = "by hand"


class CanaryRunView(WorkView):
    """One keeping (`purpose` create) or reading-back (check) of canaries."""

    engine_id: str | None
    purpose: str
    canary_ids: list[str]
    outcome: CanaryOutcome | None
    reason: str
    checks: list[CanaryCheckView]
    findings: list[FindingView]
