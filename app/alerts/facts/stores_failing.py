"""Stores to L2 that were submitted and never completed: the only sign of failing stores there is."""

from __future__ import annotations

from app.alerts.inputs import Moment, ServerInput
from app.alerts.model import Fact

WINDOW_SECONDS = 300.0


def stores_failing(moment: Moment, server: ServerInput) -> Fact:
    """Rule: Δ submitted − Δ completed object chunks in five minutes, and what the store controller says still waits.

    A queue that is empty proves nothing (a failed store leaves it too); one that is not may explain the difference,
    unless nothing completes at all.
    """
    if not server.adapters and server.up:
        return Fact("stores_failing", server.subject, quiet="this server has no L2 adapter")
    window = moment.window(server, WINDOW_SECONDS)
    submitted, completed = window.grown("l2_store_submitted"), window.grown("l2_store_completed")
    if submitted is None or completed is None:
        return Fact("stores_failing", server.subject, unknown=window.reason or "this version does not count stores")
    missing = max(0.0, submitted - completed)
    return Fact(
        "stores_failing",
        server.subject,
        {
            "submitted": submitted,
            "completed": completed,
            "missing": missing,
            "share": missing / submitted if submitted else 0.0,
            "queue": server.queue,
            "window": window.seconds,
        },
        quiet="nothing was stored in the window" if submitted == 0 else None,
    )
