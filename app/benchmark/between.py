"""What others did between the passes: counters that moved while this run asked nothing.

A pass looks at its own counters only. Others' prompts between two passes evict what pass 1 stored, or load the machine
on which the other scenario is measured; so each engine and server is compared with how its last pass left it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from app.benchmark import fixes
from app.benchmark.measures import Measured
from app.benchmark.stack import Engine, Server, engine_delta, engine_metrics, server_delta, server_metrics
from app.benchmark.verdict import Finding
from app.lmcache.metrics import ServerMetrics
from app.vllm.metrics import EngineMetrics


@dataclass
class Between:
    """How the passes so far left the counters. `late` are own tokens that were not counted yet when a pass ended."""

    _engines: dict[int, tuple[Engine, EngineMetrics, float]] = field(default_factory=dict)
    _servers: dict[int, tuple[Server, ServerMetrics, str]] = field(default_factory=dict)

    def left(
        self, engine: Engine, before: EngineMetrics | None, after: EngineMetrics | None, own: Sequence[Measured]
    ) -> None:
        """A pass ended with these counters of an engine; `own` are the pass's requests to it."""
        self._engines.pop(engine.target.id, None)
        counted = engine_delta(before, after).prompt_tokens
        # Of a request that failed nobody can say whether the engine counted it, now or later.
        if after is None or counted is None or any(not r.ok or r.prompt_tokens is None for r in own):
            return
        late = max(0.0, sum(r.prompt_tokens or 0 for r in own) - counted)
        self._engines[engine.target.id] = (engine, after, late)

    def left_server(self, server: Server, after: ServerMetrics | None, salt: str) -> None:
        """A pass under `salt` ended with these counters of a server."""
        self._servers.pop(server.target.id, None)
        if after is not None and server.salts:
            self._servers[server.target.id] = (server, after, salt)

    def engine_findings(self, engine: Engine, now: EngineMetrics | None, where: str) -> list[Finding]:
        """What an engine counted since its last pass and before `where`."""
        if engine.target.id not in self._engines:
            return []
        _, then, late = self._engines[engine.target.id]
        moved = engine_delta(then, now).prompt_tokens  # None after a restart, which is found elsewhere
        foreign = 0.0 if moved is None else moved - late
        if foreign <= 0:
            return []
        text = f"others sent {foreign:,.0f} prompt tokens to the engine {engine.target.name} between its passes, before"
        return [Finding("foreign_traffic", "invalid", f"{text} {where}", fixes.ALONE)]

    def server_findings(self, server: Server, now: ServerMetrics | None, where: str) -> list[Finding]:
        """What a server counted since its last pass and before `where`."""
        if server.target.id not in self._servers:
            return []
        _, then, salt = self._servers[server.target.id]
        foreign = server_delta(then, now, salt).foreign_lookups
        if not foreign:
            return []
        many = f"{foreign:,.0f} lookup{'' if foreign == 1 else 's'}"
        text = f"others made {many} at the cache server {server.target.name} between the passes, before"
        return [Finding("foreign_traffic", "invalid", f"{text} {where}", fixes.ALONE)]

    async def at_the_end(self) -> list[Finding]:
        """The same once more after the last pass: no later one of that engine would tell."""
        found: list[Finding] = []
        for engine, _, _ in list(self._engines.values()):
            found += self.engine_findings(engine, await engine_metrics(engine), "the end of the run")
        for server, _, _ in list(self._servers.values()):
            found += self.server_findings(server, await server_metrics(server), "the end of the run")
        return found
