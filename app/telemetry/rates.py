"""Counters to increments, with restarts handled. Pure.

A counter's increment between two polls is the difference; where the counter fell, or the process is another one, it
began again at zero in between and the new value is the increment. A poll that follows too late says nothing about when
the tokens flowed: no increment then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: Two polls further apart than this many intervals are a gap: what happened in it is not known.
GAP_INTERVALS = 3.5
#: Counters of the host, not of the process: they go on over its restarts, and its boot is not their beginning.
HOST_COUNTERS = frozenset({"memory_stalled_seconds"})


@dataclass(frozen=True, slots=True)
class CounterPoint:
    """The counters of one scrape of one process. `at` is the time of the scrape, epoch seconds.

    `values`: None for a series that the scrape does not have. `process` identifies the boot: (instance id, process
    start); parts that are unknown are None.
    """

    at: float
    process: tuple[str | None, float | None]
    values: Mapping[str, float | None]


def same_process(before: CounterPoint, after: CounterPoint) -> bool | None:
    """Whether two scrapes are of one boot; None where neither id nor start time is known on both sides."""
    pairs = [(a, b) for a, b in zip(before.process, after.process, strict=True) if a is not None and b is not None]
    return all(a == b for a, b in pairs) if pairs else None


def is_gap(before: CounterPoint, after: CounterPoint, interval: float) -> bool:
    """Whether too much time lies between two scrapes (or the clock went back) to say when something happened."""
    return not 0 < after.at - before.at <= max(GAP_INTERVALS * interval, 5.0)


def base_for(before: CounterPoint | None, after: CounterPoint, interval: float, window: float) -> CounterPoint | None:
    """What `after` is to be compared with: the poll before, or the boot of a process that is younger than `window`
    seconds and was never polled (all its counts are recent then); None where nothing can be told."""
    start = after.process[1]
    if before is not None and not is_gap(before, after, interval):
        return before
    if start is None or not 0 < after.at - start <= window or (before is not None and before.at > start):
        return None
    zero = {name: None if v is None or name in HOST_COUNTERS else 0.0 for name, v in after.values.items()}
    return CounterPoint(start, after.process, zero)


def increments(before: CounterPoint, after: CounterPoint) -> dict[str, float | None]:
    """What each counter of `after` grew by since `before`; None where that cannot be told.

    A series that appears counts from zero (counters begin with their first event); one that vanished within a process
    is unknown, one that vanished with a restart has counted nothing since.
    """
    restarted = same_process(before, after) is False
    result: dict[str, float | None] = {}
    for name, value in after.values.items():
        old = before.values.get(name)
        if name in HOST_COUNTERS:
            result[name] = value - old if value is not None and old is not None and value >= old else None
        elif value is None:
            result[name] = 0.0 if restarted and old is not None else None
        elif restarted or old is None or value < old:
            result[name] = value
        else:
            result[name] = value - old
    return result
