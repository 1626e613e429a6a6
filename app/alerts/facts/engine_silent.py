"""Lookups from an engine that the server does not know: it is asked, and cannot answer."""

from __future__ import annotations

from app.alerts.inputs import Moment, ServerInput
from app.alerts.model import Fact

WINDOW_SECONDS = 120.0


def engine_silent(moment: Moment, server: ServerInput) -> Fact:
    """Rule: growth of `lookup_early_exit_requests_total` with the reason `no_gpu_context` in two minutes."""
    window = moment.window(server, WINDOW_SECONDS)
    exits, lookups = window.grown("early_exits_no_context"), window.grown("lookups")
    if exits is None:
        why = "not known for the whole window" if window.known else window.reason
        return Fact("engine_silent", server.subject, unknown=why)
    return Fact(
        "engine_silent",
        server.subject,
        {"early_exits": exits, "lookups": lookups, "window": window.seconds},
        quiet="no lookups in the window" if not exits and not lookups else None,
    )
