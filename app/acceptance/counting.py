"""The targets' counters as the evidence takes them. Pure; None wherever nobody counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from app.acceptance.evidence import EngineCounters, SaltCounters, sum_counters
from app.lmcache.metrics import ServerMetrics
from app.vllm.metrics import EngineMetrics


@dataclass
class LoadSeen:
    """The engine's load while a run goes on, read between the run's own requests: what is seen then is others'.

    Requests; the highest of the readings. None until the engine told it once.
    """

    readings: int = 0
    running: float | None = None
    waiting: float | None = None

    def note(self, running: float | None, waiting: float | None) -> None:
        """One reading; one that tells nothing counts as none."""
        if running is None and waiting is None:
            return
        self.readings += 1
        self.running = _highest(self.running, running)
        self.waiting = _highest(self.waiting, waiting)

    def to_json(self) -> dict[str, Any]:
        """For the run's `evidence` object."""
        return asdict(self)


def _highest(a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else max(a, b)


def engine_counters_of(metrics: EngineMetrics) -> EngineCounters:
    return EngineCounters(
        prompt_tokens=metrics.prompt_tokens,
        local_hits=metrics.prefix_cache_hits,
        external_hits=metrics.external_hits,
        external_queries=metrics.external_queries,
        requests_finished=metrics.requests_succeeded,
        process_start=metrics.process_start_time,
    )


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


def whole(value: float | None) -> int | None:
    return None if value is None else round(value)
