"""Order statistics and exact tests. No randomness: the same numbers give the same answer. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


def quantile(values: Sequence[float], q: float) -> float | None:
    """The q-quantile (0..1) by linear interpolation between order statistics; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    if ordered[low] == ordered[high]:
        return ordered[low]
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@dataclass(frozen=True)
class Summary:
    """Count, centre and spread of one list of numbers, in their own unit; None where the list is empty."""

    count: int
    median: float | None
    mean: float | None
    p90: float | None
    p99: float | None
    min: float | None
    max: float | None


def summarise(values: Sequence[float]) -> Summary:
    """The summary the reports print."""
    if not values:
        return Summary(0, None, None, None, None, None, None)
    return Summary(
        count=len(values),
        median=quantile(values, 0.5),
        mean=math.fsum(values) / len(values),
        p90=quantile(values, 0.9),
        p99=quantile(values, 0.99),
        min=min(values),
        max=max(values),
    )


@dataclass(frozen=True)
class Interval:
    """A median with a distribution-free interval. `confidence` is what the interval really covers."""

    median: float
    low: float
    high: float
    confidence: float


def median_interval(values: Sequence[float], wanted: float = 0.95) -> Interval | None:
    """Interval of the median from order statistics: the narrowest symmetric one that covers `wanted`.

    With few values none does; then the whole range is given with the confidence it has (2 values: 0.5).
    None for fewer than two values.
    """
    ordered = sorted(values)
    n = len(ordered)
    if n < 2:
        return None
    median = quantile(ordered, 0.5)
    assert median is not None
    best = (0, n - 1, 1.0 - 2.0 * 0.5**n)
    tail = 0.5**n  # P(at most 0 of n below the median)
    term = tail
    for k in range(1, (n + 1) // 2):
        term = term * (n - k + 1) / k
        tail += term
        covered = 1.0 - 2.0 * tail
        if covered < wanted:
            break
        best = (k, n - 1 - k, covered)
    return Interval(median, ordered[best[0]], ordered[best[1]], best[2])


def sign_test(one_way: int, other_way: int) -> float | None:
    """Two-sided exact p-value of a paired binary outcome (McNemar): 6 against 0 gives 0.031. None without pairs."""
    n = one_way + other_way
    if n == 0:
        return None
    tail = sum(math.comb(n, i) for i in range(min(one_way, other_way) + 1))
    return float(min(1.0, 2.0 * tail / 2.0**n)) if n < 1000 else _normal_tail(one_way, other_way)


def _normal_tail(one_way: int, other_way: int) -> float:
    n = one_way + other_way
    z = max(0.0, (abs(one_way - other_way) - 1)) / math.sqrt(n)
    return math.erfc(z / math.sqrt(2))
