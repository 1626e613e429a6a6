"""How much `capacity` and `free_space` must free. Pure.

Percentages are of the file system as `df` counts it (used / (used + available)); sizes are of the store: its records
plus what its quarantine holds, which counts as used (R3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.cleanup.policy import Select
from app.sizes import disk_size

if TYPE_CHECKING:
    from app.cleanup.plan import StoreFacts


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes to free (0: nothing), for which select kind, and sentences that say why.

    `must` is the part without which the goal is missed (back under `high`, or the floor); the rest leads to `low`.
    """

    bytes: int
    kind: str
    sentences: tuple[str, ...]
    must: int = 0


def capacity_need(item: Select | None, facts: StoreFacts) -> Need | None:
    """What `capacity` asks for; None without such an item, or when its file system cannot be measured."""
    if item is None or item.high is None or item.low is None:
        return None
    if item.high.bytes is not None and item.low.bytes is not None:
        used = facts.bytes + facts.quarantine_bytes
        if used <= item.high.bytes:
            return Need(0, "capacity", (f"The store holds {disk_size(used)}, not more than {item.high}.",))
        sentence = f"The store holds {disk_size(used)}, more than {item.high}; down to {item.low}."
        return Need(used - item.low.bytes, "capacity", (sentence,), used - item.high.bytes)
    if facts.fs_used is None or facts.fs_free is None or not facts.fs_used + facts.fs_free:
        return None
    whole = facts.fs_used + facts.fs_free
    share = facts.fs_used / whole
    if share <= (item.high.fraction or 1.0):
        return Need(0, "capacity", (f"The file system is {share:.1%} full, not more than {item.high}.",))
    sentence = f"The file system is {share:.1%} full, more than {item.high}; down to {item.low}."
    must = facts.fs_used - int(whole * (item.high.fraction or 1.0))
    return Need(facts.fs_used - int(whole * (item.low.fraction or 0.0)), "capacity", (sentence,), must)


def floor_need(item: Select | None, facts: StoreFacts) -> Need | None:
    """What `free_space` asks for; None without such an item, or when its file system cannot be measured."""
    if item is None or item.floor is None or facts.fs_free is None or facts.fs_used is None:
        return None
    floor = item.floor.of(facts.fs_used + facts.fs_free)
    if facts.fs_free >= floor:
        return Need(0, "free_space", (f"{disk_size(facts.fs_free)} are free, not less than {item.floor}.",))
    sentence = f"{disk_size(facts.fs_free)} are free, less than {item.floor}."
    return Need(floor - facts.fs_free, "free_space", (sentence,), floor - facts.fs_free)
