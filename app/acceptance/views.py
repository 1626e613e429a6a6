"""Rows as pages, the API and reports show them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.acceptance.finding import ARM_LABELS, sentences
from app.acceptance.prompts import own_key
from app.acceptance.schemas import AcceptanceRunView, AnswerView, ArmView, ComparisonView, FindingView, StepView
from app.acceptance.tables import AcceptanceAnswer, AcceptanceRun, AcceptanceStep
from app.clock import iso
from app.scheduling.schemas import Progress


def run_view(row: AcceptanceRun, steps: Sequence[AcceptanceStep]) -> AcceptanceRunView:
    """One run with its steps."""
    findings = [FindingView(**f) for f in row.findings]
    began = row.started_at
    ended = row.finished_at
    mode = (row.evidence.get("tolerance") or {}).get("mode") or row.request.get("mode")
    return AcceptanceRunView(
        id=str(row.id),
        state=row.state,
        progress=Progress(done=row.progress_done, total=row.progress_total, unit=row.progress_unit),
        error=row.error,
        created_at=iso(row.created_at) or "",
        started_at=iso(began),
        finished_at=iso(ended),
        requested_by=row.requested_by,
        engine_id=_text(row.engine_id),
        engine_name=row.engine_name,
        server_id=_text(row.server_id),
        server_name=row.server_name,
        second_engine_id=_text(row.second_engine_id),
        profile=row.profile,
        mode=mode,
        verdict=row.verdict,
        headline=row.headline,
        reasons=list(sentences(findings)),
        findings=findings,
        steps=[step_view(s) for s in steps],
        arms=[ArmView(**{**a, "title": ARM_LABELS.get(a["name"], a["title"])}) for a in row.arms],
        comparisons=[ComparisonView(**c) for c in row.comparisons],
        evidence=row.evidence,
        request=_shown_request(row.request),
        prompt_names=_prompt_names(row.request),
        frozen=row.frozen,
        deadline_seconds=row.deadline_seconds,
        duration_seconds=None if began is None or ended is None else max(0.0, ended - began),
        waiting_for=row.waiting_for,
        report_urls={f: f"/api/v1/acceptance-runs/{row.id}/report.{f}" for f in ("json", "xml", "html", "md")},
    )


def listed(view: AcceptanceRunView) -> AcceptanceRunView:
    """The run as lists show it: what may be megabytes for each run is left to the run itself."""
    comparisons = [
        c.model_copy(update={"divergences": [], "divergences_left_off": len(c.divergences) + c.divergences_left_off})
        for c in view.comparisons
    ]
    frozen = {k: v for k, v in view.frozen.items() if k != "prompts"}
    return view.model_copy(update={"evidence": {}, "comparisons": comparisons, "frozen": frozen})


def _shown_request(request: dict[str, Any]) -> dict[str, Any]:
    """The request without the texts of own prompts, which may be megabytes: their number instead."""
    return {**request, "prompts": len(request.get("prompts") or ())}


def _prompt_names(request: dict[str, Any]) -> dict[str, str]:
    """Keys are given in the order of the prompts (preparation)."""
    return {own_key(i): p["name"] for i, p in enumerate(request.get("prompts") or ()) if p.get("name")}


def step_view(row: AcceptanceStep) -> StepView:
    """One line of the step list."""
    return StepView(
        name=row.name,
        title=row.title,
        state=row.state,
        detail=row.detail,
        done=row.done,
        total=row.total,
        started_at=iso(row.started_at),
        finished_at=iso(row.finished_at),
    )


def answer_view(row: AcceptanceAnswer) -> AnswerView:
    """One stored answer."""
    return AnswerView(
        arm=row.arm,
        prompt=row.prompt_key,
        repeat=row.repeat,
        probe=row.probe,
        salt=row.salt,
        http_status=row.http_status,
        error=row.error,
        ttft_ms=None if row.ttft_seconds is None else row.ttft_seconds * 1000,
        total_ms=None if row.total_seconds is None else row.total_seconds * 1000,
        prompt_tokens=row.prompt_tokens,
        completion_tokens=row.completion_tokens,
        local_tokens=row.local_tokens,
        external_tokens=row.external_tokens,
        expected_external_tokens=row.expected_external_tokens,
        evidence_source=row.evidence_source,
        score=row.score,
        text=row.text,
        token_ids=row.data.get("token_ids") or [],
    )


def _text(value: int | None) -> str | None:
    return None if value is None else str(value)
