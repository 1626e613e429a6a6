"""From candidates to a plan. Pure: no clock, no disk, no session; it streams, so that a million records cost no memory.

`Planner(policy, facts, now)`; iterate `items(source)` to the end, then read `summary()`. Order: the certain classes
(incompatible, corrupt, unreachable, derived), unfinished writes, an explicit filter, unused, and last capacity and free
space by least recent use down to the low mark. Rules: R1 (frozen facts), R3 (what is deleted), R6 (use), R8, CONTRACT.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from app.cleanup.goals import Need, capacity_need, floor_need
from app.cleanup.policy import REASONS, USE_KINDS, PolicySpec, Select
from app.cleanup.ports import RESTORED, Candidate, Selection
from app.cleanup.quantities import Age

DAY_NS = 86_400 * 10**9
#: On relatime mounts an access time moves at most once in this time, so a shorter one cannot be told.
RELATIME_SECONDS = 86_400
#: A read this soon after the write is taken for the write itself (both set the access time).
_READ_AFTER_NS = 2 * 10**9
#: Unfinished writes younger than this are never taken, whatever an explicit filter says.
_TEMPORARY_MIN_NS = 600 * 10**9
#: Clock difference between panel and file system that age tests allow for.
_CLOCK_SLACK_NS = 2 * 10**9

Source = Callable[[Selection], Iterable[Candidate]]


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """What is known of a store when a plan is made. Bytes; None is unknown.

    `atime`: strictatime, relatime, noatime or unknown. `served_now`: models that a server of the store lists, None
    when no server could be asked; `last_served`: {model: epoch seconds it was last listed}.
    """

    records: int
    bytes: int
    quarantine_bytes: int = 0
    fs_total: int | None = None
    fs_used: int | None = None
    fs_free: int | None = None
    block_size: int = 4096
    atime: str = "relatime"
    scanned_at: float | None = None
    device: int | None = None
    served_now: frozenset[str] | None = None
    last_served: Mapping[str, float] = field(default_factory=dict)
    adapter_evicts: bool | None = None


class Item(NamedTuple):
    """One planned record: a row of `plan_item` without the plan's id."""

    seq: int
    name: bytes
    size: int
    mtime_ns: int
    ctime_ns: int
    atime_ns: int
    inode: int
    device: int
    cls: str
    reason: str | None
    why: str
    action: str
    record_id: int | None


@dataclass(slots=True)
class Tally:
    """Records and bytes, counted up."""

    records: int = 0
    bytes: int = 0

    def add(self, size: int) -> None:
        self.records += 1
        self.bytes += size

    def pair(self) -> list[int]:
        return [self.records, self.bytes]


@dataclass(frozen=True, slots=True)
class Summary:
    """Everything a plan says beside its items. `goal` is None without capacity or free_space."""

    records: int
    bytes: int
    by_reason: dict[str, list[int]]
    held_back: dict[str, list[int]]
    leaves_records: int
    leaves_bytes: int
    leaves_free_bytes: int | None
    used_last_day: list[int] | None
    used_last_week: list[int] | None
    use_reason: str | None
    need: Need | None
    freed_bytes: int
    limited: str | None
    by_model: dict[str, int]


class Planner:
    """Makes one plan. `rounding` of sizes to blocks is how much a deletion frees."""

    def __init__(self, policy: PolicySpec, facts: StoreFacts, now: float) -> None:
        self.policy = policy
        self.facts = facts
        self.now_ns = int(now * 1e9)
        self.knows_use = facts.atime != "noatime"
        self._block = max(facts.block_size, 1)
        self._seq = 0
        self._total = Tally()
        self._freed = 0
        self._by_reason: dict[str, Tally] = {}
        self._held_back: dict[str, Tally] = {}
        self._by_model: dict[str, int] = {}
        self._day, self._week = Tally(), Tally()
        self._limited: str | None = None
        self._need: Need | None = None
        self._accessed_ns = self._visible_ns(policy.protect.accessed_within) if policy.protect.accessed_within else 0
        self._written_ns = policy.protect.written_within.seconds * 10**9 if policy.protect.written_within else 0
        self._models = frozenset(policy.protect.models)
        unused, temporary = policy.item("unused"), policy.item("temporary")
        self._unused = unused
        self._unused_before = self.now_ns - self._unused_ns(unused) if unused else 0
        self._temporary_before = (
            self.now_ns - temporary.age.seconds * 10**9 - _CLOCK_SLACK_NS if temporary and temporary.age else 0
        )
        self._certain = self._certain_classes()
        self._max_records, self._max_bytes = self._limits()

    def items(self, source: Source) -> Iterator[Item]:
        """The items in the order in which they go. Read `summary()` when this is used up."""
        # At a limit the list ends: what would come later would have to jump the queue.
        for phase in (self._certain_phase, self._filter_phase, self._unused_phase, self._space_phase):
            if self._limited is None:
                yield from phase(source)

    # phases

    def _certain_phase(self, source: Source) -> Iterator[Item]:
        classes: dict[str, frozenset[str] | None] = dict(self._certain)
        if self.policy.item("temporary"):
            classes["temporary"] = None
        if classes:
            for candidate in source(Selection(classes=classes)):
                why = self.certain(candidate)
                if why is not None and not self._hold_back(candidate, why):
                    item = self._take(candidate, why)
                    if item is None:
                        return
                    yield item

    def _filter_phase(self, source: Source) -> Iterator[Item]:
        if self.policy.filters is None:
            return
        for candidate in source(Selection(filters=self.policy.filters)):
            if candidate.cls == "foreign" or self._hold_back(candidate, "filter"):
                continue
            item = self._take(candidate, "filter")
            if item is None:
                return
            yield item

    def _unused_phase(self, source: Source) -> Iterator[Item]:
        if self._unused is None:
            return
        by_age = self._unused.age_only
        selection = Selection(unused_since_ns=self._unused_before, by_age=by_age, least_recent_first=True)
        for candidate in source(selection):
            if candidate.cls in ("foreign", "temporary") or self.certain(candidate) is not None:
                continue
            if not self.is_unused(candidate) or self._hold_back(candidate, "unused"):
                continue
            item = self._take(candidate, "unused")
            if item is None:
                return
            yield item

    def _space_phase(self, source: Source) -> Iterator[Item]:
        capacity, floor = self.policy.item("capacity"), self.policy.item("free_space")
        if capacity is None and floor is None:
            return
        needs = [capacity_need(capacity, self.facts), floor_need(floor, self.facts)]
        self._need = need = max((n for n in needs if n is not None), key=lambda n: n.bytes, default=Need(0, "", ()))
        if need.bytes <= self._freed:
            return
        for candidate in source(Selection(least_recent_first=True, by_age=not self.knows_use)):
            if candidate.cls in ("foreign", "temporary") or self.certain(candidate) is not None:
                continue
            if self._unused is not None and self.is_unused(candidate):
                continue
            if self._hold_back(candidate, need.kind):
                continue
            item = self._take(candidate, need.kind)
            if item is None:
                return
            yield item
            if self._freed >= need.bytes:
                return

    # predicates

    def certain(self, candidate: Candidate) -> str | None:
        """The select kind that takes a candidate for what it is, or None."""
        cls = candidate.cls
        if cls == "temporary":
            if self._temporary_before and max(candidate.mtime_ns, candidate.ctime_ns) < self._temporary_before:
                return "temporary"
            return None
        reasons = self._certain.get(cls)
        if reasons is None or candidate.reason not in reasons:
            return None
        return "derived" if cls == "unverified" else cls

    def is_unused(self, candidate: Candidate) -> bool:
        """Whether the select item `unused` takes a candidate by its times."""
        if self._unused is None:
            return False
        last = candidate.mtime_ns if self._unused.age_only else max(candidate.atime_ns, candidate.mtime_ns)
        return last < self._unused_before

    def _hold_back(self, candidate: Candidate, why: str) -> bool:
        """Counts and refuses what is protected."""
        reason: str | None = None
        if candidate.held is not None and not (candidate.held == RESTORED and why == "filter"):
            # What was restored is left alone by policies; somebody who picks it by hand means it. Canaries stay.
            reason = candidate.held
        elif candidate.model is not None and candidate.model in self._models:
            reason = "protected_model"
        elif self._written_ns and candidate.mtime_ns > self.now_ns - self._written_ns and why != "temporary":
            reason = "written_within"
        elif self._accessed_ns and why in USE_KINDS:
            last = max(candidate.atime_ns, candidate.mtime_ns) if self.knows_use else candidate.mtime_ns
            if last > self.now_ns - self._accessed_ns:
                reason = "accessed_within"
        if reason is None and why == "filter" and candidate.cls == "temporary":
            # An unfinished write may be going on: only an old one is dead, even when somebody asked for it.
            young = max(candidate.mtime_ns, candidate.ctime_ns) > self.now_ns - _TEMPORARY_MIN_NS
            reason = "too_young" if young else None
        if reason is None and self.facts.device is not None and candidate.device != self.facts.device:
            reason = "other_device"
        if reason is None:
            return False
        self._held_back.setdefault(reason, Tally()).add(candidate.size)
        return True

    def _take(self, candidate: Candidate, why: str) -> Item | None:
        """The item, counted; None when a limit forbids it."""
        size = candidate.size
        if self._total.records >= self._max_records:
            self._limited = self._limit_name("records")
            return None
        if self._total.bytes + size > self._max_bytes:
            self._limited = self._limit_name("bytes")
            return None
        action = self.policy.action_for(why, candidate.reason)
        if action == "delete":
            self._freed += -(-size // self._block) * self._block
        self._total.add(size)
        key = reason_key(why, candidate.cls, candidate.reason)
        tally = self._by_reason.get(key)
        if tally is None:
            tally = self._by_reason[key] = Tally()
        tally.records += 1
        tally.bytes += size
        if candidate.model is not None:
            self._by_model[candidate.model] = self._by_model.get(candidate.model, 0) + 1
        if self.knows_use and candidate.atime_ns - candidate.mtime_ns > _READ_AFTER_NS:
            age = self.now_ns - candidate.atime_ns
            if age < 7 * DAY_NS:
                self._week.add(size)
                if age < DAY_NS:
                    self._day.add(size)
        self._seq += 1
        return Item(self._seq, *candidate[:9], why, action, candidate.record_id)

    # what the mount can show, and limits

    def _visible_ns(self, age: Age | None) -> int:
        seconds = age.seconds if age else 0
        if self.facts.atime in ("relatime", "unknown"):
            seconds = max(seconds, RELATIME_SECONDS)
        return seconds * 10**9

    def _unused_ns(self, item: Select) -> int:
        if item.age_only and item.age is not None:
            return item.age.seconds * 10**9
        return self._visible_ns(item.age)

    def _certain_classes(self) -> dict[str, frozenset[str]]:
        found = {cls: self.policy.reasons_of(cls) for cls in REASONS if self.policy.item(cls)}
        if self.policy.item("derived"):
            found["unverified"] = frozenset({"derived"})
        return found

    def _limits(self) -> tuple[int, int]:
        limits = self.policy.limits
        records = limits.max_records if limits.max_records is not None else 2**62
        size = limits.max_bytes.bytes if limits.max_bytes is not None and limits.max_bytes.bytes is not None else 2**62
        if limits.max_fraction is not None:
            records = min(records, int(self.facts.records * limits.max_fraction))
            size = min(size, int(self.facts.bytes * limits.max_fraction))
        return records, size

    def _limit_name(self, what: str) -> str:
        limits = self.policy.limits
        bound = limits.max_records if what == "records" else limits.max_bytes and limits.max_bytes.bytes
        own = self._max_records if what == "records" else self._max_bytes
        return f"max_{what}" if bound == own else "max_fraction"

    def summary(self) -> Summary:
        """Totals; `items` must have been used up."""
        free = self.facts.fs_free
        return Summary(
            records=self._total.records,
            bytes=self._total.bytes,
            by_reason={k: t.pair() for k, t in self._by_reason.items()},
            held_back={k: t.pair() for k, t in self._held_back.items()},
            leaves_records=max(self.facts.records - self._total.records, 0),
            leaves_bytes=max(self.facts.bytes - self._total.bytes, 0),
            leaves_free_bytes=None if free is None else free + self._freed,
            used_last_day=self._day.pair() if self.knows_use else None,
            used_last_week=self._week.pair() if self.knows_use else None,
            use_reason=None if self.knows_use else "the mount keeps no access times (noatime)",
            need=self._need,
            freed_bytes=self._freed,
            limited=self._limited,
            by_model=self._by_model,
        )


def reason_key(why: str, cls: str, reason: str | None) -> str:
    """Under what a record is counted: its reason where its class is why it goes, else the select kind."""
    return reason or cls if why in REASONS or why == "derived" else why


@dataclass(frozen=True, slots=True)
class PlanResult:
    """A whole plan in memory, for small ones and for tests."""

    items: list[Item]
    summary: Summary


def make_plan(candidates: Iterable[Candidate], policy: PolicySpec, facts: StoreFacts, now: float) -> PlanResult:
    """Plan over a list of candidates (each phase goes over all of them in the order it asks for)."""
    everything = list(candidates)

    def source(selection: Selection) -> Iterable[Candidate]:
        if not selection.least_recent_first:
            return everything
        if selection.by_age:
            return sorted(everything, key=lambda c: (c.mtime_ns, c.name))
        return sorted(everything, key=lambda c: (max(c.atime_ns, c.mtime_ns), c.name))

    planner = Planner(policy, facts, now)
    return PlanResult(list(planner.items(source)), planner.summary())
