"""Timelines of layouts per (store, model, world size), merged over all servers of the store (RULES.md C1–C5, C8). Pure.

A timeline is a list of segments. Each says which layouts can have been written then, whether anything else can (`?`),
which declared generation it was, and whether what was written may rest on wrong records (C8).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from app.lmcache.layouts import KVLayout, Verdict, compare_layouts
from app.records.history import AFTER, BEFORE, FOREVER, Presence, ServerHistory
from app.records.polls import Owner

BEFORE_FIRST_SEEN, OBSERVATION_GAP = "before_first_seen", "observation_gap"
NS = 1_000_000_000
EARLIEST, LATEST = -(2**62), 2**62

#: (model as in record names, from, until) -> the earliest time from which hits cannot be excluded; None: none.
HitEvidence = Callable[[str, float, float], float | None]


def hits_unknown(_model: str, start: float, _end: float) -> float | None:
    """No counter counts as yes (C8)."""
    return start


class Declaration(NamedTuple):
    """A declared generation of a model: what is older is of other weights."""

    model: str
    at: float


class Adoption(NamedTuple):
    """What is not known until `until` is taken as `layout`'s; `same_as` are fingerprints equated with it."""

    model: str
    world_size: int
    layout: KVLayout
    until: float
    same_as: frozenset[str]


class Cleared(NamedTuple):
    """L2, L1 and L0 were cleared of wrong records of a model (`world_size` None: of all its world sizes).

    `reopened`: wrong records were put back at this time instead.
    """

    model: str
    world_size: int | None
    at: float
    reopened: bool = False


@dataclass(frozen=True)
class Segment:
    """One stretch of a timeline, from `start` (ns) to the next one's. `layouts` are indices into the timeline's."""

    start: int
    layouts: frozenset[int]
    unknown: str | None  # the reason code, if anything can have been written
    trailing: bool  # unknown because no poll has followed yet
    generation: int
    split: bool  # one engine's workers over two servers (C5)
    derived: bool

    def same_as(self, other: Segment) -> bool:
        return (
            self.layouts == other.layouts
            and self.unknown == other.unknown
            and self.trailing == other.trailing
            and self.generation == other.generation
            and self.split == other.split
            and self.derived == other.derived
        )


class Window(NamedTuple):
    """What can have been written around one time: the union over the segments it touches."""

    layouts: frozenset[int]
    unknown: str | None
    trailing: bool
    oldest_generation: int
    newest_generation: int
    split: bool
    derived: bool


@dataclass(frozen=True)
class ModelTimeline:
    """The timeline of one (model, world size)."""

    owner: Owner
    layouts: tuple[KVLayout, ...]
    segments: tuple[Segment, ...]
    live: tuple[int, ...]  # indices; one per layout that is not proven the same as another live one
    listed_now: bool
    absent_seconds: float  # polled time since a server last listed it
    adoptions: tuple[Adoption, ...] = ()
    presences: tuple[Presence, ...] = ()

    @cached_property
    def starts(self) -> list[int]:
        return [segment.start for segment in self.segments]

    @property
    def generation(self) -> int:
        """The present declared generation."""
        return self.segments[-1].generation

    def window(self, low: int, high: int) -> Window:
        """The union of the segments that touch [low, high], ns."""
        first = bisect_right(self.starts, low) - 1
        last = bisect_right(self.starts, high) - 1
        found = self.segments[max(first, 0) : last + 1]
        reasons = {segment.unknown for segment in found} - {None}
        return Window(
            frozenset().union(*(segment.layouts for segment in found)),
            BEFORE_FIRST_SEEN if BEFORE_FIRST_SEEN in reasons else next(iter(reasons), None),
            any(segment.trailing for segment in found),
            min(segment.generation for segment in found),
            max(segment.generation for segment in found),
            any(segment.split for segment in found),
            any(segment.derived for segment in found),
        )

    def relate(self, a: int, b: int) -> Verdict:
        """How two layouts compare, adoptions counted in."""
        return self._relations[a][b]

    @cached_property
    def _relations(self) -> list[list[Verdict]]:
        return [[_relate(a, b, self.adoptions) for b in self.layouts] for a in self.layouts]


@dataclass(frozen=True)
class StoreTimeline:
    """All timelines of one store. `servers` are those that use it now; `line` makes the timeline of any other owner."""

    models: dict[Owner, ModelTimeline]
    servers: Mapping[int, ServerHistory]
    line: Callable[[Owner], ModelTimeline]
    #: Seconds after a time in which good polls of every server say everything.
    polled_since: Callable[[float], float]

    def of(self, owner: Owner) -> ModelTimeline:
        """The timeline of an owner; of one that no server ever listed too (it knows only what is not known)."""
        known = self.models.get(owner)
        if known is None:
            known = self.models[owner] = self.line(owner)
        return known

    @property
    def observed(self) -> bool:
        """Whether any server of the store was ever polled well."""
        return any(history.seen for history in self.servers.values())

    def fresh(self, now: float, limit: float) -> bool:
        """Whether the last poll of every server was good and is at most `limit` seconds old."""
        return bool(self.servers) and all(
            history.last_poll_ok and history.last_poll_at is not None and now - history.last_poll_at <= limit
            for history in self.servers.values()
        )

    def known_models(self) -> dict[str, str]:
        """Model names as in record names, with the name LMCache uses for it (paths hold ``/`` where names do not)."""
        return {owner[0]: layout.model_name for owner, line in self.models.items() for layout in line.layouts}


def build_timeline(
    servers: Mapping[int, ServerHistory],
    *,
    now: float,
    poll_seconds: float,
    former: Iterable[ServerHistory] = (),
    declarations: Sequence[Declaration] = (),
    adoptions: Sequence[Adoption] = (),
    cleared: Sequence[Cleared] = (),
    hits: HitEvidence = hits_unknown,
    absent_for: float = 7 * 86400.0,
) -> StoreTimeline:
    """Merges the histories of a store's servers (`former`: of servers that used it once) into its timelines.

    Times are epoch seconds of the panel. `absent_for` is polled time after which a layout nobody lists is not live.
    """
    merge = _Merge(
        servers,
        tuple(former),
        now,
        poll_seconds,
        tuple(sorted((d for d in declarations if d.at <= now), key=lambda d: d.at)),
        tuple(adoptions),
        tuple(cleared),
        hits,
        absent_for,
    )
    owners = {presence.owner for history in merge.all for presence in history.presences}
    owners |= {(adoption.model, adoption.world_size) for adoption in adoptions}
    models = {owner: merge.line(owner) for owner in sorted(owners)}
    return StoreTimeline(models, servers, merge.line, merge.polled_since)


@dataclass(frozen=True)
class _Merge:
    servers: Mapping[int, ServerHistory]
    former: tuple[ServerHistory, ...]
    now: float
    poll_seconds: float
    declarations: tuple[Declaration, ...]
    adoptions: tuple[Adoption, ...]
    cleared: tuple[Cleared, ...]
    hits: HitEvidence
    absent_for: float

    @cached_property
    def all(self) -> tuple[ServerHistory, ...]:
        return (*self.servers.values(), *self.former)

    def line(self, owner: Owner) -> ModelTimeline:
        presences = sorted(
            (p for history in self.all for p in history.presences if p.owner == owner), key=lambda p: (p.start, p.end)
        )
        adoptions = tuple(a for a in self.adoptions if (a.model, a.world_size) == owner)
        layouts = list(dict.fromkeys([*(p.layout for p in presences), *(a.layout for a in adoptions)]))
        index = {layout: number for number, layout in enumerate(layouts)}
        generations = [d.at for d in self.declarations if d.model == owner[0]]
        derived = self._derived(owner, presences, adoptions, generations)
        segments = self._segments(owner, presences, index, adoptions, generations, derived)
        live, listed, absent = self._live(owner, presences, index, adoptions)
        return ModelTimeline(owner, tuple(layouts), tuple(segments), live, listed, absent, adoptions, tuple(presences))

    # segments

    def _segments(
        self,
        owner: Owner,
        presences: Sequence[Presence],
        index: Mapping[KVLayout, int],
        adoptions: Sequence[Adoption],
        generations: Sequence[float],
        derived: Sequence[tuple[float, float]],
    ) -> list[Segment]:
        spans: list[tuple[float, float, tuple[str, object]]] = []
        spans += [(p.start, p.end, ("layout", index[p.layout])) for p in presences]
        spans += [(u.start, u.end, ("unknown", u.kind)) for history in self.all for u in history.unknowns]
        spans += [(EARLIEST / NS, adoption.until, ("adopted", index[adoption.layout])) for adoption in adoptions]
        spans += [(start, end, ("derived", True)) for start, end in derived]
        spans += [(start, FOREVER, ("generation", start)) for start in generations]
        for history in self.all:
            spans += [(p.start, p.end, ("partial", id(history))) for p in history.partials if p.owner == owner]
        events: dict[int, list[tuple[bool, tuple[str, object]]]] = {EARLIEST: []}
        for start, end, what in spans:
            if start < end:
                events.setdefault(_ns(start), []).append((True, what))
                events.setdefault(_ns(end), []).append((False, what))
        active: dict[tuple[str, object], int] = {}
        segments: list[Segment] = []
        for at in sorted(events):
            for begins, what in events[at]:
                active[what] = active.get(what, 0) + (1 if begins else -1)
            if at >= LATEST:
                break
            segment = _segment(at, {what for what, count in active.items() if count > 0})
            if not segments or not segment.same_as(segments[-1]):
                segments.append(segment)
        return segments

    def _derived(
        self,
        owner: Owner,
        presences: Sequence[Presence],
        adoptions: Sequence[Adoption],
        generations: Sequence[float],
    ) -> list[tuple[float, float]]:
        """Times after a proven (or declared) change until the caches were cleared, while hits occurred.

        Wrong records that were put back count as a change: engines may read them from then on.
        """
        told = [c for c in self.cleared if c.model == owner[0] and c.world_size in (None, owner[1])]
        clears = sorted(c.at for c in told if not c.reopened)
        changes = {*generations, *(c.at for c in told if c.reopened)}
        for presence in presences:
            last_clear = max((at for at in clears if at <= presence.start), default=-FOREVER)
            for other in presences:
                if other.start >= presence.start or other.end <= last_clear or other.layout == presence.layout:
                    continue
                if _relate(other.layout, presence.layout, adoptions) is Verdict.DIFFERENT:
                    changes.add(presence.start)
        found: list[tuple[float, float]] = []
        for change in sorted(changes):
            end = min((at for at in clears if at > change), default=FOREVER)
            first_hit = self.hits(owner[0], change, min(end, self.now))
            if first_hit is not None and first_hit < end:
                found.append((max(change, first_hit), end))
        return found

    # what is live

    def _live(
        self,
        owner: Owner,
        presences: Sequence[Presence],
        index: Mapping[KVLayout, int],
        adoptions: Sequence[Adoption],
    ) -> tuple[tuple[int, ...], bool, float]:
        """(indices of the live layouts, whether a server lists one now, polled seconds since one did)."""
        listed = {
            layout
            for history in self.servers.values()
            if history.latest is not None
            for layout in history.latest.layouts.get(owner, ())
        }
        if listed:
            return self._distinct(listed, index, adoptions), True, 0.0
        if not presences:
            return (), False, self.polled_since(-FOREVER)
        last = max(p.last_listed for p in presences)
        absent = self.polled_since(last)
        if absent >= self.absent_for:
            return (), False, absent
        newest = {p.layout for p in presences if p.last_listed == last}
        return self._distinct(newest, index, adoptions), False, absent

    def _distinct(
        self, layouts: Iterable[KVLayout], index: Mapping[KVLayout, int], adoptions: Sequence[Adoption]
    ) -> tuple[int, ...]:
        kept: list[KVLayout] = []
        for layout in sorted(layouts, key=lambda layout: index[layout]):
            if all(_relate(layout, other, adoptions) is not Verdict.SAME for other in kept):
                kept.append(layout)
        return tuple(index[layout] for layout in kept)

    def polled_since(self, since: float) -> float:
        """Seconds after `since` in which good polls of every server say everything."""
        common: list[tuple[float, float]] | None = None
        for history in self.servers.values():
            common = list(history.covered) if common is None else _both(common, history.covered)
        return sum(max(0.0, end - max(start, since)) for start, end in common or [])


def _segment(at: int, active: set[tuple[str, object]]) -> Segment:
    layouts = {number for kind, number in active if kind == "layout"}
    kinds = {kind for what, kind in active if what == "unknown"}
    adopted = {number for what, number in active if what == "adopted"}
    unknown: str | None = None
    if kinds:
        unknown = BEFORE_FIRST_SEEN if BEFORE in kinds else OBSERVATION_GAP
        if adopted:
            unknown = None
            layouts |= adopted
            kinds = set()
    return Segment(
        start=at,
        layouts=frozenset(number for number in layouts if isinstance(number, int)),
        unknown=unknown,
        trailing=AFTER in kinds,
        generation=sum(1 for what, _ in active if what == "generation"),
        split=sum(1 for what, _ in active if what == "partial") > 1,
        derived=("derived", True) in active,
    )


def _relate(a: KVLayout, b: KVLayout, adoptions: Sequence[Adoption]) -> Verdict:
    verdict = compare_layouts(a, b).verdict
    if verdict is Verdict.UNKNOWN:
        for adoption in adoptions:
            group = adoption.same_as | {adoption.layout.fingerprint}
            if a.fingerprint in group and b.fingerprint in group and a.proves_current and b.proves_current:
                return Verdict.SAME
    return verdict


def _both(left: Iterable[tuple[float, float]], right: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The times that lie in both of two sorted lists of intervals."""
    a, b = list(left), list(right)
    found: list[tuple[float, float]] = []
    i = j = 0
    while i < len(a) and j < len(b):
        start, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if start < end:
            found.append((start, end))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return found


def _ns(seconds: float) -> int:
    if seconds == FOREVER:
        return LATEST
    if seconds == -FOREVER:
        return EARLIEST
    return max(EARLIEST, min(LATEST, round(seconds * NS)))
