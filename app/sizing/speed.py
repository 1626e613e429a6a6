"""When loading from a tier beats recomputing: measured throughput against measured prefill. Pure.

Loading n tokens takes `latency + n × bytes / throughput`, recomputing them `n / prefill`. Below the break-even length
recomputing is quicker; where a token loads slower than it is computed, loading never pays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: Payload share of an Ethernet line that a single stream of large reads reaches in practice.
LINE_SHARE = 0.9
LINES = {"10 GbE": 10e9 / 8 * LINE_SHARE, "100 GbE": 100e9 / 8 * LINE_SHARE}


@dataclass(frozen=True)
class Path:
    """A way bytes come from. `origin` says where its speed was taken from."""

    name: str
    bytes_per_second: float
    latency_seconds: float
    origin: str


@dataclass(frozen=True)
class BreakEven:
    """`tokens`: from this length on loading is quicker, None where it never is. Seconds are for one whole context."""

    path: str
    bytes_per_second: float
    origin: str
    tokens: int | None
    load_seconds: float | None
    recompute_seconds: float | None
    speed_up: float | None
    sentence: str


def break_even(path: Path, token_bytes: int, prefill_tokens_per_second: float, context_tokens: int | None) -> BreakEven:
    """Compare one path with recomputing. All rates positive."""
    load_each = token_bytes / path.bytes_per_second
    compute_each = 1 / prefill_tokens_per_second
    tokens: int | None
    if load_each >= compute_each:
        tokens = None
        sentence = (
            f"{path.name} moves {path.bytes_per_second / token_bytes:,.0f} tokens a second, the engine computes "
            f"{prefill_tokens_per_second:,.0f}: loading never pays"
        )
    else:
        tokens = int(path.latency_seconds / (compute_each - load_each)) + 1
        sentence = f"from {tokens:,} tokens on {path.name} is quicker than computing them again"
    load = recompute = gain = None
    if context_tokens:
        load = path.latency_seconds + context_tokens * load_each
        recompute = context_tokens * compute_each
        gain = recompute / load if load > 0 else None
    return BreakEven(
        path=path.name,
        bytes_per_second=path.bytes_per_second,
        origin=path.origin,
        tokens=tokens,
        load_seconds=load,
        recompute_seconds=recompute,
        speed_up=gain,
        sentence=sentence,
    )


def quantile(buckets: Sequence[tuple[float, float]], share: float) -> float | None:
    """The value below which `share` of a cumulative histogram lies (its bucket's upper bound, interpolated).

    `buckets`: (upper bound, count up to it), ascending. None where nothing was counted or the value lies in the last,
    unbounded bucket.
    """
    if not buckets or buckets[-1][1] <= 0:
        return None
    wanted = share * buckets[-1][1]
    below_bound, below_count = 0.0, 0.0
    for bound, count in buckets:
        if count >= wanted:
            if bound == float("inf"):
                return None
            inside = count - below_count
            part = (wanted - below_count) / inside if inside > 0 else 1.0
            return below_bound + part * (bound - below_bound)
        below_bound, below_count = bound, count
    return None


def l1_for_reuse(buckets: Iterable[tuple[float, float]], write_bytes_per_second: float, share: float) -> int | None:
    """Bytes that must stay for `share` of the reuses seen to hit: what is written within the gap of that share."""
    gap = quantile(list(buckets), share)
    return None if gap is None else int(gap * write_bytes_per_second)
