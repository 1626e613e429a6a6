"""Engines that should be registered at their cache server and are not."""

from __future__ import annotations

from collections.abc import Sequence

from app.alerts.inputs import EngineInput, Moment, ServerInput
from app.alerts.model import Fact, some

#: Clocks of two hosts may differ by this much.
SLACK_SECONDS = 2.0


def users_of(server: ServerInput) -> list[EngineInput]:
    """The server's engines that answer and are not known to run without a connector."""
    return [engine for engine in server.engines if engine.up and engine.connector is not False]


def older_than_boot(server: ServerInput, engines: Sequence[EngineInput]) -> list[EngineInput]:
    """Those whose process was there before the server's present one: they must notice its restart to register again."""
    boot = server.process_start
    if boot is None:
        return []
    return [e for e in engines if e.process_start is not None and e.process_start < boot - SLACK_SECONDS]


def missing_of(server: ServerInput, engines: Sequence[EngineInput]) -> list[EngineInput]:
    """Which engines are not registered, by their models where that tells; else all of them may be."""
    unnamed = [e for e in engines if not e.model_names & server.model_names]
    return unnamed or list(engines)


def registration(moment: Moment, server: ServerInput) -> Fact:
    """Rule: engines of this server that answer − engines it has registered; of these, how many are older than its boot
    (they are the business of `restart_unnoticed`)."""
    if not server.up:
        return Fact("registration", server.subject, unknown="the server does not answer")
    if server.engines_registered is None:
        return Fact("registration", server.subject, unknown="this version does not tell its registered engines")
    users = users_of(server)
    missing = max(0, len(users) - server.engines_registered)
    deaf = min(missing, len(older_than_boot(server, missing_of(server, users))))
    return Fact(
        "registration",
        server.subject,
        {
            "registered": float(server.engines_registered),
            "answering": float(len(users)),
            "known": float(len(server.engines)),
            "missing": float(missing),
            "lost": float(missing - deaf),
        },
        {"engines": some([e.name for e in missing_of(server, users)])},
    )
