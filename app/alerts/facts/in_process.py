"""LMCache inside an engine: the hit rate of its look-ups, and whether it calls itself healthy."""

from __future__ import annotations

from app.alerts.facts.hit_rate import WINDOW_SECONDS
from app.alerts.inputs import EngineInput, Moment
from app.alerts.model import Fact
from app.lmcache.in_process_metrics import MULTIPROC_MISSING
from app.telemetry.in_process import HITS, LOOKUPS

_NOT_INSIDE = "LMCache does not run inside this engine"


def in_process_hit_rate(moment: Moment, engine: EngineInput) -> Fact:
    """Rule: Δ found / Δ looked-up tokens (``lmcache:num_lookup_hits``, ``lmcache:num_lookup_tokens``) of fifteen
    minutes, where LMCache runs inside the engine; no rate exists without look-ups. What is *retrieved* is no measure:
    nearly all of it was found before."""
    key = "in_process_hit_rate"
    if engine.in_process is None:
        return Fact(key, engine.subject, quiet=_NOT_INSIDE)
    window = moment.window(engine, WINDOW_SECONDS)
    requested, hit = window.grown(LOOKUPS), window.grown(HITS)
    if requested is None or hit is None:
        missing = MULTIPROC_MISSING if engine.in_process.get("reason") == MULTIPROC_MISSING else ""
        why = missing or window.reason or "LMCache's look-ups were not counted all the time"
        return Fact(key, engine.subject, unknown=why)
    if requested <= 0:
        return Fact(key, engine.subject, {"requested": 0.0}, quiet="no look-ups in the window")
    numbers = {"rate": min(1.0, hit / requested), "requested": requested, "hit": hit, "window": window.seconds}
    return Fact(key, engine.subject, numbers)


def in_process_health(_: Moment, engine: EngineInput) -> Fact:
    """Rule: ``lmcache:lmcache_is_healthy`` of the last poll (LMCache 0.4 and later); vLLM goes on without it."""
    if engine.in_process is None:
        return Fact("in_process_health", engine.subject, quiet=_NOT_INSIDE)
    healthy = engine.in_process.get("healthy")
    if not engine.up or not isinstance(healthy, bool):
        reason = "this version does not tell its health" if engine.up else "the engine does not answer"
        return Fact("in_process_health", engine.subject, unknown=reason)
    return Fact("in_process_health", engine.subject, {"healthy": float(healthy)})
