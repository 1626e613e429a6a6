"""When requests are sent: a Poisson process at a given rate. Pure; the same seed gives the same times.

As in `vllm bench serve`: gaps are exponential, and the whole is stretched so that n requests take exactly n ÷ rate
seconds. Without that, two seeds would offer rates that differ by some percent.
"""

from __future__ import annotations

import random


def poisson_offsets(count: int, rate: float, seed: int) -> list[float]:
    """Seconds after the start at which each of `count` requests is sent, ascending; `rate` in requests per second.

    Raises ValueError for a rate that is not positive.
    """
    if rate <= 0:
        raise ValueError(f"rate {rate}: must be greater than 0 requests per second")
    dice = random.Random(f"tierkeeper arrivals {seed}")  # noqa: S311 - reproducible, nothing secret
    moments: list[float] = []
    now = 0.0
    for _ in range(count):
        now += dice.expovariate(rate)
        moments.append(now)
    if not moments or moments[-1] <= 0:
        return [0.0] * count
    stretch = count / rate / moments[-1]
    return [moment * stretch for moment in moments]
