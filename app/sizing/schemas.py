"""Shapes of sizing towards the outside. Sizes are bytes, rates per second, shares 0..1, times seconds."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from app.shapes import ApiModel, InputModel

_MOST = 2**60
Bytes = int


class ModelInput(InputModel):
    """Where bytes per token come from: one of `config` (a pasted config.json), a layout registered at a server
    (`server_id` with `model_name` where there are several), or `bytes_per_token` of all ranks together.
    """

    config: dict[str, Any] | None = None
    server_id: str | None = None
    model_name: str | None = Field(None, max_length=4096)
    bytes_per_token: int | None = Field(None, ge=1, le=_MOST)
    kv_cache_dtype: str = Field("auto", max_length=40)
    tensor_parallel: int = Field(1, ge=1, le=1024)
    pipeline_parallel: int = Field(1, ge=1, le=1024)


class TiersInput(InputModel):
    """Sizes of the tiers; what is not given is not judged. Of a registered server L1 is read from it.

    `l0_bytes`: KV cache of one tensor parallel rank, all stages; `l0_tokens`: what vLLM logs as "GPU KV cache size".
    `l2_high`, `l2_low`: shares at which a cleanup policy of the store starts and stops.
    """

    l0_bytes: int | None = Field(None, ge=0, le=_MOST)
    l0_tokens: int | None = Field(None, ge=0, le=_MOST)
    l1_bytes: int | None = Field(None, ge=0, le=_MOST)
    l2_bytes: int | None = Field(None, ge=0, le=_MOST)
    watermark: float = Field(0.8, gt=0, le=1)
    eviction_ratio: float = Field(0.2, gt=0, le=1)
    l2_high: float = Field(0.85, gt=0, le=1)
    l2_low: float = Field(0.7, gt=0, le=1)


class WorkingSetInput(InputModel):
    """Contexts that come back, each of so many tokens. `order`: cyclic (the usual one of agents and benchmarks) or
    unordered. `shared_tokens`: the part they begin with in common.
    """

    contexts: int = Field(ge=1, le=10**9)
    tokens: int = Field(ge=1, le=10**9)
    order: Literal["cyclic", "unordered"] = "cyclic"
    shared_tokens: int | None = Field(None, ge=0, le=10**9)


class RetentionInput(InputModel):
    """How long records are to stay on disk. Without `tokens_per_second` the server's own count since its start."""

    seconds: float = Field(gt=0, le=86400 * 3650)
    tokens_per_second: float | None = Field(None, ge=0, le=10**9)


class SpeedInput(InputModel):
    """For the break-even. What is not given is taken from the metrics of server and engine, where they tell it."""

    prefill_tokens_per_second: float | None = Field(None, gt=0, le=10**9)
    l1_bytes_per_second: float | None = Field(None, gt=0, le=1e15)
    l2_bytes_per_second: float | None = Field(None, gt=0, le=1e15)
    l1_latency_seconds: float = Field(0.002, ge=0, le=3600)
    l2_latency_seconds: float = Field(0.01, ge=0, le=3600)


class SizingInput(InputModel):
    """POST /sizing. `engine_id` is where measured prefill speed and L0 are read."""

    model: ModelInput
    chunk_size: int | None = Field(None, ge=1, le=10**6)
    tiers: TiersInput = Field(default_factory=TiersInput)
    working_set: WorkingSetInput | None = None
    retention: RetentionInput | None = None
    speed: SpeedInput = Field(default_factory=SpeedInput)
    engine_id: str | None = None
    reuse_share: float = Field(0.9, gt=0, lt=1)


class PartView(ApiModel):
    """One group of layers on one rank."""

    kind: Literal["full", "sliding", "mla", "linear", "indexer"]
    layers: int
    bytes_per_token: int
    window_tokens: int | None
    state_bytes: int


class ModelView(ApiModel):
    """`bytes_per_token`: of all ranks, as L1 and L2 keep it; `rank_bytes_per_token`: of one rank in the engine.

    `block_tokens`: N, of which a hybrid model's chunk size must be a multiple. `source` says what all this rests on.
    """

    name: str
    source: str
    bytes_per_token: int
    rank_bytes_per_token: int
    records_per_chunk: int
    state_bytes_per_request: int
    block_tokens: int | None
    max_tokens: int | None
    parts: list[PartView]
    notes: list[str]


class TierView(ApiModel):
    """One tier. `usable_bytes`: up to its watermark. `hit_share`: of the working set, in the order it is asked for;
    `unordered_share`: if it were asked for in no order.
    """

    tier: Literal["L0", "L1", "L2"]
    capacity_bytes: int
    usable_bytes: int
    tokens: int
    contexts: int | None
    needed_bytes: int | None
    state: Literal["fits", "tight", "overflows"] | None
    hit_share: float | None
    unordered_share: float | None
    sentence: str


class ChunkView(ApiModel):
    """One possible chunk size."""

    chunk_size: int
    record_bytes: int
    records_per_context: int | None
    lost_tokens: float
    whole_blocks: bool


class ChunkAdvice(ApiModel):
    """The suggested chunk size, why, and the choices around it. `given_fits`: whether the one given fits the blocks."""

    suggested: int
    why: str
    given: int | None
    given_fits: bool | None
    choices: list[ChunkView]


class L1Advice(ApiModel):
    """How large L1 should be, and on what that rests."""

    suggested_bytes: int | None
    why: str


class DiskAdvice(ApiModel):
    """Disk for the retention: `bytes` with a fifth of headroom, `records` files."""

    bytes: int | None
    records: int | None
    bytes_per_second: float | None
    why: str


class BreakEvenView(ApiModel):
    """One path against recomputing. `tokens` null: it never pays."""

    path: str
    bytes_per_second: float
    origin: str
    tokens: int | None
    load_seconds: float | None
    recompute_seconds: float | None
    speed_up: float | None
    sentence: str


class SizingView(ApiModel):
    """Everything that could be said with what was given; the rest is null with a reason in `missing`."""

    model: ModelView
    tiers: list[TierView]
    chunk: ChunkAdvice
    l1: L1Advice | None
    disk: DiskAdvice | None
    break_even: list[BreakEvenView]
    missing: list[str]


class PromptInput(InputModel):
    """One prompt: a text (an engine tokenizes it) or token ids."""

    text: str | None = Field(None, max_length=1_000_000)
    token_ids: list[int] | None = Field(None, max_length=300_000)


class PrefixInput(InputModel):
    """POST /sizing/prefix. Texts need `engine_id`; the chunk size is its server's unless given."""

    first: PromptInput
    second: PromptInput
    engine_id: str | None = None
    chunk_size: int | None = Field(None, ge=1, le=10**6)


class SegmentView(ApiModel):
    """Tokens that differ, [start, end) in each prompt; texts where the engine gave them back."""

    first_start: int
    first_end: int
    second_start: int
    second_end: int
    equal_after: int
    first_text: str | None = None
    second_text: str | None = None


class PrefixView(ApiModel):
    """What of the second prompt can be reused after the first."""

    first_tokens: int
    second_tokens: int
    chunk_size: int
    chunk_size_origin: str
    common_tokens: int
    common_chunks: int
    reusable_tokens: int
    reusable_share: float
    differs_at: int | None
    segments: list[SegmentView]
    gain_tokens: int
    sentence: str
