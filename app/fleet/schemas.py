"""Shapes of targets towards the outside (docs: the HTTP page of the manual). Ids are strings, times RFC 3339 UTC.

Sizes are bytes, durations seconds, ratios 0..1. A value that is not known is null; `…_reason` or `state` says why.
API keys and header values go in and never come out.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from app.fleet.load_schemas import DiskView, EngineLoadView, InProcessView, ServerLoadView
from app.shapes import ApiModel, InputModel

HealthState = Literal["healthy", "degraded", "unhealthy", "unreachable", "unknown"]
HitRateState = Literal["value", "no_traffic", "unknown"]
StoreKind = Literal["lmcache_fs"]

Name = Annotated[str, StringConstraints(min_length=1, max_length=120)]
Url = Annotated[str, StringConstraints(min_length=1, max_length=2000)]
Secret = Annotated[str, StringConstraints(min_length=1, max_length=4000)]
Labels = Annotated[dict[str, str], Field(max_length=32)]
Headers = Annotated[dict[str, str], Field(max_length=32)]
PathText = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
CaText = Annotated[str, StringConstraints(min_length=1, max_length=200_000)]


class TlsView(ApiModel):
    """Whose certificates are believed. `verified_by` is null for an http:// address; `ca` is what was given (PEM text
    or a path), `reason` why it cannot be used just now."""

    verified_by: Literal["system", "own_ca", "nobody"] | None = None
    verify: bool = True
    ca: str | None = None
    ca_names: list[str] = Field(default_factory=list)
    ca_expires_at: str | None = None
    reason: str | None = None


# ---- servers ----


class LightView(ApiModel):
    """One of a cache server's four lights with its own reason. `value` null: not known. `since`: when it became so, as
    far as the panel has watched; of the data path the time of the run or canary that tells it."""

    name: Literal["http_up", "engine_up", "engines_registered", "data_path"]
    value: bool | None
    reason: str
    since: str | None = None


class HealthView(ApiModel):
    """A target's state and the lights behind it. A light that is null is not known; the reason says why. `lights` are
    those of a cache server, each with its reason and since."""

    state: HealthState
    reason: str
    since: str
    http_up: bool | None = None
    engine_up: bool | None = None
    engines_registered: int | None = None
    data_path_proven_at: str | None = None
    lights: list[LightView] = Field(default_factory=list)


class L1View(ApiModel):
    """The CPU memory tier. `trigger_watermark` and `eviction_ratio` are ratios of the capacity."""

    used_bytes: int | None = None
    capacity_bytes: int | None = None
    usage_ratio: float | None = None
    trigger_watermark: float | None = None
    eviction_ratio: float | None = None
    eviction_policy: str | None = None
    object_count: int | None = None
    reason: str | None = None


class HitRateView(ApiModel):
    """Token hit rate of lookups over a window. `value` is set only in state `value`, `reason` only in `unknown`.

    `l1_share` and `l2_share` are shares of the requested tokens (their sum is `value`), null where the server does not
    report the split. `window_seconds` is the time really covered, not the time wished for.
    """

    state: HitRateState = "unknown"
    value: float | None = None
    l1_share: float | None = None
    l2_share: float | None = None
    hit_tokens: int | None = None
    requested_tokens: int | None = None
    window_seconds: float | None = None
    reason: str | None = None


class CrossCheckView(ApiModel):
    """What the engines say about the same window: external tokens they loaded, against the server's lookup hits."""

    state: Literal["agree", "disagree", "unknown"] = "unknown"
    reason: str = "no engine of this server has been read"
    external_tokens: int | None = None


class ObjectGroupView(ApiModel):
    """One object group of a layout."""

    index: int
    layers: int | None
    tokens_per_block: int | None
    slots_per_block: int | None
    dtype: str | None
    is_mla: bool | None


class LayoutView(ApiModel):
    """One KV layout of a server: live now, or seen before. `fingerprint` decides equality (hard fields only)."""

    model_name: str
    world_size: int
    chunk_size: int | None
    bytes_per_token: int | None
    dtype: str | None
    kv_cache_dtype: str | None = None
    attention_backend: str | None
    tokens_per_block: int | None
    object_groups: list[ObjectGroupView]
    fingerprint: str
    live: bool
    contexts: int
    first_seen: str | None
    last_seen: str | None


class L2View(ApiModel):
    """One L2 adapter. `evicts` is null where its configuration does not tell."""

    adapter: str
    base_path: str | None
    relative_tmp_dir: str | None = None
    usage_bytes: int | None
    usage_reason: str | None = None
    max_capacity_bytes: int | None
    evicts: bool | None
    store_id: str | None


class ServerView(ApiModel):
    """One cache server with its last known values and their age."""

    id: str
    name: str
    url: str
    has_api_key: bool
    header_names: list[str]
    tls: TlsView = Field(default_factory=TlsView)
    labels: dict[str, str]
    revision: int
    created_at: str
    notice: str | None = None  # in the answer to POST: something else answers there, and what to enter instead
    version: str | None
    instance_id: str | None = None
    started_at: str | None = None
    restarted_at: str | None = None
    chunk_size: int | None = None
    settings: dict[str, object] = Field(default_factory=dict)  # what it was started with: what acceptance rests on
    health: HealthView
    l1: L1View
    hit_rate: HitRateView
    hit_rate_check: CrossCheckView
    layouts: list[LayoutView]
    l2: list[L2View]
    load: ServerLoadView = Field(default_factory=ServerLoadView)
    warnings: list[str]
    last_error: str | None = None
    polled_at: str | None = None
    scraped_at: str | None = None
    scrape_age_seconds: float | None = None
    engine_ids: list[str]
    store_ids: list[str]


class ServerCreate(InputModel):
    """POST /servers. `name` defaults to the host (and port) of the URL.

    `tls_ca`: PEM text, or the absolute path of a PEM file on the panel's host, of the only authorities that count;
    `tls_verify: false` believes whoever answers.
    """

    url: Url
    name: Name | None = None
    api_key: Secret | None = None
    headers: Headers = Field(default_factory=dict)
    tls_verify: bool = True
    tls_ca: CaText | None = None
    labels: Labels = Field(default_factory=dict)


class ServerPatch(InputModel):
    """PATCH /servers/{id}: only what is sent changes; `api_key: null` removes the key, `tls_ca: null` the own CA."""

    url: Url | None = None
    name: Name | None = None
    api_key: Secret | None = None
    headers: Headers | None = None
    tls_verify: bool | None = None
    tls_ca: CaText | None = None
    labels: Labels | None = None


# ---- engines ----


class L0View(ApiModel):
    """The GPU KV cache of one engine."""

    capacity_tokens: int | None = None
    capacity_bytes: int | None = None
    usage_ratio: float | None = None
    reason: str | None = None


class PrefixCacheView(ApiModel):
    """Token hit rates over the window: local (L0) of all prompt tokens, external (L1, L2) of the tokens asked for.
    `external_share`, `recomputed_share`: tokens from L1 and L2, and those no tier had, of all prompt tokens: with
    `local_hit_rate` they make 1, and they are what pages show."""

    local_hit_rate: float | None = None
    external_hit_rate: float | None = None
    external_share: float | None = None
    recomputed_share: float | None = None
    window_seconds: float | None = None
    reason: str | None = None


class EngineFactsView(ApiModel):
    """What decides the bytes of records, as far as known, and where each came from."""

    dtype: str | None = None
    kv_cache_dtype: str | None = None
    block_size: int | None = None
    prefix_caching: bool | None = None
    revision: str | None = None
    settings: dict[str, object] = Field(default_factory=dict)  # from /server_info: what acceptance rests on besides
    sources: dict[str, str] = Field(default_factory=dict)


class EngineView(ApiModel):
    """One vLLM engine with its last known values and their age."""

    id: str
    name: str
    url: str
    server_id: str | None
    server_link: Literal["given", "guessed", "none"]
    has_api_key: bool
    header_names: list[str]
    tls: TlsView = Field(default_factory=TlsView)
    labels: dict[str, str]
    revision: int
    created_at: str
    notice: str | None = None  # in the answer to POST: something else answers there, and what to enter instead
    version: str | None
    model_names: list[str]
    model_roots: list[str]
    max_model_len: int | None
    started_at: str | None = None
    health: HealthView
    l0: L0View
    running: int | None
    waiting: int | None
    preemptions: int | None
    prefix_cache: PrefixCacheView
    load: EngineLoadView = Field(default_factory=EngineLoadView)
    in_process: InProcessView | None = None  # null where LMCache does not run inside this engine
    reset_available: bool | None
    reset_reason: str | None = None
    connector: bool | None = None
    facts: EngineFactsView
    entered_facts: dict[str, str]
    entered_facts_valid: bool | None
    warnings: list[str]
    last_error: str | None = None
    polled_at: str | None = None
    scraped_at: str | None = None
    scrape_age_seconds: float | None = None


class EnteredFacts(InputModel):
    """What the operator knows of an engine that does not tell it; valid only for the process that runs now."""

    dtype: Annotated[str, StringConstraints(min_length=1, max_length=40)] | None = None
    kv_cache_dtype: Annotated[str, StringConstraints(min_length=1, max_length=40)] | None = None


class EngineCreate(InputModel):
    """POST /engines. Without `server_id` the engine is linked when exactly one server registers its model path."""

    url: Url
    name: Name | None = None
    server_id: str | None = None
    api_key: Secret | None = None
    headers: Headers = Field(default_factory=dict)
    tls_verify: bool = True
    tls_ca: CaText | None = None
    labels: Labels = Field(default_factory=dict)


class EnginePatch(InputModel):
    """PATCH /engines/{id}: only what is sent changes; `server_id: null` goes back to guessing."""

    url: Url | None = None
    name: Name | None = None
    server_id: str | None = None
    api_key: Secret | None = None
    headers: Headers | None = None
    tls_verify: bool | None = None
    tls_ca: CaText | None = None
    labels: Labels | None = None
    entered_facts: EnteredFacts | None = None


# ---- stores ----


class FilesystemView(ApiModel):
    """The file system below a store, as last seen, counted as df does: what is neither used nor free (to a plain user)
    is reserved. Stores with one `device` share its room."""

    total_bytes: int | None = None
    free_bytes: int | None = None
    used_bytes: int | None = None
    inodes_free: int | None = None
    device: int | None = None


class StoreView(ApiModel):
    """One store. `usable` is null before the first look; `usable_reason` says what is wrong with the directory."""

    id: str
    name: str
    path: str
    server_path: str
    server_ids: list[str]
    temp_dir: str | None
    kind: str
    labels: dict[str, str]
    revision: int
    created_at: str
    usable: bool | None = None
    usable_reason: str | None = None
    checked_at: str | None = None
    filesystem: FilesystemView
    disk: DiskView = Field(default_factory=DiskView)


class StoreCreate(InputModel):
    """POST /stores. `server_id` is a list of one. `confirm` vouches for a directory that its files cannot prove."""

    path: PathText
    name: Name | None = None
    server_ids: list[str] | None = None
    server_id: str | None = None
    server_path: PathText | None = None
    temp_dir: PathText | None = None
    kind: StoreKind = "lmcache_fs"
    labels: Labels = Field(default_factory=dict)
    confirm: bool = False


class StorePatch(InputModel):
    """PATCH /stores/{id}: only what is sent changes; `path` cannot change (forget the store and add it anew)."""

    name: Name | None = None
    server_ids: list[str] | None = None
    server_path: PathText | None = None
    temp_dir: PathText | None = None
    labels: Labels | None = None
    confirm: bool = False
