"""The counters of one target over the last hour, as a few marks: what was counted within any window of it.

A mark holds the sum of all increments since the trail began, whatever restarts lay between (`app.telemetry.rates`), so
a window is one subtraction. Old marks lie wider apart than new ones; a trail is small whatever the poll interval.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from app.telemetry.event_counters import SEPARATOR
from app.telemetry.packed import pack, plain
from app.telemetry.rates import GAP_INTERVALS, CounterPoint, base_for, increments, same_process

KEPT_SECONDS = 3600.0
#: A process younger than this when first seen is counted from its boot: all that it counted is recent.
YOUNG_SECONDS = 900.0
#: Two marks may lie apart by this part of their age.
SPACING = 1 / 12
#: The counters of which older marks keep the raw values too, for `Trail.lowest`; all others are wanted as sums only.
KEPT_RAW = ("retrieves_submitted", "retrieves_finished")
_BREAKDOWN = f"hits{SEPARATOR}"
_NOTHING: Mapping[str, float | None] = {}
_RETRIEVES = pack(dict.fromkeys(KEPT_RAW, 0.0), None)


@dataclass(frozen=True, slots=True)
class Mark:
    """Sums of increments at one scrape; `gaps` counts the steps of a counter that could not be told.

    `raw`: the scrape itself; of a mark that is not the last one only what `KEPT_RAW` names.
    """

    at: float
    sums: Mapping[str, float | None]
    gaps: Mapping[str, int]
    raw: CounterPoint


@dataclass(frozen=True)
class Window:
    """What was counted between two marks. `reason` says why there is none; `seconds` is the time really covered."""

    base: Mark | None = None
    last: Mark | None = None
    reason: str = "not polled yet"

    @property
    def known(self) -> bool:
        return self.base is not None and self.last is not None and self.last.at > self.base.at

    @property
    def seconds(self) -> float:
        return self.last.at - self.base.at if self.base is not None and self.last is not None else 0.0

    def grown(self, name: str) -> float | None:
        """The increment of one counter, None where it is not known for the whole window."""
        if self.base is None or self.last is None or not self.known or name not in self.last.sums:
            return None
        if self.last.gaps.get(name, 0) != self.base.gaps.get(name, 0):
            return None
        return (self.last.sums[name] or 0.0) - (self.base.sums.get(name) or 0.0)

    def names(self, prefix: str) -> list[str]:
        """The counters whose names begin so."""
        return [] if self.last is None else sorted(name for name in self.last.sums if name.startswith(prefix))


@dataclass
class Trail:
    """Fed with each scrape once, in order."""

    _marks: list[Mark] = field(default_factory=list)

    @property
    def last(self) -> Mark | None:
        return self._marks[-1] if self._marks else None

    def add(self, point: CounterPoint, interval: float) -> None:
        """Takes a scrape; one that was taken before, or is older than the last, changes nothing."""
        last = self.last
        if last is None:
            base = base_for(None, point, interval, YOUNG_SECONDS)
            if base is not None:
                self._marks.append(Mark(base.at, {}, {}, base))
                self._step(base, self._marks[-1], point)
            else:
                self._marks.append(_first(point))
            return
        if point.at <= last.at:
            if last.at - point.at > KEPT_SECONDS:  # the clock was set back: nothing before it can be compared
                self._marks = [_first(point)]
            return
        restarted = same_process(last.raw, point) is False
        if point.at - last.at > max(GAP_INTERVALS * interval, 60.0) and not restarted:
            self._marks = [_first(point)]  # what happened in between happened at no known time
            return
        self._step(last.raw, last, point)
        self._thin(point.at)

    def _step(self, before: CounterPoint, mark: Mark, point: CounterPoint) -> None:
        sums = plain(mark.sums)
        gaps = dict(mark.gaps)
        for name, grown in increments(before, point).items():
            # A model or salt that is told apart only now began long ago: its first value is no increment.
            entered = name.startswith(_BREAKDOWN) and before.values.get(name) is None
            if grown is None or (entered and same_process(before, point) is not False):
                gaps[name] = gaps.get(name, 0) + 1
                sums.setdefault(name, 0.0)
            else:
                sums[name] = (sums.get(name) or 0.0) + grown
        new = Mark(
            at=point.at,
            sums=pack(sums, mark.sums),
            gaps=mark.gaps if gaps == mark.gaps else gaps,
            raw=replace(point, values=pack(point.values, before.values)),
        )
        # A new list: whoever reads this trail in another thread sees it before or after, never a last mark without raw.
        self._marks = [*self._marks[:-1], _slim(self._marks[-1]), new]

    def _thin(self, now: float) -> None:
        kept: list[Mark] = []
        for index, mark in enumerate(self._marks):
            after = self._marks[index + 1].at if index + 1 < len(self._marks) else None
            if after is not None and now - after > KEPT_SECONDS:
                continue
            if kept and after is not None and after - kept[-1].at < (now - mark.at) * SPACING:
                continue
            kept.append(mark)
        self._marks = kept

    def window(self, seconds: float, now: float, interval: float) -> Window:
        """The last `seconds` as far as they were seen; with a longer poll interval the last two scrapes."""
        last = self.last
        if last is None:
            return Window(reason="its counters have not been read yet")
        if now - last.at > max(GAP_INTERVALS * interval, 60.0):
            return Window(reason=f"its counters were last read {now - last.at:.0f} s ago")
        base = self._marks[max(0, bisect_right(self._marks, last.at - seconds, key=_time) - 1)]
        if base is last:
            if len(self._marks) < 2:
                return Window(reason="one reading so far: an increase needs two")
            base = self._marks[-2]
        return Window(base, last, "")

    def lowest(self, value: Callable[[Mapping[str, float | None]], float | None], before: float) -> float | None:
        """The lowest of a value of raw counters (`KEPT_RAW`) at the marks of this process up to the time `before`."""
        last = self.last
        if last is None:
            return None
        found = [
            seen
            for mark in self._marks
            if mark.at <= before and same_process(mark.raw, last.raw) is not False
            if (seen := value(mark.raw.values)) is not None
        ]
        return min(found, default=None)


def _time(mark: Mark) -> float:
    return mark.at


def _slim(mark: Mark) -> Mark:
    """A mark that is no longer the last."""
    kept = {name: mark.raw.values[name] for name in KEPT_RAW if name in mark.raw.values}
    return replace(mark, raw=replace(mark.raw, values=pack(kept, _RETRIEVES) if kept else _NOTHING))


def _first(point: CounterPoint) -> Mark:
    zero = {name: 0.0 for name, value in point.values.items() if value is not None}
    return Mark(point.at, pack(zero, None), {}, replace(point, values=pack(point.values, None)))
