"""Shapes of the records room towards the outside. Ids are strings, times RFC 3339 UTC, sizes bytes.

A value that is not known is null with a sibling that says why.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from app.shapes import ApiModel, InputModel, WorkView

RecordClass = Literal["current", "incompatible", "corrupt", "unreachable", "temporary", "foreign", "unverified"]

#: Why a scan failed that met another one at its directory.
ANOTHER_SCAN = "another scan of this directory is under way; wait for it"


class Count(ApiModel):
    """A number of records and their bytes."""

    records: int
    bytes: int


class ScanInput(InputModel):
    """POST /stores/{id}/scans; the body may be left out. `gentle` pauses between batches, for slow mounts."""

    gentle: bool = False


class AcceptDirectoryInput(InputModel):
    """POST /stores/{id}/directory: the directory that lies there now is the store. `found` is the one that was seen."""

    found: str


class StoreDirectoryView(ApiModel):
    """Which directory a store is. `known` is what the last scan found, `found` what lies there now: device:inode.

    `began_anew_at`: when a volatile one (tmpfs) was last found to have begun anew; it is followed without being asked.
    """

    state: Literal["same", "another", "not_known_yet", "unreadable"]
    known: str | None = None
    found: str | None = None
    reason: str | None = None
    began_anew_at: str | None = None


class MountView(ApiModel):
    """The file system under a store and what its access times can show (RULES.md R6)."""

    fs_type: str | None = None
    mount_point: str | None = None
    access_times: Literal["strict", "relatime", "noatime", "unknown"] = "unknown"
    volatile: bool = False  # tmpfs, a container's overlay: records are gone after a restart
    read_only: bool = False
    total_bytes: int | None = None
    free_bytes: int | None = None
    inodes_free: int | None = None
    block_size: int | None = None
    note: str | None = None


class ScanView(WorkView):
    """One walk over a store. `vanished` went without a run of ours: the adapter evicts, or somebody deletes."""

    store_id: str
    rescan: bool
    gentle: bool
    files_seen: int
    records: int
    bytes: int
    allocated_bytes: int
    seconds: float | None
    files_per_second: float | None
    foreign: int
    foreign_examples: list[str]
    added: int
    changed: int
    vanished: int
    vanished_bytes: int
    removed_by_runs: int
    unreadable: list[str]
    clock_difference_seconds: float | None
    clock_measured: bool


class RecordView(ApiModel):
    """One record of the inventory, as the last scan found it and as the layouts known now judge it."""

    id: str
    store_id: str
    name: str
    class_: RecordClass = Field(serialization_alias="class")
    reason: str | None
    model_name: str
    kv_rank: int
    world_size: int
    rank: int
    object_group_id: int | None
    chunk_hash: str
    cache_salt: str
    size_bytes: int
    modified_at: str
    accessed_at: str
    epoch_id: str | None
    hard_links: bool = False
    held: bool = False


class HoldView(ApiModel):
    """A record that no policy takes: somebody put it back, or (`canary`) an acceptance canary reads it."""

    name: str
    reason: str
    canary: bool
    held_by: str
    held_at: str


class ReleaseInput(InputModel):
    """POST /stores/{id}/holds/release: these names; all but canaries' without a body."""

    names: list[str] | None = Field(None, min_length=1, max_length=100_000)


class ReleasedView(ApiModel):
    """How many holds ended."""

    released: int


class CandidateView(ApiModel):
    """One layout that may have written a record, and how it compares with the live one."""

    fingerprint: str | None
    layout: dict[str, Any] | None
    live: bool
    verdict: Literal["same", "different", "unknown"]
    differences: list[dict[str, Any]]


class SizeEvidenceView(ApiModel):
    """What sizes the records of the same owner have, and which size that proves."""

    expected_bytes: int | None
    accepted_bytes: list[int]
    records: int
    most_common_bytes: int | None
    most_common_share: float | None
    sentence: str


class SizeSeenView(ApiModel):
    """Records of the same model, rank and object group that have this size."""

    size_bytes: int
    records: int


class PastView(ApiModel):
    """One thing that happened to a record, or to what it is judged by, and what says so.

    `source` is who did it, or what tells of it; `ref_kind` (plan, cleanup_run, epoch) and `ref_id` name what it is of.
    """

    at: str
    what: str
    detail: str
    source: str
    ref_kind: str | None = None
    ref_id: str | None = None


class RecordDetail(RecordView):
    """A record with the evidence for its class: the rule, the window, the candidates, the sizes seen, its past.

    `sizes_seen`: the most frequent sizes of its kind (model, rank, object group), whatever layout wrote them.
    `epoch`: the layout that wrote it, where only one can have; without its counts.
    """

    rule: str
    sentence: str
    window: list[str]
    candidates: list[CandidateView]
    size_evidence: SizeEvidenceView
    sizes_seen: list[SizeSeenView] = Field(default_factory=list)
    past: list[PastView] = Field(default_factory=list)
    epoch: EpochView | None = None
    changed_at: str
    inode: int
    judged_at: str


class ModelSummary(ApiModel):
    """The records of one model (with one world size) in a store."""

    model_name: str
    world_size: int
    records: int
    bytes: int
    by_class: dict[str, Count]


class FilesystemSummary(ApiModel):
    """The file system as measured now, counted as df does: what is neither used nor free is reserved."""

    total_bytes: int | None
    free_bytes: int | None
    inodes_free: int | None
    reason: str | None = None
    used_bytes: int | None = None


class EvictionView(ApiModel):
    """What the adapter is said to do and what was seen: records that went without a run of ours."""

    vanished_records: int
    vanished_bytes: int
    since: str | None
    sentence: str


class AdapterView(ApiModel):
    """One L2 adapter of a server of the store, as that server tells of it; `usage_bytes` is its own count.

    `listed`: its records lie in this store's directory. Where they do not, `reason` says why they are not shown here.
    """

    server_id: str
    adapter: str
    base_path: str | None
    usage_bytes: int | None
    usage_reason: str | None
    max_capacity_bytes: int | None
    evicts: bool | None
    listed: bool
    reason: str | None


class SummaryView(ApiModel):
    """A store at a glance. `records` and `bytes` are of all records; foreign files are only counted in `by_class`."""

    store_id: str
    state: Literal["scanned", "never_scanned"]
    records: int | None
    bytes: int | None
    by_class: dict[str, Count]
    by_reason: dict[str, Count]
    by_model: list[ModelSummary]
    filesystem: FilesystemSummary
    mount: MountView
    growth_bytes_per_hour: float | None
    growth_reason: str | None
    full_in_hours: float | None
    #: Twice the standard error of the growth; null where fewer than three scans tell none.
    growth_error_bytes_per_hour: float | None = None
    growth_scans: int = 0
    full_in_hours_soonest: float | None = None
    full_in_hours_latest: float | None = None  # null beside a soonest one: perhaps never
    scanned_at: str | None
    scan_id: str | None
    classified_at: str | None
    allocated_bytes: int | None
    foreign_examples: list[str]
    unreadable: list[str]
    oldest_modified_at: str | None
    newest_modified_at: str | None
    eviction: EvictionView
    alarms: list[str]
    adapters: list[AdapterView] = Field(default_factory=list)


class BucketView(ApiModel):
    """Records whose age (or time since their last use) at the scan was in [from_seconds, to_seconds)."""

    from_seconds: float
    to_seconds: float | None
    records: int
    bytes: int


class SaltCount(ApiModel):
    """The records under one cache salt."""

    salt: str
    records: int
    bytes: int


class RankCount(ApiModel):
    """The records that one rank of one model wrote."""

    model_name: str
    world_size: int
    rank: int
    kv_rank: int
    records: int
    bytes: int


class DistributionView(ApiModel):
    """How records are distributed, as of the last scan. `last_use` and `never_read` rest on access times: null where
    the mount keeps none; `use_reason` says what they can show. `by_salt`: the largest, `more_salts` are left out."""

    store_id: str
    scanned_at: str | None
    age: list[BucketView]
    last_use: list[BucketView] | None
    never_read: Count | None
    use_reason: str | None
    unsalted: Count
    by_salt: list[SaltCount]
    more_salts: int
    by_rank: list[RankCount] = Field(default_factory=list)


class EpochView(ApiModel):
    """A layout that servers showed (`observed`), or what an operator said of a model (`declare`, `adopt`)."""

    id: str
    kind: Literal["observed", "declare", "adopt"]
    model_name: str
    world_size: int | None
    fingerprint: str | None
    layout: dict[str, Any] | None
    live: bool
    possible_from: str | None
    certain_from: str | None
    ended_at: str | None
    spans: list[dict[str, Any]]
    changes: list[dict[str, Any]]  # against the epoch before: {field, old, new, kind, meaning}
    records: int | None  # null: never scanned
    bytes: int | None
    mean_record_bytes: int | None = None  # of the records on the disk
    layout_record_bytes: list[int] | None = None  # what the layout says, by object group; null: it does not
    first_written_at: str | None = None
    last_written_at: str | None = None
    effective_at: str | None
    reason: str | None
    actor: str | None
    created_at: str


class SafeChoicesView(ApiModel):
    """A live layout over records of one that decides other bytes: served, they are wrong answers.

    Either its server gets a directory of its own (`flag`), or the `records` are quarantined before requests come.
    """

    model_name: str
    world_size: int
    fingerprint: str
    records: int | None  # null: never scanned
    bytes: int | None
    new_directory: str
    flag: str


class UnwatchedView(ApiModel):
    """A time in which a server may have written anything: before it was first read (`from_at` null), or a gap."""

    server_id: str
    server_name: str
    kind: Literal["before", "gap"]
    from_at: str | None
    until: str


class EpochsView(ApiModel):
    """All epochs of a store, newest first, alarms such as mixed layouts, and what to do after a change.

    `unwatched`: when it is not known what a server wrote, the latest first.
    """

    items: list[EpochView]
    next_page_token: str | None = None
    alarms: list[str]
    choices: list[SafeChoicesView] = Field(default_factory=list)
    unwatched: list[UnwatchedView] = Field(default_factory=list)


class EpochInput(InputModel):
    """POST /stores/{id}/epochs. `declare` starts a generation, `adopt` gives what was there to the live layout."""

    kind: Literal["declare", "adopt"]
    reason: str | None = Field(None, max_length=500)
    model_name: str | None = Field(None, max_length=1000)
    effective_at: str | None = Field(None, max_length=40)


class GrowthPointView(ApiModel):
    """Bytes and records by class at the end of one scan."""

    at: str
    scan_id: str
    by_class: dict[str, Count]
