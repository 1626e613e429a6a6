"""The increments of the last quarter of an hour, read once: of a fleet they are a hundred thousand samples, and from
one question to the next only what was polled since is new.

What a poll found is written in one transaction with the time of its snapshot: of a target whose snapshot is the one
that was there before, nothing is new, and of any other only what lies between the two times. Where times do not go on
(the clock was set back, nobody has asked for as long as the window is) a target is read anew. Samples that a clock set
back has left in the future count from the time on that they bear, as they do everywhere else.
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
    """What is known of one target: every sample up to and with this time."""

    __slots__ = ("series", "until")

    def __init__(self, until: int) -> None:
        self.until = until
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
            polled = self._polled_until(session, ids, now)
            stale = {
                ident: until
                for ident, until in polled.items()
                if (held := self._held.get(ident)) is None or held.until != until
            }
            try:
                spans = {ident: (self._goes_on_after(ident, until, start), until) for ident, until in stale.items()}
                self._read(session, spans)
            except BaseException:
                self._held.clear()  # what was added before it failed must not be added again
                raise
            for ident, until in stale.items():
                self._held[ident].until = until
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

    def _goes_on_after(self, ident: int, until: int, start: int) -> int:
        """From when on the samples of this target are to be read; what cannot be gone on with is dropped."""
        held = self._held.get(ident)
        if held is None or until < held.until or held.until <= start:
            self._held[ident] = _Held(until)
            return start
        return held.until

    def _polled_until(self, session: Session, ids: Collection[int], now: float) -> dict[int, int]:
        """By target the time of its last poll, milliseconds; now, where that lies in the future."""
        table = Snapshot.__table__.c
        rows = session.execute(select(table.target_id, table.polled_at).where(table.target_kind == self._kind))
        wanted = set(ids)
        return {ident: round(min(at, now) * 1000) for ident, at in rows if ident in wanted}

    def _read(self, session: Session, spans: Mapping[int, tuple[int, int]]) -> None:
        """Adds what was polled in these spans, begin excluded. Plain rows of the tables: a fleet's are too many for
        more.
        """
        series, raw = Series.__table__.c, SampleRaw.__table__.c
        ids = sorted(spans)
        for begin in range(0, len(ids), _CHUNK):
            chunk = ids[begin : begin + _CHUNK]
            query = (
                select(series.target_id, series.metric, raw.at, raw.value)
                .join_from(Series.__table__, SampleRaw.__table__, raw.series_id == series.id)
                .where(
                    series.target_kind == self._kind,
                    series.target_id.in_(chunk),
                    series.metric.in_(self._names),
                    raw.at > min(spans[ident][0] for ident in chunk),
                    raw.at <= max(spans[ident][1] for ident in chunk),
                )
                .order_by(series.target_id, series.metric, raw.at)  # as their indexes have them
            )
            for ident, name, at, value in session.execute(query):
                after, until = spans[ident]
                if after < at <= until:
                    known = self._held[ident].series
                    if name not in known:
                        known[name] = _Increments()
                    known[name].add(at, value)

    def _let_go(self, start: int) -> None:
        """Drops what has left the window, and whoever has nothing in it any more."""
        for ident, held in list(self._held.items()):
            for own in held.series.values():
                own.forget(start)
            if held.until <= start:
                del self._held[ident]
