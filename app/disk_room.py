"""The room of a file system, counted as ``df`` does: pages, commands, alarms and a shell agree. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


class Filesystem(Protocol):
    """What is measured of a file system, in bytes. `free_bytes` is what a plain user may still write."""

    @property
    def total_bytes(self) -> float | None: ...
    @property
    def free_bytes(self) -> float | None: ...
    @property
    def used_bytes(self) -> float | None: ...


@dataclass(frozen=True)
class Room:
    """Bytes. `whole` is what can be used at all: used and free, as df's Use% takes it. `reserved` is neither: the file
    system keeps it back (for root, or by a quota below it)."""

    used: int
    free: int
    reserved: int = 0

    @property
    def whole(self) -> int:
        return self.used + self.free

    @property
    def ratio(self) -> float | None:
        """The used part of what can be used; None where that is nothing."""
        return self.used / self.whole if self.whole else None


def room(filesystem: Filesystem) -> Room | None:
    """The room of one file system, None where it was not measured. Without `used_bytes` what is not free is used."""
    total, free, used = filesystem.total_bytes, filesystem.free_bytes, filesystem.used_bytes
    if not total or free is None:
        return None
    used = max(0, total - free) if used is None else used
    return Room(round(used), round(free), round(max(0, total - free - used)))


def together(rooms: Iterable[Room]) -> Room | None:
    """Several file systems as one."""
    found = list(rooms)
    if not found:
        return None
    return Room(sum(r.used for r in found), sum(r.free for r in found), sum(r.reserved for r in found))
