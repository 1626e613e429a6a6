"""What one server's polls say about the layouts that can have been written through it (RULES.md C2). Pure.

The result is kept as JSON when a server is forgotten, so that its past still speaks for the records it left.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.lmcache.layouts import KVLayout
from app.records.polls import Owner, PollSpan, owner_of, refined, same_process

FOREVER = math.inf
BEFORE, GAP, AFTER = "before", "gap", "after"
_REAP_SECONDS = 120.0


@dataclass(frozen=True)
class Presence:
    """A time in which a layout can have been written: [start, end), panel time. `end` may be infinite.

    `first_listed` and `last_listed` are polls that showed it.
    """

    layout: KVLayout
    start: float
    end: float
    first_listed: float
    last_listed: float

    @property
    def owner(self) -> Owner:
        return owner_of(self.layout)


@dataclass(frozen=True)
class Unknown:
    """A time in which anything can have been written. kind: before the first certainty, gap, after the last poll."""

    start: float
    end: float
    kind: str


@dataclass(frozen=True)
class Partial:
    """A time in which fewer workers of an engine were registered than its world size."""

    owner: Owner
    start: float
    end: float


@dataclass(frozen=True)
class ServerHistory:
    """`covered`: times in which polls say everything. `latest` is the last good poll."""

    presences: tuple[Presence, ...] = ()
    unknowns: tuple[Unknown, ...] = (Unknown(-FOREVER, FOREVER, BEFORE),)
    covered: tuple[tuple[float, float], ...] = ()
    partials: tuple[Partial, ...] = ()
    latest: PollSpan | None = None
    last_poll_at: float | None = None
    last_poll_ok: bool = False

    @property
    def seen(self) -> bool:
        """Whether there was ever a good poll."""
        return self.latest is not None


@dataclass
class _Open:
    start: float
    first_listed: float
    last_listed: float


@dataclass
class _Builder:
    gap_limit: float
    presences: list[Presence] = field(default_factory=list)
    unknowns: list[Unknown] = field(default_factory=list)
    covered: list[tuple[float, float]] = field(default_factory=list)
    partials: list[Partial] = field(default_factory=list)
    open: dict[KVLayout, _Open] = field(default_factory=dict)
    # Not listed any more, but the store controller's queue may still hold some of it.
    lingering: dict[KVLayout, _Open] = field(default_factory=dict)
    # The same for what nobody knows: since when, and as which kind of ignorance.
    murky: tuple[float, str] | None = None

    def first(self, span: PollSpan) -> None:
        start = certain_from(span, None)
        self.unknowns.append(Unknown(-FOREVER, start, BEFORE))
        if not _queue_accounted(span, None):
            self.murky = (start, BEFORE)
        self._list(span, start)
        self._cover(start, span.last_at)

    def follow(self, before: PollSpan, span: PollSpan) -> None:
        left, right = before.last_at, span.first_at
        process = same_process(before, span)
        same_contexts = before.contexts == span.contexts
        fresh_ids = _fresh_ids(before, span)
        limit = min(self.gap_limit, before.reap_timeout or _REAP_SECONDS)
        explained = not fresh_ids or fresh_ids <= before.contexts.keys() | span.contexts.keys()
        if process is True and same_contexts and fresh_ids is not None and not fresh_ids:
            start = left  # a closed gap, however long
        elif right - left <= limit and explained and (process is True or (process is None and same_contexts)):
            # Too short for a context to have come and been reaped unseen. Where nothing tells one server process from
            # the next, that holds only while the contexts stay: a restart drops them all.
            start = left
        else:
            # Whatever ran between the two polls is not known; what runs now has run since its processes started.
            start = max(left, certain_from(span, before if process is True else None))
            if process is True and not _newcomers_started(before, span):
                start = right
            if start > left:
                self.unknowns.append(Unknown(left, start, GAP))
                if self.murky is None and not _queue_accounted(span, before if process is True else None):
                    self.murky = (start, GAP)
        if process is False:
            # The old process' queue died with it, at the latest when the new one started.
            born = span.process_start
            end = right if born is None else min(right, max(left, born))
            if self.murky is not None and self.murky[0] < right:
                self._clear(end)
                if not _queue_accounted(span, None):
                    self.murky = (end, GAP)
            for layout in [*self.open, *self.lingering]:
                if layout not in _listed(span):
                    self._close(layout, end)
        for layout in list(self.open):
            if layout not in _listed(span):
                self.lingering[layout] = self.open.pop(layout)
        self._list(span, left)
        self._cover(start, span.last_at)

    def finish(self, latest: PollSpan) -> None:
        if self.murky is not None:
            self.unknowns.append(Unknown(self.murky[0], latest.last_at, self.murky[1]))
        self.unknowns.append(Unknown(latest.last_at, FOREVER, AFTER))

    def _list(self, span: PollSpan, start: float) -> None:
        for layout in _listed(span):
            known = self.open.get(layout) or self.lingering.pop(layout, None)
            if known is None:
                known = _Open(start, span.first_at, span.last_at)
            known.last_listed = span.last_at
            self.open[layout] = known
        if span.drained is True:
            self._clear(span.first_at)
            for layout in list(self.lingering):
                self._close(layout, span.first_at)
        for owner, missing in _incomplete(span).items():
            if missing:
                self.partials.append(Partial(owner, start, span.last_at))

    def _clear(self, end: float) -> None:
        if self.murky is not None:
            since, kind = self.murky
            self.unknowns.append(Unknown(since, max(since, end), kind))
            self.murky = None

    def _close(self, layout: KVLayout, end: float) -> None:
        known = self.open.pop(layout, None) or self.lingering.pop(layout)
        self.presences.append(_presence(layout, known, max(end, known.last_listed)))

    def _cover(self, start: float, end: float) -> None:
        if self.covered and start <= self.covered[-1][1]:
            start = self.covered.pop()[0]
        self.covered.append((start, end))


def build_history(spans: Sequence[PollSpan], *, gap_limit: float) -> ServerHistory:
    """The history of one server from its observation rows, in any order.

    `gap_limit`: seconds between two polls beyond which something can have come and gone unseen (three poll intervals).
    A layout is possible from the last poll without it and ends at the first poll without it whose queue is empty; a gap
    is closed by the same process with the same contexts and no engine id that is new; certainty reaches back to the
    later of the server's and its engines' process starts.
    """
    good = refined(spans)
    if not good:
        last = max(spans, key=lambda span: span.last_at, default=None)
        return ServerHistory(last_poll_at=last.last_at if last else None)
    builder = _Builder(gap_limit)
    builder.first(good[0])
    for before, span in itertools.pairwise(good):
        builder.follow(before, span)
    latest = good[-1]
    builder.finish(latest)
    open_now = {**builder.lingering, **builder.open}
    last = max(spans, key=lambda span: span.last_at)
    return ServerHistory(
        presences=(*builder.presences, *(_presence(layout, known, FOREVER) for layout, known in open_now.items())),
        unknowns=tuple(builder.unknowns),
        covered=tuple(builder.covered),
        partials=tuple(builder.partials),
        latest=latest,
        last_poll_at=last.last_at,
        last_poll_ok=last.ok,
    )


def certain_from(span: PollSpan, before: PollSpan | None) -> float:
    """Since when the contexts of a poll are known to have been the only ones: a running process cannot change.

    Back-dated to the later of the server's and its engines' process starts, if all are known, the engines registered
    here account for every context listed, and no other engine stored anything through this server process (`before`:
    an earlier poll of it, whose engine ids are already accounted for). Else the poll itself.
    """
    starts = list(span.engine_starts.values())
    if span.process_start is None or not span.contexts or not starts:
        return span.first_at
    known = [start for start in starts if start is not None]
    counts: dict[Owner, int] = {}
    for layout in span.contexts.values():
        counts[owner_of(layout)] = counts.get(owner_of(layout), 0) + 1
    engines = sum(-(-count // world_size) for (_, world_size), count in counts.items())
    stored = span.engine_ids
    accounted = span.contexts.keys() | ((before.engine_ids or frozenset()) if before is not None else frozenset())
    if len(known) != len(starts) or engines > len(starts) or stored is None or not stored <= accounted:
        return span.first_at
    return min(span.first_at, max(span.process_start, *known))


def _newcomers_started(before: PollSpan, span: PollSpan) -> bool:
    """Whether some engine started since the poll before, if there are new contexts: else those told are old."""
    if span.contexts.keys() <= before.contexts.keys():
        return True
    return any(start is not None and start > before.last_at for start in span.engine_starts.values())


def _queue_accounted(span: PollSpan, before: PollSpan | None) -> bool:
    """Whether the server's queue can only hold what engines listed (or known before) stored: it is empty, or every
    engine id that ever stored through this process is theirs. Without series (`engine_driven`) only an empty one is."""
    if span.drained is True:
        return True
    known = span.contexts.keys() | ((before.engine_ids or frozenset()) if before is not None else frozenset())
    return bool(span.engine_ids) and (span.engine_ids or frozenset()) <= known


def _fresh_ids(before: PollSpan, span: PollSpan) -> frozenset[str] | None:
    """Engine ids that stored something since the poll before; None = cannot be told."""
    if before.engine_ids is None or span.engine_ids is None:
        return None
    return span.engine_ids - before.engine_ids


def _listed(span: PollSpan) -> frozenset[KVLayout]:
    return frozenset(span.contexts.values())


def _incomplete(span: PollSpan) -> dict[Owner, int]:
    """By owner, how many workers are missing to whole engines."""
    counts: dict[Owner, int] = {}
    for layout in span.contexts.values():
        counts[owner_of(layout)] = counts.get(owner_of(layout), 0) + 1
    return {owner: -count % owner[1] for owner, count in counts.items()}


def _presence(layout: KVLayout, known: _Open, end: float) -> Presence:
    return Presence(layout, known.start, end, known.first_listed, known.last_listed)


# ---- as JSON, for servers that are forgotten ----


def to_json(history: ServerHistory) -> dict[str, Any]:
    """What must outlive the server: possibilities and ignorance. Infinity is null."""
    return {
        "presences": [
            [p.layout.to_dict(), p.start, _finite(p.end), p.first_listed, p.last_listed] for p in history.presences
        ],
        "unknowns": [[_finite(u.start), _finite(u.end), u.kind] for u in history.unknowns],
        "covered": [list(pair) for pair in history.covered],
        "partials": [[*p.owner, p.start, p.end] for p in history.partials],
        "seen": history.seen,
    }


def from_json(stored: Mapping[str, Any], left_at: float) -> ServerHistory:
    """The history of a server that left the store at `left_at`: from then on nothing is written through it."""
    presences = [
        Presence(KVLayout.from_json(layout), start, min(left_at, _infinite(end)), first, last)
        for layout, start, end, first, last in stored["presences"]
    ]
    unknowns = [
        Unknown(-FOREVER if start is None else start, min(left_at, _infinite(end)), kind)
        for start, end, kind in stored["unknowns"]
    ]
    return ServerHistory(
        presences=tuple(p for p in presences if p.start < p.end),
        unknowns=tuple(u for u in unknowns if u.start < u.end),
        covered=tuple((start, end) for start, end in stored["covered"]),
        partials=tuple(Partial((model, size), start, end) for model, size, start, end in stored["partials"]),
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _infinite(value: float | None) -> float:
    return FOREVER if value is None else value
