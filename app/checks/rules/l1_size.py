"""L1: what was asked for, what was allocated, what is resident, and whether one long context fits."""

from __future__ import annotations

from collections.abc import Iterable

from app.checks import effective
from app.checks.base import Check, Finding
from app.checks.effective import human_bytes
from app.checks.facts import Facts, ServerSide
from app.checks.memory import l1_bytes


class L1Size(Check):
    id = "l1_size"
    title = "L1 has the size that was asked for, and holds at least one long context"
    looks_at = (
        "--l1-size-gb and --l1-init-size-gb, /status (configured, allocated), resident memory, allocation failures"
    )
    why = (
        "The size asked for, the size allocated at first (lazy) and what the process really holds are three numbers. "
        "An L1 smaller than the longest context drops the head of a prompt while its tail is stored: such prompts "
        "never hit."
    )
    source = "lmcache server --help; L1 memory configuration of LMCache 0.5.6"

    def check(self, facts: Facts) -> Iterable[Finding]:
        server = facts.server
        if server is None:
            return
        size = l1_bytes(server)
        if size is None:
            yield self.unknown(server.name, "the server does not tell the size of L1")
            return
        told = _sizes(server, size)
        values = {"configured": human_bytes(size), "effective": _effective(server), "origin": "/config and /status"}
        failures = server.metrics.l1_allocation_failures if server.metrics is not None else None
        need = _largest_context(facts)
        chunk = _chunk_bytes(facts)
        if chunk is not None and size < 4 * chunk:
            yield self.fail(
                server.name,
                f"{told}; one chunk takes {human_bytes(chunk)}",
                title="L1 holds hardly a chunk",
                fix="lmcache server --l1-size-gb with a larger value",
                **values,
            )
        elif need is not None and need[0] > 0.8 * size:
            yield self.warn(
                server.name,
                f"{told}; one context of {need[1]} tokens takes {human_bytes(need[0])}, more than the watermark leaves",
                title="L1 does not hold one long context",
                fix=f"lmcache server --l1-size-gb {need[0] / 0.8 / 2**30:.1f} or more",
                **values,
            )
        elif failures:
            yield self.warn(
                server.name,
                f"{told}; {failures:.0f} chunks found no room in L1 since its start",
                title="L1 was too small for some stores",
                fix="lmcache server --l1-size-gb with a larger value, or a lower --eviction-trigger-watermark",
                **values,
            )
        else:
            yield self.ok(server.name, told, **values)


def _sizes(server: ServerSide, size: int) -> str:
    parts = [f"asked for {human_bytes(size)}"]
    config = server.config
    if config is not None and config.l1_init_size_bytes is not None:
        lazy = {True: "grows on demand", False: "allocated whole", None: "growth not told"}[config.l1_use_lazy]
        parts.append(f"first {human_bytes(config.l1_init_size_bytes)} ({lazy})")
    if server.status is not None and server.status.l1_total_bytes is not None:
        parts.append(f"allocated {human_bytes(server.status.l1_total_bytes)}")
    if server.metrics is not None and server.metrics.resident_bytes:
        parts.append(f"process resident {human_bytes(server.metrics.resident_bytes)}")
    if server.log is not None and server.log.lazy_disabled:
        parts.append("lazy allocation was switched off by the server (no pinned memory here)")
    return ", ".join(parts)


def _effective(server: ServerSide) -> str | None:
    lazy = server.config.l1_use_lazy if server.config is not None else None
    return None if lazy is None else "grows on demand" if lazy else "allocated whole"


def _bytes_per_token(facts: Facts) -> int | None:
    found = effective.own_layouts(facts) or effective.layouts(facts)
    ranks = max((layout.world_size for layout in found), default=1)
    per_rank = max((layout.bytes_per_token or 0 for layout in found), default=0)
    return per_rank * ranks or None


def _largest_context(facts: Facts) -> tuple[int, int] | None:
    """(bytes, tokens) of the longest context that the engine takes."""
    engine, per_token = facts.engine, _bytes_per_token(facts)
    if engine is None or per_token is None:
        return None
    tokens = max((card.max_model_len or 0 for card in engine.models or ()), default=0)
    return (tokens * per_token, tokens) if tokens else None


def _chunk_bytes(facts: Facts) -> int | None:
    chunk, per_token = effective.chunk_size(facts), _bytes_per_token(facts)
    return chunk.value * per_token if chunk is not None and per_token is not None else None
