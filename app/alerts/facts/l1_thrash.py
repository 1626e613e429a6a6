"""L1 that is too small for what is stored through it."""

from __future__ import annotations

from app.alerts.inputs import Moment, ServerInput
from app.alerts.model import Fact

WINDOW_SECONDS = 300.0


def l1_thrash(moment: Moment, server: ServerInput) -> Fact:
    """Rule: turns of the eviction loop that had to evict / all turns, in five minutes; chunks that found no room; and
    by how much L1 stands above the watermark at which eviction begins. (Evicted chunks alone say nothing: chunks that
    are loaded from L2 pass through L1 and count as evicted.)"""
    window = moment.window(server, WINDOW_SECONDS)
    ticks, triggered = window.grown("l1_eviction_ticks"), window.grown("l1_eviction_triggered")
    failures = window.grown("l1_allocation_failures")
    if failures is None and ticks is None:
        return Fact("l1_thrash", server.subject, unknown=window.reason or "this version counts no evictions")
    usage, watermark = server.l1_usage_ratio, server.l1_trigger_watermark
    return Fact(
        "l1_thrash",
        server.subject,
        {
            "ticks": ticks,
            "triggered": triggered,
            "share": triggered / ticks if ticks and triggered is not None else None,
            "failures": failures,
            "usage": usage,
            "watermark": watermark,
            "overshoot": usage - watermark if usage is not None and watermark is not None else None,
            "window": window.seconds,
        },
    )
