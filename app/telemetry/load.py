"""What a hit costs and what the processes use: from counters to what is stored and shown. Pure.

A cache server is saturated by its processor, its memory or its disk long before anything says "unhealthy"; these are
the numbers to be seen beside the number of engines attached.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.fleet.load_schemas import EngineLoadView, ServerLoadView
from app.lmcache.metrics import ServerMetrics
from app.vllm.metrics import EngineMetrics

_GB = 1e9
#: Counters of a cache server whose increments are stored.
SERVER_COUNTERS = ("cpu_seconds", "memory_stalled_seconds", "retrieves_finished")
#: Pairs of (sum of speeds, number of loads): stored only where anything was loaded, their quotient is the mean speed.
LOADS = (("l1_load_speed_sum", "l1_load_speed_count"), ("l2_load_speed_sum", "l2_load_speed_count"))
ENGINE_COUNTERS = ("cpu_seconds",)
LOOKUP = ("lookup_seconds_sum", "cache_lookups")


def server_counters(metrics: ServerMetrics, stalled_seconds: float | None) -> dict[str, float | None]:
    """Counters beside `event_counters`. Speeds are in bytes per second (LMCache sums GB/s, one a load)."""
    return {
        "cpu_seconds": metrics.cpu_seconds,
        "memory_stalled_seconds": stalled_seconds,
        "l1_load_speed_sum": _scaled(metrics.l0_l1_load_gbps_sum),
        "l1_load_speed_count": metrics.l0_l1_load_gbps_count,
        "l2_load_speed_sum": _scaled(metrics.l2_load_gbps_sum),
        "l2_load_speed_count": metrics.l2_load_gbps_count,
    }


def engine_counters(metrics: EngineMetrics) -> dict[str, float | None]:
    return {"cpu_seconds": metrics.cpu_seconds, "lookup_seconds_sum": metrics.lookup_seconds_sum}


def server_samples(deltas: Mapping[str, float | None]) -> dict[str, float | None]:
    """What is stored at one poll."""
    values: dict[str, float | None] = {name: deltas.get(name) for name in SERVER_COUNTERS}
    for pair in LOADS:
        if deltas.get(pair[1]):
            values |= {name: deltas.get(name) for name in pair}
    return values


def engine_samples(deltas: Mapping[str, float | None]) -> dict[str, float | None]:
    values: dict[str, float | None] = {name: deltas.get(name) for name in ENGINE_COUNTERS}
    if deltas.get(LOOKUP[1]):
        values |= {name: deltas.get(name) for name in LOOKUP}
    return values


def server_view(
    metrics: ServerMetrics,
    deltas: Mapping[str, float | None],
    seconds: float | None,
    now: float,
    before: Mapping[str, Any],
    *,
    shares_host: bool,
    pressure_reason: str | None,
) -> dict[str, Any]:
    """Rates since the poll before. The speed of a load is that of the last poll in which there was one (`…_at`)."""
    found: dict[str, Any] = {
        "seconds": seconds,
        "cpu_cores": _per(deltas.get("cpu_seconds"), seconds),
        "resident_bytes": _whole(metrics.resident_bytes),
        "retrieves_per_second": _per(deltas.get("retrieves_finished"), seconds),
        "shares_host": shares_host,
        "memory_pressure_ratio": _ratio(_per(deltas.get("memory_stalled_seconds"), seconds)),
        "reason": None if shares_host else "this server does not run on the panel's host",
    }
    if shares_host and found["memory_pressure_ratio"] is None:
        found["reason"] = pressure_reason or "a rate needs two polls"
    for tier, (total, count) in zip(("l1", "l2"), LOADS, strict=True):
        name = f"{tier}_load_bytes_per_second"
        loads = deltas.get(count)
        if loads and deltas.get(total) is not None:
            found[name], found[f"{tier}_loaded_at"] = (deltas[total] or 0.0) / loads, now
        else:
            found[name], found[f"{tier}_loaded_at"] = before.get(name), before.get(f"{tier}_loaded_at")
    return ServerLoadView.stored(found)


def engine_view(
    metrics: EngineMetrics,
    deltas: Mapping[str, float | None],
    seconds: float | None,
    now: float,
    before: Mapping[str, Any],
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "seconds": seconds,
        "cpu_cores": _per(deltas.get("cpu_seconds"), seconds),
        "resident_bytes": _whole(metrics.resident_bytes),
        "lookup_seconds": before.get("lookup_seconds"),
        "looked_up_at": before.get("looked_up_at"),
        "prefill_tokens_per_second": _per(_computed_tokens(metrics), metrics.prefill_sum),
        "decode_tokens_per_second": _per(*_written(metrics)),
    }
    total, count = (deltas.get(name) for name in LOOKUP)
    if count and total is not None:
        found["lookup_seconds"], found["looked_up_at"] = total / count, now
    return EngineLoadView.stored(found)


def _computed_tokens(metrics: EngineMetrics) -> float | None:
    """Prompt tokens that the engine computed itself since its start; None before the first."""
    computed = metrics.prompt_tokens_by_source.get("local_compute")
    if computed is None and metrics.prompt_tokens is not None and metrics.prefix_cache_hits is not None:
        computed = metrics.prompt_tokens - metrics.prefix_cache_hits - (metrics.external_hits or 0.0)
    return computed if computed and computed > 0 else None


def _written(metrics: EngineMetrics) -> tuple[float | None, float | None]:
    """(answer tokens after the first, seconds they took) of finished requests since its start."""
    requests, _, tokens = metrics.finished
    if requests is None or tokens is None or metrics.e2e_sum is None or metrics.ttft_sum is None:
        return None, None
    after_first, seconds = tokens - requests, metrics.e2e_sum - metrics.ttft_sum
    return (after_first, seconds) if after_first > 0 and seconds > 0 else (None, None)


def _scaled(gbps: float | None) -> float | None:
    return None if gbps is None else gbps * _GB


def _per(grown: float | None, seconds: float | None) -> float | None:
    return grown / seconds if grown is not None and seconds else None


def _ratio(value: float | None) -> float | None:
    return None if value is None else min(1.0, value)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
