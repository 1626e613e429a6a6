"""The catalogue of metrics: what is stored at each poll, and what can be asked for. Pure.

Stored series are gauges (the value at the poll) and increments (what a counter grew by since the poll before). A ratio
or a rate over any span is then exact, whatever the table: sum of increments / sum of increments, or / sum of seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "rate", "ratio", "mean", "lowest"]

#: Series with the seconds each poll's increments cover.
INTERVAL = "interval_seconds"
#: Increments of a server: records written to L2 and records read back from it.
L2_RECORDS = ("l2_stored_records", "l2_loaded_records")
#: Increments of an engine, counted when a request ends: requests, and their prompt and generated tokens.
REQUESTS = ("requests_finished", "prompt_tokens_finished", "generated_tokens_finished")


@dataclass(frozen=True)
class Metric:
    """One metric that can be asked for.

    gauge: mean of `series` in a bucket (`lowest`: its minimum); rate: `series` / seconds; ratio and mean: `series` /
    `divisor` (a ratio is at most 1).
    """

    kind: Kind
    series: str
    unit: str
    divisor: tuple[str, ...] = ()


def _gauge(series: str, unit: str) -> Metric:
    return Metric("gauge", series, unit)


def _rate(series: str, unit: str) -> Metric:
    return Metric("rate", series, unit, (INTERVAL,))


SERVER_METRICS: dict[str, Metric] = {
    "up": Metric("lowest", "up", "bool"),
    "l1_used_bytes": _gauge("l1_used_bytes", "bytes"),
    "l1_usage_ratio": _gauge("l1_usage_ratio", "ratio"),
    "l1_object_count": _gauge("l1_object_count", "objects"),
    "l2_usage_bytes": _gauge("l2_usage_bytes", "bytes"),
    "engines_registered": _gauge("engines_registered", "engines"),
    "poll_seconds": _gauge("poll_seconds", "seconds"),
    "resident_bytes": _gauge("resident_bytes", "bytes"),
    "hit_rate": Metric("ratio", "hit_tokens", "ratio", ("requested_tokens",)),
    "l1_hit_rate": Metric("ratio", "l1_hit_tokens", "ratio", ("requested_tokens",)),
    "l2_hit_rate": Metric("ratio", "l2_hit_tokens", "ratio", ("requested_tokens",)),
    "requested_tokens_per_second": _rate("requested_tokens", "tokens_per_second"),
    "hit_tokens_per_second": _rate("hit_tokens", "tokens_per_second"),
    "l1_hit_tokens_per_second": _rate("l1_hit_tokens", "tokens_per_second"),
    "l2_hit_tokens_per_second": _rate("l2_hit_tokens", "tokens_per_second"),
    "l1_written_per_second": _rate("l1_written_chunks", "chunks_per_second"),
    "l1_evicted_per_second": _rate("l1_evicted_chunks", "chunks_per_second"),
    "l2_store_bytes_per_second": _rate("l2_store_bytes", "bytes_per_second"),
    "l2_stored_records_per_second": _rate("l2_stored_records", "records_per_second"),
    "l2_loaded_records_per_second": _rate("l2_loaded_records", "records_per_second"),
    "retrieves_per_second": _rate("retrieves_finished", "retrieves_per_second"),
    "l1_load_bytes_per_second": Metric("mean", "l1_load_speed_sum", "bytes_per_second", ("l1_load_speed_count",)),
    "l2_load_bytes_per_second": Metric("mean", "l2_load_speed_sum", "bytes_per_second", ("l2_load_speed_count",)),
    "cpu_cores": _rate("cpu_seconds", "cores"),
    "memory_pressure_ratio": _rate("memory_stalled_seconds", "ratio"),
}

_PROMPT = ("local_tokens", "external_tokens", "recomputed_tokens")
ENGINE_METRICS: dict[str, Metric] = {
    "up": Metric("lowest", "up", "bool"),
    "running": _gauge("running", "requests"),
    "waiting": _gauge("waiting", "requests"),
    "kv_usage_ratio": _gauge("kv_usage_ratio", "ratio"),
    "poll_seconds": _gauge("poll_seconds", "seconds"),
    "resident_bytes": _gauge("resident_bytes", "bytes"),
    "local_tokens_per_second": _rate("local_tokens", "tokens_per_second"),
    "external_tokens_per_second": _rate("external_tokens", "tokens_per_second"),
    "recomputed_tokens_per_second": _rate("recomputed_tokens", "tokens_per_second"),
    "preemptions_per_second": _rate("preemptions", "requests_per_second"),
    "requests_finished_per_second": _rate("requests_finished", "requests_per_second"),
    "prompt_tokens_finished_per_second": _rate("prompt_tokens_finished", "tokens_per_second"),
    "generated_tokens_per_second": _rate("generated_tokens_finished", "tokens_per_second"),
    "cpu_cores": _rate("cpu_seconds", "cores"),
    "in_process_hit_rate": Metric("ratio", "in_process_hit_tokens", "ratio", ("in_process_lookup_tokens",)),
    "in_process_stored_tokens_per_second": _rate("in_process_stored_tokens", "tokens_per_second"),
    "in_process_cpu_bytes": _gauge("in_process_cpu_bytes", "bytes"),
    "in_process_disk_bytes": _gauge("in_process_disk_bytes", "bytes"),
    "lookup_seconds": Metric("mean", "lookup_seconds_sum", "seconds", ("cache_lookups",)),
    "local_hit_rate": Metric("ratio", "local_tokens", "ratio", _PROMPT),
    "external_hit_rate": Metric("ratio", "external_tokens", "ratio", ("external_tokens", "recomputed_tokens")),
}

STORE_METRICS: dict[str, Metric] = {
    "up": Metric("lowest", "up", "bool"),
    "free_bytes": _gauge("free_bytes", "bytes"),
    "inodes_free": _gauge("inodes_free", "inodes"),
    "disk_read_bytes_per_second": _rate("disk_read_bytes", "bytes_per_second"),
    "disk_write_bytes_per_second": _rate("disk_written_bytes", "bytes_per_second"),
    "disk_read_latency_seconds": Metric("mean", "disk_read_seconds", "seconds", ("disk_reads",)),
    "disk_write_latency_seconds": Metric("mean", "disk_write_seconds", "seconds", ("disk_writes",)),
    "disk_busy_ratio": _rate("disk_busy_seconds", "ratio"),
}

#: Stored series that are increments: what a counter grew by since the poll before.
INCREMENTS = frozenset(
    name
    for metrics in (SERVER_METRICS, ENGINE_METRICS, STORE_METRICS)
    for metric in metrics.values()
    if metric.kind in ("rate", "ratio", "mean")
    for name in (metric.series, *metric.divisor)
)

CATALOGUE: dict[str, dict[str, Metric]] = {
    "server": SERVER_METRICS,
    "engine": ENGINE_METRICS,
    "store": STORE_METRICS,
}
