"""Counters that are kept for derived facts beside those of the stored series. Pure.

They live in the snapshot's memory (`CounterPoint.values`) as they were at the last scrape, cumulative since the process
started: `app.alerts` takes the differences. They are no series: charts do not need them, and the database stays small.
"""

from __future__ import annotations

from app.lmcache.metrics import ServerMetrics
from app.vllm.metrics import EngineMetrics

#: Cache salts of the panel's own runs and canaries; they are counted together.
OWN_SALTS = "tk-*"
#: More models or salts than this are not told apart: labels come from requests, their number has no bound.
MOST_KEYS = 12
#: Between the parts of a name such as ``hits|model|/models/x|requested``.
SEPARATOR = "|"
_FIELDS = ("requested", "hit", "l1", "l2")


def server_events(metrics: ServerMetrics) -> dict[str, float | None]:
    """Of one cache server. A series appears with its first event: absent is none so far, where the scrape is one of
    LMCache at all. Retrieves and stores of engines stay None while absent: `engine_driven` servers never count them."""
    readable = metrics.any_lmcache_series

    def event(value: float | None) -> float | None:
        return 0.0 if value is None and readable else value

    exits = metrics.lookup_early_exits_by
    submitted = metrics.submitted_retrieves
    found: dict[str, float | None] = {
        "lookups": event(metrics.lookup_requests),
        "early_exits": event(metrics.lookup_early_exits),
        "early_exits_no_context": event(exits.get("no_gpu_context")),
        "l1_written_chunks": event(metrics.l1_write_chunks),
        "l1_allocation_failures": event(metrics.l1_allocation_failures),
        "l1_eviction_ticks": metrics.l1_eviction_ticks,
        "l1_eviction_triggered": 0.0
        if metrics.l1_eviction_triggered is None and metrics.l1_eviction_ticks is not None
        else metrics.l1_eviction_triggered,
        "l2_store_submitted": event(metrics.l2_store_submitted_chunks),
        "l2_store_completed": event(metrics.l2_store_completed_chunks),
        "l2_looked_up": event(metrics.l2_prefetch_lookup_chunks),
        "l2_load_submitted": event(metrics.l2_load_submitted_chunks),
        "l2_load_completed": event(metrics.l2_load_completed_chunks),
        "l2_load_failures": event(metrics.l2_prefetch_failures),
        "retrieves_submitted": submitted,
        "retrieves_finished": 0.0
        if metrics.finished_retrieves is None and submitted is not None
        else metrics.finished_retrieves,
    }
    found |= _lookups(metrics, "model")
    found |= _lookups(metrics, "salt")
    return found


def engine_events(metrics: EngineMetrics) -> dict[str, float | None]:
    """Of one engine: what moves as long as it answers anybody."""
    return {
        "prompt_tokens": metrics.prompt_tokens,
        "generation_tokens": metrics.generation_tokens,
        "requests_succeeded": metrics.requests_succeeded,
        "external_hits": metrics.external_hits,
        "cache_lookups": metrics.lookup_seconds_count,
    }


def _lookups(metrics: ServerMetrics, by: str) -> dict[str, float | None]:
    """``hits|model|NAME|requested`` and so on, for each model or salt; nothing where there is but one (the totals say
    it) or too many."""
    sums: dict[str, list[float | None]] = {}
    for item in metrics.lookups:
        key = item.model_name if by == "model" else OWN_SALTS if item.cache_salt.startswith("tk-") else item.cache_salt
        values = (item.requested_tokens, item.hit_tokens, item.hit_l1_tokens, item.hit_l2_tokens)
        row = sums.setdefault(key, [None, None, None, None])
        for column, value in enumerate(values):
            if value is not None:
                row[column] = (row[column] or 0.0) + value
        if len(sums) > MOST_KEYS:
            return {}
    if len(sums) < 2:
        return {}
    return {
        SEPARATOR.join(("hits", by, key, name)): value
        for key, row in sums.items()
        for name, value in zip(_FIELDS, row, strict=True)
    }
