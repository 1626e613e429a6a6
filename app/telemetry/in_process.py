"""LMCache inside an engine, as the panel shows it: the hit rate of its look-ups, what it holds and stored. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.fleet.load_schemas import InProcessView
from app.lmcache.in_process_metrics import (
    IN_PROCESS_CONNECTORS,
    MULTIPROC_MISSING,
    InProcessMetrics,
    in_process_metrics,
)
from app.telemetry import hit_rate, window
from app.telemetry.window import Slice
from app.vllm.metrics import EngineMetrics

LOOKUPS, HITS, STORED = "in_process_lookup_tokens", "in_process_hit_tokens", "in_process_stored_tokens"
#: Increments that are stored at each poll.
COUNTERS = (LOOKUPS, HITS, STORED)
#: Names of the window's slices, as `hit_rate.hit_rate` wants them, by counter.
IN_WINDOW = {"requested": LOOKUPS, "hit": HITS}


def counters(metrics: EngineMetrics) -> dict[str, float | None]:
    told = in_process_metrics(metrics.in_process)
    if told is None:
        return {}
    return {LOOKUPS: told.lookup_tokens, HITS: told.lookup_hit_tokens, STORED: told.stored_tokens}


def in_window(deltas: Mapping[str, float | None]) -> dict[str, float | None]:
    """What one slice of the engine's window holds beside its own tokens; nothing without LMCache inside."""
    return {name: deltas[counter] for name, counter in IN_WINDOW.items() if counter in deltas}


def samples(metrics: EngineMetrics) -> dict[str, float | None]:
    """The gauges of one poll."""
    told = in_process_metrics(metrics.in_process)
    if told is None:
        return {}
    return {"in_process_cpu_bytes": told.cpu_bytes, "in_process_disk_bytes": told.disk_bytes}


def missing(metrics: EngineMetrics | None, connector: object) -> bool:
    """Whether LMCache runs inside this engine and counts nowhere that can be read."""
    return metrics is not None and not metrics.in_process and connector in IN_PROCESS_CONNECTORS


def view(metrics: EngineMetrics, connector: object, kept: Sequence[Slice]) -> dict[str, Any] | None:
    """As stored with the snapshot; None where LMCache does not run inside this engine.

    The rate is cross-checked against vLLM's own count of the tokens that its connector supplied in the same window.
    """
    told = in_process_metrics(metrics.in_process)
    if told is None:
        if not missing(metrics, connector):
            return None
        return InProcessView.stored({"state": "unknown", "reason": MULTIPROC_MISSING})
    rate = hit_rate.hit_rate(kept, "one reading so far: a rate needs two polls")
    external, queries = window.total(kept, "external_tokens"), window.total(kept, "external_queries")
    check = hit_rate.cross_check(rate, external, queries)
    return InProcessView.stored(
        {
            "state": rate.state,
            "hit_rate": rate.value,
            "hit_tokens": rate.hit_tokens,
            "lookup_tokens": rate.requested_tokens,
            "window_seconds": rate.covered_seconds,
            "reason": rate.reason,
            "check": check.state,
            "check_reason": check.reason.replace("the server", "LMCache").replace("the engines", "vLLM"),
            **_held(told),
        }
    )


def _held(told: InProcessMetrics) -> dict[str, Any]:
    def whole(value: float | None) -> int | None:
        return None if value is None else round(value)

    return {
        "stored_tokens": whole(told.stored_tokens),
        "evicted_keys": whole(told.evicted_keys),
        "cpu_bytes": whole(told.cpu_bytes),
        "disk_bytes": whole(told.disk_bytes),
        "remote_bytes": whole(told.remote_bytes),
        "healthy": told.healthy,
    }
