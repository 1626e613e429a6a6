"""The rows of many cohorts in one order, as a merge of index reads: nothing is ever sorted but a handful of rows."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from app.paging import CursorValue
from app.records.choosing import COLUMNS, Chooser, RecordRow
from app.records.facts import certainty
from app.records.filters import Order, RecordFilter
from app.records.inventory_file import Cohort
from app.records.timeline import NS

# Rows read at a time where rows must be looked at one by one.
_LOOK = 32


@dataclass(frozen=True)
class _Plan:
    """One order: the columns sorted by (SQL), and the index that has it for cohorts of one size and of mixed sizes."""

    columns: tuple[str, ...]
    index: str
    mixed_index: str


_PLANS = {
    "modified_at": _Plan(("mtime", "used"), "record_mtime", "record_mtime"),
    "accessed_at": _Plan(("used",), "record_used", "record_used"),
    # Within a cohort of one size the modification time goes on sorting.
    "size_bytes": _Plan(("size", "mtime", "used"), "record_mtime", "record_size"),
    "name": _Plan(("substr(hash, 1, 8)",), "record_hash", "record_hash"),
    # A cohort is of one certainty; within it the modification time sorts.
    "certainty": _Plan(("mtime", "used"), "record_mtime", "record_mtime"),
}
# Orders whose index has the modification time first, so that it answers conditions on ages.
_BY_TIME = ("modified_at", "certainty")
# What all records of a cohort share stands before these orders' own columns in a position.
_HEADED = ("name", "certainty")


class Budget:
    """How many rows that do not match may be looked at."""

    def __init__(self, rows: int) -> None:
        self._left = rows

    def take(self) -> bool:
        """Counts one row that did not match; True when that was the last one allowed."""
        self._left -= 1
        return self._left <= 0


@dataclass(frozen=True)
class Ordered:
    """Matching rows in one order after a position. `ahead`: index entries read at a time.

    Where an index alone answers, only the row's id is given (never with `whole`).
    """

    chooser: Chooser
    where: RecordFilter
    order: Order
    ahead: int
    whole: bool = False

    @property
    def _down(self) -> bool:
        return self.order.startswith("-")

    @property
    def _name(self) -> str:
        return self.order.removeprefix("-")

    def rows(
        self, after: list[CursorValue] | None = None, spent: Budget | None = None
    ) -> Iterator[tuple[tuple[Any, ...], RecordRow | int | None]]:
        """(position, row); the row is None when the budget ran out there.

        Raises ValueError for a position that is none of this order.
        """
        down = self._down
        start = _decode(self.order, after)
        few = self.chooser.few(self.where)
        if few is not None:
            sortable = sorted((_Turned(self._key(row), down), row) for row in few)
            yield from ((_encode(key.key), row) for key, row in sortable if start is None or _Turned(start, down) < key)
            return
        # The cohorts that come first are opened first; the others when the order has come to them.
        waiting: list[tuple[Any, int, Cohort]] = [
            (_Turned(self._edge(cohort), down), cohort.id, cohort) for cohort in self.chooser.matching(self.where)
        ]
        heapq.heapify(waiting)
        running: list[tuple[Any, int, tuple[Any, ...], tuple[Any, ...], Iterator[Any]]] = []
        sequence = 0
        while waiting or running:
            while waiting and (not running or not running[0][0] < waiting[0][0]):
                cohort = heapq.heappop(waiting)[2]
                stream = self._cohort_rows(cohort, start)
                first = next(stream, None)
                if first is not None:
                    sequence += 1
                    heapq.heappush(running, (_Turned(first[0], down), sequence, *first, stream))
            if not running:
                continue
            _, _, key, stored, stream = running[0]
            follow = next(stream, None)
            sequence += 1
            if follow is None:
                heapq.heappop(running)
            else:
                heapq.heapreplace(running, (_Turned(follow[0], down), sequence, *follow, stream))
            if len(stored) == 1:
                yield _encode(key), stored[0]
            elif self.chooser.row_matches(stored, self.chooser.cohorts[stored[1]], self.where):
                yield _encode(key), self.chooser.row(stored)
            elif spent is not None and spent.take():
                yield _encode(key), None
                return

    def _key(self, row: RecordRow) -> tuple[Any, ...]:
        name = self._name
        if name == "modified_at":
            return (row.mtime, row.used, row.id)
        if name == "accessed_at":
            return (row.used, row.id)
        if name == "size_bytes":
            return (row.size, row.mtime, row.used, row.id)
        if name == "certainty":
            return (certainty(row.cohort.cls, row.cohort.reason), row.mtime, row.used, row.id)
        return (row.owner.head, row.chunk_hash[:8], row.id)

    def _edge(self, cohort: Cohort) -> tuple[Any, ...]:
        """Nothing in the cohort comes before this in the order's direction."""
        down = self._down
        name = self._name
        if name == "modified_at":
            return (cohort.max_mtime + 1,) if down else (cohort.min_mtime,)
        if name == "accessed_at":
            # Access times have no bounds above, and lie at or after the modification.
            return (2**63,) if down else (cohort.min_mtime,)
        if name == "size_bytes":
            return (cohort.max_size + 1,) if down else (cohort.min_size,)
        if name == "certainty":
            return (certainty(cohort.cls, cohort.reason), cohort.max_mtime + 1 if down else cohort.min_mtime)
        head = self.chooser.owners[cohort.owner].head
        return (head + "\U0010ffff",) if down else (head,)

    def _cohort_rows(
        self, cohort: Cohort, start: tuple[Any, ...] | None
    ) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """(sort key, stored row) of one cohort after `start`, a little at a time; only the id where that is enough.

        An index is read in one go, rows lie anywhere: a page that sees only what it shows costs the same at any size.
        """
        plan = _PLANS[self._name]
        columns = (*plan.columns, "id")
        head: tuple[Any, ...] = ()
        if self._name == "name":
            head = (self.chooser.owners[cohort.owner].head,)
        elif self._name == "certainty":
            head = (certainty(cohort.cls, cohort.reason),)
        elif self._name == "size_bytes" and cohort.size is not None:
            head, columns = (cohort.size,), ("mtime", "used", "id")
        if head and start is not None:
            # The whole cohort shares the first part of the sort key.
            if start[0] != head[0] and (start[0] > head[0]) != self._down:
                return
            start = start[1:] if start[0] == head[0] else None
        index = plan.mixed_index if cohort.size is None else plan.index
        limits, bound = self._limits()
        wanted, chunk = "id", self.ahead
        if self.whole or self._must_look(cohort):
            wanted, chunk = COLUMNS, self.ahead if self.whole else min(self.ahead, _LOOK)
        direction = " DESC" if self._down else ""
        ordered = ", ".join(column + direction for column in columns)
        # A partial index is used only where its own condition stands in the query.
        partial = " AND cohort<0" if index == "record_size" else ""
        while True:
            after, values = _after(columns, start, self._down)
            rows = self.chooser.db.execute(
                f"SELECT {', '.join(columns[:-1])}, {wanted} FROM record INDEXED BY {index}"  # noqa: S608
                f" WHERE cohort=?{partial}{limits}{after} ORDER BY {ordered} LIMIT {chunk}",
                (cohort.id, *bound, *values),
            ).fetchall()
            width = len(columns) - 1
            for row in rows:
                stored = row[width:]
                yield (*head, *row[:width], stored[0]), stored
            if len(rows) < chunk:
                return
            start = (*rows[-1][:width], rows[-1][width])

    def _must_look(self, cohort: Cohort) -> bool:
        """Whether some condition is neither the index's nor one that all records of the cohort meet."""
        where = self.where
        all_older = where.older_than is None or cohort.max_mtime < self.chooser.now - round(where.older_than * NS)
        return (
            where.salt is not None
            or (where.q is not None and where.q not in self.chooser.owners[cohort.owner].head)
            or (where.min_size is not None and cohort.min_size < where.min_size)
            or (where.unused_for is not None and self._name not in ("accessed_at", *_BY_TIME))
            or (not all_older and self._name not in _BY_TIME)
        )

    def _limits(self) -> tuple[str, list[int]]:
        """Conditions that the order's own index answers (what is unused for long was written before that, too)."""
        oldest = self.chooser.oldest(self.where)
        unused = "", list[int]()
        if self.where.unused_for is not None:
            unused = " AND used<?", [self.chooser.now - round(self.where.unused_for * NS)]
        if self._name in _BY_TIME and oldest is not None:
            return f" AND mtime<?{unused[0]}", [oldest, *unused[1]]
        return unused if self._name == "accessed_at" else ("", [])


class _Turned:
    """A sort key that compares the other way round when `down`."""

    __slots__ = ("down", "key")

    def __init__(self, key: tuple[Any, ...], down: bool) -> None:
        self.key = key
        self.down = down

    def __lt__(self, other: _Turned) -> bool:
        return other.key < self.key if self.down else self.key < other.key


def _after(columns: tuple[str, ...], start: tuple[Any, ...] | None, down: bool) -> tuple[str, list[Any]]:
    """``(a, b, id) > (?, ?, ?)`` spelled so that an index on the first column is used."""
    if start is None:
        return "", []
    sign = "<" if down else ">"
    condition = f"{columns[-1]}{sign}?"
    values = [start[-1]]
    for column, value in zip(reversed(columns[:-1]), reversed(start[:-1]), strict=True):
        condition = f"({column}{sign}? OR ({column}=? AND {condition}))"
        values = [value, value, *values]
    return f" AND {columns[0]}{sign}=? AND {condition}", [start[0], *values]


def _encode(key: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(part.hex() if isinstance(part, bytes) else part for part in key)


def _decode(order: Order, position: list[CursorValue] | None) -> tuple[Any, ...] | None:
    if position is None:
        return None
    if order.endswith("name"):
        head, text, ident = position
        if not isinstance(head, str) or not isinstance(text, str) or not isinstance(ident, int):
            raise ValueError("not a position of this order")
        return (head, bytes.fromhex(text), ident)
    name = order.removeprefix("-")
    if len(position) != len(_PLANS[name].columns) + 1 + (name in _HEADED) or not all(
        isinstance(value, int) for value in position
    ):
        raise ValueError("not a position of this order")
    return tuple(position)
