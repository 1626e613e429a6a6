"""Health of a server or an engine, as damping believes it."""

from __future__ import annotations

from app.alerts.inputs import EngineInput, Moment, ServerInput
from app.alerts.model import Fact


def server_health(moment: Moment, server: ServerInput) -> Fact:
    """Rule: the state in force (`app.telemetry.health`), for how long, and whether "no engine" is all that is wrong."""
    if server.health_state == "unknown":
        return Fact("server_health", server.subject, unknown=server.health_reason or "not polled yet")
    nobody = server.health_state == "degraded" and server.engines_registered == 0
    return Fact(
        "server_health",
        server.subject,
        {"seconds": moment.now - server.health_since, "only_nobody": float(nobody)},
        {"state": server.health_state, "reason": server.health_reason, "url": server.url},
    )


def engine_health(moment: Moment, engine: EngineInput) -> Fact:
    """Rule: the state in force, and for how long."""
    if engine.health_state == "unknown":
        return Fact("engine_health", engine.subject, unknown=engine.health_reason or "not polled yet")
    return Fact(
        "engine_health",
        engine.subject,
        {"seconds": moment.now - engine.health_since},
        {"state": engine.health_state, "reason": engine.health_reason, "url": engine.url},
    )
