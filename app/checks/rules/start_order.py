"""The server must be there before the engine."""

from __future__ import annotations

from collections.abc import Iterable

from app.checks.base import Check, Finding
from app.checks.effective import human_seconds
from app.checks.facts import Container, Facts


class StartOrder(Check):
    id = "start_order"
    title = "The engine starts after the server is healthy"
    looks_at = "depends_on and health checks of a compose file; process starts of server and engine; start-up log"
    why = (
        "An engine that finds no server at start waits for mq_timeout (300 s) and then dies. A server that was "
        "restarted under a running engine is found again only after a missed heartbeat."
    )
    source = "measured with LMCache 0.5.6 and vLLM 0.32"

    def check(self, facts: Facts) -> Iterable[Finding]:
        engine = facts.engine
        if engine is not None and engine.notes is not None and engine.notes.server_unreachable:
            yield self.fail(
                facts.engine_name,
                "the engine's start-up log says that it could not reach the cache server",
                title="The engine found no server",
                fix="start the server first; check lmcache.mp.host and lmcache.mp.port",
                configured=_asked(facts),
                effective="no server at the engine's start",
                origin="start-up log of the engine",
            )
            return
        server_box = next((item for item in facts.containers if item.role == "server"), None)
        engine_box = next((item for item in facts.containers if item.role == "engine"), None)
        if server_box is not None and engine_box is not None and server_box.origin == "compose file":
            yield self._compose(server_box, engine_box)
        yield from self._running(facts)

    def _compose(self, server: Container, engine: Container) -> Finding:
        condition = dict(engine.waits_for).get(server.name)
        subject = f"{server.name} · {engine.name}"
        values = {"configured": condition or "no depends_on", "origin": "compose file"}
        fix = (
            f"depends_on: {{{server.name}: {{condition: service_healthy}}}} and a healthcheck of {server.name} on "
            "http://127.0.0.1:8080/healthcheck"
        )
        if condition == "service_healthy" and server.has_health_check:
            return self.ok(subject, "the engine waits for a healthy server", effective="waits", **values)
        if condition == "service_healthy":
            return self.fail(
                subject,
                f"{engine.name} waits for {server.name} to be healthy, but {server.name} has no healthcheck",
                title="The engine would wait for ever",
                fix=fix,
                effective="waits for ever",
                **values,
            )
        return self.warn(
            subject,
            f"{engine.name} does not wait until {server.name} is healthy",
            title="The engine may start before the server",
            fix=fix,
            effective="does not wait",
            **values,
        )

    def _running(self, facts: Facts) -> Iterable[Finding]:
        server, engine = facts.server, facts.engine
        if server is None or engine is None or server.process_start is None or engine.process_start is None:
            return
        later = server.process_start - engine.process_start
        if later > 0:
            yield self.warn(
                facts.pair_name,
                f"the server started {human_seconds(round(later))} after the engine: the engine had to find it again",
                title="The server was restarted under the engine",
                fix="after a restart of the server look that the engine is registered again; else restart the engine",
                configured=_asked(facts),
                effective="server after engine",
                origin="process_start_time_seconds of both",
            )
        else:
            yield self.ok(
                facts.pair_name,
                "the server was there first",
                configured=_asked(facts),
                effective="server before engine",
                origin="process_start_time_seconds of both",
            )


def _asked(facts: Facts) -> str:
    """The order that a compose file asks for."""
    server = next((item for item in facts.containers if item.role == "server"), None)
    engine = next((item for item in facts.containers if item.role == "engine"), None)
    condition = dict(engine.waits_for).get(server.name) if server is not None and engine is not None else None
    return condition or "no order is told here"
