"""Numbers that engine and cache server count for everybody, and their differences over a stretch of time. Pure.

Where a series is missing the field is None, never zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineCounters:
    """The engine's own counters at one moment; None where a series is missing."""

    prompt_tokens: float | None = None
    local_hits: float | None = None
    external_hits: float | None = None
    external_queries: float | None = None
    requests_finished: float | None = None
    process_start: float | None = None

    def since(self, before: EngineCounters) -> EngineCounters:
        """Deltas; all None when the engine restarted in between (counters start again at zero)."""
        if before.process_start != self.process_start:
            return EngineCounters(process_start=self.process_start)
        # A series appears with its first event: a missing one before means zero then, when others were there.
        return EngineCounters(
            prompt_tokens=_delta(self.prompt_tokens, before.prompt_tokens),
            local_hits=_delta(self.local_hits, before.local_hits),
            external_hits=_delta(self.external_hits, before.external_hits),
            external_queries=_delta(self.external_queries, before.external_queries),
            requests_finished=_delta(self.requests_finished, before.requests_finished),
            process_start=self.process_start,
        )


def _delta(now: float | None, before: float | None) -> float | None:
    if now is None:
        return None
    delta = now - (before or 0.0)
    return delta if delta >= 0 else None


@dataclass(frozen=True, slots=True)
class SaltCounters:
    """The cache server's token counters of one salt (or of all) at one moment; None where it does not split them."""

    requested: float | None = None
    hit: float | None = None
    hit_l1: float | None = None
    hit_l2: float | None = None

    def since(self, before: SaltCounters) -> SaltCounters:
        return SaltCounters(
            _delta(self.requested, before.requested),
            _delta(self.hit, before.hit),
            _delta(self.hit_l1, before.hit_l1),
            _delta(self.hit_l2, before.hit_l2),
        )


def sum_counters(items: Sequence[SaltCounters]) -> SaltCounters:
    """Sum over salts. A split that no salt has is None; salts the server never saw count nothing."""

    def column(name: str) -> float | None:
        known = [v for v in (getattr(i, name) for i in items) if v is not None]
        return sum(known) if known else None

    return SaltCounters(column("requested"), column("hit"), column("hit_l1"), column("hit_l2"))


@dataclass(frozen=True, slots=True)
class LoadedTokens:
    """Tokens in the chunks that the cache server moved into an engine over an arm.

    `own`: of the run's own salts alone; else everybody's, which is the most that can be the run's.
    """

    tokens: float
    own: bool


def add(x: float | None, y: float | None) -> float | None:
    return None if x is None or y is None else x + y


def add_engine(a: EngineCounters | None, b: EngineCounters | None) -> EngineCounters | None:
    if a is None or b is None:
        return None

    return EngineCounters(
        add(a.prompt_tokens, b.prompt_tokens),
        add(a.local_hits, b.local_hits),
        add(a.external_hits, b.external_hits),
        add(a.external_queries, b.external_queries),
        add(a.requests_finished, b.requests_finished),
        b.process_start,
    )


def add_salts(a: SaltCounters, b: SaltCounters) -> SaltCounters:
    return SaltCounters(
        add(a.requested, b.requested), add(a.hit, b.hit), add(a.hit_l1, b.hit_l1), add(a.hit_l2, b.hit_l2)
    )


def add_loaded(a: LoadedTokens | None, b: LoadedTokens | None) -> LoadedTokens | None:
    return None if a is None or b is None else LoadedTokens(a.tokens + b.tokens, a.own and b.own)
