"""The counters of one engine and its cache server, read until they hold the run's own requests.

What was asked is counted shortly after it was answered, and a page may be older still; so a reading is waited for, both
before a condition and after it. A wait that was in vain once is short from then on: that counter does not come.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from app.acceptance.counters import EngineCounters, LoadedTokens, SaltCounters
from app.acceptance.counting import engine_counters_of, loaded_since, salts_of
from app.acceptance.ledger import EngineLedger, ServerLedger
from app.errors import TargetError
from app.lmcache.client import LMCacheClient
from app.lmcache.metrics import ServerMetrics
from app.vllm.client import VLLMClient
from app.vllm.metrics import EngineLoad


@dataclass(frozen=True)
class Patience:
    """Seconds: between readings, the longest lag waited for, the same after a wait in vain, and how long a page must
    stay as it is at the beginning of a run."""

    poll: float
    lag: float
    short: float
    still: float


@dataclass
class Readings:
    """`chunk_size`: of the cache server. `connected`: whether what this engine is asked is looked up at the server."""

    vllm: VLLMClient
    lmcache: LMCacheClient
    patience: Patience
    note: Callable[[EngineLoad], None]
    use_salt: bool
    chunk_size: int
    connected: bool
    server_ledger: ServerLedger
    engine_ledger: EngineLedger = field(default_factory=EngineLedger)
    _vain: set[str] = field(default_factory=set)

    async def begin(self) -> None:
        """Notes what was counted before the run's first request, once that stands still (on a busy engine it does
        not, and then it does not matter)."""
        began = time.monotonic()
        page, since = await self.engine(), began
        still = self.patience.still
        while (now := time.monotonic()) - since < still and now - began < 3 * still:
            await asyncio.sleep(self.patience.poll)
            later = await self.engine()
            if later != page:
                page, since = later, time.monotonic()
        self.engine_ledger.base = page
        if self.server_ledger.base is None:
            self.server_ledger.base = await self.server()

    def asked(self, salt: str, prompt_tokens: int | None, external: int | None) -> None:
        """One more request was answered: so many prompt tokens, of which so many are said to have come from outside."""
        self.engine_ledger.tokens += prompt_tokens or 0
        if self.connected:
            self.server_ledger.asked(salt, self._whole(prompt_tokens), external or 0)

    def _whole(self, prompt_tokens: int | None) -> int:
        return (prompt_tokens or 0) // self.chunk_size * self.chunk_size

    async def engine(self) -> EngineCounters:
        """The engine's counters now; all None when it has no readable /metrics."""
        try:
            metrics = await self.vllm.metrics()
        except TargetError:
            return EngineCounters()
        self.note(metrics.load)
        return engine_counters_of(metrics)

    async def server(self) -> ServerMetrics | None:
        """The cache server's counters now; None when it has no readable /metrics."""
        try:
            return await self.lmcache.metrics()
        except TargetError:
            return None

    async def engine_before(self) -> EngineCounters:
        """The engine's counters once they hold everything that the run has asked it."""
        waiting = self._wait("engine")
        while True:
            now = await self.engine()
            if self.engine_ledger.holds(now) or not await waiting():
                return now

    async def server_before(self, salts: Sequence[str]) -> ServerMetrics | None:
        """The server's counters once they hold everything that was asked under these salts."""
        waiting = self._wait("server")
        while True:
            now = await self.server()
            if now is None or self.server_ledger.holds(now, salts, by_salt=self.use_salt, chunk_size=self.chunk_size):
                return now
            if not await waiting():
                return now

    async def engine_since(
        self, before: EngineCounters, prompt_tokens: int, *, local: int = 0, external: int = 0
    ) -> EngineCounters:
        """Deltas since `before`, once they hold our own prompt tokens and as many hits as our requests speak of.

        With others' requests in them the prompt tokens alone may be there before ours are.
        """
        waiting = self._wait("engine")
        while True:
            delta = (await self.engine()).since(before)
            told = (
                (delta.prompt_tokens, prompt_tokens), (delta.local_hits, local), (delta.external_hits, external)
            )  # fmt: skip
            if delta.prompt_tokens is None or all(n is None or n >= least for n, least in told):
                return delta
            if not await waiting():
                return delta

    async def server_since(
        self, before: ServerMetrics | None, salts: Sequence[str], lookup_tokens: int, external_tokens: int
    ) -> tuple[SaltCounters | None, LoadedTokens | None]:
        """What the server counted for these salts since `before`, and what it moved into the engine, once it has
        counted their lookups and `external_tokens` of loads.

        Without salts (nonce) everybody's counters are taken. None when there is nothing to read.
        """
        if before is None:
            return None, None
        waiting = self._wait("server")
        wanted = lookup_tokens if self.connected else 0
        while True:
            now = await self.server()
            if now is None or now.instance_id != before.instance_id:
                return None, None
            delta = salts_of(now, salts, self.use_salt).since(salts_of(before, salts, self.use_salt))
            moved = loaded_since(now, before, salts, by_salt=self.use_salt, chunk_size=self.chunk_size)
            loaded = None if moved is None else LoadedTokens(moved, own=self.use_salt)
            complete = (delta.requested or 0) >= wanted and (loaded is None or loaded.tokens >= external_tokens)
            if complete or not await waiting():
                return delta, loaded

    def _wait(self, what: str) -> Callable[[], Awaitable[bool]]:
        """Waits one poll; False when it was waited long enough."""
        began = time.monotonic()

        async def again() -> bool:
            limit = self.patience.short if what in self._vain else self.patience.lag
            if time.monotonic() - began > limit:
                self._vain.add(what)
                return False
            await asyncio.sleep(self.patience.poll)
            return True

        return again
