"""One request's numbers, and the numbers of a list of them. Pure. Seconds inside, milliseconds in summaries.

The definitions are those of `vllm bench serve`: TTFT from sending to the first event that carries a choice, latency to
the last one, TPOT = (latency - TTFT) ÷ (output tokens - 1), ITL = every gap between two events. A mean of ITL weighs
long answers more than a mean of TPOT does; both are given.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.benchmark.numbers import Spread, spread

PHASES = ("first", "second")


@dataclass(frozen=True)
class Measured:
    """One request and what came back. `offset` is when it was sent, seconds after its phase began.

    `planned_offset`: when it was to be sent (request-rate form). `reachable`: tokens that the cache could give back,
    None where no cache is involved. `error` is a sentence; then only `offset` and `total` are known.
    """

    scenario: str
    repeat: int
    phase: str
    position: int
    key: str
    engine: str
    salt: str
    started_at: float
    offset: float
    total: float
    planned_offset: float | None = None
    http_status: int | None = None
    error: str | None = None
    ttft: float | None = None
    latency: float | None = None
    itl: tuple[float, ...] = ()
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reachable: int | None = None

    @property
    def ok(self) -> bool:
        """Answered, with a first token."""
        return self.error is None and self.ttft is not None

    @property
    def tpot(self) -> float | None:
        """Seconds per output token after the first; None for an answer of one token."""
        if self.latency is None or self.ttft is None or self.output_tokens is None or self.output_tokens < 2:
            return None
        return (self.latency - self.ttft) / (self.output_tokens - 1)


@dataclass(frozen=True)
class Times:
    """TTFT, TPOT, ITL and end-to-end latency of a list of requests, milliseconds."""

    ttft_ms: Spread
    tpot_ms: Spread
    itl_ms: Spread
    e2el_ms: Spread


def times(requests: Iterable[Measured]) -> Times:
    """Of the answered ones."""
    answered = [r for r in requests if r.ok]
    return Times(
        ttft_ms=_ms([r.ttft for r in answered]),
        tpot_ms=_ms([r.tpot for r in answered]),
        itl_ms=_ms([gap for r in answered for gap in r.itl]),
        e2el_ms=_ms([r.latency for r in answered]),
    )


def _ms(values: Sequence[float | None]) -> Spread:
    return spread([v * 1000 for v in values if v is not None])


def gaps(event_seconds: Sequence[float]) -> tuple[float, ...]:
    """The inter-token latencies of one answer."""
    return tuple(later - earlier for earlier, later in itertools.pairwise(event_seconds))


def busy_seconds(requests: Sequence[Measured]) -> float:
    """From the first request sent to the last one ended."""
    return max((r.offset + r.total for r in requests), default=0.0) - min((r.offset for r in requests), default=0.0)


def peak_concurrency(requests: Sequence[Measured]) -> int:
    """The most requests that were under way at one moment."""
    moments = sorted([(r.offset, 1) for r in requests] + [(r.offset + r.total, -1) for r in requests])
    now = most = 0
    for _, change in moments:
        now += change
        most = max(most, now)
    return most


def sums(requests: Iterable[Measured]) -> tuple[int, int]:
    """(prompt tokens, output tokens) of the answered requests."""
    answered = [r for r in requests if r.ok]
    return sum(r.prompt_tokens or 0 for r in answered), sum(r.output_tokens or 0 for r in answered)
