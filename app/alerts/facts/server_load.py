"""Is a cache server at the end of its processor?"""

from __future__ import annotations

from app.alerts.inputs import Moment, ServerInput
from app.alerts.model import Fact

WINDOW_SECONDS = 300.0


def server_load(moment: Moment, server: ServerInput) -> Fact:
    """Rule: processor seconds of the server's process / seconds, in five minutes, beside the engines attached and its
    resident memory. The server is one Python process: one core is about all that it can use for lookups."""
    window = moment.window(server, WINDOW_SECONDS)
    used = window.grown("cpu_seconds")
    if used is None:
        return Fact("server_load", server.subject, unknown=window.reason or "its metrics tell no processor time")
    return Fact(
        "server_load",
        server.subject,
        {
            "cores": used / window.seconds,
            "engines": server.engines_registered,
            "resident": server.resident_bytes,
            "window": window.seconds,
        },
    )
