"""What a cache server's ``/metrics`` counts.

Series appear with their first event and counters start at 0 with every boot (and after ``POST /metrics/reset``), so a
field that is None means "no such series", never zero. Totals run over all labels. Names of 0.4.2 to 0.5.6 are known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from app.wire import fields
from app.wire.exposition import Samples, parse_labels, parse_metrics

__all__ = ["LookupCounters", "SaltLoads", "SaltStores", "Samples", "ServerMetrics", "parse_metrics", "server_metrics"]

_P: Final = "lmcache_mp_"
MAX_SALTS = 20_000


@dataclass(frozen=True, slots=True)
class LookupCounters:
    """The lookups of one (model, cache salt), in tokens since boot; only whole chunks count as requested.

    `chunks_loaded` is what was really moved into the engine, in chunks (each worker loads its own part of a chunk, so
    the largest worker's count is taken). A lookup that hits may be served by the engine's own cache instead.
    """

    model_name: str
    cache_salt: str
    requested_tokens: float | None
    hit_tokens: float | None
    hit_l1_tokens: float | None
    hit_l2_tokens: float | None
    lookups: float | None
    chunks_loaded: float | None


@dataclass(frozen=True, slots=True)
class SaltStores:
    """What was written under one cache salt, in chunks since boot (counted per salt for salted requests only).

    A run's records are on disk once `l2_completed_chunks` has reached `l2_submitted_chunks`.
    """

    cache_salt: str
    l1_write_chunks: float | None
    l2_submitted_chunks: float | None
    l2_completed_chunks: float | None


@dataclass(frozen=True, slots=True)
class SaltLoads:
    """Chunks of one cache salt that one worker was really given, since boot. Workers of several engines have their own
    counts, and an engine that was restarted has new workers."""

    cache_salt: str
    worker_id: str
    chunks: float


@dataclass(frozen=True)
class ServerMetrics:
    """Counters (since boot) and gauges of one scrape. Chunks, bytes, tokens, seconds, ratios 0-1, GB/s (10**9)."""

    instance_id: str | None
    process_start_time: float | None
    resident_bytes: float | None
    cpu_seconds: float | None
    lookup_requested_tokens: float | None
    lookup_hit_tokens: float | None
    lookup_hit_l1_tokens: float | None
    lookup_hit_l2_tokens: float | None
    lookup_requests: float | None
    lookup_early_exits: float | None
    l1_usage_bytes: float | None
    l1_usage_ratio: float | None
    l1_staging_bytes: float | None
    l1_write_chunks: float | None
    l1_read_chunks: float | None
    l1_evicted_chunks: float | None
    l1_read_failures: float | None
    l1_allocation_failures: float | None
    l1_eviction_ticks: float | None
    l1_eviction_triggered: float | None
    l2_store_submitted_chunks: float | None
    l2_store_completed_chunks: float | None
    l2_store_submitted_requests: float | None
    l2_store_completed_requests: float | None
    l2_prefetch_lookup_chunks: float | None
    l2_load_submitted_chunks: float | None
    l2_load_completed_chunks: float | None
    l2_load_completed_requests: float | None
    l2_prefetch_failures: float | None
    l2_evicted_chunks: float | None
    l2_usage_total_bytes: float | None
    l2_inflight_stores: float | None
    l2_inflight_loads: float | None
    inflight_load_bytes: float | None
    active_prefetch_jobs: float | None
    submitted_stores: float | None
    finished_stores: float | None
    submitted_retrieves: float | None
    finished_retrieves: float | None
    chunks_loaded: float | None
    timeouts: float | None
    event_bus_queue_depth: float | None
    event_bus_drain_lag_seconds: float | None
    event_bus_dropped: float | None
    event_bus_exceptions: float | None
    l0_l1_store_gbps_sum: float | None
    l0_l1_store_gbps_count: float | None
    l0_l1_load_gbps_sum: float | None
    l0_l1_load_gbps_count: float | None
    l2_store_gbps_sum: float | None
    l2_store_gbps_count: float | None
    l2_load_gbps_sum: float | None
    l2_load_gbps_count: float | None
    l2_usage_bytes: Mapping[str, float]
    l1_allocation_failures_by: Mapping[str, float]
    l2_prefetch_failures_by: Mapping[str, float]
    lookup_early_exits_by: Mapping[str, float]
    lookups: tuple[LookupCounters, ...]
    stores: tuple[SaltStores, ...]
    engine_ids: tuple[str, ...]
    worker_ids: tuple[str, ...]
    loads: tuple[SaltLoads, ...] = ()
    #: (seconds, reuses up to that gap) of a sample of L1's chunks, ascending: those reused from L1 and those that came
    #: back after their eviction. Empty where nothing was reused yet.
    reuse_gaps: tuple[tuple[float, float], ...] = ()

    @property
    def any_lmcache_series(self) -> bool:
        """Whether the scrape held anything of LMCache beyond the process (idle servers have gauges at once)."""
        return any(
            value is not None
            for value in (self.l1_usage_bytes, self.l1_usage_ratio, self.event_bus_queue_depth, self.l1_eviction_ticks)
        ) or bool(self.lookups)

    def lookups_of(self, cache_salt: str, model_name: str | None = None) -> LookupCounters | None:
        """The counters of one salt (of one model, where several used it)."""
        for item in self.lookups:
            if item.cache_salt == cache_salt and model_name in (None, item.model_name):
                return item
        return None

    def stores_of(self, cache_salt: str) -> SaltStores | None:
        """What was written under one salt."""
        return next((item for item in self.stores if item.cache_salt == cache_salt), None)


# field -> sample names, newest first; the first one present counts
_TOTALS: Final[Mapping[str, tuple[str, ...]]] = {
    "resident_bytes": ("process_resident_memory_bytes",),
    "cpu_seconds": ("process_cpu_seconds_total",),
    "lookup_requested_tokens": (f"{_P}lookup_requested_tokens_total",),
    "lookup_hit_tokens": (f"{_P}lookup_hit_tokens_total",),
    "lookup_hit_l1_tokens": (f"{_P}lookup_hit_l1_tokens_total",),
    "lookup_hit_l2_tokens": (f"{_P}lookup_hit_l2_tokens_total",),
    "lookup_requests": (f"{_P}lookups_requests_total",),
    "lookup_early_exits": (f"{_P}lookup_early_exit_requests_total",),
    "l1_usage_bytes": (f"{_P}l1_memory_usage_bytes",),
    "l1_staging_bytes": (f"{_P}l1_staging_bytes",),
    "l1_write_chunks": (f"{_P}l1_write_chunks_total", "lmcache_mp:l1_write_keys_total"),
    "l1_read_chunks": (f"{_P}l1_read_chunks_total", "lmcache_mp:l1_read_keys_total"),
    "l1_evicted_chunks": (f"{_P}l1_evicted_chunks_total", "lmcache_mp:l1_evicted_keys_total"),
    "l1_read_failures": (f"{_P}l1_read_failure_chunks_total",),
    "l1_allocation_failures": (f"{_P}l1_allocation_failure_chunks_total",),
    "l1_eviction_ticks": (f"{_P}l1_eviction_loop_ticks_total",),
    "l1_eviction_triggered": (f"{_P}l1_eviction_loop_triggered_total",),
    "l2_store_submitted_chunks": (f"{_P}l2_store_submitted_objects_chunks_total",),
    "l2_store_completed_chunks": (f"{_P}l2_store_completed_objects_chunks_total",),
    "l2_store_submitted_requests": (f"{_P}l2_store_submitted_requests_total",),
    "l2_store_completed_requests": (f"{_P}l2_store_completed_requests_total",),
    "l2_prefetch_lookup_chunks": (f"{_P}l2_prefetch_lookup_objects_chunks_total",),
    "l2_load_submitted_chunks": (f"{_P}l2_prefetch_load_submitted_objects_chunks_total",),
    "l2_load_completed_chunks": (f"{_P}l2_prefetch_load_completed_chunks_total",),
    "l2_load_completed_requests": (f"{_P}l2_load_completed_requests_total",),
    "l2_prefetch_failures": (f"{_P}l2_prefetch_failure_chunks_total",),
    "l2_evicted_chunks": (f"{_P}l2_evicted_objects_chunks_total",),
    "l2_usage_total_bytes": (f"{_P}l2_usage_bytes",),
    "l2_inflight_stores": (f"{_P}num_inflight_l2_stores",),
    "l2_inflight_loads": (f"{_P}num_inflight_l2_loads",),
    "inflight_load_bytes": (f"{_P}inflight_load_memory_usage_bytes",),
    "active_prefetch_jobs": (f"{_P}active_prefetch_jobs",),
    "submitted_stores": (f"{_P}num_submitted_stores_total",),
    "finished_stores": (f"{_P}num_finished_stores_total",),
    "submitted_retrieves": (f"{_P}num_submitted_retrieves_total",),
    "finished_retrieves": (f"{_P}num_finished_retrieves_total",),
    "chunks_loaded": (f"{_P}num_chunks_loaded_total",),
    "timeouts": (f"{_P}timeouts_total",),
    "event_bus_queue_depth": (f"{_P}event_bus_queue_depth",),
    "event_bus_drain_lag_seconds": (f"{_P}event_bus_drain_lag_seconds",),
    "event_bus_dropped": (f"{_P}event_bus_dropped_events_total",),
    "event_bus_exceptions": (f"{_P}event_bus_subscriber_exceptions_total",),
    "l0_l1_store_gbps_sum": (f"{_P}l0_l1_store_throughput_GB_per_second_sum",),
    "l0_l1_store_gbps_count": (f"{_P}l0_l1_store_throughput_GB_per_second_count",),
    "l0_l1_load_gbps_sum": (f"{_P}l0_l1_load_throughput_GB_per_second_sum",),
    "l0_l1_load_gbps_count": (f"{_P}l0_l1_load_throughput_GB_per_second_count",),
    "l2_store_gbps_sum": (f"{_P}l2_store_throughput_GB_per_second_sum",),
    "l2_store_gbps_count": (f"{_P}l2_store_throughput_GB_per_second_count",),
    "l2_load_gbps_sum": (f"{_P}l2_load_throughput_GB_per_second_sum",),
    "l2_load_gbps_count": (f"{_P}l2_load_throughput_GB_per_second_count",),
}


def first_total(samples: Samples, names: Iterable[str]) -> float | None:
    """The total of the first of these samples that is there."""
    for name in names:
        if name in samples:
            return samples.total(name)
    return None


def server_metrics(samples: Samples) -> ServerMetrics:
    """Take the panel's fields out of one scrape. Raises TargetError ``unreadable`` for malformed labels."""
    totals = {name: first_total(samples, names) for name, names in _TOTALS.items()}
    identity = samples.labels_of("target_info")
    store_count = f"{_P}l0_l1_store_throughput_GB_per_second_count"
    return ServerMetrics(
        instance_id=next(
            (labels["service_instance_id"] for labels in identity if "service_instance_id" in labels), None
        ),
        process_start_time=samples.start_time(),
        l1_usage_ratio=samples.ratio(f"{_P}l1_usage_ratio"),
        l2_usage_bytes=samples.total_by(f"{_P}l2_usage_bytes", "l2_name"),
        l1_allocation_failures_by=samples.total_by(f"{_P}l1_allocation_failure_chunks_total", "during"),
        l2_prefetch_failures_by=samples.total_by(f"{_P}l2_prefetch_failure_chunks_total", "reason"),
        lookup_early_exits_by=samples.total_by(f"{_P}lookup_early_exit_requests_total", "reason"),
        lookups=_lookups(samples),
        stores=_stores(samples),
        engine_ids=_values(samples, store_count, "engine_id"),
        worker_ids=_values(samples, f"{_P}num_chunks_loaded_total", "worker_id"),
        loads=_loads(samples),
        reuse_gaps=_buckets(
            samples, f"{_P}l1_chunk_reuse_gap_seconds_bucket", f"{_P}l1_chunk_evict_reuse_gap_seconds_bucket"
        ),
        **totals,
    )


_LOOKUP_SAMPLES: Final = (
    f"{_P}lookup_requested_tokens_total",
    f"{_P}lookup_hit_tokens_total",
    f"{_P}lookup_hit_l1_tokens_total",
    f"{_P}lookup_hit_l2_tokens_total",
    f"{_P}lookups_requests_total",
)


def _lookups(samples: Samples) -> tuple[LookupCounters, ...]:
    """Per (model, salt); a server with more than `MAX_SALTS` of them keeps the first ones only."""
    rows: dict[tuple[str, str], list[float | None]] = {}
    keys: dict[str, tuple[str, str]] = {}  # the five counters print one label text: take it apart once
    for column, name in enumerate(_LOOKUP_SAMPLES):
        for raw, value in samples.raw(name):
            key = keys.get(raw)
            if key is None:
                key = keys[raw] = _model_and_salt(parse_labels(raw))
            row = rows.get(key)
            if row is None:
                if len(rows) >= MAX_SALTS:
                    continue
                row = rows[key] = [None] * (len(_LOOKUP_SAMPLES) + 1)
            if fields.plausible(value):
                row[column] = (row[column] or 0.0) + value
    for labels, value in samples.each(f"{_P}num_chunks_loaded_total"):
        row = rows.get(_model_and_salt(labels))
        if row is not None and fields.plausible(value):
            row[-1] = max(row[-1] or 0.0, value)
    return tuple(LookupCounters(model, salt, *row) for (model, salt), row in rows.items())


def _loads(samples: Samples) -> tuple[SaltLoads, ...]:
    """Per (salt, worker); a server with more than `MAX_SALTS` of them keeps the first ones only."""
    rows: dict[tuple[str, str], float] = {}
    for labels, value in samples.each(f"{_P}num_chunks_loaded_total"):
        key = labels.get("cache_salt", ""), labels.get("worker_id", "")
        if fields.plausible(value) and (key in rows or len(rows) < MAX_SALTS):
            rows[key] = rows.get(key, 0.0) + value
    return tuple(SaltLoads(salt, worker, chunks) for (salt, worker), chunks in rows.items())


def _stores(samples: Samples) -> tuple[SaltStores, ...]:
    names = (
        f"{_P}l1_write_chunks_total",
        f"{_P}l2_store_submitted_objects_chunks_total",
        f"{_P}l2_store_completed_objects_chunks_total",
    )
    written, submitted, completed = (samples.total_by(name, "cache_salt") for name in names)
    salts = list(dict.fromkeys((*written, *submitted, *completed)))[:MAX_SALTS]
    return tuple(
        SaltStores(salt, written.get(salt), submitted.get(salt), completed.get(salt)) for salt in salts if salt
    )


def _buckets(samples: Samples, *names: str) -> tuple[tuple[float, float], ...]:
    """Cumulative buckets of these histograms together; equal bounds are summed."""
    sums: dict[float, float] = {}
    for name in names:
        for labels, value in samples.each(name):
            try:
                bound = float(labels.get("le", ""))
            except ValueError:
                continue
            if math.isfinite(value) and not math.isnan(bound):
                sums[bound] = sums.get(bound, 0.0) + value
    return tuple(sorted(sums.items()))


def _model_and_salt(labels: Mapping[str, str]) -> tuple[str, str]:
    return labels.get("model_name", ""), labels.get("cache_salt", "")


def _values(samples: Samples, name: str, label: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(labels[label] for labels, _ in samples.each(name) if label in labels))
