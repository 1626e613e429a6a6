"""What cleanup needs from the inventory, as a small interface; `adapters.py` puts RecordsService behind it.

Keeps plan and run testable against lists, and keeps this room independent of how the inventory is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from app.records.facts import FileFact
from app.records.store_dir import StoreDirectory

#: Why a record is held: an acceptance canary reads it back, or somebody restored it.
CANARY, RESTORED = "canary", "restored"


#: (name, size, mtime_ns, ctime_ns, atime_ns, inode, record id): the facts of R1 as the inventory has them. Times are
#: nanoseconds, the inode is signed 64 bit. A plain tuple: a plan looks at a million of them.
Row = tuple[bytes, int, int, int, int, int, int | None]
NAME: Final = 0
SIZE: Final = 1
MTIME: Final = 2
CTIME: Final = 3
ATIME: Final = 4
INODE: Final = 5


#: (name, size in bytes, record id where known) of a record that left the store.
Gone = tuple[bytes, int, int | None]


class Batch(NamedTuple):
    """Records of one class, reason and model on one device, in the order asked for."""

    cls: str
    reason: str | None
    model: str | None
    device: int
    rows: list[Row]


@dataclass(frozen=True, slots=True)
class StoreTotals:
    """Records (foreign ones not counted) of a store's inventory; `scanned_at` None when it was never scanned.

    `derived`: how many of them may have been computed behind wrong ones.
    """

    records: int
    bytes: int
    scanned_at: float | None
    derived: int = 0


@dataclass(frozen=True, slots=True)
class Selection:
    """Which candidates to give. Conditions combine.

    `classes`: {class: reasons or None for all}; None for every class but foreign. `filters`: the parameters of the
    records list. `unused_since_ns`: last use (or, with `by_age`, last write) before this. `least_recent_first` orders
    by last use, or by last write with `by_age`; without it any order will do. `hard_links`: those of more than one name
    too, which are read as any other, but never taken.
    """

    classes: Mapping[str, frozenset[str] | None] | None = None
    filters: Mapping[str, Any] | None = None
    unused_since_ns: int | None = None
    by_age: bool = False
    least_recent_first: bool = False
    hard_links: bool = False


class Inventory(Protocol):
    """The inventory of records, as cleanup uses it."""

    def check_directory(self, store_id: int, directory: StoreDirectory) -> None:
        """Raises StoreError where the directory at the store's path is not the one the last scan knew: nothing of it
        may be planned, moved or written then."""
        ...

    def totals(self, store_id: int) -> StoreTotals:
        """Totals of the last scan."""
        ...

    def select(self, store_id: int, selection: Selection) -> Iterator[Batch]:
        """Streams records in batches of at most a few thousand; memory does not grow with their number."""
        ...

    def classify_now(self, store_id: int, facts: Sequence[FileFact]) -> list[tuple[str, str | None]]:
        """Class and reason of each file as of now, in order."""
        ...

    def held(self, store_id: int) -> Mapping[bytes, str]:
        """Names that must stay, and why (CANARY, RESTORED)."""
        ...

    def polled_in_time(self, store_id: int) -> bool:
        """Whether every server of the store has answered its last poll in time: without that no layout is called
        another one than the live."""
        ...

    def refresh(self, store_id: int, check_cancel: Callable[[], None]) -> None:
        """Scans the store in this thread."""
        ...

    def check_filter(self, filters: Mapping[str, Any]) -> dict[str, Any]:
        """The filter in its normal form. Raises InvalidInput naming the field."""
        ...

    def removed(self, store_id: int, records: Sequence[Gone], run_id: int) -> None:
        """These left the store through us, not by an adapter's own eviction."""
        ...

    def restored(self, store_id: int, facts: Sequence[FileFact], run_id: int, actor: str) -> None:
        """These files are back: they enter the inventory and are held, so that no schedule takes them again (R5)."""
        ...

    def cleared(self, store_id: int, model_name: str, at: float, run_id: int) -> None:
        """L2, L1 and L0 held no wrong record of this model at `at` (C8): what is written later is not derived."""
        ...
