"""An engine that shall store and load needs kv_both."""

from __future__ import annotations

from collections.abc import Iterable

from app.checks.base import Check, Finding
from app.checks.facts import Facts


class KvRole(Check):
    id = "kv_role"
    title = "The engine both stores and loads"
    looks_at = "kv_role of the engine's kv-transfer-config"
    why = "A kv_consumer never stores and a kv_producer never loads: for prefix reuse the engine must do both."
    source = "vLLM KV transfer configuration"

    def check(self, facts: Facts) -> Iterable[Finding]:
        engine = facts.engine
        if engine is None or engine.facts is None or not engine.facts.kv_connector:
            return
        role = engine.facts.kv_role
        origin = "command line of the engine" if engine.planned else "/server_info of the engine"
        if role == "kv_both":
            yield self.ok(facts.engine_name, role, configured=role, effective="stores and loads", origin=origin)
        elif role is None:
            yield self.fail(
                facts.engine_name,
                "no kv_role is set: vLLM refuses a connector without one",
                title="No role",
                fix='"kv_role": "kv_both" in --kv-transfer-config',
                configured="no role",
                effective="refused at start",
                origin=origin,
            )
        else:
            several = (facts.engines_of_server or 1) > 1
            does = "never loads what it stored" if role == "kv_producer" else "never stores what it computed"
            judge = self.warn if several else self.fail
            other = ", as prefill and decode engines of a pair do" if several else " and no other engine is known"
            yield judge(
                facts.engine_name,
                f"{role}: this engine {does}{other}",
                title="The engine does only half of the work",
                fix='"kv_role": "kv_both" in --kv-transfer-config',
                configured=role,
                effective=does,
                origin=origin,
            )
