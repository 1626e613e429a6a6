"""The windowed token hit rate of a server's lookups, and what its engines say about the same window. Pure.

Rule: hit tokens / requested tokens over a window of counter increments (see `window` and `rates`). The server
counts *lookups*: a lookup that hits is counted also when the engine then serves the tokens from its own GPU cache.
Three answers: a value; ``no_traffic`` (nothing was requested: no rate exists); ``unknown`` with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from app.telemetry.window import Slice, covered_seconds, total


@dataclass(frozen=True)
class HitRate:
    """The outcome. Shares are of the requested tokens; `covered_seconds` is the time that was really observed."""

    state: Literal["value", "no_traffic", "unknown"]
    value: float | None = None
    l1_share: float | None = None
    l2_share: float | None = None
    hit_tokens: int | None = None
    requested_tokens: int | None = None
    covered_seconds: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class CrossCheck:
    """`external_tokens`: what the engines say they got from the cache in the window."""

    state: Literal["agree", "disagree", "unknown"]
    reason: str
    external_tokens: int | None = None


def hit_rate(window: Sequence[Slice], unknown_reason: str) -> HitRate:
    """The rate over slices with ``requested``, ``hit``, ``l1`` and ``l2`` tokens.

    `unknown_reason` says why there are none. ``l1`` and ``l2`` are None where the server does not tell the split.
    """
    requested, hit = total(window, "requested"), total(window, "hit")
    if requested is None or hit is None:
        return HitRate("unknown", reason=unknown_reason)
    covered = covered_seconds(window)
    if requested <= 0:
        return HitRate("no_traffic", hit_tokens=0, requested_tokens=0, covered_seconds=covered)
    l1, l2 = total(window, "l1"), total(window, "l2")
    # The counters of one scrape are not read at one instant: a hit may be counted before its request.
    return HitRate(
        "value",
        value=min(1.0, hit / requested),
        l1_share=None if l1 is None else min(1.0, l1 / requested),
        l2_share=None if l2 is None else min(1.0, l2 / requested),
        hit_tokens=round(hit),
        requested_tokens=round(requested),
        covered_seconds=covered,
    )


def cross_check(rate: HitRate, external_tokens: float | None, external_queries: float | None) -> CrossCheck:
    """Compares the server's hits with the external tokens its engines loaded in about the same window.

    Loading more than the lookups found cannot be (the server's counters lag or drop events); finding much and loading
    nothing is legal where the GPU cache served it, and worth a sentence where the engines did ask.
    """
    if external_tokens is None:
        return CrossCheck("unknown", "no engine of this server has told its external prefix cache counters")
    loaded = round(external_tokens)
    if rate.state == "unknown":
        return CrossCheck("unknown", f"the server's own counters are not known: {rate.reason}", loaded)
    hits = rate.hit_tokens or 0
    # Polls of server and engines are not simultaneous; one tick's worth of traffic may be on one side only.
    if external_tokens > hits * 1.2 + 4096:
        return CrossCheck(
            "disagree",
            f"the engines loaded {loaded:,} tokens, the server counted only {hits:,} hit tokens: "
            "its counters miss events (see the event bus), or an engine uses another server too",
            loaded,
        )
    if hits > 4096 and loaded == 0 and (external_queries or 0) > 0.5 * hits:
        return CrossCheck(
            "disagree",
            f"the server counted {hits:,} hit tokens, the engines asked and loaded none: hits do not reach the engines",
            loaded,
        )
    why = "what L0 still has is found, not loaded" if loaded <= hits else "counters are not read at the same instant"
    return CrossCheck(
        "agree", f"the engines loaded {loaded:,} tokens, lookups found {hits:,}; that fits: {why}", loaded
    )
