"""The targets' counters as the evidence takes them. Pure; None wherever nobody counts."""

from __future__ import annotations

from collections.abc import Iterable

from app.acceptance.counters import EngineCounters, SaltCounters, sum_counters
from app.lmcache.metrics import ServerMetrics
from app.vllm.metrics import EngineMetrics


def engine_counters_of(metrics: EngineMetrics) -> EngineCounters:
    return EngineCounters(
        prompt_tokens=metrics.prompt_tokens,
        local_hits=_first(metrics.prefix_cache_hits, metrics.prompt_tokens_by_source.get("local_cache_hit")),
        external_hits=_first(metrics.external_hits, metrics.external_prompt_tokens),
        external_queries=metrics.external_queries,
        requests_finished=metrics.requests_succeeded,
        process_start=metrics.process_start_time,
    )


def loaded_since(
    now: ServerMetrics, before: ServerMetrics, salts: Iterable[str], *, by_salt: bool, chunk_size: int
) -> float | None:
    """Tokens in the chunks that the server moved into an engine since `before`, of these salts (or of all).

    Each worker of an engine is given its own part of every chunk, so the busiest worker's count is the engine's. None
    where this server does not count loads (transfer mode engine_driven), or has not made one since its start.
    """
    if now.chunks_loaded is None or now.instance_id != before.instance_id:
        return None
    wanted = set(salts)
    earlier = {(item.cache_salt, item.worker_id): item.chunks for item in before.loads}
    most: dict[str, float] = {}
    for item in now.loads:
        if by_salt and item.cache_salt not in wanted:
            continue
        moved_here = item.chunks - earlier.get((item.cache_salt, item.worker_id), 0.0)
        most[item.cache_salt] = max(most.get(item.cache_salt, 0.0), moved_here)
    return sum(most.values()) * chunk_size


def salts_of(metrics: ServerMetrics, salts: Iterable[str], by_salt: bool) -> SaltCounters:
    if not by_salt:
        return SaltCounters(
            metrics.lookup_requested_tokens,
            metrics.lookup_hit_tokens,
            metrics.lookup_hit_l1_tokens,
            metrics.lookup_hit_l2_tokens,
        )
    wanted = set(salts)
    return sum_counters(
        [
            SaltCounters(c.requested_tokens, c.hit_tokens, c.hit_l1_tokens, c.hit_l2_tokens)
            for c in metrics.lookups
            if c.cache_salt in wanted
        ]
    )


def stores_of(now: ServerMetrics | None, salts: Iterable[str]) -> tuple[int | None, int | None, int | None]:
    """(written to L1, submitted to L2, completed in L2) in chunks, summed over our salts; None where nobody counts."""
    if now is None:
        return None, None, None
    wanted = set(salts)
    mine = [s for s in now.stores if s.cache_salt in wanted]

    def column(values: Iterable[float | None]) -> int | None:
        known = [v for v in values if v is not None]
        return round(sum(known)) if known else None

    return (
        column(s.l1_write_chunks for s in mine),
        column(s.l2_submitted_chunks for s in mine),
        column(s.l2_completed_chunks for s in mine),
    )


def moved(now: ServerMetrics | None, before: ServerMetrics | None, name: str) -> int | None:
    """How far a counter moved; a series that appeared meanwhile started at zero. None when it is not there."""
    if now is None or before is None or now.instance_id != before.instance_id:
        return None
    later = getattr(now, name)
    return None if later is None else whole(later - (getattr(before, name) or 0.0))


def _first(*values: float | None) -> float | None:
    return next((v for v in values if v is not None), None)


def whole(value: float | None) -> int | None:
    return None if value is None else round(value)
