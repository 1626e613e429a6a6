"""Does this host want for memory, where a cache server shares it with the panel?"""

from __future__ import annotations

from app.alerts.inputs import Moment, ServerInput
from app.alerts.model import Fact

WINDOW_SECONDS = 300.0


def host_memory(moment: Moment, server: ServerInput) -> Fact:
    """Rule: share of the last five minutes in which some task of this host waited for memory (PSI `some`), beside the
    engines attached. Known only where the panel runs on the server's host."""
    if not server.shares_host:
        return Fact("host_memory", server.subject, unknown="the panel does not run on this server's host")
    window = moment.window(server, WINDOW_SECONDS)
    stalled = window.grown("memory_stalled_seconds")
    if stalled is None:
        return Fact("host_memory", server.subject, unknown=window.reason or "this host tells no memory pressure")
    return Fact(
        "host_memory",
        server.subject,
        {
            "share": min(1.0, stalled / window.seconds),
            "engines": server.engines_registered,
            "resident": server.resident_bytes,
            "window": window.seconds,
        },
    )
