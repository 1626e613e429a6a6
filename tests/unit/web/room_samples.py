"""Views of the records, cleanup, acceptance and access rooms, for rendering pages."""

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
from app.audit.service import AuditView
from app.auth.schemas import NewTokenView, TokenView, UserView
from app.cleanup import schemas as cs
from app.errors import FieldError, InvalidInput
from app.fleet.schemas import ProbeView
from app.records import schemas as rs
from app.scheduling.schemas import FiringView, Progress, ScheduleView
from app.web.contexts import ScheduleRow
from app.web.forms import FormState
from tests.unit.web.samples import ago, made, run_view

HASH = "3fa91c02d4e85b7790aabbccddeeff00112233445566778899aabbccddeeff00"


def invalid(field: str, message: str) -> InvalidInput:
    return InvalidInput(f"{field}: {message}", errors=(FieldError(field, message),))


def _work(ident: str, state: str, unit: str) -> dict[str, Any]:
    ended = state not in ("queued", "running")
    return {
        "id": ident,
        "state": state,
        "progress": Progress(done=4100, total=9800 if state != "queued" else None, unit=unit),
        "error": None,
        "created_at": ago(700),
        "started_at": ago(690) if state != "queued" else None,
        "finished_at": ago(640) if ended else None,
        "requested_by": "admin",
    }


# ---- records ----


def summary(*, scanned: bool = True, clean: bool = False, odd: str = "") -> rs.SummaryView:
    mount = rs.MountView(
        fs_type="xfs", mount_point="/srv/kv", access_times="relatime", volatile=bool(odd), block_size=4096
    )
    eviction = rs.EvictionView(
        vanished_records=0,
        vanished_bytes=0,
        since=ago(900000) if scanned else None,
        sentence="The fs adapter does not evict.",
    )
    if not scanned:
        return rs.SummaryView(
            store_id="1",
            state="never_scanned",
            records=None,
            bytes=None,
            by_class={},
            by_reason={},
            by_model=[],
            filesystem=rs.FilesystemSummary(
                total_bytes=None, free_bytes=None, inodes_free=None, reason="not looked yet"
            ),
            mount=rs.MountView(),
            growth_bytes_per_hour=None,
            growth_reason="needs two scans",
            full_in_hours=None,
            scanned_at=None,
            scan_id=None,
            classified_at=None,
            allocated_bytes=None,
            foreign_examples=[],
            unreadable=[],
            oldest_modified_at=None,
            newest_modified_at=None,
            eviction=eviction,
            alarms=[],
        )
    classes = {"current": rs.Count(records=101_204, bytes=1_510_000_000_000)}
    reasons = {}
    if not clean:
        classes |= {
            "incompatible": rs.Count(records=1204, bytes=38_000_000_000),
            "corrupt": rs.Count(records=37, bytes=410_000_000),
            "temporary": rs.Count(records=3, bytes=44_000_000),
            "unverified": rs.Count(records=918, bytes=84_000_000_000),
            "foreign": rs.Count(records=11, bytes=1_200_000),
        }
        reasons = {
            "other_layout": rs.Count(records=1204, bytes=38_000_000_000),
            "short": rs.Count(records=36, bytes=410_000_000),
            "empty": rs.Count(records=1, bytes=0),
            "before_first_seen": rs.Count(records=918, bytes=84_000_000_000),
        }
    total = rs.Count(
        records=sum(n.records for k, n in classes.items() if k != "foreign"),
        bytes=sum(n.bytes for k, n in classes.items() if k != "foreign"),
    )
    return rs.SummaryView(
        store_id="1",
        state="scanned",
        records=total.records,
        bytes=total.bytes,
        by_class=classes,
        by_reason=reasons,
        by_model=[
            rs.ModelSummary(
                model_name="/models/qwen2.5-7b" + odd,
                world_size=1,
                records=total.records,
                bytes=total.bytes,
                by_class=classes,
            )
        ],
        filesystem=rs.FilesystemSummary(
            total_bytes=2_600_000_000_000, free_bytes=612_000_000_000, inodes_free=158_000_000
        ),
        mount=mount,
        growth_bytes_per_hour=7_400_000_000 if not clean else 0.0,
        growth_reason=None,
        full_in_hours=81.6 if not clean else None,
        scanned_at=ago(640),
        scan_id="1",
        classified_at=ago(600),
        allocated_bytes=total.bytes,
        foreign_examples=["notes.txt" + odd] if not clean else [],
        unreadable=[],
        oldest_modified_at=ago(900000),
        newest_modified_at=ago(30),
        eviction=eviction,
        alarms=["Two layouts write into this store: mixed layouts" + odd] if odd else [],
    )


def record(ident: str, klass: str, reason: str | None, odd: str, **over: Any) -> rs.RecordView:
    values: dict[str, Any] = {
        "id": ident,
        "store_id": "1",
        "name": f"-SEP-models-SEP-qwen2.5-7b@0x01000100@0@{HASH}.data{odd}",
        "class_": klass,
        "reason": reason,
        "model_name": "/models/qwen2.5-7b" + odd,
        "kv_rank": 0x01000100,
        "world_size": 1,
        "rank": 0,
        "object_group_id": 0,
        "chunk_hash": HASH,
        "cache_salt": "tk-7-p3" + odd if klass == "current" else "",
        "size_bytes": 14_680_064,
        "modified_at": ago(90000),
        "accessed_at": ago(4000),
        "epoch_id": "2",
    }
    return made(rs.RecordView, values | over)


def records(odd: str) -> list[rs.RecordView]:
    return [
        record("1", "current", None, odd),
        record("2", "incompatible", "other_layout", odd, held=True),
        record("3", "corrupt", "empty", odd, size_bytes=0),
        record("4", "unreachable", "legacy_name", odd, object_group_id=None),
        record("5", "temporary", None, odd),
        record("6", "unverified", "before_first_seen", odd),
    ]


def record_detail(odd: str, *, bare: bool = False) -> rs.RecordDetail:
    base = record(
        "2", "unverified" if bare else "incompatible", "layout_unknown" if bare else "other_layout", odd
    ).model_dump()
    return rs.RecordDetail(
        **base,
        rule="C4",
        sentence="Written in bfloat16 between 13:58 and 14:02; the engine now reads float16." + odd,
        window=[] if bare else [ago(90010), ago(89990)],
        candidates=[]
        if bare
        else [
            rs.CandidateView(
                fingerprint="b1d2770cf3e94410aabb",
                layout={"dtype": "bfloat16"},
                live=False,
                verdict="different",
                differences=[
                    {
                        "field": "dtype",
                        "old": "bfloat16" + odd,
                        "new": "float16",
                        "kind": "hard",
                        "meaning": "decides bytes",
                    }
                ],
            ),
            rs.CandidateView(fingerprint=None, layout=None, live=False, verdict="unknown", differences=[]),
        ],
        size_evidence=rs.SizeEvidenceView(
            expected_bytes=None if bare else 14_680_064,
            accepted_bytes=[14_680_064],
            records=1204,
            most_common_bytes=None if bare else 14_680_064,
            most_common_share=None if bare else 0.998,
            sentence="1,204 records of its kind; 99.8 % have 14,680,064 bytes." + odd,
        ),
        changed_at=ago(86000),
        inode=4711,
        judged_at=ago(600),
    )


def scan(ident: str = "1", *, state: str = "succeeded", error: str | None = None) -> rs.ScanView:
    return rs.ScanView(
        **(_work(ident, state, "files") | {"error": error}),
        store_id="1",
        rescan=True,
        gentle=False,
        files_seen=103_377,
        records=103_366,
        bytes=1_640_000_000_000,
        allocated_bytes=1_640_000_000_000,
        seconds=3.4 if state == "succeeded" else None,
        files_per_second=30_400.0,
        foreign=11,
        foreign_examples=[],
        added=212,
        changed=0,
        vanished=0,
        vanished_bytes=0,
        removed_by_runs=311,
        unreadable=[],
        clock_difference_seconds=0.01,
        clock_measured=True,
    )


def epochs(odd: str, *, empty: bool = False) -> rs.EpochsView:
    def epoch(ident: str, kind: str, live: bool, **over: Any) -> rs.EpochView:
        values: dict[str, Any] = {
            "id": ident,
            "kind": kind,
            "model_name": "/models/qwen2.5-7b" + odd,
            "world_size": 1,
            "fingerprint": "3fa91c02d4e85b7790aa",
            "layout": {"dtype": "float16" if live else "bfloat16", "chunk_size": 256},
            "live": live,
            "possible_from": ago(9000),
            "certain_from": ago(8990),
            "ended_at": None if live else ago(180),
            "spans": [],
            "changes": [
                {
                    "field": "dtype",
                    "old": "bfloat16" + odd,
                    "new": "float16",
                    "kind": "hard",
                    "meaning": "decides bytes",
                }
            ]
            if live
            else [],
            "records": 311,
            "bytes": 4_500_000_000,
            "effective_at": None,
            "reason": None,
            "actor": None,
            "created_at": ago(9000),
        }
        return made(rs.EpochView, values | over)

    if empty:
        return rs.EpochsView(items=[], alarms=[])
    return rs.EpochsView(
        items=[
            epoch("2", "observed", True),
            epoch("1", "observed", False),
            epoch(
                "d1",
                "declare",
                False,
                layout=None,
                fingerprint=None,
                certain_from=None,
                effective_at=ago(50),
                reason="new weights" + odd,
            ),
        ],
        alarms=["mixed layouts" + odd] if odd else [],
    )


# ---- cleanup ----


def presets() -> list[cs.PresetView]:
    return [
        cs.PresetView(
            id="safe",
            title="Keep it safe",
            description="Removes what is proven wrong, also when a layout changes.",
            policy={},
        ),
        cs.PresetView(
            id="cap", title="Keep it under 85 %", description="Least recently used first, down to 70 %.", policy={}
        ),
        cs.PresetView(
            id="unused", title="Two weeks unused", description="Neither read nor written for 14 days.", policy={}
        ),
    ]


def policy(ident: str = "1", *, odd: str = "", **over: Any) -> cs.PolicyView:
    values: dict[str, Any] = {
        "id": ident,
        "name": ("keep it safe" if ident == "1" else f"policy {ident}") + odd,
        "store_id": "1",
        "store_name": "nvme-a" + odd,
        "enabled": True,
        "schedule": "0 2 * * *",
        "timezone": "Europe/Berlin",
        "select": [{"kind": "incompatible"}],
        "protect": cs.ProtectView(accessed_within="24h", models=["/models/a" + odd]),
        "limits": cs.LimitsView(max_bytes="500GB", max_fraction=0.3),
        "removal": "quarantine",
        "quarantine_for": "7d",
        "blackouts": [cs.BlackoutView(start="08:00", end="20:00", days=[1, 2, 3])],
        "summary": ["Moves incompatible, corrupt and unreachable records into quarantine for 7 d."],
        "next_firings": [ago(-43000), ago(-129400), ago(-215800)],
        "last_run": cs.RunBrief(
            id="41",
            state="succeeded",
            verdict="succeeded",
            finished_at=ago(43500),
            removed=cs.Count(records=311, bytes=9_800_000_000),
        ),
        "created_at": ago(900000),
        "updated_at": ago(90000),
    }
    return made(cs.PolicyView, values | over)


def policy_form(odd: str) -> FormState:
    fields = [
        "name",
        "store_id",
        "take",
        "temporary_older_than",
        "incompatible_reasons",
        "corrupt_reasons",
        "unused_for",
        "unused_age_only",
        "capacity_high",
        "capacity_low",
        "free_space_floor",
        "protect_accessed_within",
        "protect_written_within",
        "protect_models",
        "max_bytes",
        "max_records",
        "max_percent",
        "removal",
        "quarantine_for",
        "schedule",
        "timezone",
        "enabled",
        "blackouts",
    ]
    values: dict[str, Any] = dict.fromkeys(fields, "")
    return FormState.of(
        values
        | {
            "name": "keep it safe" + odd,
            "store_id": "1",
            "take": ["incompatible", "derived", "corrupt", "unreachable", "temporary"],
            "temporary_older_than": "1h",
            "removal": "quarantine",
            "quarantine_for": "7d",
            "schedule": "0 2 * * *",
            "timezone": "UTC",
            "enabled": True,
        }
    )


def plan(*, state: str = "succeeded", odd: str = "", **over: Any) -> cs.PlanView:
    values: dict[str, Any] = _work("12", state, "records") | {
        "store_id": "1",
        "store_name": "nvme-a" + odd,
        "policy_id": "1",
        "policy_name": "keep it safe" + odd,
        "origin": "policy",
        "filter": None,
        "removal": "quarantine",
        "records": 1241,
        "bytes": 38_410_000_000,
        "by_reason": {
            "other_layout": cs.Count(records=1204, bytes=38_000_000_000),
            "short": cs.Count(records=37, bytes=410_000_000),
        },
        "leaves": cs.LeavesView(records=102_125, bytes=1_601_000_000_000, free_bytes=612_000_000_000),
        "held_back": {"accessed_within": cs.Count(records=3, bytes=44_000_000)},
        "recent_use": cs.RecentUseView(
            last_day=cs.Count(records=96, bytes=1_400_000_000),
            last_week=cs.Count(records=200, bytes=3_000_000_000),
            reason="relatime",
        ),
        "goal": cs.GoalView(needed_bytes=10, planned_bytes=5, shortfall_bytes=5, sentences=["5 bytes are missing."])
        if odd
        else None,
        "limited": "stopped at 500 GB" if odd else None,
        "warnings": ["llama was served yesterday and is not now" + odd] if odd else [],
        "expires_at": ago(-2900),
        "expired": False,
        "scanned_at": ago(640),
        "run_id": None,
    }
    return made(cs.PlanView, values | over)


def items(odd: str) -> list[cs.ItemView]:
    rows = [
        ("1", "incompatible", "other_layout", "quarantined", None),
        ("2", "corrupt", "short", "changed", "size differs" + odd),
    ]
    rows.append(("3", "temporary", None, "failed", "EPERM" + odd))
    return [
        cs.ItemView(
            id=ident,
            record_id=ident,
            name=f"-SEP-models-SEP-qwen2.5-7b@0x01000100@0@{HASH}.data{odd}",
            class_=klass,
            reason=reason,
            why=klass,
            action="quarantine",
            model_name="/models/qwen2.5-7b" + odd,
            kv_rank=0x01000100,
            world_size=1,
            rank=0,
            object_group_id=0,
            chunk_hash=HASH,
            cache_salt="",
            size_bytes=14_680_064,
            modified_at=ago(90000),
            accessed_at=ago(4000),
            round=1,
            state=state,
            errno=None,
            detail=detail,
            changed_at=None,
        )
        for ident, klass, reason, state, detail in rows
    ]


def run(
    ident: str = "41", *, state: str = "succeeded", verdict: str | None = "succeeded", odd: str = "", **over: Any
) -> cs.RunView:
    values: dict[str, Any] = _work(ident, state, "records") | {
        "store_id": "1",
        "store_name": "nvme-a" + odd,
        "policy_id": "1",
        "policy_name": "keep it safe" + odd,
        "plan_id": "12",
        "trigger": "schedule",
        "verdict": verdict,
        "notes": [],
        "steps": [
            cs.StepView(name="l2", state="done", detail="311 records moved" + odd, at=ago(680)),
            cs.StepView(name="l1", state="done", detail="311 keys asked, 24 objects gone", at=ago(678)),
            cs.StepView(name="l0", state="waiting", detail="qwen-1 cannot be reset" + odd, at=ago(670)),
            cs.StepView(name="verify", state="skipped", detail="", at=ago(660)),
        ],
        "planned": cs.Count(records=314, bytes=9_900_000_000),
        "removed": cs.Count(records=311, bytes=9_800_000_000),
        "by_reason": {"other_layout": cs.Count(records=311, bytes=9_800_000_000)},
        "skipped": {"changed": 2, "used": 1},
        "failed": [cs.FailedItem(name="a@b" + odd, errno=1, message="Operation not permitted")] if odd else [],
        "failed_total": 1 if odd else 0,
        "free_bytes_before": 602_000_000_000,
        "free_bytes_after": 602_000_000_000 if verdict else None,
        "freed_bytes_measured": 0 if verdict else None,
        "quarantine_folder": "41",
        "in_quarantine": cs.Count(records=311, bytes=9_800_000_000),
        "restored_records": 0,
        "purged": cs.Count(records=0, bytes=0),
        "purge_after": ago(-500000),
    }
    return made(cs.RunView, values | over)


def job() -> cs.QuarantineJobView:
    return cs.QuarantineJobView(
        **_work("5", "running", "records"),
        run_id="41",
        store_id="1",
        kind="restore",
        records=100,
        bytes=1,
        skipped={},
        failed=[],
        failed_total=0,
        freed_bytes_measured=None,
    )


def quarantine(odd: str, *, empty: bool = False) -> cs.QuarantineView:
    entries = [
        cs.QuarantineEntry(
            folder="41" + odd,
            run_id="41",
            policy_name="keep it safe" + odd,
            started_at=ago(43500),
            purge_after=ago(-500000),
            records=311,
            bytes=9_800_000_000,
            readable=True,
            reason=None,
        ),
        cs.QuarantineEntry(
            folder="x" + odd,
            run_id=None,
            policy_name=None,
            started_at=None,
            purge_after=None,
            records=4,
            bytes=1,
            readable=False,
            reason="no manifest" + odd,
        ),
    ]
    return cs.QuarantineView(
        items=[] if empty else entries,
        next_page_token=None,
        records=0 if empty else 315,
        bytes=0 if empty else 9_800_000_001,
        measured_at=ago(1),
    )


def episode(odd: str) -> cs.EpisodeView:
    return cs.EpisodeView(
        id="1",
        store_id="1",
        model_name="/models/qwen2.5-7b" + odd,
        opened_at=ago(600),
        waiting_for=["a restart of qwen-1" + odd],
        run_ids=["41"],
        closed_at=None,
        closed_by_run_id=None,
    )


# ---- acceptance ----


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


# ---- the rest ----


def schedules(odd: str) -> list[ScheduleRow]:
    firing = FiringView(
        id="1",
        schedule_id="1",
        scheduled_for=ago(3600),
        fired_at=ago(3600),
        outcome="overlap",
        detail="a scan is active" + odd,
        work_kind=None,
        work_id=None,
    )
    base: dict[str, Any] = {
        "kind": "scan",
        "target_id": "1",
        "cron": "0 3 * * *",
        "timezone": "UTC",
        "options": {},
        "created_at": ago(90000),
    }
    return [
        ScheduleRow(
            ScheduleView(
                id="1", name="nightly" + odd, paused=False, next_firings=[ago(-3600)], last_firing=firing, **base
            ),
            "nvme-a" + odd,
            "/stores/1",
        ),
        ScheduleRow(
            ScheduleView(id="2", name="off", paused=True, next_firings=[], last_firing=None, **base), "gone", ""
        ),
    ]


def audit(odd: str) -> list[AuditView]:
    return [
        AuditView(
            id="1",
            at=ago(60),
            actor="user:admin" + odd,
            address="127.0.0.1",
            action="policy.update",
            target_kind="policy",
            target_id="1",
            detail={"name": "keep it safe" + odd},
        )
    ]


def users(odd: str) -> list[UserView]:
    return [
        UserView(id="1", username="admin", role="admin", disabled=False, created_at=ago(900000)),
        UserView(id="2", username="ops" + odd, role="operator", disabled=True, created_at=ago(900)),
    ]


def tokens(odd: str) -> list[TokenView]:
    return [
        TokenView(
            id="1",
            name="ci" + odd,
            role="operator",
            created_at=ago(900),
            created_by="admin" + odd,
            last_used_at=None,
            expires_at=None,
        )
    ]


def new_token() -> NewTokenView:
    return NewTokenView(
        id="2",
        name="ci",
        role="viewer",
        created_at=ago(1),
        created_by="admin",
        last_used_at=None,
        expires_at=None,
        token="tk_0123456789",
    )


def probe(odd: str) -> ProbeView:
    return ProbeView(
        url="http://10.0.3.14:9090",
        kind="lmcache_prometheus_only",
        title="LMCache's Prometheus port" + odd,
        detail="The HTTP port is another one.",
        version="0.5.6" + odd,
        model_names=["qwen" + odd],
        register_as="server",
        suggested_url="http://10.0.3.14:8080" + odd,
        evidence=["GET /metrics answers 200" + odd],
    )
