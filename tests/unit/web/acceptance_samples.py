"""Views of the acceptance room, for rendering pages."""

from __future__ import annotations

from typing import Any

from app.acceptance.canary_schemas import CanaryCheckView, CanaryRunView, CanaryView
from app.acceptance.hook_schemas import HookActionView, HookView
from app.acceptance.schemas import (
    AcceptanceRunView,
    ArmView,
    CandidateView,
    ComparisonView,
    DivergenceView,
    EstimateView,
    FindingView,
    LoadView,
    LogprobView,
    MomentView,
    PairView,
    RunComparisonView,
    RunDifferenceView,
    ScorePairsView,
    ScoreView,
    SpeedupView,
    SpreadView,
    StepView,
    TtftView,
)
from app.readiness.schemas import PartKey, PartView, ReadinessView, State
from app.web.acceptance_contexts import ArmTrend
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


def _load(name: str) -> LoadView:
    """Others' requests beside one condition; answers too quick to be read in another."""
    before = MomentView(running=0.0, waiting=0.0, kv_cache_usage=0.0)
    if name == "warm":
        reason = "every answer was there before the engine could be read"
        return LoadView(
            readings=0, running=None, waiting=None, kv_usage=None, others=None, before=before, reason=reason
        )
    busy = name == "external_l2"
    one = SpreadView(readings=7, low=1.0, mean=1.7 if busy else 1.0, high=3.0 if busy else 1.0)
    none = SpreadView(readings=7, low=0.0, mean=0.0, high=0.0)
    return LoadView(
        readings=7,
        running=one,
        waiting=none,
        kv_usage=SpreadView(readings=7, low=0.012, mean=0.031, high=0.06),
        others=SpreadView(readings=7, low=0.0, mean=0.7, high=2.0) if busy else none,
        before=before,
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
        "load": _load(name),
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
                score_pairs=ScorePairsView(right_right=1, right_wrong=2, wrong_right=0, wrong_wrong=0, p_value=0.5),
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
        requests=19,
        compared=12,
        prompt_tokens=96_000,
        answer_tokens=304,
        stored_tokens=46_000,
        l1_bytes=1_507_328_000,
        l2_bytes=1_507_328_000,
        l1_share=0.07,
        seconds=44.0,
        seconds_from="the times of the last run of qwen-1" + odd,
        deadline_seconds=600.0,
        disturbs=["The prefix cache of qwen-1 is reset 2 times." + odd],
        warnings=["The engine is busy" + odd] if odd else [],
    )


def comparison(odd: str) -> RunComparisonView:
    a, b = acceptance("8", odd=odd), acceptance("9", verdict="fail", odd=odd)
    return RunComparisonView(
        a=a,
        b=b,
        same_prompts=True,
        differences=[RunDifferenceView(field="dtype", name="dtype" + odd, a="bfloat16" + odd, b=None)],
        arms=[
            {"name": "cold", "a": a.arms[0], "b": b.arms[0], "ttft_median_change": 0.012, "score_change": 0.0},
            {"name": "mixed", "a": None, "b": a.arms[1], "ttft_median_change": None, "score_change": None},
        ],
        comparisons=[],
    )


def trends(odd: str = "") -> list[ArmTrend]:
    return [
        ArmTrend("qwen-1" + odd, "cold", (1281.0, 1277.2, None, 1290.1), 1281.0, 1290.1),
        ArmTrend("qwen-1" + odd, "external_l2", (702.0, 811.0, 699.0, 640.0), 702.0, 640.0),
    ]


def hooks(odd: str = "") -> list[HookView]:
    command = HookActionView(argv=["systemctl", "restart", "vllm" + odd], webhook=None, header_names=[], manual=False)
    webhook = HookActionView(argv=None, webhook="https://ci/x" + odd, header_names=["Authorization"], manual=False)
    person = HookActionView(argv=None, webhook=None, header_names=[], manual=True)
    return [
        HookView(
            id="1", name="systemd" + odd, server=webhook, engine=command, timeout_seconds=300, created_at=ago(86400)
        ),
        HookView(id="2", name="by hand", server=None, engine=person, timeout_seconds=3600, created_at=ago(3600)),
    ]


def _reading(hours: float, outcome: str, difference: float | None, odd: str) -> CanaryCheckView:
    return made(
        CanaryCheckView,
        {
            "canary_id": "1",
            "canary_name": "qwen-1 p01",
            "at": ago(hours * 3600),
            "outcome": outcome,
            "reason": "the record was overwritten" + odd if outcome == "wrong" else "as kept",
            "max_abs_difference": difference,
        },
    )


def canaries(odd: str = "") -> list[CanaryView]:
    good = [_reading(h, "ok", 0.002 + 0.001 * (h % 3), odd) for h in range(30, 1, -1)]
    common = {"engine_id": "1", "salt": "tk-c1-p01", "created_by": "admin" + odd, "run_id": "8"}
    return [
        made(
            CanaryView,
            common
            | {
                "id": "1",
                "name": "qwen-1 p01 (8000 tokens)" + odd,
                "records": 31,
                "created_at": ago(200_000),
                "last_outcome": "ok",
                "last_checked_at": ago(7200),
                "history": good,
            },
        ),
        made(
            CanaryView,
            common
            | {
                "id": "2",
                "name": "qwen-1 p02",
                "records": 12,
                "created_at": ago(200_000),
                "last_outcome": "wrong",
                "last_checked_at": ago(600),
                "history": [*good[10:], _reading(1, "lost", None, odd), _reading(0.2, "wrong", 1.61, odd)],
            },
        ),
        made(
            CanaryView,
            common
            | {
                "id": "3",
                "name": "qwen-1 p03",
                "records": 12,
                "created_at": ago(60),
                "last_outcome": "never",
                "history": [],
            },
        ),
    ]


def canary_runs(odd: str = "") -> list[CanaryRunView]:
    work = {
        "state": "succeeded",
        "progress": {"done": 2, "total": 2, "unit": "canaries"},
        "created_at": ago(700),
        "started_at": ago(690),
        "finished_at": ago(600),
        "requested_by": "system",
        "engine_id": "1",
        "checks": [],
    }
    finding = FindingView(
        code="canary_overwritten", severity="fail", arm=None, text="p02 gives another answer" + odd, fix="Clean up."
    )
    return [
        made(
            CanaryRunView,
            work
            | {
                "id": "5",
                "purpose": "check",
                "canary_ids": ["1", "2"],
                "outcome": "wrong",
                "reason": "restart",
                "findings": [finding],
            },
        ),
        made(
            CanaryRunView,
            work
            | {
                "id": "4",
                "state": "running",
                "purpose": "create",
                "canary_ids": [],
                "reason": "by hand",
                "findings": [],
            },
        ),
    ]


SENTENCES: dict[State, str] = {
    "ready": "ready: every part was shown",
    "not_ready": "not ready: disk",
    "unknown": "nothing is known to be wrong, but not shown yet: canaries, soak",
}


def readiness(odd: str = "") -> list[ReadinessView]:
    texts: dict[PartKey, str] = {
        "correctness": "run 8 passed 10 conditions over 60 requests (standard)",
        "canaries": "all 3 came back right from their old records",
        "soak": "31.2 h without restart or outage, of 24 h",
        "disk": "nvme-a grows by +1.204 GB an hour; bounded by keep it small",
        "checks": "0 fail, 3 warn, 1 unknown, 31 ok",
        "scope": "verified here: LMCache 0.5.6 with vLLM 0.32.0",
    }

    def pair(ident: str, state: State, states: dict[PartKey, State]) -> ReadinessView:
        return ReadinessView(
            engine_id=ident,
            engine_name=f"qwen-{ident}" + odd,
            server_id="1",
            server_name="lmc-a" + odd,
            state=state,
            sentence=SENTENCES[state] + odd,
            scope="verified",
            parts=[
                PartView(
                    key=key,
                    title=key.title(),
                    state=states.get(key, "ready"),
                    text=text + odd,
                    at=None if states.get(key) == "unknown" else ago(3600 * 7),
                    age_seconds=None if states.get(key) == "unknown" else 25_200.0,
                    action="do something" + odd if key in states else "",
                    path="/acceptance",
                )
                for key, text in texts.items()
            ],
            judged_at=ago(1),
            report_urls={f: f"/api/v1/engines/{ident}/readiness/report.{f}" for f in ("json", "md", "html")},
        )

    return [
        pair("1", "ready", {}),
        pair("2", "not_ready", {"disk": "not_ready", "canaries": "unknown"}),
        pair("3", "unknown", {"canaries": "unknown", "soak": "unknown"}),
    ]
