"""The increments of the last quarter of an hour, read once: of a fleet they are a hundred thousand samples, and from
one question to the next only what was polled since is new.

What a poll found is written in one transaction with the time of its snapshot: of a target whose snapshot is the one
that was there before, nothing is new, and of any other only what came after it. Where times do not go on (the clock was
set back, nobody has asked for as long as the window is) a target is read anew.
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from threading import Lock

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.telemetry.tables import SampleRaw, Series, Snapshot

#: Sums by minute (its number since the epoch) of one series.
Minutes = Mapping[int, float]
#: How far the clock may fall behind the time that really passed before nothing that is held is believed.
_SET_BACK_SECONDS = 1.0
_MINUTE = 60_000  # milliseconds, as samples have them
_CHUNK = 100  # targets of one query: a quarter of an hour of more of them is megabytes


class _Increments:
    """One series: when each increment was polled, what it was, and the sums by minute."""

    __slots__ = ("minutes", "times", "values")

    def __init__(self) -> None:
        self.times, self.values = array("q"), array("d")
        self.minutes: dict[int, float] = {}

    def add(self, at: int, value: float) -> None:
        self.times.append(at)
        self.values.append(value)
        minute = at // _MINUTE
        self.minutes[minute] = self.minutes.get(minute, 0.0) + value

    def forget(self, start: int) -> None:
        """Drops what was polled at `start` or before. The minute that this cuts in two is added up again."""
        gone = bisect_right(self.times, start)
        if not gone:
            return
        del self.times[:gone], self.values[:gone]
        first = start // _MINUTE
        self.minutes = {minute: total for minute, total in self.minutes.items() if minute > first}
        if rest := bisect_right(self.times, (first + 1) * _MINUTE - 1):
            self.minutes[first] = sum(self.values[:rest])


class _Held:
    """What is known of one target: everything up to the poll of this snapshot."""

    __slots__ = ("polled_at", "series")

    def __init__(self, polled_at: float) -> None:
        self.polled_at = polled_at
        self.series: dict[str, _Increments] = {}


class Recent:
    """The last `seconds` of some increments of one kind of target."""

    def __init__(
        self, kind: str, names: Sequence[str], seconds: float, steady: Callable[[], float] = time.monotonic
    ) -> None:
        self.seconds = seconds
        self._kind = kind
        self._names = tuple(names)
        self._steady = steady
        self._lock = Lock()
        self._held: dict[int, _Held] = {}
        self._asked = (0.0, steady())

    def of(self, session: Session, ids: Collection[int], now: float) -> dict[int, dict[str, Minutes]]:
        """The sums by target, name and minute; a series (a target) without any sample in the window is missing."""
        start = round((now - self.seconds) * 1000)
        with self._lock:
            self._distrust(now)
            polled = self._polled_at(session, ids)
            known = {ident: held.polled_at for ident, held in self._held.items()}
            stale = {ident: at for ident, at in polled.items() if known.get(ident) != at}
            try:
                self._read(session, {ident: self._goes_on_after(ident, at, start) for ident, at in stale.items()})
            except BaseException:
                self._held.clear()  # what was added before it failed must not be added again
                raise
            for ident, at in stale.items():
                self._held[ident].polled_at = at
            self._let_go(start)
            return {
                ident: {name: dict(own.minutes) for name, own in held.series.items() if own.minutes}
                for ident in polled
                if (held := self._held.get(ident)) is not None and held.series
            }

    def _distrust(self, now: float) -> None:
        """Polls that a clock set back has dated before what is held would be missed."""
        asked, steadily = self._asked
        self._asked = (now, self._steady())
        if now - asked < self._asked[1] - steadily - _SET_BACK_SECONDS:
            self._held.clear()

    def _goes_on_after(self, ident: int, polled_at: float, start: int) -> int:
        """From when on the samples of this target are to be read; what cannot be gone on with is dropped."""
        held = self._held.get(ident)
        if held is None or polled_at < held.polled_at or held.polled_at * 1000 <= start:
            self._held[ident] = _Held(polled_at)
            return start
        return round(held.polled_at * 1000)

    def _polled_at(self, session: Session, ids: Collection[int]) -> dict[int, float]:
        table = Snapshot.__table__.c
        rows = session.execute(select(table.target_id, table.polled_at).where(table.target_kind == self._kind))
        wanted = set(ids)
        return {ident: at for ident, at in rows if ident in wanted}

    def _read(self, session: Session, after: Mapping[int, int]) -> None:
        """Adds what was polled after these times. Plain rows of the tables: a fleet's are too many for more."""
        series, raw = Series.__table__.c, SampleRaw.__table__.c
        ids = sorted(after)
        for begin in range(0, len(ids), _CHUNK):
            chunk = ids[begin : begin + _CHUNK]
            query = (
                select(series.target_id, series.metric, raw.at, raw.value)
                .join_from(Series.__table__, SampleRaw.__table__, raw.series_id == series.id)
                .where(
                    series.target_kind == self._kind,
                    series.target_id.in_(chunk),
                    series.metric.in_(self._names),
                    raw.at > min(after[ident] for ident in chunk),
                )
                .order_by(series.target_id, series.metric, raw.at)  # as their indexes have them
            )
            for ident, name, at, value in session.execute(query):
                if at > after[ident]:
                    known = self._held[ident].series
                    if name not in known:
                        known[name] = _Increments()
                    known[name].add(at, value)

    def _let_go(self, start: int) -> None:
        """Drops what has left the window, and whoever has nothing in it any more."""
        for ident, held in list(self._held.items()):
            for own in held.series.values():
                own.forget(start)
            if held.polled_at * 1000 <= start:
                del self._held[ident]
