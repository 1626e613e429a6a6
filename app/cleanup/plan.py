"""From records to a plan. Pure: no clock, no disk, no session; it streams, so that a million records cost no memory.

`Planner(policy, facts, now)`; iterate `groups(source)` to the end, then read `summary()`. Order: the certain classes
(incompatible, corrupt, unreachable, derived), unfinished writes, an explicit filter, unused, and last capacity and free
space by least recent use down to the low mark. Rules: R1 (frozen facts), R3 (what is deleted), R6 (use), R8, CONTRACT.

Records come and go in batches of one kind: what can be decided for a kind is decided once, and only ages, names on hold
and limits are looked at row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from app.cleanup.goals import Need, capacity_need, floor_need
from app.cleanup.policy import DIRTY_REASONS, REASONS, USE_KINDS, PolicySpec, Select
from app.cleanup.ports import ATIME, CTIME, MTIME, NAME, RESTORED, SIZE, Batch, Row, Selection
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

Source = Callable[[Selection], Iterable[Batch]]


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """What is known of a store when a plan is made. Bytes; None is unknown.

    `atime`: strictatime, relatime, noatime or unknown. `served_now`: models that a server of the store lists, None
    when no server could be asked; `last_served`: {model: epoch seconds it was last listed}. `derived`: records that may
    have been computed behind wrong ones, when the store was judged last. `engines`: (name, whether its GPU cache can be
    reset) of those behind the store's servers; `open_episodes`: models whose caches an earlier run could not clean.
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
    derived: int = 0
    engines: tuple[tuple[str, bool | None], ...] = ()
    open_episodes: frozenset[str] = frozenset()


class Group(NamedTuple):
    """Planned records of one kind, in the order in which they go."""

    cls: str
    reason: str | None
    why: str
    action: str
    device: int
    rows: list[Row]


@dataclass(slots=True)
class Tally:
    """Records and bytes, counted up."""

    records: int = 0
    bytes: int = 0

    def add(self, records: int, size: int) -> None:
        self.records += records
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
    dirty_models: frozenset[str] = frozenset()


class Planner:
    """Makes one plan. `held` are names that must stay, and why; `facts.block_size` is what a deletion frees."""

    def __init__(
        self, policy: PolicySpec, facts: StoreFacts, now: float, held: Mapping[bytes, str] | None = None
    ) -> None:
        self.policy = policy
        self.facts = facts
        self.now_ns = int(now * 1e9)
        self.knows_use = facts.atime != "noatime"
        self._held = held or {}
        self._block = max(facts.block_size, 1)
        self._total = Tally()
        self._freed = 0
        self._by_reason: dict[str, Tally] = {}
        self._held_back: dict[str, Tally] = {}
        self._by_model: dict[str, int] = {}
        self._dirty_models: set[str] = set()
        self._day, self._week = Tally(), Tally()
        self._limited: str | None = None
        self._need: Need | None = None
        protect = policy.protect
        self._accessed_ns = self._visible_ns(protect.accessed_within) if protect.accessed_within else 0
        self._written_ns = protect.written_within.seconds * 10**9 if protect.written_within else 0
        self._models = frozenset(protect.models)
        unused, temporary = policy.item("unused"), policy.item("temporary")
        self._unused = unused
        self._unused_before = self.now_ns - self._unused_ns(unused) if unused else 0
        self._temporary_before = (
            self.now_ns - temporary.age.seconds * 10**9 - _CLOCK_SLACK_NS if temporary and temporary.age else 0
        )
        self._certain = self._certain_classes()
        self._max_records, self._max_bytes = self._limits()

    def groups(self, source: Source) -> Iterator[Group]:
        """The planned records in the order in which they go. Read `summary()` when this is used up."""
        # At a limit the list ends: what would come later would have to jump the queue.
        for phase in (self._certain_phase, self._filter_phase, self._unused_phase, self._space_phase):
            if self._limited is None:
                yield from phase(source)

    # phases

    def _certain_phase(self, source: Source) -> Iterator[Group]:
        classes: dict[str, frozenset[str] | None] = dict(self._certain)
        if self.policy.item("temporary"):
            classes["temporary"] = None
        if not classes:
            return
        for batch in source(Selection(classes=classes)):
            why = self.certain(batch.cls, batch.reason)
            if why is None:
                continue
            rows = self._old_temporaries(batch.rows) if why == "temporary" else batch.rows
            yield from self._take(batch, rows, why)
            if self._limited is not None:
                return

    def _filter_phase(self, source: Source) -> Iterator[Group]:
        if self.policy.filters is None:
            return
        for batch in source(Selection(filters=self.policy.filters)):
            if batch.cls == "foreign":
                continue
            yield from self._take(batch, batch.rows, "filter")
            if self._limited is not None:
                return

    def _unused_phase(self, source: Source) -> Iterator[Group]:
        if self._unused is None:
            return
        selection = Selection(
            unused_since_ns=self._unused_before,
            by_age=self._unused.age_only,
            # Only a limit makes the order matter.
            least_recent_first=self.policy.limits.any,
        )
        for batch in source(selection):
            if batch.cls in ("foreign", "temporary") or self.certain(batch.cls, batch.reason) is not None:
                continue
            yield from self._take(batch, self._unused_rows(batch.rows), "unused")
            if self._limited is not None:
                return

    def _space_phase(self, source: Source) -> Iterator[Group]:
        capacity, floor = self.policy.item("capacity"), self.policy.item("free_space")
        if capacity is None and floor is None:
            return
        needs = [capacity_need(capacity, self.facts), floor_need(floor, self.facts)]
        self._need = need = max((n for n in needs if n is not None), key=lambda n: n.bytes, default=Need(0, "", ()))
        if need.bytes <= self._freed:
            return
        for batch in source(Selection(least_recent_first=True, by_age=not self.knows_use)):
            if batch.cls in ("foreign", "temporary") or self.certain(batch.cls, batch.reason) is not None:
                continue
            rows = batch.rows if self._unused is None else [row for row in batch.rows if not self._is_unused(row)]
            yield from self._take(batch, rows, need.kind, until_freed=need.bytes)
            if self._limited is not None or self._freed >= need.bytes:
                return

    # what is taken for what it is

    def certain(self, cls: str, reason: str | None) -> str | None:
        """The select kind that takes records of a class and reason for what they are, or None."""
        if cls == "temporary":
            return "temporary" if self._temporary_before else None
        reasons = self._certain.get(cls)
        if reasons is None or reason not in reasons:
            return None
        return "derived" if cls == "unverified" else cls

    def _old_temporaries(self, rows: list[Row]) -> list[Row]:
        before = self._temporary_before
        return [row for row in rows if row[MTIME] < before and row[CTIME] < before]

    def _unused_rows(self, rows: list[Row]) -> list[Row]:
        before = self._unused_before
        if self._unused is not None and self._unused.age_only:
            return [row for row in rows if row[MTIME] < before]
        return [row for row in rows if row[ATIME] < before and row[MTIME] < before]

    def _is_unused(self, row: Row) -> bool:
        return bool(self._unused_rows([row]))

    # taking

    def _take(self, batch: Batch, rows: list[Row], why: str, *, until_freed: int | None = None) -> Iterator[Group]:
        """One group of what may go, counted; none when nothing may."""
        rows = self._without_protected(batch, rows, why)
        if not rows:
            return
        action = self.policy.action_for(why, batch.reason)
        rows = self._up_to_limits(rows, action, until_freed)
        if not rows:
            return
        size = sum([row[SIZE] for row in rows])
        self._total.add(len(rows), size)
        self._by_reason.setdefault(reason_key(why, batch.cls, batch.reason), Tally()).add(len(rows), size)
        if action == "delete":
            block = self._block
            self._freed += sum([-(-row[SIZE] // block) for row in rows]) * block
        if batch.model is not None:
            self._by_model[batch.model] = self._by_model.get(batch.model, 0) + len(rows)
            if batch.reason in DIRTY_REASONS:
                self._dirty_models.add(batch.model)
        if self.knows_use:
            self._count_recent_use(rows)
        yield Group(batch.cls, batch.reason, why, action, batch.device, rows)

    def _without_protected(self, batch: Batch, rows: list[Row], why: str) -> list[Row]:
        """Counts and leaves out what is protected."""
        if batch.model is not None and batch.model in self._models:
            return self._hold_back(rows, [], "protected_model")
        if self.facts.device is not None and batch.device != self.facts.device:
            return self._hold_back(rows, [], "other_device")
        held = self._held
        if held and not held.keys().isdisjoint([row[NAME] for row in rows]):
            # What was restored is left alone by policies; somebody who picks it by hand means it. Canaries stay.
            free = {RESTORED} if why == "filter" else frozenset()
            for reason in sorted(set(held.values()) - free):
                rows = self._hold_back(rows, [row for row in rows if held.get(row[NAME]) != reason], reason)
        if self._written_ns and why != "temporary":
            limit = self.now_ns - self._written_ns
            rows = self._hold_back(rows, [row for row in rows if row[MTIME] <= limit], "written_within")
        if self._accessed_ns and why in USE_KINDS:
            limit = self.now_ns - self._accessed_ns
            if self.knows_use:
                kept = [row for row in rows if row[ATIME] <= limit and row[MTIME] <= limit]
            else:
                kept = [row for row in rows if row[MTIME] <= limit]
            rows = self._hold_back(rows, kept, "accessed_within")
        if why == "filter" and batch.cls == "temporary":
            # An unfinished write may be going on: only an old one is dead, even when somebody asked for it.
            limit = self.now_ns - _TEMPORARY_MIN_NS
            rows = self._hold_back(rows, [r for r in rows if r[MTIME] <= limit and r[CTIME] <= limit], "too_young")
        return rows

    def _hold_back(self, rows: list[Row], kept: list[Row], reason: str) -> list[Row]:
        """Counts what is in `rows` and not in `kept`."""
        if len(kept) != len(rows):
            size = sum(row[SIZE] for row in rows) - sum(row[SIZE] for row in kept)
            self._held_back.setdefault(reason, Tally()).add(len(rows) - len(kept), size)
        return kept

    def _up_to_limits(self, rows: list[Row], action: str, until_freed: int | None) -> list[Row]:
        """The first rows that limits (and the goal) allow."""
        if until_freed is None and not self.policy.limits.any:
            return rows
        records, size, freed = self._total.records, self._total.bytes, self._freed
        for position, row in enumerate(rows):
            if until_freed is not None and freed >= until_freed:
                return rows[:position]
            records += 1
            size += row[SIZE]
            if records > self._max_records or size > self._max_bytes:
                self._limited = self._limit_name("records" if records > self._max_records else "bytes")
                return rows[:position]
            if action == "delete":
                freed += -(-row[SIZE] // self._block) * self._block
        return rows

    def _count_recent_use(self, rows: list[Row]) -> None:
        week = self.now_ns - 7 * DAY_NS
        recent = [row for row in rows if row[ATIME] > week and row[ATIME] - row[MTIME] > _READ_AFTER_NS]
        if recent:
            self._week.add(len(recent), sum([row[SIZE] for row in recent]))
            day = self.now_ns - DAY_NS
            today = [row for row in recent if row[ATIME] > day]
            self._day.add(len(today), sum(row[SIZE] for row in today))

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
        """Totals; `groups` must have been used up."""
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
            dirty_models=frozenset(self._dirty_models),
        )


def reason_key(why: str, cls: str, reason: str | None) -> str:
    """Under what a record is counted: its reason, or its class where it has none, where that is why it goes.

    So are records that somebody picks by hand, who has to know what they are; all others under their select kind.
    """
    return reason or cls if why in REASONS or why in ("derived", "filter") else why


def counted_under(key: str, why: str, cls: str, reason: str | None) -> bool:
    """Whether a record is among those that a key of `by_reason` (or a reason, or a select kind) stands for."""
    return key in (reason, why, reason_key(why, cls, reason))
