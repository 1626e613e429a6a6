"""What the targets must have counted of a run's requests, so that a page of counters that lags is not taken for news.

A page of /metrics may be some seconds old (a cache before it, a slow exporter). Taken before a condition, such a page
makes that condition's window hold what came earlier. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from app.acceptance.counters import EngineCounters
from app.acceptance.counting import loaded_since, salts_of
from app.lmcache.metrics import ServerMetrics


@dataclass
class EngineLedger:
    """Prompt tokens that one engine was asked since `base`. Others' requests can only add to what it counts."""

    base: EngineCounters | None = None
    tokens: int = 0

    def holds(self, now: EngineCounters) -> bool:
        """Whether a page counts all that was asked; also where it cannot be told (no such counter)."""
        if self.base is None or now.process_start != self.base.process_start:
            # Another process counts from zero; what it was asked before this page is in it or lost.
            self.base, self.tokens = now, 0
            return True
        counted = now.since(self.base).prompt_tokens
        return counted is None or counted >= self.tokens


@dataclass
class ServerLedger:
    """Tokens that engines had looked up at one cache server, and were given, by salt, since `base`.

    Engines that share the server share this. Without salts everybody's counters are taken.
    """

    base: ServerMetrics | None = None
    lookups: Counter[str] = field(default_factory=Counter)
    loads: Counter[str] = field(default_factory=Counter)

    def asked(self, salt: str, lookup: int, loaded: int) -> None:
        """One more request: tokens in its whole chunks, and those that it says came from outside."""
        self.lookups[salt] += lookup
        self.loads[salt] += loaded

    def holds(self, now: ServerMetrics, salts: Iterable[str], *, by_salt: bool, chunk_size: int) -> bool:
        """Whether a page counts all that was asked under these salts."""
        base = self.base
        if base is None or now.instance_id != base.instance_id:
            self.base = now
            self.lookups.clear()
            self.loads.clear()
            return True
        wanted = list(dict.fromkeys(salts)) if by_salt else list(self.lookups)
        if not any(self.lookups[s] for s in wanted):
            return True
        counted = salts_of(now, wanted, by_salt).since(salts_of(base, wanted, by_salt)).requested
        if (counted or 0) < sum(self.lookups[s] for s in wanted):
            return False
        moved = loaded_since(now, base, wanted, by_salt=by_salt, chunk_size=chunk_size)
        return moved is None or moved >= sum(self.loads[s] for s in wanted)
