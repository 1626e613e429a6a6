"""What is known of one file and of one record, as plain values."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import NamedTuple

RECORD_CLASSES = ("current", "incompatible", "corrupt", "unreachable", "temporary", "unverified")
CLASSES = (*RECORD_CLASSES, "foreign")
REASONS: dict[str, tuple[str, ...]] = {
    "current": (),
    "incompatible": (
        "other_layout",
        "other_size",
        "other_world_size",
        "unknown_object_group",
        "model_not_served",
        "declared",
    ),
    "corrupt": ("empty", "short", "long"),
    "unreachable": ("legacy_name",),
    "temporary": (),
    "unverified": (
        "before_first_seen",
        "observation_gap",
        "mixed_layouts",
        "layout_unknown",
        "derived",
        "future_mtime",
    ),
    "foreign": (),
}
# The most certainly wrong first: what would be answered wrongly, what cannot be right, what nothing asks for, and only
# then what derives from the wrong ones and what cannot be decided.
_BY_CERTAINTY = (
    "other_layout",
    "declared",
    "other_size",
    "long",
    "short",
    "empty",
    "legacy_name",
    "other_world_size",
    "unknown_object_group",
    "model_not_served",
    "temporary",
    "derived",
    "mixed_layouts",
    "future_mtime",
    "observation_gap",
    "layout_unknown",
    "before_first_seen",
    "current",
    "foreign",
)


def certainty(cls: str, reason: str | None) -> int:
    """How certain it is that a record of a class and reason is wrong, to sort by: the higher, the more certain."""
    name = reason or cls
    return len(_BY_CERTAINTY) - _BY_CERTAINTY.index(name) if name in _BY_CERTAINTY else 0


class FileFact(NamedTuple):
    """One file as the kernel told it. `name` is relative to the store's directory, any bytes; times in nanoseconds."""

    name: bytes
    size: int
    mtime_ns: int
    ctime_ns: int
    atime_ns: int
    inode: int
    device: int
    nlink: int
    mode: int

    @property
    def regular(self) -> bool:
        return stat.S_ISREG(self.mode)

    @classmethod
    def of(cls, name: bytes, found: os.stat_result) -> FileFact:
        """From a stat result."""
        return cls(
            name,
            found.st_size,
            found.st_mtime_ns,
            found.st_ctime_ns,
            found.st_atime_ns,
            found.st_ino,
            found.st_dev,
            found.st_nlink,
            found.st_mode,
        )


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a record is and why. `epoch` is the fingerprint of the one layout it can have, where that is one."""

    cls: str
    reason: str | None = None
    epoch: str | None = None


def display_name(name: bytes) -> str:
    """A name for people and JSON: valid UTF-8 stays, other bytes become ``\\xNN``."""
    return name.decode("utf-8", "backslashreplace")
