"""All components of a sandbox and their common time, without any network."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from app.sandbox.config import EngineSpec, SandboxConfig, ServerSpec
from app.sandbox.engine import Engine
from app.sandbox.server import CacheServer


class World:
    """Cache servers and engines over one store directory.

    Nothing in it is safe for threads by itself: whoever touches a component holds `lock`. `now()` reads the clock and
    brings all background loops up to it.
    """

    def __init__(
        self,
        store: Path,
        servers: Sequence[ServerSpec],
        engines: Sequence[EngineSpec],
        clock: Callable[[], float],
        config: SandboxConfig,
    ) -> None:
        self.store_path = store
        self.config = config
        self.lock = threading.RLock()
        self._clock = clock
        self._rng = random.Random(config.seed)  # noqa: S311  (identifiers of simulated processes)
        now = clock()
        self.servers = [CacheServer(spec, store, self._rng, now) for spec in servers]
        self.engines = [
            Engine(spec, None if spec.server is None else self.servers[spec.server], config.latency, self._rng, now)
            for spec in engines
        ]
        for engine in self.engines:
            if engine.server is not None:
                engine.server.advance(now)

    def now(self) -> float:
        """The time, with heartbeats, evictions, stores and reaping done up to it."""
        now = self._clock()
        with self.lock:
            for engine in self.engines:
                engine.advance(now)
            for server in self.servers:
                server.advance(now)
        return now

    def new_id(self, bits: int) -> str:
        """A hexadecimal identifier of `bits` bits."""
        with self.lock:
            return f"{self._rng.getrandbits(bits):0{bits // 4}x}"
