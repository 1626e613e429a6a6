"""Memory that was promised, in bytes, and whether it is there. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.checks.effective import human_bytes, own_layouts
from app.checks.facts import EngineSide, Facts, ServerSide

GIB = 2**30


@dataclass(frozen=True)
class Budget:
    """`parts` against `total`; the reserve for the system is a tenth, at least 1 GiB and at most 16 GiB."""

    total: int
    parts: Mapping[str, int]

    @property
    def reserve(self) -> int:
        return int(min(max(self.total / 10, GIB), 16 * GIB))

    @property
    def left(self) -> int:
        """What is left after all parts and the reserve; negative when it is not there."""
        return self.total - self.reserve - sum(self.parts.values())

    def room_for(self, name: str) -> int:
        """How large this part may be."""
        return max(0, self.left + self.parts[name])

    @property
    def sentence(self) -> str:
        told = " + ".join(f"{name} {human_bytes(value)}" for name, value in self.parts.items())
        return f"{told} + reserve {human_bytes(self.reserve)} of {human_bytes(self.total)}"


def l1_bytes(server: ServerSide) -> int | None:
    """The size L1 may grow to."""
    if server.config is not None and server.config.l1_size_bytes is not None:
        return server.config.l1_size_bytes
    if server.status is not None:
        return server.status.l1_configured_bytes or server.status.l1_total_bytes
    return None


def resident_of_engines(facts: Facts) -> int:
    """Resident memory of this host's engines; their API process only, so a lower bound."""
    engines = [engine for engine in (facts.engine, *facts.other_engines) if engine is not None and engine.local]
    known = {engine.url: engine.metrics.resident_bytes for engine in engines if engine.metrics is not None}
    return int(sum(value or 0 for value in known.values()))


def weights_bytes(engine: EngineSide) -> int | None:
    return engine.notes.weights_bytes if engine.notes is not None else None


def l0_bytes(facts: Facts) -> int | None:
    """Bytes of the engine's KV cache: its tokens × bytes per token, else the memory it was given."""
    engine = facts.engine
    if engine is None:
        return None
    if engine.notes is not None and engine.notes.kv_cache_bytes:
        return engine.notes.kv_cache_bytes
    if engine.metrics is None:
        return None
    tokens = engine.metrics.capacity_tokens
    per_token = next((layout.bytes_per_token for layout in own_layouts(facts) if layout.bytes_per_token), None)
    if tokens is not None and per_token is not None:
        return tokens * per_token
    declared = [config.declared_bytes for config in engine.metrics.cache_configs]
    return sum(value or 0 for value in declared) if any(declared) else None
