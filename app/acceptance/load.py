"""What the engine is busy with around and during a run's requests: running and waiting, its KV cache. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from app.vllm.metrics import EngineLoad


@dataclass(frozen=True, slots=True)
class Spread:
    """Lowest, mean and highest of some readings."""

    readings: int
    low: float
    mean: float
    high: float

    def merged(self, other: Spread) -> Spread:
        """Of both."""
        count = self.readings + other.readings
        mean = (self.mean * self.readings + other.mean * other.readings) / count
        return Spread(count, min(self.low, other.low), mean, max(self.high, other.high))


def _both(a: Spread | None, b: Spread | None) -> Spread | None:
    return b if a is None else a if b is None else a.merged(b)


@dataclass(frozen=True, slots=True)
class LoadEvidence:
    """The engine's load while requests of one arm were in flight. Requests; `kv_usage` is a ratio 0-1.

    `others`: requests running or waiting that are not the run's. `before`: just before the arm's first request, when
    none of them was. What the engine does not tell is None, and so is all of it where every answer was complete before
    the engine could be read (`readings` 0).
    """

    readings: int = 0
    running: Spread | None = None
    waiting: Spread | None = None
    kv_usage: Spread | None = None
    others: Spread | None = None
    before: EngineLoad | None = None

    def merged(self, other: LoadEvidence) -> LoadEvidence:
        """This batch's and another's; `before` is the first's."""
        return LoadEvidence(
            self.readings + other.readings,
            _both(self.running, other.running),
            _both(self.waiting, other.waiting),
            _both(self.kv_usage, other.kv_usage),
            _both(self.others, other.others),
            self.before or other.before,
        )

    def with_reading(self, load: EngineLoad, own: int) -> LoadEvidence:
        """One more reading, at which `own` requests of the run's were with the engine. One that tells nothing counts
        as none."""
        if load == EngineLoad():
            return self
        busy = None if load.running is None else load.running + (load.waiting or 0.0)
        one = LoadEvidence(
            1,
            _once(load.running),
            _once(load.waiting),
            _once(load.kv_cache_usage),
            None if busy is None else _once(max(0.0, busy - own)),
        )
        return self.merged(one)


def _once(value: float | None) -> Spread | None:
    return None if value is None else Spread(1, value, value, value)


@dataclass
class LoadSeen:
    """The highest load between the run's own requests: what is seen then is others'. None until the engine told it."""

    readings: int = 0
    running: float | None = None
    waiting: float | None = None
    last: EngineLoad | None = None

    def note(self, load: EngineLoad) -> None:
        """One reading; one that tells nothing counts as none."""
        if load.running is None and load.waiting is None:
            return
        self.readings += 1
        self.last = load
        self.running = _highest(self.running, load.running)
        self.waiting = _highest(self.waiting, load.waiting)

    def to_json(self) -> dict[str, float | None]:
        """For the run's `evidence` object."""
        return {"readings": self.readings, "running": self.running, "waiting": self.waiting}


def _highest(a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else max(a, b)
