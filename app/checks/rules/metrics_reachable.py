"""Without metrics the panel is blind to hits and failures."""

from __future__ import annotations

from collections.abc import Iterable

from app.checks import effective
from app.checks.base import Check, Finding
from app.checks.facts import EngineSide, Facts, ServerSide
from app.lmcache.in_process_metrics import IN_PROCESS_CONNECTORS


class MetricsReachable(Check):
    id = "metrics"
    title = "Metrics are there and complete"
    looks_at = "/metrics of the server (HTTP port) and of the engine; lmcache:* of the in-process mode"
    why = (
        "Hit rate, evictions and failing stores are seen in counters only. With --otlp-endpoint there is no /metrics "
        "at all; dropped events make every counter too low; the in-process mode needs PROMETHEUS_MULTIPROC_DIR."
    )
    source = "LMCache#3962, #729, #621; measured with LMCache 0.5.6"

    def check(self, facts: Facts) -> Iterable[Finding]:
        if facts.server is not None and not facts.server.planned:
            yield self._server(facts.server)
        if facts.server is not None and facts.server.planned:
            yield from self._planned(facts.server)
        if facts.engine is not None and not facts.engine.planned:
            yield self._engine(facts, facts.engine)

    def _server(self, server: ServerSide) -> Finding:
        config, metrics = server.config, server.metrics
        values = {
            "configured": "not told" if config is None else "on" if config.metrics_enabled is not False else "off",
            "effective": "no answer" if metrics is None else "served",
            "origin": "/config and /metrics of the server",
        }
        if metrics is None and config is not None and config.otlp_endpoint:
            return self.warn(
                server.name,
                f"metrics are pushed to {config.otlp_endpoint}: there is no /metrics to read here",
                title="Metrics are pushed, not served",
                fix="start without --otlp-endpoint, or accept that the panel knows no hit rate",
                configured=config.otlp_endpoint,
                effective="pushed",
                origin="/config of the server",
            )
        if config is not None and config.metrics_enabled is False:
            return self.fail(
                server.name,
                "metrics are switched off",
                title="No counters",
                fix="start without --disable-metrics and --disable-observability",
                configured="off",
                effective="no counters",
                origin="/config of the server",
            )
        if metrics is None and not server.reachable:
            return self.unknown(server.name, "the server does not answer", **values)
        if metrics is None:
            return self.fail(
                server.name,
                server.metrics_reason or "/metrics does not answer",
                title="No metrics",
                fix="register the HTTP port (8080 by default); 9090 is another front end's",
                **values,
            )
        if not metrics.any_lmcache_series:
            return self.fail(
                server.name,
                "/metrics answers, but holds no series of LMCache",
                title="The metrics are not LMCache's",
                fix="start without --disable-metrics, and register the HTTP port of the cache server",
                **values,
            )
        if metrics.event_bus_dropped:
            return self.warn(
                server.name,
                f"{metrics.event_bus_dropped:.0f} events were dropped: all counters are too low",
                title="Counters are too low",
                fix="lmcache server --event-bus-queue-size with a larger value",
                **values,
            )
        return self.ok(server.name, "served on the HTTP port, no events dropped", **values)

    def _planned(self, server: ServerSide) -> Iterable[Finding]:
        config = server.config
        if config is None:
            return
        if config.metrics_enabled is False:
            yield self.fail(
                server.name,
                "metrics are switched off",
                title="No counters",
                fix="leave out --disable-metrics and --disable-observability",
                configured="off",
                effective="no counters",
                origin="command line",
            )
        elif config.otlp_endpoint:
            yield self.warn(
                server.name,
                f"metrics are pushed to {config.otlp_endpoint}",
                title="Metrics are pushed, not served",
                fix="leave out --otlp-endpoint",
                configured=config.otlp_endpoint,
                effective="pushed",
                origin="command line",
            )

    def _engine(self, facts: Facts, engine: EngineSide) -> Finding:
        metrics = engine.metrics
        name = found.value if (found := effective.connector(facts)) is not None else ""
        values = {
            "configured": f"connector {name}" if name else "no connector seen",
            "effective": "no answer" if metrics is None else "served",
            "origin": "/metrics of the engine",
        }
        if metrics is None and not engine.reachable:
            return self.unknown(engine.name, "the engine does not answer", **values)
        if metrics is None:
            multiproc = engine.metrics_status == 500
            hint = "; 500 beside a healthy /health is PROMETHEUS_MULTIPROC_DIR on a network mount" if multiproc else ""
            return self.fail(
                engine.name,
                (engine.metrics_reason or "/metrics does not answer") + hint,
                title="No metrics",
                fix="PROMETHEUS_MULTIPROC_DIR on a local disk" if multiproc else "register the engine's API port",
                **values,
            )
        if not metrics.any_vllm_series:
            return self.fail(
                engine.name,
                "/metrics answers, but holds no series of vLLM",
                title="The metrics are not vLLM's",
                fix="start without --disable-log-stats, and register the engine's API port",
                **values,
            )
        if name in IN_PROCESS_CONNECTORS and not metrics.in_process:
            return self.warn(
                engine.name,
                f"{name} is in use, but there are no lmcache:* series",
                title="The in-process cache reports nothing",
                fix="PROMETHEUS_MULTIPROC_DIR=/some/local/dir in the engine's environment, emptied before each start",
                **values,
            )
        if name == effective.MP_CONNECTOR and metrics.external_queries is None:
            return self.warn(
                engine.name,
                "the engine has a connector, but no vllm:external_prefix_cache_* counters",
                title="What the cache supplied is not counted",
                fix="a newer vLLM; until then only the server's look-ups are known",
                **values,
            )
        return self.ok(engine.name, "served, with the connector's counters" if name else "served", **values)
