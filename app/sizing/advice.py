"""From sizes, wishes and measurements to advice. Pure."""

from __future__ import annotations

import math

from app.sizing import speed, tiers
from app.sizing.measured import Measured, record_token_bytes
from app.sizing.schemas import (
    BreakEvenView,
    ChunkAdvice,
    ChunkView,
    DiskAdvice,
    L1Advice,
    ModelView,
    SizingInput,
    SizingView,
    TierView,
)

_HEADROOM = 1.2
_PLAIN_BLOCK = 16


def view(body: SizingInput, model: ModelView, measured: Measured) -> SizingView:
    """Everything that can be said."""
    missing: list[str] = []
    return SizingView(
        model=model,
        tiers=_tiers(body, model, measured),
        chunk=_chunk(body, model, measured),
        l1=_l1(body, model, measured),
        disk=_disk(body, model, measured, missing),
        break_even=_break_even(body, model, measured, missing),
        missing=missing,
    )


def _working_set(body: SizingInput) -> tiers.WorkingSet | None:
    given = body.working_set
    return None if given is None else tiers.WorkingSet(given.contexts, given.tokens, given.order == "cyclic")


def _tiers(body: SizingInput, model: ModelView, measured: Measured) -> list[TierView]:
    given, wanted = body.tiers, _working_set(body)
    found: list[tiers.Fit] = []
    rank = model.rank_bytes_per_token
    l0_tokens = given.l0_tokens if given.l0_tokens is not None else measured.l0_tokens
    if given.l0_bytes is not None:
        # bytes of all ranks hold the same tokens as one rank's share: L0 is judged rank by rank
        kept = [(part.bytes_per_token, part.window_tokens) for part in model.parts]
        windows = [(each, window) for each, window in kept if window is not None]
        state = model.state_bytes_per_request
        found.append(tiers.fit(tiers.l0(given.l0_bytes), rank, wanted, request_bytes=state, windows=windows))
    elif l0_tokens is not None:
        # the engine's own count has windows and states in it already
        found.append(tiers.fit(tiers.l0(l0_tokens * rank), rank, wanted))
    l1_bytes = given.l1_bytes if given.l1_bytes is not None else measured.l1_bytes
    if l1_bytes is not None:
        watermark, ratio = _l1_settings(body, measured)
        tier = tiers.l1(l1_bytes, watermark=watermark, eviction_ratio=ratio)
        found.append(tiers.fit(tier, model.bytes_per_token, wanted))
    if given.l2_bytes is not None:
        tier = tiers.l2(given.l2_bytes, high=given.l2_high, low=given.l2_low)
        found.append(tiers.fit(tier, model.bytes_per_token, wanted))
    return [TierView.model_validate(item, from_attributes=True) for item in found]


def _l1_settings(body: SizingInput, measured: Measured) -> tuple[float, float]:
    """Watermark and ratio: as given, else the server's own."""
    given = body.tiers.model_fields_set
    watermark = body.tiers.watermark if "watermark" in given else measured.watermark
    ratio = body.tiers.eviction_ratio if "eviction_ratio" in given else measured.eviction_ratio
    return watermark or body.tiers.watermark, ratio or body.tiers.eviction_ratio


def _chunk(body: SizingInput, model: ModelView, measured: Measured) -> ChunkAdvice:
    block = model.block_tokens or _PLAIN_BLOCK
    wanted = body.working_set
    shared = None
    if wanted is not None:
        shared = wanted.shared_tokens if wanted.shared_tokens is not None else wanted.tokens
    choices = tiers.chunk_choices(
        block, record_token_bytes(model), context_tokens=wanted.tokens if wanted is not None else None
    )
    chosen, why = tiers.suggest_chunk(choices, shared_tokens=shared)
    given = body.chunk_size or measured.chunk_size
    return ChunkAdvice(
        suggested=chosen.chunk_size,
        why=why if model.block_tokens else f"{why} (block size 16 is assumed; the engine's own decides)",
        given=given,
        given_fits=None if given is None else given % block == 0,
        choices=[ChunkView.model_validate(choice, from_attributes=True) for choice in choices],
    )


def _l1(body: SizingInput, model: ModelView, measured: Measured) -> L1Advice | None:
    watermark, ratio = _l1_settings(body, measured)
    rate = measured.written_bytes_per_second
    if measured.reuse_gaps and rate:
        kept = speed.l1_for_reuse(measured.reuse_gaps, rate, body.reuse_share)
        if kept is None:
            return L1Advice(
                suggested_bytes=None,
                why=f"{body.reuse_share:.0%} of the reuses lie beyond the last bucket of the server's histogram: no "
                "size of L1 is to be read from it; those belong to L2",
            )
        return L1Advice(
            suggested_bytes=tiers.needed_capacity(kept, watermark=watermark, eviction_ratio=ratio),
            why=f"{body.reuse_share:.0%} of the reuses seen come within what is written in that time at "
            f"{rate:,.0f} bytes a second, kept through evictions (watermark {watermark:g}, ratio {ratio:g})",
        )
    wanted = _working_set(body)
    if wanted is None:
        return None
    needed = wanted.all_tokens * model.bytes_per_token
    return L1Advice(
        suggested_bytes=tiers.needed_capacity(needed, watermark=watermark, eviction_ratio=ratio),
        why=f"the working set of {needed:,} bytes stays whole through evictions (watermark {watermark:g}, ratio "
        f"{ratio:g}); no reuse was measured",
    )


def _disk(body: SizingInput, model: ModelView, measured: Measured, missing: list[str]) -> DiskAdvice | None:
    wanted = body.retention
    if wanted is None:
        return None
    tokens = wanted.tokens_per_second
    origin = "tokens per second as given"
    if tokens is None:
        tokens, origin = measured.stored_tokens_per_second, "tokens stored since the server's start"
    if tokens is None:
        missing.append(
            "disk: how many new tokens a second are stored (give tokens_per_second or a server with traffic)"
        )
        return DiskAdvice(bytes=None, records=None, bytes_per_second=None, why="the rate of new tokens is not known")
    rate = tokens * model.bytes_per_token
    chunk = body.chunk_size or measured.chunk_size or 256
    return DiskAdvice(
        bytes=int(rate * wanted.seconds * _HEADROOM),
        records=math.ceil(tokens * wanted.seconds / chunk) * model.records_per_chunk,
        bytes_per_second=rate,
        why=f"{tokens:,.1f} {origin}, kept for {wanted.seconds:,.0f} s, a fifth more for what arrives before a cleanup",
    )


def _break_even(body: SizingInput, model: ModelView, measured: Measured, missing: list[str]) -> list[BreakEvenView]:
    given = body.speed
    prefill = given.prefill_tokens_per_second or measured.prefill_tokens_per_second
    if prefill is None:
        missing.append("break-even: prefill tokens per second (give it, or an engine_id with traffic)")
        return []
    paths: list[speed.Path] = []
    for name, stated, seen, latency in (
        ("L1", given.l1_bytes_per_second, measured.l1_bytes_per_second, given.l1_latency_seconds),
        ("L2", given.l2_bytes_per_second, measured.l2_bytes_per_second, given.l2_latency_seconds),
    ):
        if stated or seen:
            paths.append(speed.Path(name, stated or seen or 0.0, latency, "as given" if stated else "measured"))
        else:
            missing.append(f"break-even: throughput of {name} (give it, or a server with traffic)")
    for name, rate in speed.LINES.items():
        origin = f"what if: {speed.LINE_SHARE:.0%} of the line"
        paths.append(speed.Path(name, rate, given.l2_latency_seconds, origin))
    tokens = body.working_set.tokens if body.working_set is not None else None
    found = (speed.break_even(path, model.bytes_per_token, prefill, tokens) for path in paths)
    return [BreakEvenView.model_validate(item, from_attributes=True) for item in found]
