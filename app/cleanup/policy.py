"""What a policy says, checked: `PolicySpec` and its parts. Pure; `policy_parsing` makes one from JSON.

Rules: CONTRACT "Cleanup", RULES C5, C6 (other_size only by quarantine).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.cleanup.quantities import Age, Amount

#: Reasons of each class that a policy may select.
REASONS: dict[str, tuple[str, ...]] = {
    "incompatible": (
        "other_layout",
        "other_size",
        "declared",
        "other_world_size",
        "unknown_object_group",
        "model_not_served",
    ),
    "corrupt": ("empty", "short", "long"),
    "unreachable": ("legacy_name",),
}
#: What is taken when `reasons` is left out: the owners' three need an explicit word (C5).
DEFAULT_REASONS: dict[str, frozenset[str]] = {
    "incompatible": frozenset({"other_layout", "other_size", "declared"}),
    "corrupt": frozenset(REASONS["corrupt"]),
    "unreachable": frozenset(REASONS["unreachable"]),
}
#: Kinds whose records are right, so that recent use protects them (R6).
USE_KINDS = frozenset({"unused", "capacity", "free_space", "filter"})
#: What an engine may have read wrongly: L2, L1, L0, then L2 and L1 again (R4).
DIRTY_REASONS = frozenset({"other_layout", "declared", "long", "other_size", "derived"})
#: Kinds that exist to free space: their records are deleted, quarantine would free nothing (R3).
SPACE_KINDS = frozenset({"capacity", "free_space"})

LAYOUT_CHANGE = "@layout-change"
#: The filter that takes what `keep it safe` takes, but for unfinished writes: proven wrong, dead, or derived from wrong
#: ones (C8); not the owners' three, which a policy has to name (C5).
SAFE_FILTER: Mapping[str, str] = {
    "class": "incompatible,unverified,corrupt,unreachable",
    "reason": "other_layout,other_size,declared,derived,empty,short,long,legacy_name",
}
_CRON_NAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


@dataclass(frozen=True, slots=True)
class Select:
    """One item of `select`; which fields mean something depends on `kind`."""

    kind: str
    reasons: frozenset[str] = frozenset()
    age: Age | None = None  # temporary: older_than; unused: for
    age_only: bool = False
    high: Amount | None = None
    low: Amount | None = None
    floor: Amount | None = None


@dataclass(frozen=True, slots=True)
class Protect:
    """What is never taken."""

    accessed_within: Age | None = None
    written_within: Age | None = None
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """Where one run stops."""

    max_bytes: Amount | None = None
    max_records: int | None = None
    max_fraction: float | None = None

    @property
    def any(self) -> bool:
        """Whether there is a limit at all."""
        return self.max_bytes is not None or self.max_records is not None or self.max_fraction is not None


@dataclass(frozen=True, slots=True)
class Blackout:
    """Minutes since midnight [start, end) in the policy's zone; over midnight when end <= start. 0 is Sunday."""

    start: int
    end: int
    days: frozenset[int]


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """A checked policy (or the selection of a filter plan: `filters` set, `select` empty)."""

    select: tuple[Select, ...]
    protect: Protect = Protect()
    limits: Limits = Limits()
    removal: str = "quarantine"
    quarantine_for: Age | None = None
    blackouts: tuple[Blackout, ...] = ()
    filters: Mapping[str, Any] | None = field(default=None, hash=False)

    def item(self, kind: str) -> Select | None:
        """The select item of a kind, if the policy has one."""
        return next((s for s in self.select if s.kind == kind), None)

    @property
    def takes_derived(self) -> bool:
        """Whether all derived records (of a model, at most) are selected, by an item or by a filter."""
        if self.item("derived") is not None:
            return True
        return (
            self.filters is not None
            and self.filters.keys() <= {"class", "reason", "model"}
            and bool(self.filters.get("reason"))
            and _matches(self.filters, "class", "unverified")
            and _matches(self.filters, "reason", "derived")
        )

    def reasons_of(self, cls: str) -> frozenset[str]:
        """Reasons of a class that the policy selects."""
        item = self.item(cls)
        return item.reasons if item else frozenset()

    def selects_now(self, why: str, cls: str, reason: str | None) -> bool:
        """Whether a record taken because of `why` may still be removed now that it has this class (R1)."""
        if cls == "foreign":
            return False
        if why in REASONS:
            return cls == why and reason in self.reasons_of(cls)
        if why == "derived":
            return cls == "unverified" and reason == "derived"
        if why == "temporary":
            return cls == "temporary"
        if why == "filter":
            return _matches(self.filters, "class", cls) and _matches(self.filters, "reason", reason)
        return cls != "temporary"

    def action_for(self, why: str, reason: str | None) -> str:
        """quarantine or delete: space is freed by deleting; `other_size` is never deleted at once (C6)."""
        if reason == "other_size" and why not in SPACE_KINDS:
            return "quarantine"
        return "delete" if why in SPACE_KINDS or self.removal == "delete" else "quarantine"


def _matches(filters: Mapping[str, Any] | None, name: str, value: str | None) -> bool:
    """Whether a filter on class or reason (one word, several with commas, or a list) lets a value through."""
    wanted = (filters or {}).get(name)
    if not wanted:
        return True
    return value in (wanted.split(",") if isinstance(wanted, str) else wanted)


def in_blackout(blackouts: Sequence[Blackout], weekday: int, minute: int) -> bool:
    """Whether a local moment (weekday 0 = Sunday, minute of the day) lies in a window.

    A window over midnight belongs to the day on which it starts.
    """
    for window in blackouts:
        today = not window.days or weekday in window.days
        yesterday = not window.days or (weekday - 1) % 7 in window.days
        if window.start < window.end:
            if today and window.start <= minute < window.end:
                return True
        elif (today and minute >= window.start) or (yesterday and minute < window.end):
            return True
    return False


def cron_of(schedule: str | None) -> str | None:
    """The cron text of a schedule, with @daily and the like spelt out; None for by hand and @layout-change alone."""
    by_clock = (schedule or "").removesuffix(LAYOUT_CHANGE).strip()
    return _CRON_NAMES.get(by_clock, by_clock) if by_clock else None


def on_layout_change(schedule: str | None) -> bool:
    """Whether a change of layout starts it, alone or beside its cron text (``0 4 * * * @layout-change``)."""
    return schedule is not None and schedule.endswith(LAYOUT_CHANGE)
