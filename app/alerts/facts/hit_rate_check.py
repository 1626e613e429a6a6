"""The server's hits beside what its engines say they loaded."""

from __future__ import annotations

from app.alerts.inputs import Moment, ServerInput
from app.alerts.model import Fact

WINDOW_SECONDS = 300.0


def hit_rate_check(moment: Moment, server: ServerInput) -> Fact:
    """Rule: Δ hit tokens of lookups against Δ `vllm:external_prefix_cache_hits_total` of all its engines.

    More loaded than found cannot be: the server's counters miss events, or an engine uses another server too. Much
    found, asked for and not loaded: hits do not reach the engines. (Found and served from the GPU's own cache is right;
    then the engines did not ask.)
    """
    window = moment.window(server, WINDOW_SECONDS)
    hits = window.grown("hit_tokens")
    if hits is None:
        return Fact("hit_rate_check", server.subject, unknown=window.reason or "this server counts no lookups")
    users = [engine for engine in server.engines if engine.connector is not False]
    if not users:
        return Fact("hit_rate_check", server.subject, unknown="no engine of this server is registered in the panel")
    loaded, asked, told = 0.0, 0.0, 0
    for engine in users:
        own = moment.window(engine, WINDOW_SECONDS)
        tokens, queries = own.grown("external_hits"), own.grown("external_queries")
        if tokens is None or queries is None:
            continue
        loaded, asked, told = loaded + tokens, asked + queries, told + 1
    if not told:
        return Fact("hit_rate_check", server.subject, unknown="no engine tells its external prefix cache counters")
    registered = server.engines_registered
    return Fact(
        "hit_rate_check",
        server.subject,
        {
            "hits": hits,
            "loaded": loaded,
            "asked": asked,
            "engines": float(told),
            "complete": float(told == len(users) and (registered is None or registered <= told)),
            "window": window.seconds,
        },
        quiet="no lookups in the window" if hits == 0 and loaded == 0 else None,
    )
