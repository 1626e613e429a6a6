"""Reading an engine's load while requests are in flight.

A reading makes the engine print all its counters, some milliseconds of the process that also sends tokens. So it is
made just after a first token has come, when no time is being measured any more; while one is still awaited, or
requests run beside each other, readings are so rare that they move no time to first token by one percent.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from app.acceptance.load import LoadEvidence, LoadSeen
from app.errors import TargetError
from app.vllm.metrics import EngineLoad

#: Seconds within which the engine's gauges still count a request that its client has seen the end of.
_LAG = 0.25
#: Seconds that the run waits for a reading under way when its last request has ended.
_PATIENCE = 1.0


@dataclass
class LoadWatch:
    """Reads one engine's load while requests of an arm are in flight, at most once in `every` seconds.

    Outside `arm()` requests are followed, but nothing is read.
    """

    read: Callable[[], Awaitable[EngineLoad]]
    every: float
    between: LoadSeen = field(default_factory=LoadSeen)
    _during: LoadEvidence | None = None
    _reading: asyncio.Task[None] | None = None
    _next: float = 0.0
    _flights: int = 0
    _levels: deque[tuple[float, int]] = field(default_factory=lambda: deque([(0.0, 0)]))

    @contextmanager
    def arm(self) -> Iterator[Callable[[], LoadEvidence]]:
        """While open, readings count for one arm; call what is given for what they showed so far."""
        self._during = LoadEvidence(before=self.between.last)
        self._next = 0.0
        seen = self._during

        def told() -> LoadEvidence:
            return self._during or seen

        try:
            yield told
        finally:
            seen = told()
            self._during = None

    def request(self, *, streamed: bool) -> Flight:
        """One request, as an async context around it."""
        return Flight(self, streamed)

    # what flights call

    def look(self) -> None:
        """Begins a reading if one is due."""
        now = time.monotonic()
        if self._during is None or now < self._next or self._reading is not None:
            return
        self._next = now + self.every
        self._reading = asyncio.create_task(self._read())

    def count(self, change: int) -> None:
        """One request more or less is with the engine."""
        self._flights += change
        now = time.monotonic()
        self._levels.append((now, self._flights))
        while len(self._levels) > 2 and self._levels[1][0] < now - 10:
            self._levels.popleft()

    async def settle(self, *, wait: bool) -> None:
        """When the last request has ended, a reading under way is waited for, so that it meets no other request."""
        task = self._reading
        if task is None or self._flights:
            return
        if wait:
            await asyncio.wait({task}, timeout=_PATIENCE)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if self._reading is task:  # cancelled before it began
            self._reading = None

    async def _read(self) -> None:
        began = time.monotonic()
        try:
            load = await self.read()
        except TargetError:
            return
        finally:
            if self._reading is asyncio.current_task():
                self._reading = None
        if self._flights and self._during is not None:
            self._during = self._during.with_reading(load, self._most_since(began - _LAG))

    def _most_since(self, start: float) -> int:
        """The most requests that were with the engine at once from `start` on."""
        most = self._flights
        for at, level in reversed(self._levels):
            most = max(most, level)
            if at <= start:
                break
        return most


class Flight:
    """One request on its way. `first_token` is to be called when its time to first token has been taken."""

    def __init__(self, watch: LoadWatch, streamed: bool) -> None:
        self._watch = watch
        self._timed = streamed
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        self._watch.count(+1)
        # Nothing is timed in an answer that is not streamed: it can be looked at as soon as the engine has it.
        self._arm(2 * self._watch.every if self._timed else min(0.02, self._watch.every))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._watch.count(-1)
        await self._watch.settle(wait=kind is None)

    def first_token(self) -> None:
        """The first token has come."""
        self._timed = False
        self._due()

    def _arm(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(max(seconds, 0.01), self._due)

    def _due(self) -> None:
        self._watch.look()
        self._arm(2 * self._watch.every if self._timed else self._watch.every)
