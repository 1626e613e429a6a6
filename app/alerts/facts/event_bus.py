"""Events that the server's own bus dropped: every counter of the server then reports too little."""

from __future__ import annotations

from app.alerts.inputs import Moment, ServerInput
from app.alerts.model import Fact

WINDOW_SECONDS = 300.0


def event_bus(moment: Moment, server: ServerInput) -> Fact:
    """Rule: growth of `event_bus_dropped_events_total` in five minutes."""
    window = moment.window(server, WINDOW_SECONDS)
    dropped = window.grown("event_bus_dropped")
    if dropped is None:
        return Fact("event_bus", server.subject, unknown=window.reason or "this version does not count dropped events")
    return Fact("event_bus", server.subject, {"dropped": dropped, "window": window.seconds})
