"""Order statistics of a benchmark: over requests, over runs, between scenarios. Pure; the unit is the caller's.

Percentiles interpolate linearly between order statistics and the deviation is that of the whole population, as
`vllm bench serve` (numpy) computes both. No interval here assumes a distribution.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass

from app.acceptance.stats import Interval, median_interval, quantile


@dataclass(frozen=True)
class Spread:
    """One list of numbers; every field but `count` is None of an empty list."""

    count: int = 0
    mean: float | None = None
    median: float | None = None
    p99: float | None = None
    std: float | None = None
    min: float | None = None
    max: float | None = None

    def to_json(self) -> dict[str, float | int | None]:
        return asdict(self)


def spread(values: Sequence[float]) -> Spread:
    """The numbers that both tables print."""
    if not values:
        return Spread()
    mean = math.fsum(values) / len(values)
    return Spread(
        count=len(values),
        mean=mean,
        median=quantile(values, 0.5),
        p99=quantile(values, 0.99),
        std=math.sqrt(math.fsum((v - mean) ** 2 for v in values) / len(values)),
        min=min(values),
        max=max(values),
    )


@dataclass(frozen=True)
class Across:
    """The runs of one scenario, each by its own median; `low` and `high` are the range."""

    runs: int
    median: float
    low: float
    high: float
    mean: float


def across(run_medians: Sequence[float]) -> Across | None:
    """None without a run."""
    if not run_medians:
        return None
    middle = quantile(run_medians, 0.5)
    assert middle is not None
    return Across(
        len(run_medians), middle, min(run_medians), max(run_medians), math.fsum(run_medians) / len(run_medians)
    )


@dataclass(frozen=True)
class SpeedUp:
    """Median of A over median of B: above 1, B is faster.

    `low` and `high` are the extreme ratios that the run medians of both allow. The range of n runs covers the true
    median with probability 1 - 2^(1-n), so `confidence` is the product of both: 0.56 for three runs each, None (and no
    interval) where either has one run.
    """

    value: float
    low: float | None
    high: float | None
    confidence: float | None
    runs_a: int
    runs_b: int


def speed_up(a: Sequence[float], b: Sequence[float]) -> SpeedUp | None:
    """From the run medians of both scenarios; None where one has no run or a median is not positive."""
    of_a, of_b = across(a), across(b)
    if of_a is None or of_b is None or of_a.low <= 0 or of_b.low <= 0:
        return None
    value = of_a.median / of_b.median
    if len(a) < 2 or len(b) < 2:
        return SpeedUp(value, None, None, None, len(a), len(b))
    confidence = (1 - 2 * 0.5 ** len(a)) * (1 - 2 * 0.5 ** len(b))
    return SpeedUp(value, of_a.low / of_b.high, of_a.high / of_b.low, confidence, len(a), len(b))


def paired_speed_up(a: Mapping[Hashable, float], b: Mapping[Hashable, float]) -> Interval | None:
    """Median of the ratios A ÷ B of the same prompts in the same run, with a 95 % interval within these runs."""
    return median_interval([a[k] / b[k] for k in a if k in b and b[k] > 0])


@dataclass(frozen=True)
class NoiseFloor:
    """How far one scenario's medians lie apart when nothing was changed. `relative` is of its own median."""

    relative: float
    absolute: float
    runs: int
    repeated: int


def noise_floor(runs: Sequence[float], again: Sequence[float]) -> NoiseFloor | None:
    """The largest distance of any median, of the runs or of the A/A repeat, from the median of the runs.

    None without at least two medians: one number has no noise.
    """
    if not runs or len(runs) + len(again) < 2:
        return None
    middle = quantile(runs, 0.5)
    assert middle is not None
    distance = max(abs(v - middle) for v in (*runs, *again))
    return NoiseFloor(distance / middle if middle > 0 else math.inf, distance, len(runs), len(again))


def reduction(first: float | None, second: float | None) -> float | None:
    """By which part of `first` the second is less (0.47 = 47 %; negative: it is more). None where not known."""
    if first is None or second is None or first <= 0:
        return None
    return (first - second) / first
