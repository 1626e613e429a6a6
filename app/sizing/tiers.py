"""What fits into L0, L1 and L2, and what becomes of a working set that does not. Pure.

An LRU tier that is asked for its working set in a cycle gives no hits at all as soon as the set is larger than the
tier: each item is evicted just before it is wanted again. Only for requests in no order is capacity / working set the
share that hits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Tier:
    """One tier. `sure_bytes`: what stays even right after an eviction; `peak_bytes`: what it holds just before one."""

    name: str
    capacity_bytes: int
    peak_bytes: int
    sure_bytes: int


@dataclass(frozen=True)
class WorkingSet:
    """Contexts that come back. `cyclic`: in the same order again and again; else in no order."""

    contexts: int
    tokens: int
    cyclic: bool = True

    @property
    def all_tokens(self) -> int:
        return self.contexts * self.tokens


@dataclass(frozen=True)
class Fit:
    """How a tier takes a working set. `state`: fits, tight (fits only until the next eviction), overflows.

    `hit_share`: the share of the set's tokens that this tier alone would serve, in the order the set is asked for;
    `unordered_share`: the same for requests in no order.
    """

    tier: str
    capacity_bytes: int
    usable_bytes: int
    tokens: int
    contexts: int | None
    needed_bytes: int | None
    state: str | None
    hit_share: float | None
    unordered_share: float | None
    sentence: str


def l0(capacity_bytes: int) -> Tier:
    """The engine's KV cache: evicted block by block, so all of it is used."""
    return Tier("L0", capacity_bytes, capacity_bytes, capacity_bytes)


def l1(capacity_bytes: int, *, watermark: float, eviction_ratio: float) -> Tier:
    """L1: at the watermark `eviction_ratio` of what is there is dropped at once."""
    peak = int(capacity_bytes * min(1.0, max(0.0, watermark)))
    return Tier("L1", capacity_bytes, peak, int(peak * (1 - min(1.0, max(0.0, eviction_ratio)))))


def l2(capacity_bytes: int, *, high: float, low: float) -> Tier:
    """A disk that a policy empties from `high` down to `low` (shares of its size)."""
    return Tier("L2", capacity_bytes, int(capacity_bytes * high), int(capacity_bytes * min(high, low)))


def fit(
    tier: Tier,
    token_bytes: int,
    working_set: WorkingSet | None,
    *,
    request_bytes: int = 0,
    windows: Sequence[tuple[int, int]] = (),
) -> Fit:
    """`token_bytes` are bytes of a token in this tier, `request_bytes` what each context takes besides (states).

    `windows`: (bytes of a token, tokens kept) of layers that keep only a window of each context; their bytes are part
    of `token_bytes`.
    """
    tokens = tier.peak_bytes // token_bytes if token_bytes else 0
    if working_set is None:
        return Fit(
            tier.name, tier.capacity_bytes, tier.peak_bytes, tokens, None, None, None, None, None,
            f"{tier.name} holds {tokens:,} tokens",
        )  # fmt: skip
    beyond = sum(each * max(0, working_set.tokens - window) for each, window in windows)
    one = working_set.tokens * token_bytes - beyond + request_bytes
    needed = working_set.contexts * one
    contexts = tier.peak_bytes // one if one else 0
    unordered = min(1.0, tier.peak_bytes / needed) if needed else 1.0
    if needed <= tier.sure_bytes:
        state, share = "fits", 1.0
        sentence = f"the working set of {working_set.contexts} contexts fits into {tier.name}"
    elif needed <= tier.peak_bytes:
        state, share = "tight", tier.sure_bytes / needed
        sentence = (
            f"the working set fits into {tier.name} only until the next eviction, which leaves "
            f"{tier.sure_bytes / needed:.0%} of it"
        )
    else:
        state = "overflows"
        share = 0.0 if working_set.cyclic else unordered
        over = needed / tier.peak_bytes if tier.peak_bytes else float("inf")
        sentence = (
            f"the working set is {over:.2f} times what {tier.name} holds: asked for in a cycle, each context is "
            f"evicted just before it is wanted again, so {tier.name} gives about no hits at all (not {unordered:.0%}); "
            f"in no order it would give about {unordered:.0%}"
        )
    return Fit(
        tier=tier.name,
        capacity_bytes=tier.capacity_bytes,
        usable_bytes=tier.peak_bytes,
        tokens=tokens,
        contexts=contexts,
        needed_bytes=needed,
        state=state,
        hit_share=share,
        unordered_share=unordered,
        sentence=sentence,
    )


def needed_capacity(needed_bytes: int, *, watermark: float, eviction_ratio: float) -> int:
    """The size of an L1 that keeps so many bytes whatever is evicted."""
    kept = watermark * (1 - eviction_ratio)
    return int(needed_bytes / kept) if kept > 0 else 0


@dataclass(frozen=True)
class ChunkChoice:
    """One possible chunk size. `record_bytes` of one rank; `lost_tokens`: on average at the end of each prefix."""

    chunk_size: int
    record_bytes: int
    records_per_context: int | None
    lost_tokens: float
    whole_blocks: bool


def chunk_choices(
    block_tokens: int, rank_token_bytes: int, *, context_tokens: int | None, block_bytes: int = 4096
) -> list[ChunkChoice]:
    """Multiples of the block size from one block to about 2,048 tokens."""
    sizes: list[int] = []
    size = block_tokens * max(1, -(-64 // block_tokens))
    while size <= max(2048, block_tokens) and len(sizes) < 8:
        sizes.append(size)
        size *= 2
    return [
        ChunkChoice(
            chunk_size=size,
            record_bytes=size * rank_token_bytes,
            records_per_context=None if context_tokens is None else context_tokens // size,
            lost_tokens=size / 2,
            whole_blocks=size * rank_token_bytes % block_bytes == 0,
        )
        for size in sizes
    ]


def suggest_chunk(choices: list[ChunkChoice], *, shared_tokens: int | None) -> tuple[ChunkChoice, str]:
    """The choice and why: large enough for the disk (1 MiB a record), small enough for the prefixes (an eighth)."""
    limit = None if shared_tokens is None else max(choices[0].chunk_size, shared_tokens // 8)
    small = [choice for choice in choices if limit is None or choice.chunk_size <= limit] or choices[:1]
    whole = [choice for choice in small if choice.whole_blocks] or small
    large = [choice for choice in whole if choice.record_bytes >= 2**20]
    usual = [choice for choice in whole if choice.chunk_size >= 256] or whole[-1:]
    chosen = min(large or usual, key=lambda choice: choice.chunk_size)
    parts = [f"a multiple of the block size, records of {chosen.record_bytes:,} bytes a rank"]
    if chosen.record_bytes < 2**20:
        parts.append("below 1 MiB a disk spends its time on opening files")
    if shared_tokens is not None:
        parts.append(f"on average {chosen.lost_tokens:.0f} of {shared_tokens:,} shared tokens are lost at the end")
    if not chosen.whole_blocks:
        parts.append("its records are no whole file-system blocks: leave use_odirect off")
    return chosen, "; ".join(parts)
