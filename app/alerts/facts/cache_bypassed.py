"""An engine that answers prompts without asking its cache server."""

from __future__ import annotations

from app.alerts.inputs import EngineInput, Moment
from app.alerts.model import Fact

WINDOW_SECONDS = 300.0
#: Nothing is said of a window that was seen for less than this part.
SEEN_PART = 0.8


def cache_bypassed(moment: Moment, engine: EngineInput) -> Fact:
    """Rule: prompt tokens of the engine in five minutes, and the lookups it made: its own count, else (where it is the
    server's only engine) the server's. A dead message thread in the server leaves every health light green; a count of
    pending stores that is 0 proves nothing then."""
    if engine.server_id is None or engine.connector is False:
        return Fact("cache_bypassed", engine.subject, quiet="this engine uses no cache server")
    window = moment.window(engine, WINDOW_SECONDS)
    tokens = window.grown("prompt_tokens")
    if tokens is None:
        return Fact("cache_bypassed", engine.subject, unknown=window.reason or "the engine counts no prompt tokens")
    if window.seconds < WINDOW_SECONDS * SEEN_PART:
        return Fact("cache_bypassed", engine.subject, unknown=f"watched for {window.seconds:.0f} s only")
    lookups, source = window.grown("cache_lookups"), "the engine's own count"
    server = moment.servers.get(engine.server_id)
    if lookups is None and server is not None and len(server.engines) == 1 and server.up:
        # The server's window may end a poll earlier: ask it for a little more.
        lookups, source = moment.window(server, WINDOW_SECONDS + moment.interval).grown("lookups"), "the server's count"
    if lookups is None:
        return Fact("cache_bypassed", engine.subject, unknown="neither the engine nor its server counts its lookups")
    return Fact(
        "cache_bypassed",
        engine.subject,
        {
            "prompt_tokens": tokens,
            "lookups": lookups,
            "requests": window.grown("requests_succeeded"),
            "window": window.seconds,
        },
        {"source": source, "server": server.name if server is not None else "its cache server"},
        quiet="no prompts in the window" if tokens == 0 else None,
    )
