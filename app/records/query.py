"""Reading an inventory: pages in any order, counts, and streams of matching records.

A page never depends on how many records there are: cohorts are chosen by what the filter says of class, model, rank
and bounds; each is read in the order of an index and the streams are merged. What no index answers (a part of a name, a
size within mixed sizes) is looked at row by row up to a budget; then the page is handed out short, with a token.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from app.lmcache.object_keys import encode_model
from app.paging import CursorValue
from app.records.filters import Order, RecordFilter
from app.records.inventory_file import Cohort, Inventory, Owner
from app.records.timeline import NS

#: Rows looked at for one page at most.
BUDGET = 10_000
_CHUNK = 256
# The start of a hash inside a text somebody looks for: alone, or after the "@" that stands before it in a name.
_HASH_START = re.compile(r"(?:^|@)([0-9a-f]{8,64})(?:$|@|\.)")
#: What can stand in a name after its head when there is no salt.
_TAIL = frozenset("0123456789abcdef@.dtmp")
#: Rows of one salt, or of one hash, that are simply read and sorted.
_FEW = 20_000
_COLUMNS = "id, cohort, salt, hash, size, mtime, ctime, atime, inode, flags"
_USED = "max(atime, mtime)"


class RecordRow(NamedTuple):
    """One record as stored, with the owner, the cohort and the salt its numbers stand for."""

    id: int
    owner: Owner
    cohort: Cohort
    salt: str
    chunk_hash: bytes
    size: int
    mtime: int
    ctime: int
    atime: int
    inode: int
    flags: int

    @property
    def name(self) -> str:
        return self.owner.name(self.chunk_hash, self.salt)


class RowPage(NamedTuple):
    """One page: rows, and the position after which the next one begins (None: there is no more)."""

    rows: list[RecordRow]
    position: list[CursorValue] | None


@dataclass(frozen=True)
class _Plan:
    """One order: the columns sorted by (SQL), and the index that has it for cohorts of one size and of mixed sizes."""

    columns: tuple[str, ...]
    index: str
    mixed_index: str


_PLANS = {
    "modified_at": _Plan(("mtime",), "record_mtime", "record_mtime"),
    "accessed_at": _Plan((_USED,), "record_used", "record_used"),
    # Within a cohort of one size the modification time goes on sorting.
    "size_bytes": _Plan(("size", "mtime"), "record_mtime", "record_size"),
    "name": _Plan(("substr(hash, 1, 8)",), "record_hash", "record_hash"),
}


class Reader:
    """Queries of one open inventory at one time. `now_ns` is what ages are counted from."""

    def __init__(self, inventory: Inventory, now_ns: int, *, epochs: dict[str, int] | None = None) -> None:
        self._db = inventory.db
        self._now = now_ns
        self._owners = inventory.owners()
        self._cohorts = {ident: cohort for ident, cohort in inventory.cohorts().items() if cohort.records > 0}
        self._salts: dict[int, str] = {0: ""}
        self._epochs = epochs or {}
        self._salted = self._db.execute("SELECT 1 FROM salt LIMIT 1").fetchone() is not None

    @property
    def owners(self) -> dict[int, Owner]:
        return self._owners

    @property
    def cohorts(self) -> dict[int, Cohort]:
        return self._cohorts

    # choosing

    def matching(self, where: RecordFilter) -> list[Cohort]:
        """The cohorts that can hold matching records."""
        return [cohort for cohort in self._cohorts.values() if self._cohort_matches(cohort, where)]

    def _cohort_matches(self, cohort: Cohort, where: RecordFilter) -> bool:
        owner = self._owners[cohort.owner]
        oldest = self._oldest(where)
        return (
            (not where.classes or cohort.cls in where.classes)
            and (not where.reasons or cohort.reason in where.reasons)
            and (not where.models or owner.model in {encode_model(model) for model in where.models})
            and (where.kv_rank is None or owner.kv_rank == where.kv_rank)
            and (where.min_size is None or cohort.max_size >= where.min_size)
            and (oldest is None or cohort.min_mtime < oldest)
            and (where.epoch_id is None or self._epochs.get(cohort.epoch or "") == where.epoch_id)
            and (where.q is None or self._salted or _may_hold(owner.head, where.q))
        )

    def _oldest(self, where: RecordFilter) -> int | None:
        """Records must have been written before this time, for either age that was asked for."""
        ages = [age for age in (where.older_than, where.unused_for) if age is not None]
        return self._now - round(max(ages) * NS) if ages else None

    # pages

    def page(
        self, where: RecordFilter, order: Order, size: int, after: list[CursorValue] | None, *, budget: int = BUDGET
    ) -> RowPage:
        """At most `size` rows after a position. Raises ValueError for a position that is none."""
        spent = _Budget(budget)
        found: list[tuple[tuple[Any, ...], RecordRow | int]] = []
        for key, row in self._merged(where, order, after, spent, ahead=size + 1):
            if row is None:
                return RowPage(self._rows_of(found), [*key])  # the budget is spent: go on from here
            if len(found) == size:
                return RowPage(self._rows_of(found), [*found[-1][0]])
            found.append((key, row))
        return RowPage(self._rows_of(found), None)

    def _rows_of(self, found: Iterable[tuple[tuple[Any, ...], RecordRow | int]]) -> list[RecordRow]:
        """The rows behind a page that was put together from index entries alone."""
        entries = [entry for _, entry in found]
        ids = [entry for entry in entries if isinstance(entry, int)]
        if not ids:
            return [entry for entry in entries if not isinstance(entry, int)]
        marks = ",".join("?" * len(ids))
        stored = self._db.execute(f"SELECT {_COLUMNS} FROM record WHERE id IN ({marks})", ids)  # noqa: S608
        rows = {row[0]: self._row(row) for row in stored}
        return [
            rows[entry] if isinstance(entry, int) else entry for entry in entries if entry in rows or entry not in ids
        ]

    def stream(self, where: RecordFilter, order: Order | None = None) -> Iterator[RecordRow]:
        """All matching rows; without an order in that of the inventory, which is the quickest."""
        if order is not None:
            for _, row in self._merged(where, order, None, None, ahead=_CHUNK, whole=True):
                if row is not None and not isinstance(row, int):
                    yield row
            return
        for cohort in self.matching(where):
            cursor = self._db.cursor()
            for stored in cursor.execute(f"SELECT {_COLUMNS} FROM record WHERE cohort=?", (cohort.id,)):  # noqa: S608
                if self._row_matches(stored, cohort, where):
                    yield self._row(stored)

    def count(self, where: RecordFilter, limit: int) -> tuple[int, int, bool]:
        """(records, bytes, exact). Looks at no more than `limit` rows that no counter covers."""
        records = total = 0
        left = limit
        exact = True
        for cohort in self.matching(where):
            if self._whole(cohort, where):
                records += cohort.records
                total += cohort.bytes
                continue
            counted = self._count_by_age(cohort, where, left)
            if counted is not None:
                records += counted
                total += counted * (cohort.size or 0)
                left -= counted
                exact = exact and left > 0
                continue
            cursor = self._db.execute(f"SELECT {_COLUMNS} FROM record WHERE cohort=?", (cohort.id,))  # noqa: S608
            for stored in cursor:
                if left <= 0:
                    exact = False
                    break
                left -= 1
                if self._row_matches(stored, cohort, where):
                    records += 1
                    total += stored[4]
        return records, total, exact

    def get(self, ident: int) -> RecordRow | None:
        """One row by its id."""
        stored = self._db.execute(f"SELECT {_COLUMNS} FROM record WHERE id=?", (ident,)).fetchone()  # noqa: S608
        return self._row(stored) if stored is not None and stored[1] in self._cohorts else None

    def _whole(self, cohort: Cohort, where: RecordFilter) -> bool:
        """Whether every record of a matching cohort matches, so that its counters tell."""
        oldest = self._oldest(where)
        return (
            (where.min_size is None or cohort.min_size >= where.min_size)
            and (oldest is None or (where.unused_for is None and cohort.max_mtime < oldest))
            and where.salt is None
            and (where.q is None or where.q in self._owners[cohort.owner].head)
        )

    def _count_by_age(self, cohort: Cohort, where: RecordFilter, limit: int) -> int | None:
        """Records of one size that are old enough, from an index alone; None where that does not answer."""
        ages = (where.older_than, where.unused_for)
        if (
            cohort.size is None
            or where.salt is not None
            or None not in ages
            or not any(age is not None for age in ages)
        ):
            return None
        if where.q is not None and where.q not in self._owners[cohort.owner].head:
            return None
        column, index = ("mtime", "record_mtime") if where.older_than is not None else (_USED, "record_used")
        found = self._db.execute(
            f"SELECT count(*) FROM (SELECT 1 FROM record INDEXED BY {index}"  # noqa: S608
            f" WHERE cohort=? AND {column}<? LIMIT ?)",
            (cohort.id, self._oldest(where), max(0, limit)),
        )
        return int(found.fetchone()[0])

    def _row_matches(self, stored: tuple[Any, ...], cohort: Cohort, where: RecordFilter) -> bool:
        _, _, salt, chunk_hash, size, mtime, _, atime, _, _ = stored
        if where.min_size is not None and size < where.min_size:
            return False
        if where.older_than is not None and mtime >= self._now - round(where.older_than * NS):
            return False
        if where.unused_for is not None and max(atime, mtime) >= self._now - round(where.unused_for * NS):
            return False
        if where.salt is not None and self._salt(salt) != where.salt:
            return False
        if where.q is not None:
            owner = self._owners[cohort.owner]
            return where.q in owner.head or where.q in owner.name(chunk_hash, self._salt(salt))
        return True

    # merging

    def _merged(
        self,
        where: RecordFilter,
        order: Order,
        after: list[CursorValue] | None,
        spent: _Budget | None,
        *,
        ahead: int,
        whole: bool = False,
    ) -> Iterator[tuple[tuple[Any, ...], RecordRow | int | None]]:
        """(position, row) of all cohorts in one order; the row is None when the budget ran out there.

        Where an index alone answers, the row is only its id (never with `whole`). `ahead`: rows read at a time.
        """
        down = order.startswith("-")
        plan = _PLANS[order.removeprefix("-")]
        start = _decode(order, after)
        few = self._few(where)
        if few is not None:
            sortable = sorted((_Turned(self._key(order, row), down), row) for row in few)
            yield from ((_encode(key.key), row) for key, row in sortable if start is None or _Turned(start, down) < key)
            return
        # The cohorts that come first are opened first; the others when the order has come to them.
        waiting: list[tuple[Any, int, Cohort]] = [
            (_Turned(self._edge(cohort, order, down), down), cohort.id, cohort) for cohort in self.matching(where)
        ]
        heapq.heapify(waiting)
        running: list[tuple[Any, int, tuple[Any, ...], tuple[Any, ...], Iterator[Any]]] = []
        sequence = 0
        while waiting or running:
            while waiting and (not running or not running[0][0] < waiting[0][0]):
                cohort = heapq.heappop(waiting)[2]
                stream = self._cohort_rows(cohort, plan, order, start, down, where, ahead, whole)
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
            elif self._row_matches(stored, self._cohorts[stored[1]], where):
                yield _encode(key), self._row(stored)
            elif spent is not None and spent.take():
                yield _encode(key), None
                return

    def _few(self, where: RecordFilter) -> list[RecordRow] | None:
        """All matching rows where one salt or the start of a hash leaves only a few; None where it does not."""
        conditions: list[tuple[str, list[Any]]] = []
        cohorts = {cohort.id: cohort for cohort in self.matching(where)}
        start = _HASH_START.search(where.q) if where.q is not None else None
        if where.salt:
            ident = self._db.execute("SELECT id FROM salt WHERE text=?", (where.salt,)).fetchone()
            if ident is None:
                return []
            conditions.append(("salt=? AND salt>0", [ident[0]]))
        elif start is not None:
            low = bytes.fromhex(start[1][:16] + "0" * (len(start[1][:16]) % 2)).ljust(8, b"\0")
            high = bytes.fromhex(start[1][:16] + "f" * (len(start[1][:16]) % 2)).ljust(8, b"\xff")
            conditions += [("cohort=? AND substr(hash, 1, 8) BETWEEN ? AND ?", [ident, low, high]) for ident in cohorts]
        else:
            return None
        rows: list[RecordRow] = []
        left = _FEW
        for condition, values in conditions:
            found = self._db.execute(
                f"SELECT {_COLUMNS} FROM record WHERE {condition} LIMIT ?",  # noqa: S608
                (*values, left + 1),
            )
            for stored in found:
                left -= 1
                if left < 0:
                    return None  # many after all
                if stored[1] in cohorts and self._row_matches(stored, cohorts[stored[1]], where):
                    rows.append(self._row(stored))
        # No record's hash begins like that: the text may still stand somewhere inside one, which only looking tells.
        return rows if rows or where.salt or (start is not None and len(start[1]) == 64) else None

    def _key(self, order: Order, row: RecordRow) -> tuple[Any, ...]:
        name = order.removeprefix("-")
        if name == "modified_at":
            return (row.mtime, row.id)
        if name == "accessed_at":
            return (max(row.atime, row.mtime), row.id)
        if name == "size_bytes":
            return (row.size, row.mtime, row.id)
        return (row.owner.head, row.chunk_hash[:8], row.id)

    def _edge(self, cohort: Cohort, order: Order, down: bool) -> tuple[Any, ...]:
        """Nothing in the cohort comes before this in the given direction."""
        name = order.removeprefix("-")
        if name == "modified_at":
            return (cohort.max_mtime + 1,) if down else (cohort.min_mtime,)
        if name == "accessed_at":
            # Access times have no bounds above, and lie at or after the modification.
            return (2**63,) if down else (cohort.min_mtime,)
        if name == "size_bytes":
            return (cohort.max_size + 1,) if down else (cohort.min_size,)
        head = self._owners[cohort.owner].head
        return (head + "\U0010ffff",) if down else (head,)

    def _cohort_rows(
        self,
        cohort: Cohort,
        plan: _Plan,
        order: Order,
        start: tuple[Any, ...] | None,
        down: bool,
        where: RecordFilter,
        chunk: int,
        whole: bool,
    ) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """(sort key, stored row) of one cohort after `start`, read a little at a time; only the id where that is enough.

        An index is read in one go, rows lie anywhere: a page that sees only what it shows costs the same at any size.
        """
        head: tuple[Any, ...] = ()
        if order.endswith("name"):
            head = (self._owners[cohort.owner].head,)
            if start is not None and start[:1] != head:
                if (start[0] > head[0]) != down:
                    return
                start = None
            elif start is not None:
                start = start[1:]
        columns = (*plan.columns, "id")
        index = plan.mixed_index if cohort.size is None else plan.index
        if order.endswith("size_bytes") and cohort.size is not None:
            head = (cohort.size,)
            if start is not None and start[0] != cohort.size:
                if (start[0] > cohort.size) != down:
                    return
                start = None
            elif start is not None:
                start = start[1:]
            columns = ("mtime", "id")
        limits, bound = self._limits(order, where)
        wanted = _COLUMNS if whole or self._must_look(cohort, order, where) else "id"
        direction = " DESC" if down else ""
        ordered = ", ".join(column + direction for column in columns)
        # A partial index is used only where its own condition stands in the query.
        partial = " AND cohort<0" if index == "record_size" else ""
        while True:
            after, values = _after(columns, start, down)
            rows = self._db.execute(
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

    def _must_look(self, cohort: Cohort, order: Order, where: RecordFilter) -> bool:
        """Whether some condition is neither the index's nor one that all records of the cohort meet."""
        written = order.endswith("modified_at")
        return (
            where.salt is not None
            or (where.q is not None and where.q not in self._owners[cohort.owner].head)
            or (where.min_size is not None and cohort.min_size < where.min_size)
            or (where.unused_for is not None and not order.endswith("accessed_at"))
            or (where.older_than is not None and not written and not self._all_older(cohort, where.older_than))
        )

    def _all_older(self, cohort: Cohort, age: float) -> bool:
        return cohort.max_mtime < self._now - round(age * NS)

    def _limits(self, order: Order, where: RecordFilter) -> tuple[str, list[int]]:
        """Conditions that the order's own index answers (what is unused for long was written before that, too)."""
        oldest = self._oldest(where)
        if order.endswith("modified_at") and oldest is not None:
            return " AND mtime<?", [oldest]
        if order.endswith("accessed_at") and where.unused_for is not None:
            return f" AND {_USED}<?", [self._now - round(where.unused_for * NS)]
        return "", []

    # rows

    def _row(self, stored: tuple[Any, ...]) -> RecordRow:
        ident, cohort_id, salt, chunk_hash, *facts = stored
        cohort = self._cohorts[cohort_id]
        return RecordRow(ident, self._owners[cohort.owner], cohort, self._salt(salt), chunk_hash, *facts)

    def _salt(self, ident: int) -> str:
        found = self._salts.get(ident)
        if found is None:
            text = self._db.execute("SELECT text FROM salt WHERE id=?", (ident,)).fetchone()
            found = self._salts[ident] = text[0] if text else ""
            if len(self._salts) > 50_000:
                self._salts = {0: "", ident: found}
        return found


class _Budget:
    def __init__(self, rows: int) -> None:
        self._left = rows

    def take(self) -> bool:
        """Counts one row that did not match; True when that was the last one allowed."""
        self._left -= 1
        return self._left <= 0


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


def _may_hold(head: str, text: str) -> bool:
    """Whether a name with this head and no salt can contain the text: in the head, across its end, or after it."""
    if text in head:
        return True
    return any(head.endswith(text[:cut]) and _TAIL.issuperset(text[cut:]) for cut in range(len(text) + 1))


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
    wanted = 3 if order.endswith("size_bytes") else 2
    if len(position) != wanted or not all(isinstance(value, int) for value in position):
        raise ValueError("not a position of this order")
    return tuple(position)
