"""A server that restarted without its engines noticing: every light is green, nothing is cached."""

from __future__ import annotations

from app.alerts.facts.registration import missing_of, older_than_boot, users_of
from app.alerts.inputs import Moment, ServerInput
from app.alerts.model import Fact, some


def restart_unnoticed(moment: Moment, server: ServerInput) -> Fact:
    """Rule: engines that answer, whose process is older than the server's, and that are not registered; and how long
    ago the server started. A heartbeat is sent every 10 s and begins with an engine's first store or retrieve: a
    restart between two of them, or before the first, goes unnoticed for ever."""
    if not server.up:
        return Fact("restart_unnoticed", server.subject, unknown="the server does not answer")
    if server.engines_registered is None:
        return Fact("restart_unnoticed", server.subject, unknown="this version does not tell its registered engines")
    if server.process_start is None:
        return Fact("restart_unnoticed", server.subject, unknown="the start of the server's process is not known")
    users = users_of(server)
    missing = max(0, len(users) - server.engines_registered)
    deaf = older_than_boot(server, missing_of(server, users))
    exits = moment.window(server, 300.0).grown("early_exits_no_context")
    return Fact(
        "restart_unnoticed",
        server.subject,
        {
            "deaf": float(min(missing, len(deaf))),
            "seconds": max(0.0, moment.now - server.process_start),
            "early_exits": exits,
        },
        {"engines": some([e.name for e in deaf])},
    )
