"""The connector decides the mode: a server of its own, or inside the engine."""

from __future__ import annotations

from collections.abc import Iterable

from app.checks import effective
from app.checks.base import Check, Finding
from app.checks.facts import Facts
from app.lmcache.in_process_metrics import IN_PROCESS_CONNECTORS


class ConnectorClass(Check):
    id = "connector_class"
    title = "The connector fits the mode"
    looks_at = "kv_connector of the engine: LMCacheMPConnector for a cache server, LMCacheConnectorV1 inside the engine"
    why = (
        "The in-process connector pointed at a cache server is dropped after 30 s and caches by itself meanwhile; "
        "without a connector the engine works and the cache stays empty. Both look healthy."
    )
    source = "LMCache#4213; measured with LMCache 0.5.6 and vLLM 0.32"

    def check(self, facts: Facts) -> Iterable[Finding]:
        engine = facts.engine
        if engine is None:
            return
        subject = facts.engine_name
        found = effective.connector(facts)
        wanted = effective.MP_CONNECTOR if facts.server is not None else "LMCacheConnectorV1"
        fix = f'vllm serve --kv-transfer-config \'{{"kv_connector":"{wanted}","kv_role":"kv_both"}}\''
        if found is None:
            yield self.unknown(
                subject,
                "no KV connector can be seen; with no traffic yet its series are not there either",
                fix=effective.how_to_see(facts.engine),
            )
            return
        told = engine.facts.kv_connector if engine.facts is not None else None
        values = {
            "configured": told or found.value or "none",
            "effective": found.value or "none",
            "origin": found.origin,
        }
        cpu = engine.facts is not None and (engine.facts.device or "").startswith("cpu")
        if not found.value:
            yield self.fail(subject, "the engine has no KV connector", title="No connector", fix=fix, **values)
        elif found.value == effective.MP_CONNECTOR and facts.server is None and facts.in_process is not None:
            yield self.fail(
                subject,
                "LMCacheMPConnector needs a cache server; the LMCACHE_* settings of the in-process mode are not read",
                title="The connector is of the other mode",
                fix="start `lmcache server` and register it, or use LMCacheConnectorV1",
                **values,
            )
        elif found.value in IN_PROCESS_CONNECTORS and facts.server is not None:
            yield self.fail(
                subject,
                f"{found.value} caches inside the engine and does not speak the cache server's protocol",
                title="The connector is of the other mode",
                fix=fix,
                **values,
            )
        elif found.value in IN_PROCESS_CONNECTORS and cpu:
            yield self.fail(
                subject,
                f"{found.value} does not work on the CPU build of vLLM",
                title="The connector does not work here",
                fix="use LMCacheMPConnector and a cache server",
                **values,
            )
        elif found.value in (effective.MP_CONNECTOR, *IN_PROCESS_CONNECTORS):
            bundled = engine.log is not None and (engine.log.connector_source or "").startswith("vllm.")
            if bundled:
                yield self.warn(
                    subject,
                    f"{found.value} comes from vLLM's own copy ({engine.log.connector_source if engine.log else ''})",
                    title="vLLM's bundled copy of the connector is used",
                    fix="install lmcache of the server's version beside vLLM, so that its connector is taken",
                    **values,
                )
            else:
                yield self.ok(subject, found.value, **values)
        elif "Multi" in found.value:
            yield self.warn(
                subject,
                f"{found.value} wraps several connectors; the panel sees only what LMCache reports",
                title="Several connectors at once",
                **values,
            )
        else:
            yield self.fail(
                subject,
                f"{found.value} is no connector of LMCache",
                title="Another connector is in use",
                fix=fix,
                **values,
            )
