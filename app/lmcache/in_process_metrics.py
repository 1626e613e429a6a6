"""What LMCache inside an engine counts: the ``lmcache:*`` series on vLLM's own ``/metrics`` (0.3.9 to 0.5.6). Pure.

They are there only with PROMETHEUS_MULTIPROC_DIR set before vLLM's start. Look-ups are what a hit rate is made of: of
what is *retrieved* nearly everything was found before, so that a rate over retrieved tokens is always about 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

#: KV connectors of vLLM behind which LMCache runs inside the engine's own process.
IN_PROCESS_CONNECTORS: Final = ("LMCacheConnectorV1", "LMCacheConnector", "LMCacheConnectorV1Dynamic")
MULTIPROC_MISSING: Final = (
    "Its lmcache:* series are missing on /metrics: PROMETHEUS_MULTIPROC_DIR is missing, or was set after vLLM's start. "
    "Set it to a local directory that is emptied before each start; until then its log lines are the only evidence."
)
_PREFIX: Final = "lmcache:"


@dataclass(frozen=True, slots=True)
class InProcessMetrics:
    """One scrape: counters since the engine's start (tokens, keys), gauges in bytes. None: no such series."""

    lookup_tokens: float
    lookup_hit_tokens: float
    retrieved_tokens: float
    stored_tokens: float
    evicted_keys: float
    cpu_bytes: float | None
    disk_bytes: float | None
    remote_bytes: float | None
    healthy: bool | None


def in_process_metrics(totals: Mapping[str, float]) -> InProcessMetrics | None:
    """Out of the totals of all ``lmcache:*`` series (`EngineMetrics.in_process`); None where there are none.

    Counters appear with their first use: absent beside others they are none so far. `healthy` is newer than 0.4.
    """
    if not totals:
        return None

    def counter(name: str) -> float:
        return totals.get(f"{_PREFIX}{name}_total", totals.get(f"{_PREFIX}{name}", 0.0))

    healthy = totals.get(f"{_PREFIX}lmcache_is_healthy")
    return InProcessMetrics(
        lookup_tokens=counter("num_lookup_tokens"),
        lookup_hit_tokens=counter("num_lookup_hits"),
        retrieved_tokens=counter("num_hit_tokens"),
        stored_tokens=counter("num_stored_tokens"),
        evicted_keys=counter("local_cpu_evict_keys_count"),
        cpu_bytes=totals.get(f"{_PREFIX}local_cache_usage"),
        disk_bytes=totals.get(f"{_PREFIX}local_storage_usage"),
        remote_bytes=totals.get(f"{_PREFIX}remote_cache_usage"),
        healthy=None if healthy is None else healthy > 0,
    )
