"""Clearing L1 and L0 of what came from wrong records (R4), and saying what stands in the way.

`Tiers.clear_l1` drops keys from the CPU memory of every server of the store; `Tiers.clear_l0` empties the GPU cache of
every engine behind them, or finds that the engine's process is younger than the removal. What a server answers is not
believed: its object count is read before and after, and both go into the step's detail. Nothing here touches the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from app.clock import Clock
from app.errors import TargetError
from app.fleet.targets import EngineTarget, ServerTarget
from app.lmcache.object_keys import ObjectKey, encode_model

#: How long locked objects and busy engines are waited for, seconds.
L1_DEADLINE = 60.0
L0_DEADLINE = 120.0
_POLL_SECONDS = 0.5
_DRAIN_SECONDS = 10.0
# Two readings of one process's start differ by rounding at most.
_SAME_START = 1.0
_CLOCK_MARGIN = 5.0
#: A server lists a dead engine's context until it reaps it.
_REAP_SECONDS, _REAP_MARGIN = 120.0, 60.0
Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ServerGlance:
    """One server as it is now. `models` are those with a registered context; None is unknown.

    `stores_waiting` counts objects on their way to L2: what was dropped from L1 may still be written.
    """

    models: frozenset[str]
    engines_registered: int | None
    l1_objects: int | None
    process_start: float | None
    reap_timeout: float | None = None
    stores_waiting: int | None = None


@dataclass(frozen=True, slots=True)
class Dropped:
    """A server's answer to the deletion of L1 objects; `skipped` were locked by a transfer."""

    deleted: int
    skipped: int
    ok: bool
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Reset:
    """An engine's answer to a reset. state: done, busy, unavailable or unknown."""

    state: str
    detail: str


@dataclass(frozen=True)
class Mark:
    """When the first pass over L2 was complete, and the process starts that were seen then.

    A later start than the one seen means a restart, whatever the clocks of the machines say; where none was seen, it
    must be later than the pass by more than clocks usually differ.
    """

    at: float
    starts: Mapping[str, float | None] = field(default_factory=dict)

    def restarted(self, name: str, start: float | None) -> bool:
        """Whether a process (``server:1``, ``engine:2``) with this start is another than then, and younger."""
        if start is None:
            return False
        seen = self.starts.get(name)
        return start > seen + _SAME_START if seen is not None else start > self.at + _CLOCK_MARGIN


#: Gives the keys in batches, as often as it is called.
KeyBatches = Callable[[], Iterator[Sequence[ObjectKey]]]


class TierCalls(Protocol):
    """The calls to servers and engines; each raises TargetError."""

    async def glance(self, server: ServerTarget) -> ServerGlance: ...

    async def delete_l1(self, server: ServerTarget, keys: Sequence[ObjectKey]) -> Dropped: ...

    async def reset(self, engine: EngineTarget) -> Reset: ...

    async def engine_started(self, engine: EngineTarget) -> float | None: ...


@dataclass(frozen=True)
class TierResult:
    """What came of clearing one tier. `waiting` are the ways out, one sentence for each thing in the way."""

    tier: str
    clean: bool
    detail: str
    waiting: tuple[str, ...] = ()
    at: float = 0.0


@dataclass(frozen=True)
class Served:
    """Which models the servers of a store list now; `unknown` names servers that could not be asked."""

    models: frozenset[str]
    unknown: Mapping[str, str] = field(default_factory=dict)

    def may_serve(self, model: str) -> bool:
        """Unknown is never no."""
        return model in self.models or bool(self.unknown)


class Tiers:
    """The servers of one store and the engines behind them."""

    def __init__(
        self,
        calls: TierCalls,
        servers: Sequence[ServerTarget],
        engines: Sequence[EngineTarget],
        *,
        clock: Clock,
        sleep: Sleep = asyncio.sleep,
        beat: Callable[[], None] = lambda: None,
        l1_deadline: float = L1_DEADLINE,
        l0_deadline: float = L0_DEADLINE,
    ) -> None:
        self._calls = calls
        self._servers = servers
        self._engines = engines
        self._clock = clock
        self._sleep = sleep
        self._beat = beat
        self._l1_deadline = l1_deadline
        self._l0_deadline = l0_deadline

    async def served(self) -> Served:
        """Asks every server which models it serves."""
        models: set[str] = set()
        unknown: dict[str, str] = {}
        for server in self._servers:
            try:
                models |= (await self._calls.glance(server)).models
            except TargetError as error:
                unknown[server.name] = error.detail
        return Served(frozenset(models), unknown)

    async def starts(self) -> dict[str, float | None]:
        """Process starts of all servers and engines, None where unknown; keys ``server:1``, ``engine:2``."""
        found: dict[str, float | None] = {}
        for server in self._servers:
            try:
                found[f"server:{server.id}"] = (await self._calls.glance(server)).process_start
            except TargetError:
                found[f"server:{server.id}"] = None
        for engine in self._engines:
            try:
                found[f"engine:{engine.id}"] = await self._calls.engine_started(engine)
            except TargetError:
                found[f"engine:{engine.id}"] = None
        return found

    # L1

    async def clear_l1(self, keys: KeyBatches, mark: Mark) -> TierResult:
        """Drops the keys from L1 of every server. A server that started after the mark has an empty L1 by itself."""
        details: list[str] = []
        waiting: list[str] = []
        for server in self._servers:
            detail, way_out = await self._clear_server(server, keys, mark)
            details.append(f"{server.name}: {detail}")
            if way_out:
                waiting.append(way_out)
        if not self._servers:
            waiting.append("no cache server is linked to this store: link it, so that its L1 can be cleared")
        return TierResult("l1", not waiting, "; ".join(details), tuple(waiting), self._clock())

    async def _clear_server(self, server: ServerTarget, keys: KeyBatches, mark: Mark) -> tuple[str, str | None]:
        deadline = self._clock() + self._l1_deadline
        asked = 0
        try:
            before = await self._calls.glance(server)
            for batch in keys():
                dropped = await self._calls.delete_l1(server, batch)
                while dropped.skipped and self._clock() < deadline:
                    self._beat()
                    await self._sleep(_POLL_SECONDS)
                    dropped = await self._calls.delete_l1(server, batch)
                asked += len(batch)
                self._beat()
                if dropped.skipped:
                    return (
                        f"{dropped.skipped} of {len(batch)} objects are locked",
                        f"objects in the L1 of {server.name} are locked by transfers: run again",
                    )
                if not dropped.ok:
                    said = dropped.error or "no reason given"
                    return f"it failed: {said}", f"{server.name} could not clear its L1 ({said}): run again"
            after = await self._drained(server)
        except TargetError as error:
            return await self._l1_excuse(server, error, mark)
        left = f"; {after.stores_waiting} stores to L2 under way" if after.stores_waiting else ""
        return f"{asked} keys, {_objects(before)} objects before and {_objects(after)} after{left}", None

    async def _drained(self, server: ServerTarget) -> ServerGlance:
        """The server once its queue of stores is empty; with steady traffic it never is, so not for long."""
        deadline = self._clock() + _DRAIN_SECONDS
        glance = await self._calls.glance(server)
        while glance.stores_waiting and self._clock() < deadline:
            self._beat()
            await self._sleep(_POLL_SECONDS)
            glance = await self._calls.glance(server)
        return glance

    async def _l1_excuse(self, server: ServerTarget, error: TargetError, mark: Mark) -> tuple[str, str | None]:
        if error.http_status not in (400, 404, 405):
            return f"not reachable ({error.detail})", f"{server.name} does not answer: start it, then run again"
        try:
            start = (await self._calls.glance(server)).process_start
        except TargetError:
            start = None
        if mark.restarted(f"server:{server.id}", start):
            return "its process started after the removal, its L1 is empty", None
        return (
            f"cannot drop single objects ({error.detail})",
            f"{server.name} is too old to drop single objects from its L1: restart it, then run again",
        )

    # L0

    async def clear_l0(self, models: frozenset[str], mark: Mark) -> TierResult:
        """Empties the GPU cache of every engine, polling until each says so. `models` as in record names.

        An engine whose process started after the mark is clean by itself. An engine that serves one of the models
        behind a server but is not registered here cannot be cleaned: that is said, never assumed away.
        """
        details: list[str] = []
        waiting: list[str] = []
        for engine in self._engines:
            detail, way_out = await self._clear_engine(engine, mark)
            details.append(f"{engine.name}: {detail}")
            if way_out:
                waiting.append(way_out)
        waiting += await self._unregistered(models)
        return TierResult("l0", not waiting, "; ".join(details) or "no engine", tuple(waiting), self._clock())

    async def _clear_engine(self, engine: EngineTarget, mark: Mark) -> tuple[str, str | None]:
        """Resets one engine; where that cannot be, a restart since the mark will do."""
        detail, way_out = await self._reset(engine)
        if way_out is None:
            return detail, None
        try:
            start = await self._calls.engine_started(engine)
        except TargetError as error:
            again = f"restart {engine.name} to clear its GPU cache, then run again"
            return f"does not answer ({error.detail})", f"{engine.name} does not answer: {again}"
        if mark.restarted(f"engine:{engine.id}", start):
            return "its process started after the removal, its GPU cache was empty then", None
        return detail, way_out

    async def _reset(self, engine: EngineTarget) -> tuple[str, str | None]:
        restart = f"restart {engine.name} to clear its GPU cache"
        deadline = self._clock() + self._l0_deadline
        while True:
            try:
                answer = await self._calls.reset(engine)
            except TargetError as error:
                return (
                    f"the reset failed ({error.detail})",
                    f"{engine.name} could not be reset: {restart}, then run again",
                )
            if answer.state == "done":
                return "its GPU cache was reset", None
            if answer.state != "busy":
                return answer.detail, f"{restart}, then run again"
            if self._clock() >= deadline:
                return (
                    f"still busy after {self._l0_deadline:.0f} s ({answer.detail})",
                    f"{engine.name} is too busy to be reset: run again when it is quieter, or {restart}",
                )
            self._beat()
            await self._sleep(_POLL_SECONDS)

    async def _unregistered(self, models: frozenset[str]) -> list[str]:
        """Engines that a server lists and the panel does not know."""
        found = []
        for server in self._servers:
            try:
                glance = await self._calls.glance(server)
            except TargetError:
                continue
            served = [model for model in glance.models if encode_model(model) in models]
            mine = [engine for engine in self._engines if engine.server_id == server.id]
            extra = (glance.engines_registered or 0) - len(mine)
            if served and (not mine or (extra > 0 and not await self._leftovers(mine, glance))):
                found.append(
                    f"an engine of {', '.join(sorted(served))} on {server.name} is not registered here "
                    "(or not linked to it): register it, or restart it to clear its GPU cache"
                )
        return found

    async def _leftovers(self, engines: Sequence[EngineTarget], glance: ServerGlance) -> bool:
        """Whether contexts too many can be those of our engines' last processes, which the server drops later."""
        horizon = self._clock() - (glance.reap_timeout or _REAP_SECONDS) - _REAP_MARGIN
        for engine in engines:
            try:
                start = await self._calls.engine_started(engine)
            except TargetError:
                continue
            if start is not None and start > horizon:
                return True
        return False


def _objects(glance: ServerGlance) -> str:
    return "an unknown number of" if glance.l1_objects is None else str(glance.l1_objects)
