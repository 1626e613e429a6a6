"""Is this engine really registered at this server?"""

from __future__ import annotations

from collections.abc import Iterable

from app.checks import effective
from app.checks.base import Check, Finding
from app.checks.facts import Facts


class Registered(Check):
    id = "engine_registered"
    title = "The engine is registered at the server"
    looks_at = "contexts on /status of the server against the engine's model path; connector address"
    why = (
        "Without a registration nothing is cached although every health light is green: that is how it looks after a "
        "server was restarted faster than a heartbeat, or when the engine talks to another server."
    )
    source = "measured with LMCache 0.5.6; LMCache#4642, #4670"

    def check(self, facts: Facts) -> Iterable[Finding]:
        server, engine = facts.server, facts.engine
        if server is None or engine is None or server.planned or engine.planned:
            yield from self._address(facts)
            return
        if server.status is None or not engine.reachable:
            return
        connector = effective.connector(facts)
        if connector is not None and connector.value != effective.MP_CONNECTOR:
            return
        subject = facts.pair_name
        names = effective.engine_models(engine)
        registered = {layout.model_name for layout in server.status.contexts.values()}
        values = {
            "configured": ", ".join(names) or "the engine's model is not told",
            "effective": ", ".join(sorted(registered)) or "nothing registered",
            "origin": "/v1/models of the engine; /status of the server",
        }
        wrong = self._wrong_port(facts)
        fix = "restart the engine, or wait for two heartbeats (20 s) and look again"
        if wrong:
            yield self.fail(
                subject, wrong, title="The engine talks to another server", fix="correct the port", **values
            )
        elif registered & set(names):
            yield self.ok(subject, f"{', '.join(sorted(registered & set(names)))} is registered", **values)
        elif server.status.engines_registered == 0:
            yield self.fail(
                subject,
                "no engine is registered at the server",
                title="The engine is not registered",
                fix=fix,
                **values,
            )
        elif not names or server.status.engines_registered is None or not registered:
            yield self.unknown(subject, "the server does not tell which models are registered", **values)
        else:
            yield self.fail(
                subject,
                f"the server knows {', '.join(sorted(registered))}, the engine serves {', '.join(names)}",
                title="The engine is not registered",
                fix=fix,
                **values,
            )

    def _address(self, facts: Facts) -> Iterable[Finding]:
        wrong = self._wrong_port(facts)
        if wrong:
            yield self.fail(
                facts.pair_name,
                wrong,
                title="The engine would talk to another server",
                fix="the same port in --port of the server and lmcache.mp.port of the engine",
                configured=wrong,
                effective="another server, or none",
                origin="command lines",
            )

    @staticmethod
    def _wrong_port(facts: Facts) -> str | None:
        port = effective.option_number(facts, "port")
        config = facts.server.config if facts.server is not None else None
        if port is None or config is None or config.message_port is None or port.origin.startswith("default"):
            return None
        if int(port.value) != config.message_port and not _published(facts):
            return f"the engine connects to port {port.value:g}, the server's message port is {config.message_port}"
        return None


def _published(facts: Facts) -> bool:
    """Behind a container's port mapping the numbers may differ."""
    return any(item.role == "server" and item.network != "host" for item in facts.containers)
