"""What a record is: `classify(fact, name, context) -> Judgement` (RULES.md §1, C0–C8). Pure.

`classify` is the plain reading of the rules, one record at a time. `OwnerJudge` gives the same answers for a million
records: for one owner (name form, model, rank, group) the answer depends only on the time segment and the size, so it
is computed once for each such pair. A property test holds the two together.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from app.lmcache.layouts import KVLayout, Verdict
from app.lmcache.object_keys import ParsedName, parse_name
from app.records.facts import FileFact, Judgement
from app.records.history import FOREVER
from app.records.polls import Owner
from app.records.sizes import SizeBook, SizeEvidence, SizeOwner, prove_size
from app.records.timeline import EARLIEST, NS, ModelTimeline, StoreTimeline, Window

_EMPTY_AGE_NS = 600 * NS
#: The first release whose records carry an object group, and which never looks up names without one (C7).
GROUPS_SINCE = (0, 5, 0)

# A usual file name ends with 64 hex digits and ".data"; what stands before them names the owner.
_HASH_AT, _HASH_BYTES = -69, 32
_HASH_AND_SUFFIX = re.compile(rb"[0-9a-f]{64}\.data")

FOREIGN = Judgement("foreign")
TEMPORARY = Judgement("temporary")


class RecordOwner(NamedTuple):
    """What of a name decides the class: its form, not its hash or salt. `group` None: the legacy form."""

    model: str
    kv_rank: int
    group: int | None
    temporary: bool

    @property
    def world_size(self) -> int:
        return self.kv_rank >> 24 & 0xFF

    @property
    def line(self) -> Owner:
        return self.model, self.world_size

    @classmethod
    def of(cls, name: ParsedName) -> RecordOwner:
        return cls(name.model, name.kv_rank, name.object_group_id, name.temporary)


@dataclass(frozen=True)
class ServerState:
    """What C5 and C7 need of one server of the store, now. `process_start` is of the panel's clock."""

    healthy: bool
    polled_now: bool
    version: tuple[int, ...] | None
    process_start: float | None


@dataclass(frozen=True)
class Context:
    """Everything outside the record that its class depends on. Times in ns.

    `margin`: g of C3. `fresh`: every server of the store answered a poll just now; without that nothing is called
    `incompatible` by its layout, for what is live now may not have been seen yet.
    """

    now: int
    margin: int
    timeline: StoreTimeline
    sizes: SizeBook = field(default_factory=SizeBook)
    servers: Mapping[int, ServerState] = field(default_factory=dict)
    fresh: bool = True
    absent_for: float = 7 * 86400.0

    @property
    def all_healthy(self) -> bool:
        return bool(self.servers) and all(state.healthy for state in self.servers.values())

    @property
    def legacy_before(self) -> int | None:
        """Legacy names written before this time are unreachable; None: that cannot be said (C7)."""
        starts: list[float] = []
        for state in self.servers.values():
            if not state.polled_now or state.process_start is None or (state.version or ()) < GROUPS_SINCE:
                return None
            starts.append(state.process_start)
        return round(min(starts) * NS) - self.margin if starts else None


def classify(fact: FileFact, name: ParsedName | None, context: Context) -> Judgement:
    """The class and the reason of one file. `name` is what its relative name parses to."""
    if name is None or not fact.regular:
        return FOREIGN
    owner = RecordOwner.of(name)
    return _judge(owner, fact.mtime_ns, fact.size, context)


def window_of(owner: RecordOwner, mtime_ns: int, context: Context) -> Window:
    """What can have been written when a record was (C3)."""
    return context.timeline.of(owner.line).window(mtime_ns - context.margin, mtime_ns + context.margin)


def single_layout(window: Window, line: ModelTimeline) -> KVLayout | None:
    """The one layout a window allows, or None: several, none, or something unknown."""
    if window.unknown is not None or window.split or not window.layouts:
        return None
    first = min(window.layouts)
    if any(line.relate(first, other) is not Verdict.SAME for other in window.layouts if other != first):
        return None
    return line.layouts[first]


def _judge(owner: RecordOwner, mtime: int, size: int, context: Context) -> Judgement:
    if owner.temporary:
        return TEMPORARY
    line = context.timeline.of(owner.line)
    window = window_of(owner, mtime, context)
    only = single_layout(window, line)
    epoch = only.fingerprint if only is not None else None
    if owner.group is None and context.legacy_before is not None and mtime < context.legacy_before:
        return Judgement("unreachable", "legacy_name", epoch)
    if size == 0 and mtime < context.now - _EMPTY_AGE_NS:
        return Judgement("corrupt", "empty", epoch)
    if window.newest_generation < line.generation:
        return Judgement("incompatible", "declared", epoch)
    if owner.group is None:
        # On 0.4.x this is the live form, and nothing tells the two apart.
        return Judgement("unverified", "layout_unknown", epoch)
    if _other_layout(window, line) and context.fresh:
        return Judgement("incompatible", "other_layout", epoch)
    fault = _size_fault(owner, mtime, size, window, line, only, context)
    if fault is not None:
        return Judgement(*fault, epoch)
    gone = _owner_gone(owner, line, context)
    if gone is not None:
        return Judgement("incompatible", gone, epoch)
    reason = _doubt(mtime, window, line, context)
    return Judgement("current", None, epoch) if reason is None else Judgement("unverified", reason, epoch)


def _other_layout(window: Window, line: ModelTimeline) -> bool:
    if window.unknown is not None or window.split or not window.layouts or not line.live:
        return False
    return all(line.relate(candidate, live) is Verdict.DIFFERENT for candidate in window.layouts for live in line.live)


def _size_fault(
    owner: RecordOwner,
    mtime: int,
    size: int,
    window: Window,
    line: ModelTimeline,
    only: KVLayout | None,
    context: Context,
) -> tuple[str, str] | None:
    evidence = size_evidence(owner, mtime, window, line, only, context)
    if evidence is None or evidence.expected is None or size in evidence.accepted:
        return None
    if only is not None:
        return ("corrupt", "short" if size < evidence.expected else "long")
    return ("incompatible", "other_size") if evidence.proves_others and context.fresh else None


def size_evidence(
    owner: RecordOwner, mtime: int, window: Window, line: ModelTimeline, only: KVLayout | None, context: Context
) -> SizeEvidence | None:
    """The evidence that judges this record's size, or None where no size rule applies to its window."""
    key = (owner.model, owner.kv_rank, owner.group)
    if only is not None:
        return context.sizes.of(key, only)
    # Where anything can have been written, only the live layout's size tells; what no poll has followed yet may be of
    # a layout that is live already and was not seen.
    if window.unknown is None or window.trailing or window.split or len(line.live) != 1:
        return None
    if mtime > context.now + context.margin:
        return None
    return context.sizes.of(key, line.layouts[line.live[0]])


def _owner_gone(owner: RecordOwner, line: ModelTimeline, context: Context) -> str | None:
    """C5: nobody uses records of this owner any more, and that for long."""
    if not context.all_healthy or not context.fresh:
        return None
    if not line.listed_now:
        if line.absent_seconds < context.absent_for:
            return None
        served = any(other.listed_now for other in context.timeline.models.values() if other.owner[0] == owner.model)
        return "other_world_size" if served else "model_not_served"
    live = [line.layouts[number] for number in line.live]
    if not all(layout.groups for layout in live):
        return None
    if any(group.index == owner.group for layout in live for group in layout.groups):
        return None
    last = max(
        (
            presence.last_listed
            for presence in line.presences
            if not presence.layout.groups or any(group.index == owner.group for group in presence.layout.groups)
        ),
        default=-FOREVER,
    )
    return "unknown_object_group" if context.timeline.polled_since(last) >= context.absent_for else None


def _doubt(mtime: int, window: Window, line: ModelTimeline, context: Context) -> str | None:
    """Why a record is not `current`; None when it is (C4)."""
    if mtime > context.now + context.margin:
        return "future_mtime"
    if not context.timeline.observed and not window.layouts:
        return "layout_unknown"
    if window.unknown is not None:
        return window.unknown
    if not window.layouts or not line.live:
        return "layout_unknown"
    if window.split or window.oldest_generation != line.generation:
        return "mixed_layouts"
    verdicts = {line.relate(candidate, live) for candidate in window.layouts for live in line.live}
    if Verdict.UNKNOWN in verdicts:
        return "layout_unknown"
    if len(line.live) > 1 or verdicts != {Verdict.SAME}:
        return "mixed_layouts"
    return "derived" if window.derived else None


class Sample(NamedTuple):
    """Records of one owner that lie in one time segment: how many, and their size (None: several sizes)."""

    owner: RecordOwner
    mtime_ns: int
    size: int | None
    records: int


def learn_sizes(samples: Iterable[Sample], context: Context, alignments: Iterable[int]) -> SizeBook:
    """What the sizes on disk prove (C6): records whose window allows one layout only are what is learnt from."""
    counts: dict[tuple[SizeOwner, str], dict[int, int]] = {}
    others: dict[tuple[SizeOwner, str], int] = {}
    layouts: dict[tuple[SizeOwner, str], KVLayout] = {}
    for sample in samples:
        owner = sample.owner
        if owner.temporary or owner.group is None:
            continue
        line = context.timeline.of(owner.line)
        layout = single_layout(window_of(owner, sample.mtime_ns, context), line)
        if layout is None:
            continue
        key = ((owner.model, owner.kv_rank, owner.group), layout.fingerprint)
        layouts[key] = layout
        if sample.size is None:
            others[key] = others.get(key, 0) + sample.records
        else:
            sizes = counts.setdefault(key, {})
            sizes[sample.size] = sizes.get(sample.size, 0) + sample.records
    steps = tuple(alignments)
    return SizeBook(
        {
            key: prove_size(layout, key[0][2], counts.get(key, {}), others.get(key, 0), steps)
            for key, layout in layouts.items()
        }
    )


def classify_facts(facts: Iterable[FileFact], temp_dirs: Collection[str], context: Context) -> list[Judgement]:
    """`classify` for many files of few owners: what was found for one record is kept for the next like it.

    Flat names of one owner differ in their hash alone, so one of them is parsed for all.
    """
    judges: dict[RecordOwner, OwnerJudge] = {}
    heads: dict[bytes, OwnerJudge] = {}
    judged: list[Judgement] = []
    for fact in facts:
        name = fact.name
        judge = heads.get(name[:_HASH_AT])
        if judge is None or not _HASH_AND_SUFFIX.fullmatch(name, len(name) + _HASH_AT):
            parsed = parse_name(name, temp_dirs)
            if parsed is None or not fact.regular:
                judged.append(FOREIGN)
                continue
            owner = RecordOwner.of(parsed)
            judge = judges.get(owner)
            if judge is None:
                judge = judges[owner] = OwnerJudge(owner, context)
            if not (parsed.folder or parsed.cache_salt or parsed.temporary) and len(parsed.chunk_hash) == _HASH_BYTES:
                heads[name[:_HASH_AT]] = judge
        elif not fact.regular:
            judged.append(FOREIGN)
            continue
        judged.append(judge.judge(judge.segment(fact.mtime_ns), fact.size))
    return judged


class OwnerJudge:
    """The quick form of `classify` for one owner: `segment(mtime)` and `judge(segment, size)`, both memoised."""

    def __init__(self, owner: RecordOwner, context: Context) -> None:
        self.owner = owner
        self._context = context
        self.line = context.timeline.of(owner.line)
        self.cuts = _cuts(owner, self.line, context)
        self._memo: dict[tuple[int, int], Judgement] = {}

    def segment(self, mtime_ns: int) -> int:
        """The number of the time segment; within one, only the size decides."""
        return bisect_right(self.cuts, mtime_ns)

    def judge(self, segment: int, size: int) -> Judgement:
        """The class of records of this size in this segment."""
        found = self._memo.get((segment, size))
        if found is None:
            found = _judge(self.owner, self.representative(segment), size, self._context)
            self._memo[segment, size] = found
        return found

    def representative(self, segment: int) -> int:
        """A time that lies in the segment."""
        return self.cuts[segment - 1] if segment else (self.cuts[0] - 1 if self.cuts else 0)

    def size_steps(self, segment: int) -> tuple[int, ...]:
        """Sizes at which the answer may change: between two neighbours (both left out) it is one and the same."""
        mtime = self.representative(segment)
        if self.owner.temporary:
            return ()
        window = window_of(self.owner, mtime, self._context)
        evidence = size_evidence(self.owner, mtime, window, self.line, single_layout(window, self.line), self._context)
        return tuple(sorted({0, *(evidence.accepted if evidence is not None else ())}))


def _cuts(owner: RecordOwner, line: ModelTimeline, context: Context) -> list[int]:
    """The times at which the answer may change, ascending; every comparison has the form ``mtime < cut``."""
    if owner.temporary:
        return []
    margin = context.margin
    found = {boundary + side for boundary in line.starts if boundary != EARLIEST for side in (margin, -margin)}
    found |= {context.now - _EMPTY_AGE_NS, context.now + margin + 1}
    if owner.group is None and context.legacy_before is not None:
        found.add(context.legacy_before)
    return sorted(found)
