"""Shapes of policies, plans, runs and quarantine towards the outside. Ids are strings, times RFC 3339 UTC, sizes bytes.

Ages are written ``10m``, ``24h``, ``14d``; sizes in policies as bytes, ``200GB`` (10⁹), ``200GiB`` (2³⁰) or percent.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from app.clock import parse_iso
from app.scheduling.schemas import ApiModel, InputModel, WorkView

Removal = Literal["quarantine", "delete"]
#: `housekeeping`: a test (acceptance, benchmark) takes its own records away.
Origin = Literal["policy", "filter", "housekeeping", "quarantine"]
Trigger = Literal["hand", "schedule", "layout_change", "housekeeping"]
#: How long what a filter plan removes waits in quarantine, unless something else is said.
DEFAULT_QUARANTINE = "7d"

Verdict = Literal["succeeded", "nothing_to_do", "insufficient", "stopped_at_limit", "failed"]

_SELECT_EXAMPLES = [
    [{"kind": "incompatible"}, {"kind": "corrupt", "reasons": ["short"]}, {"kind": "derived"}],
    [{"kind": "temporary", "older_than": "1h"}, {"kind": "unused", "for": "14d", "age_only": False}],
    [{"kind": "capacity", "high": "85%", "low": "70%"}, {"kind": "free_space", "floor": "200GiB"}],
]


class Count(ApiModel):
    """A number of records and their bytes."""

    records: int
    bytes: int


class ProtectView(ApiModel):
    """What a policy never takes. What is not given protects nothing."""

    accessed_within: str | None = None
    written_within: str | None = None
    models: list[str] = Field(default_factory=list)


class LimitsView(ApiModel):
    """Where one run stops. `max_fraction` is of the store's records and of its bytes, 0..1."""

    max_bytes: str | int | None = None
    max_records: int | None = None
    max_fraction: float | None = None


class BlackoutView(ApiModel):
    """When, in the policy's zone, its schedule starts nothing. `days`: 0–6, 0 is Sunday; every day if empty."""

    start: str
    end: str
    days: list[int] = Field(default_factory=list)


class PolicyInput(InputModel):
    """POST /policies. `schedule`: cron text, `@layout-change`, or both in this order; null: by hand only."""

    name: str = Field(min_length=1, max_length=120)
    store_id: str
    enabled: bool = True
    schedule: str | None = Field(None, max_length=200)
    timezone: str = Field("UTC", max_length=64)
    select: list[dict[str, Any]] = Field(max_length=20, examples=_SELECT_EXAMPLES)
    protect: dict[str, Any] | None = Field(None, examples=[{"accessed_within": "24h", "models": ["/models/a"]}])
    limits: dict[str, Any] | None = Field(None, examples=[{"max_bytes": "500GB", "max_fraction": 0.3}])
    removal: Removal = "quarantine"
    quarantine_for: str | None = Field(None, max_length=20, examples=["7d"])
    blackouts: list[dict[str, Any]] = Field(default_factory=list, max_length=20)


class PolicyPatch(InputModel):
    """PATCH /policies/{id}: what is given replaces, what is absent stays; null clears what may be null."""

    name: str | None = Field(None, min_length=1, max_length=120)
    enabled: bool | None = None
    schedule: str | None = Field(None, max_length=200)
    timezone: str | None = Field(None, max_length=64)
    select: list[dict[str, Any]] | None = Field(None, max_length=20, examples=_SELECT_EXAMPLES)
    protect: dict[str, Any] | None = None
    limits: dict[str, Any] | None = None
    removal: Removal | None = None
    quarantine_for: str | None = Field(None, max_length=20)
    blackouts: list[dict[str, Any]] | None = Field(None, max_length=20)


class RunBrief(ApiModel):
    """The last run of a policy, in one line."""

    id: str
    state: str
    verdict: Verdict | None
    finished_at: str | None
    removed: Count


class PolicyView(ApiModel):
    """A policy as it was written, the sentence that says what it does, its next three firings and its last run."""

    id: str
    name: str
    store_id: str
    store_name: str
    enabled: bool
    schedule: str | None
    timezone: str
    select: list[dict[str, Any]]
    protect: ProtectView
    limits: LimitsView
    removal: Removal
    quarantine_for: str | None
    blackouts: list[BlackoutView]
    summary: list[str]
    next_firings: list[str]
    last_run: RunBrief | None
    created_at: str
    updated_at: str


class PresetView(ApiModel):
    """A ready policy to start from: `policy` fits POST /policies once `store_id` is filled in."""

    id: str
    title: str
    description: str
    policy: dict[str, Any]


class SeenInput(InputModel):
    """What somebody was shown when they asked for a plan: how many records, by the scan of which time."""

    records: int = Field(ge=0, lt=10**15)
    scanned_at: str | None = Field(None, max_length=40)

    @field_validator("scanned_at")
    @classmethod
    def _is_a_time(cls, value: str | None) -> str | None:
        if value is not None:
            parse_iso(value)
        return value


class FilterPlanInput(InputModel):
    """POST /stores/{id}/plans. `filter` takes the query parameters of the records list (class, reason, model, …).

    `quarantine_for`: how long what goes into quarantine stays restorable; null keeps it until somebody purges it.
    `seen`: what was shown of it before; the plan keeps it, so that a difference can be told.
    """

    filter: dict[str, Any]
    removal: Removal = "quarantine"
    quarantine_for: str | None = Field(DEFAULT_QUARANTINE, max_length=20)
    protect: dict[str, Any] | None = None
    limits: dict[str, Any] | None = None
    seen: SeenInput | None = None


class SeenView(ApiModel):
    """What was shown to whoever asked for a plan: records, by the scan of which time."""

    records: int
    scanned_at: str | None


class LeavesView(ApiModel):
    """What the store would hold after the run. `free_bytes` is null when the file system cannot be measured."""

    records: int
    bytes: int
    free_bytes: int | None


class RecentUseView(ApiModel):
    """How many of the plan's records were read lately, as far as the mount can tell; null with a reason otherwise."""

    last_day: Count | None
    last_week: Count | None
    reason: str | None


class GoalView(ApiModel):
    """What `capacity` and `free_space` aim at. Bytes of the file system (percent) or of the store (sizes)."""

    needed_bytes: int
    planned_bytes: int
    shortfall_bytes: int
    sentences: list[str]


class PlanView(WorkView):
    """A dry run: exactly what would go and what would be left. `by_reason` holds the reason or the select kind."""

    store_id: str
    store_name: str
    policy_id: str | None
    policy_name: str | None
    origin: Origin
    quarantine_for: str | None
    filter: dict[str, Any] | None
    removal: Removal
    records: int
    bytes: int
    by_reason: dict[str, Count]
    leaves: LeavesView | None
    held_back: dict[str, Count]
    recent_use: RecentUseView | None
    goal: GoalView | None
    limited: str | None
    warnings: list[str]
    expires_at: str | None
    expired: bool
    scanned_at: str | None
    run_id: str | None
    # What the page showed that a plan of a filter was asked for on; null where nothing was shown.
    seen: SeenView | None = None


class ItemView(ApiModel):
    """One record of a plan or a run. `why` is the select item that took it, `state` what became of it."""

    id: str
    record_id: str | None
    name: str
    class_: str = Field(serialization_alias="class")
    reason: str | None
    why: str
    action: Removal
    model_name: str | None
    kv_rank: int | None
    world_size: int | None
    rank: int | None
    object_group_id: int | None
    chunk_hash: str | None
    cache_salt: str | None
    size_bytes: int
    modified_at: str
    accessed_at: str
    round: int
    state: str
    errno: int | None
    detail: str | None
    changed_at: str | None


class FailedItem(ApiModel):
    """A file that could not be moved; the run went on without it."""

    name: str
    errno: int | None
    message: str


class StepView(ApiModel):
    """One step of a run, in order: l2, l1, l0, l2_again, l1_again, verify. state: done, skipped, failed, waiting."""

    name: str
    state: Literal["done", "skipped", "failed", "waiting"]
    detail: str
    at: str


class HitRateAround(ApiModel):
    """Token hit rate of the store's servers in the hour before a run and in the hour after it (as far as it has gone).

    Ratios 0..1; null with the reason where there was no traffic or nothing was measured.
    """

    before: float | None
    after: float | None
    before_reason: str | None
    after_reason: str | None
    from_time: str
    to_time: str


class RunView(WorkView):
    """One execution of a plan. `removed` is what left the directory; `notes` say why the verdict and the way out.

    Always: planned + added = removed + skipped + failed_total + not_reached, in records. `added` is what came back, or
    was found to be derived, while the run went on; `not_reached` what it has not come to yet, or was stopped before.
    """

    store_id: str
    store_name: str
    policy_id: str | None
    policy_name: str | None
    plan_id: str | None
    trigger: Trigger
    verdict: Verdict | None
    notes: list[str]
    steps: list[StepView]
    planned: Count
    added: Count
    removed: Count
    not_reached: int
    by_reason: dict[str, Count]
    skipped: dict[str, int]
    failed: list[FailedItem]
    failed_total: int
    free_bytes_before: int | None
    free_bytes_after: int | None
    freed_bytes_measured: int | None
    # What the run itself deleted, and what that says of the measured difference.
    deleted_bytes: int
    freed_note: str | None
    quarantine_folder: str
    in_quarantine: Count
    restored_records: int
    purged: Count
    purge_after: str | None
    # On single runs only, not in lists. What waits, by what it was when it was taken: its reason, else its class.
    waiting_by_reason: dict[str, Count] | None = None
    # What became of its records, as they stand now: state of an item -> records.
    outcomes: dict[str, int] | None = None
    hit_rate: HitRateAround | None = None


#: Keys of a `SelectionInput.filter`.
SELECTION_FILTERS = ("class", "reason", "why", "model", "salt", "q")


class SelectionInput(InputModel):
    """Which of a run's quarantined records: all without a body, some by `record_ids` or by `filter`.

    `filter` keys: class, reason, why, model, salt, q (part of the name).
    """

    record_ids: list[str] | None = Field(None, max_length=100_000)
    filter: dict[str, str] | None = None


class QuarantineJobView(WorkView):
    """A restore or a purge. `skipped` counts exists (another file has the name now), vanished, changed."""

    run_id: str
    store_id: str
    kind: Literal["restore", "purge"]
    records: int
    bytes: int
    skipped: dict[str, int]
    failed: list[FailedItem]
    failed_total: int
    freed_bytes_measured: int | None


class QuarantineEntry(ApiModel):
    """One run's folder in the quarantine of a store. `run_id` is null for a run that this panel does not know."""

    folder: str
    run_id: str | None
    policy_name: str | None
    started_at: str | None
    purge_after: str | None
    records: int
    bytes: int
    readable: bool
    reason: str | None
    # What it was when it was taken: its reason, else its class. Null for runs of other panels.
    by_reason: dict[str, Count] | None = None


class QuarantineView(ApiModel):
    """What waits in the quarantine of a store, measured on its disk; it counts as used space."""

    items: list[QuarantineEntry]
    next_page_token: str | None
    records: int
    bytes: int
    measured_at: str


class EpisodeView(ApiModel):
    """A cache that may still hold wrong records of a model, and what it waits for."""

    id: str
    store_id: str
    model_name: str
    opened_at: str
    waiting_for: list[str]
    run_ids: list[str]
    closed_at: str | None
    closed_by_run_id: str | None
    # The cleanup run that is at work on the store now: until it ends nothing is said of what is left.
    running_run_id: str | None = None
