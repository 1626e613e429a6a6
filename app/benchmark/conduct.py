"""One phase of a run: its requests in order, at once, or by the clock, with the counters around them.

What is foreign or changed is found here: prompts of others in an engine's counter, lookups of other salts at the
server, a process that is not the one it was, a cache server that went away while requests went on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from app.benchmark import fixes
from app.benchmark.between import Between
from app.benchmark.measures import Measured
from app.benchmark.ports import Pace
from app.benchmark.result import PhaseData, phase_title
from app.benchmark.shapes import Planned
from app.benchmark.stack import (
    Asking,
    Engine,
    RunStopped,
    Server,
    Side,
    add_deltas,
    ask,
    engine_delta,
    engine_metrics,
    server_delta,
    server_gone,
    server_metrics,
)
from app.benchmark.tokens import EngineDelta, ServerDelta, foreign_prompt_tokens, split
from app.benchmark.verdict import Finding
from app.errors import TargetError
from app.lmcache.metrics import ServerMetrics
from app.vllm.metrics import EngineMetrics


class Log(Protocol):
    """Where requests and progress go while the run goes on."""

    async def add(self, request: Measured) -> None: ...

    async def stage(self, text: str) -> None: ...


@dataclass
class Watch:
    """Looks at the cache servers while requests go on; `trouble` is the first thing found."""

    servers: Sequence[Server]
    pace: Pace
    trouble: Finding | None = None
    _silent: dict[int, int] = field(default_factory=dict)

    async def run(self) -> None:
        """Until cancelled, or until something is found."""
        while self.trouble is None:
            await asyncio.sleep(self.pace.watch)
            for server in self.servers:
                await self._look(server)

    async def _look(self, server: Server) -> None:
        try:
            health = await server.client.healthcheck()
        except TargetError as error:
            # One slow answer under load is no failure; a refused connection is.
            count = self._silent[server.target.id] = self._silent.get(server.target.id, 0) + 1
            if error.kind in ("refused", "closed") or count > 2:
                self.trouble = server_gone(server, error.detail)
            return
        self._silent.pop(server.target.id, None)
        if not health.ok:
            text = f"the cache server {server.target.name} said that it is unhealthy: {health.reason}"
            self.trouble = Finding("server_unhealthy", "invalid", text, fixes.SERVER_DOWN)


@dataclass(frozen=True)
class Sending:
    """How the requests of a phase are sent: `offsets` by the clock, else `concurrency` at a time."""

    concurrency: int | None = 1
    offsets: Sequence[float] | None = None


@dataclass
class Conduct:
    """Runs phases and collects what they found."""

    asking: Asking
    watch: Watch
    log: Log
    phases: list[PhaseData] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    between: Between = field(default_factory=Between)

    async def phase(
        self,
        side: Side,
        repeat: int,
        name: str,
        items: Sequence[Planned],
        *,
        salt: str,
        engines: Sequence[Engine],
        sending: Sending,
        l0_empty: bool,
    ) -> PhaseData:
        """One phase. `l0_empty`: the GPU caches held nothing of these prompts before, and nothing recurs in the phase.

        Raises RunStopped after what came until then was kept.
        """
        where = f"{side.title}, run {repeat}, {phase_title(name)}"
        await self.log.stage(where)
        data = PhaseData(side.name, repeat, name)
        self.phases.append(data)
        before = await self._counters(side, engines)
        self._same_processes(side, before, where)
        self._since_the_last(side, before, where)
        try:
            await self._ask_all(data, side, items, salt, engines, sending)
        except RunStopped:
            data.tokens = split(data.requests, None, None, l0_empty=False, has_cache=side.engines[0].has_cache)
            raise
        if self.watch.trouble is not None:
            raise RunStopped(self.watch.trouble)
        after = await self._settled(side, engines, before, data.requests, salt)
        self._same_processes(side, after, where)
        deltas = [engine_delta(x, y) for x, y in zip(before.engines, after.engines, strict=True)]
        salted = side.server is None or side.server.salts
        of_server = server_delta(before.server, after.server, salt if salted else None)
        self._foreign(data, engines, deltas, of_server, where)
        self._leave(data, side, before, after, salt)
        self._failed(data, where)
        data.tokens = split(
            data.requests, add_deltas(deltas), of_server, l0_empty=l0_empty, has_cache=side.engines[0].has_cache
        )
        return data

    # asking

    async def _ask_all(
        self,
        data: PhaseData,
        side: Side,
        items: Sequence[Planned],
        salt: str,
        engines: Sequence[Engine],
        sending: Sending,
    ) -> None:
        began = time.perf_counter()

        async def one(position: int, planned: Planned) -> None:
            offset = None if sending.offsets is None else sending.offsets[position]
            if offset is not None:
                await asyncio.sleep(max(0.0, began + offset - time.perf_counter()))
            if self.watch.trouble is not None:
                raise RunStopped(self.watch.trouble)
            engine = engines[position % len(engines)]
            measured = await ask(
                engine,
                planned,
                self.asking,
                side=data.scenario,
                repeat=data.repeat,
                phase=data.phase,
                position=position,
                salt=salt,
                began=began,
                offset=offset,
                chunk_size=None if side.fresh_salts else side.chunk_size,
            )
            data.requests.append(measured)
            await self.log.add(measured)
            if measured.error is not None and measured.http_status is None:
                text = f"engine {engine.target.name}: {measured.error}"
                raise RunStopped(self.watch.trouble or Finding("engine_gone", "invalid", text, fixes.ENGINE_DOWN))

        work = [(i, planned) for i, planned in enumerate(items)]
        if sending.offsets is None and sending.concurrency == 1:
            for position, planned in work:
                await one(position, planned)
        else:
            await _at_once([partial(one, position, planned) for position, planned in work], sending.concurrency)
        data.requests.sort(key=lambda r: r.position)

    # counting

    async def _counters(self, side: Side, engines: Sequence[Engine]) -> Counters:
        metrics = await asyncio.gather(*(engine_metrics(e) for e in engines))
        return Counters(list(engines), metrics, await server_metrics(side.server))

    async def _settled(
        self, side: Side, engines: Sequence[Engine], before: Counters, requests: Sequence[Measured], salt: str
    ) -> Counters:
        """The counters once they hold our own requests too: they are counted shortly after an answer."""
        own = sum(r.prompt_tokens or 0 for r in requests)
        chunk = side.chunk_size
        looked_up = sum((r.prompt_tokens or 0) // chunk * chunk for r in requests if r.ok) if chunk else 0
        until = time.monotonic() + self.asking.pace.counters
        while True:
            now = await self._counters(side, engines)
            counted = add_deltas(engine_delta(x, y) for x, y in zip(before.engines, now.engines, strict=True))
            asked = server_delta(before.server, now.server, salt).requested
            behind = counted.prompt_tokens is not None and counted.prompt_tokens < own
            if before.server is not None and side.server is not None and side.server.salts:
                behind = behind or (asked or 0.0) < looked_up
            if not behind or time.monotonic() > until:
                return now
            await asyncio.sleep(self.asking.pace.poll)

    def _same_processes(self, side: Side, counters: Counters, where: str) -> None:
        """Raises RunStopped when a process is not the one that the run began with, or the server is gone."""
        for engine, metrics in zip(counters.seats, counters.engines, strict=True):
            start = metrics.process_start_time if metrics is not None else None
            if start is not None and engine.start is not None and start != engine.start:
                text = f"the engine {engine.target.name} was restarted before the end of {where}"
                raise RunStopped(Finding("engine_restarted", "invalid", text, fixes.SAME))
        server = side.server
        if server is None or server.identity is None:
            return
        if counters.server is None:
            raise RunStopped(server_gone(server, f"its counters could not be read at {where}"))
        if (counters.server.instance_id, counters.server.process_start_time) != server.identity:
            text = f"the cache server {server.target.name} was restarted before the end of {where}"
            raise RunStopped(Finding("server_restarted", "invalid", text, fixes.SAME))

    def _foreign(
        self,
        data: PhaseData,
        engines: Sequence[Engine],
        deltas: Sequence[EngineDelta],
        of_server: ServerDelta,
        where: str,
    ) -> None:
        for engine, delta in zip(engines, deltas, strict=True):
            own = [r for r in data.requests if r.engine == engine.target.name]
            foreign = foreign_prompt_tokens(own, delta)
            if foreign is None and not any(not r.ok for r in own):
                text = f"whether others used the engine {engine.target.name} is not known: it has no readable counters"
                self.findings.append(Finding("foreign_unknown", "warning", text, fixes.ALONE))
            elif foreign:
                text = f"others sent {foreign:,.0f} prompt tokens to the engine {engine.target.name} during {where}"
                self.findings.append(Finding("foreign_traffic", "invalid", text, fixes.ALONE))
        if of_server.foreign_lookups:
            many = f"{of_server.foreign_lookups:,.0f} lookup{'' if of_server.foreign_lookups == 1 else 's'}"
            text = f"others made {many} at the cache server during {where}"
            self.findings.append(Finding("foreign_traffic", "invalid", text, fixes.ALONE))

    def _since_the_last(self, side: Side, now: Counters, where: str) -> None:
        for engine, metrics in zip(now.seats, now.engines, strict=True):
            self.findings += self.between.engine_findings(engine, metrics, where)
        if side.server is not None:
            self.findings += self.between.server_findings(side.server, now.server, where)

    def _leave(self, data: PhaseData, side: Side, before: Counters, after: Counters, salt: str) -> None:
        for engine, then, now in zip(after.seats, before.engines, after.engines, strict=True):
            own = [r for r in data.requests if r.engine == engine.target.name]
            self.between.left(engine, then, now, own)
        if side.server is not None:
            self.between.left_server(side.server, after.server, salt)

    def _failed(self, data: PhaseData, where: str) -> None:
        failed = [r for r in data.requests if not r.ok]
        if failed:
            text = f"{len(failed)} of {len(data.requests)} requests failed in {where}: {failed[0].error}"
            self.findings.append(Finding("requests_failed", "invalid", text, fixes.REFUSED))


@dataclass(frozen=True)
class Counters:
    """The counters of a phase's engines and of its server at one moment."""

    seats: list[Engine]
    engines: list[EngineMetrics | None]
    server: ServerMetrics | None


async def _at_once(work: Sequence[Callable[[], Coroutine[Any, Any, None]]], limit: int | None) -> None:
    """Starts everything, at most `limit` at a time (None: no limit); the first trouble cancels the rest."""
    gate = asyncio.Semaphore(limit or len(work) or 1)

    async def gated(begin: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async with gate:
            await begin()

    tasks = [asyncio.ensure_future(gated(w)) for w in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
