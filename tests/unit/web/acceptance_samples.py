"""Views of the acceptance room, for rendering pages."""

from __future__ import annotations

from typing import Any

from app.acceptance.schemas import (
    AcceptanceRunView,
    ArmView,
    CandidateView,
    ComparisonView,
    DivergenceView,
    EstimateView,
    FindingView,
    LogprobView,
    PairView,
    RunComparisonView,
    RunDifferenceView,
    ScoreView,
    SpeedupView,
    StepView,
    TtftView,
)
from tests.unit.web.samples import ago, made, run_view


def _ttft(median: float) -> TtftView:
    return TtftView(
        count=3,
        median=median,
        mean=median * 1.01,
        p90=median * 1.05,
        p99=median * 1.06,
        min=median * 0.99,
        max=median * 1.06,
    )


def _arm(
    name: str, median: float, *, local: int, l1: int, l2: int, compared: str | None, passed: bool | None, **over: Any
) -> ArmView:
    external = l1 + l2
    values: dict[str, Any] = {
        "name": name,
        "title": name,
        "engine": "qwen-1",
        "state": "complete",
        "requests": 3,
        "failed_requests": 0,
        "prompt_tokens": 24_000,
        "local_tokens": local,
        "external_tokens": external,
        "expected_external_tokens": 19_296 if name.startswith("external") else 0,
        "external_share": external / 19_296 if name.startswith("external") else None,
        "too_short_requests": 0,
        "too_short_share": 0.0,
        "l1_hit_tokens": l1,
        "l2_hit_tokens": l2,
        "evidence_source": "per-request statistics",
        "ttft_ms": _ttft(median),
        "speedup": SpeedupView(median=1281 / median, low=1.9, high=2.0, confidence=0.75, pairs=3)
        if name != "cold"
        else None,
        "score": ScoreView(metric="contains", value=1.0, scored=3),
        "compared_to": compared,
        "exact_matches": 3 if passed else 1,
        "near_ties": 0,
        "flips": 0 if passed else 2,
        "refused": 0,
        "logprob": LogprobView(
            mean_abs_difference=0.002,
            max_abs_difference=0.011 if passed else 1.62,
            compared_tokens=480,
            top1_agreement=1.0,
        )
        if compared
        else None,
        "passed": passed,
    }
    return made(ArmView, values | over)


def acceptance(
    ident: str = "8", *, verdict: str | None = "pass", state: str = "succeeded", odd: str = "", **over: Any
) -> AcceptanceRunView:
    good = verdict == "pass"
    arms = [
        _arm("cold", 1281.0, local=0, l1=0, l2=0, compared=None, passed=None),
        _arm("warm", 84.0, local=23_900, l1=0, l2=0, compared="cold", passed=True),
        _arm("external_l1", 655.0, local=0, l1=19_296, l2=0, compared="warm", passed=True),
        _arm("external_l2", 702.0, local=0, l1=0, l2=19_296, compared="warm", passed=good),
    ]
    if verdict == "invalid":
        arms[2:] = [
            _arm(
                "external_l1",
                80.0,
                local=0,
                l1=0,
                l2=0,
                compared=None,
                passed=None,
                state="not_run",
                local_tokens=None,
                external_tokens=None,
                external_share=None,
                evidence_source="no reset" + odd,
                ttft_ms=TtftView(
                    count=0, median=None, mean=None, p90=None, p99=None, min=None, max=None, reason="not run"
                ),
                speedup=None,
                score=None,
                logprob=None,
            )
        ]
    findings = {
        "fail": [
            FindingView(
                code="answer_differs",
                severity="fail",
                arm="external_l2",
                text="2 of 3 answers differ from warm" + odd,
                fix="Clean the store.",
            )
        ],
        "invalid": [
            FindingView(
                code="reset_unavailable",
                severity="invalid",
                arm=None,
                text="The GPU cache could not be emptied" + odd,
                fix="Start the engine with VLLM_SERVER_DEV_MODE=1.",
            )
        ],
    }.get(verdict or "", [])
    pair = PairView(
        prompt="ledger-3" + odd,
        outcome="flip",
        reason="the first token differs by more than a near tie" + odd,
        first_divergence=DivergenceView(
            position=14,
            token_a=" amber" + odd,
            token_b=" harbour",
            top_a=[CandidateView(token=" amber" + odd, logprob=-0.02), CandidateView(token=" harbour", logprob=-4.1)],
            top_b=[CandidateView(token=" harbour", logprob=-0.4)],
            gap_nats=4.08,
        ),
        mean_abs_difference=0.4,
        max_abs_difference=1.62,
        text_a="The codeword of room 7 is amber." + odd,
        text_b="The codeword of room 7 is harbour.",
    )
    comparisons = (
        [
            ComparisonView(
                arm="external_l2",
                reference="warm",
                pairs=3,
                exact_matches=1,
                near_ties=0,
                flips=2,
                drifts=0,
                refused=0,
                missing=0,
                compared_tokens=480,
                mean_abs_difference=0.4,
                max_abs_difference=1.62,
                top1_agreement=0.91,
                score_pairs=None,
                divergences=[pair],
                divergences_left_off=1,
            )
        ]
        if verdict == "fail"
        else []
    )
    steps = [
        StepView(
            name="check",
            title="Look at the engine and the server",
            state="done",
            detail="1 engine registered" + odd,
            done=1,
            total=1,
            started_at=ago(690),
            finished_at=ago(689),
        ),
        StepView(
            name="cold",
            title="Cold",
            state="done" if verdict else "running",
            detail="",
            done=2,
            total=3,
            started_at=ago(689),
            finished_at=ago(680) if verdict else None,
        ),
        StepView(
            name="warm",
            title="Warm",
            state="done" if verdict else "waiting",
            detail="",
            done=0,
            total=3,
            started_at=None,
            finished_at=None,
        ),
    ]
    headline = {
        "pass": "everything came back right",
        "fail": "answers read from disk differ",
        "invalid": "the engine could not be reset",
    }
    values: dict[str, Any] = {
        "verdict": verdict,
        "state": state,
        "headline": (headline.get(verdict or "") or "") + odd if verdict else None,
        "reasons": ["2 of 3 answers differ in external_l2." + odd] if verdict == "fail" else [],
        "findings": findings,
        "steps": steps,
        "arms": arms if verdict else [],
        "comparisons": comparisons,
        "evidence": {
            "noise_floor_nats": 0.0,
            "smallest_fault": "0.9 nat" + odd,
            "resets": [{"engine": "qwen-1", "success": True}],
        }
        if verdict
        else {},
        "request": {"engine_id": "1"},
        "frozen": {"vllm": "0.32.0" + odd},
        "waiting_for": None if verdict else "Restart qwen-1." + odd,
    }
    return run_view(ident, **(values | over))


def estimate(odd: str) -> EstimateView:
    return EstimateView(
        arms=["cold", "warm", "external_l1", "external_l2"],
        prompts=3,
        requests=12,
        prompt_tokens=96_000,
        seconds=44.0,
        disturbs=["The prefix cache of qwen-1 is reset 2 times." + odd],
        warnings=["The engine is busy" + odd] if odd else [],
    )


def comparison(odd: str) -> RunComparisonView:
    a, b = acceptance("8", odd=odd), acceptance("9", verdict="fail", odd=odd)
    return RunComparisonView(
        a=a,
        b=b,
        same_prompts=True,
        differences=[RunDifferenceView(field="dtype", a="bfloat16" + odd, b=None)],
        arms=[
            {"name": "cold", "a": a.arms[0], "b": b.arms[0], "ttft_median_change": 0.012, "score_change": 0.0},
            {"name": "mixed", "a": None, "b": a.arms[1], "ttft_median_change": None, "score_change": None},
        ],
        comparisons=[],
    )
