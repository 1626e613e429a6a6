"""Each running request of a hybrid model needs a state block."""

from __future__ import annotations

from collections.abc import Iterable

from app.checks import effective
from app.checks.base import Check, Finding
from app.checks.facts import Facts


class MambaBlocks(Check):
    id = "mamba_blocks"
    title = "There are enough state blocks for the running requests"
    looks_at = "max_num_seqs against the KV cache blocks of the engine (hybrid models only)"
    why = 'vLLM ends at start with "max_num_seqs exceeds available Mamba cache blocks", after it loaded the model.'
    source = "vLLM 0.32 (compilation config); vllm#34094"

    def check(self, facts: Facts) -> Iterable[Finding]:
        engine = facts.engine
        if engine is None:
            return
        short = engine.notes.mamba_blocks_short if engine.notes is not None else None
        origin = "start-up log of the engine"
        if short is None:
            is_hybrid = effective.hybrid(facts)
            if is_hybrid is None or not is_hybrid.value or engine.facts is None:
                return
            blocks = engine.facts.num_gpu_blocks or (engine.metrics.num_gpu_blocks if engine.metrics else None)
            if not engine.facts.max_num_seqs or not blocks:
                return
            short, origin = (engine.facts.max_num_seqs, blocks), "/server_info and /metrics of the engine"
        sequences, available = short
        values = {"configured": sequences, "effective": available, "origin": origin}
        if sequences > available:
            yield self.fail(
                facts.engine_name,
                f"max_num_seqs is {sequences}, but there are only {available} Mamba cache blocks",
                title="max_num_seqs exceeds the available Mamba cache blocks",
                fix=f"vllm serve --max-num-seqs {available}, or a larger --gpu-memory-utilization",
                **values,
            )
        else:
            yield self.ok(facts.engine_name, f"{sequences} requests, {available} blocks", **values)
