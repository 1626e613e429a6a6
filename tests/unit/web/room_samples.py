"""Views of the cleanup, scheduling and access rooms, for rendering pages."""

from __future__ import annotations

from typing import Any, Literal

from app.alerts.fact_schemas import HitRatesView, PartRateView
from app.audit.service import AuditView
from app.auth.schemas import NewTokenView, SessionView, TokenView, UserView
from app.cleanup import schemas as cs
from app.errors import FieldError, InvalidInput
from app.fleet.probe_schemas import ProbeView
from app.records.schemas import HoldView
from app.scheduling.schemas import FiringView, Progress, ScheduleView
from app.web.contexts import FiringRow, ScheduleRow
from app.web.forms import FormState
from tests.unit.web.samples import ago, made

HASH = "3fa91c02d4e85b7790aabbccddeeff00112233445566778899aabbccddeeff00"


def invalid(field: str, message: str) -> InvalidInput:
    return InvalidInput(f"{field}: {message}", errors=(FieldError(field, message),))


def work(ident: str, state: str, unit: str) -> dict[str, Any]:
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
    values: dict[str, Any] = work("12", state, "records") | {
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
        "quarantine_for": "7d",
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
    values: dict[str, Any] = work(ident, state, "records") | {
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
        "planned": cs.Count(records=300, bytes=9_500_000_000),
        "added": cs.Count(records=14, bytes=400_000_000),
        "not_reached": 0,
        "deleted_bytes": 0,
        "freed_note": "the run deleted nothing (quarantine frees nothing)" if verdict else None,
        "removed": cs.Count(records=311, bytes=9_800_000_000),
        "by_reason": {"other_layout": cs.Count(records=311, bytes=9_800_000_000)},
        "skipped": {"changed": 2, "used": 1},
        "outcomes": {"quarantined": 311, "changed": 2, "used": 1, "failed": 1 if odd else 0},
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


def hit_rate_around() -> cs.HitRateAround:
    return cs.HitRateAround(
        before=0.62,
        after=None,
        before_reason=None,
        after_reason="there was no traffic",
        from_time=ago(7200),
        to_time=ago(0),
    )


def job() -> cs.QuarantineJobView:
    return cs.QuarantineJobView(
        **work("5", "running", "records"),
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


def holds(odd: str) -> list[HoldView]:
    base = {"held_at": ago(3000), "held_by": "anna" + odd}
    return [
        HoldView(name="a@0x01000100@0@" + HASH + odd, reason="restored from run 41" + odd, canary=False, **base),
        HoldView(name="b@0x01000100@0@" + HASH, reason="canary 3", canary=True, **base),
    ]


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


# ---- the rest ----


def firings(odd: str) -> list[FiringRow]:
    """One of each outcome."""
    outcomes = ("started", "manual", "late", "overlap", "skipped", "error", "of tomorrow")
    return [
        FiringRow(
            FiringView(
                id=str(number),
                schedule_id="1",
                scheduled_for=ago(3600 * number),
                fired_at=ago(3600 * number - 60),
                outcome=outcome,
                detail=None if outcome == "started" else "why" + odd,
                work_kind="cleanup" if outcome == "started" else None,
                work_id="7" if outcome == "started" else None,
            ),
            "nightly" + odd,
        )
        for number, outcome in enumerate(outcomes, 1)
    ]


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
            True,
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


def sessions(odd: str) -> dict[str, list[SessionView]]:
    """By user: two of the first, none of the second."""
    addresses = ("192.0.2.1" + odd, None)
    return {"1": [SessionView(created_at=ago(900), last_seen_at=ago(90), address=a) for a in addresses], "2": []}


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
        register_as=None,
        suggested_url="http://10.0.3.14:8080" + odd,
        suggested_urls=["http://10.0.3.14:8080" + odd],
        evidence=["GET /metrics answers 200" + odd],
    )


def hit_rates(odd: str = "") -> HitRatesView:
    """Two salts and an engine; of one of the salts nothing was asked for."""

    def part(by: Literal["model", "salt", "engine"], name: str, asked: int, hit: int, l1: int | None) -> PartRateView:
        return PartRateView(
            by=by,
            name=name,
            value=hit / asked if asked else None,
            requested_tokens=asked,
            hit_tokens=hit,
            l1_tokens=l1,
            l2_tokens=None if l1 is None else hit - l1,
        )

    return HitRatesView(
        server_id="1",
        window_seconds=900.0,
        reason=None,
        value=0.25,
        requested_tokens=16_000,
        parts=[
            part("salt", "", 12_000, 4_000, 3_000),
            part("salt", "tenant-a" + odd, 4_000, 0, 0),
            part("salt", "tk-*", 0, 0, 0),
            part("engine", "qwen-1" + odd, 13_000, 2_600, None),
        ],
    )
