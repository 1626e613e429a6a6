"""One item of a plan as the disk layer and the journal pass it around."""

from __future__ import annotations

import stat
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

from app.cleanup.policy import USE_KINDS
from app.records.facts import FileFact

_fact = cast("Callable[[tuple[Any, ...]], FileFact]", partial(tuple.__new__, FileFact))
_REGULAR = stat.S_IFREG | 0o600


class ItemRow(NamedTuple):
    """One row of `plan_item`, without what became of it. Times in nanoseconds, `inode` signed."""

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
    round: int

    def fact(self) -> FileFact:
        """What the file was when it was planned: a regular file with one name (anything else is refused anyway)."""
        return _fact((*self[1:8], 1, _REGULAR))

    @property
    def respects_use(self) -> bool:
        """Whether a later access time saves it (R6): a record that is right and goes for space or age."""
        return self.why in USE_KINDS
