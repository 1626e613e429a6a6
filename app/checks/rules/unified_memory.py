"""Where CPU and GPU share one memory, weights, L0, L1 and a reserve must fit into it together."""

from __future__ import annotations

from collections.abc import Iterable

from app.checks.base import Check, Finding
from app.checks.effective import human_bytes
from app.checks.facts import Facts
from app.checks.memory import Budget, l0_bytes, l1_bytes, weights_bytes


class UnifiedMemory(Check):
    id = "unified_memory"
    title = "Weights, L0, L1 and a reserve fit into the unified memory together"
    looks_at = "hosts whose CPU and GPU share one memory, and CPU engines: weights + L0 + L1 + reserve in one total"
    why = (
        "On unified memory a larger L1 takes from the same pool as the GPU's KV cache. --gpu-memory-utilization counts "
        "the whole memory as the GPU's, so with a high value nothing is left for L1."
    )
    source = "vLLM memory profiling; LMCache memory configuration"

    def check(self, facts: Facts) -> Iterable[Finding]:
        engine, server, memory = facts.engine, facts.server, facts.memory
        if engine is None or server is None or memory is None or not (server.local and engine.local):
            return
        cpu = engine.facts is not None and (engine.facts.device or "").startswith("cpu")
        if not (cpu or memory.unified):
            return
        l1 = l1_bytes(server)
        weights, l0 = weights_bytes(engine), l0_bytes(facts)
        parts = {"weights": weights, "L0": l0, "L1": l1}
        subject = facts.pair_name
        if l1 is None or (weights is None and l0 is None):
            missing = ", ".join(name for name, value in parts.items() if value is None)
            yield self.unknown(subject, f"not known: {missing}", fix="give the engine's start-up log")
            return
        budget = Budget(total=memory.usable_bytes, parts={name: value or 0 for name, value in parts.items()})
        values = {
            "configured": f"L1 {human_bytes(l1)}",
            "effective": "CPU engine" if cpu else "unified memory",
            "origin": "host, /config, /metrics, log",
        }
        if budget.left < -budget.reserve:
            yield self.fail(
                subject,
                f"more is promised than there is: {budget.sentence}",
                title="The unified memory is promised twice",
                fix=f"lmcache server --l1-size-gb {max(0.25, budget.room_for('L1') / 2**30):.2f}, or a smaller "
                "--gpu-memory-utilization",
                **values,
            )
        elif budget.left < 0:
            yield self.warn(
                subject,
                f"no reserve of {human_bytes(budget.reserve)} is left: {budget.sentence}",
                title="The unified memory has no reserve",
                fix=f"lmcache server --l1-size-gb {max(0.25, budget.room_for('L1') / 2**30):.2f} or less",
                **values,
            )
        else:
            yield self.ok(subject, budget.sentence, **values)
