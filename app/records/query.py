"""Reading an inventory: pages in any order, counts, and streams of matching records.

A page never depends on how many records there are: cohorts are chosen by what the filter says of class, model, rank
and bounds; each is read in the order of an index and the streams are merged. What no index answers (a part of a name, a
size within mixed sizes) is looked at row by row up to a budget; then the page is handed out short, with a token.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from app.paging import CursorValue
from app.records.choosing import COLUMNS, Chooser, RecordRow
from app.records.epoch_counts import EpochKey
from app.records.filters import Order, RecordFilter
from app.records.inventory_file import Cohort, Inventory, Owner
from app.records.ordered import Budget, Ordered

__all__ = ["BUDGET", "Reader", "RecordRow", "RowPage"]

#: Rows looked at for one page at most.
BUDGET = 10_000
_CHUNK = 256


class RowPage(NamedTuple):
    """One page: rows, and the position after which the next one begins (None: there is no more)."""

    rows: list[RecordRow]
    position: list[CursorValue] | None


class Reader:
    """Queries of one open inventory at one time. `now_ns` is what ages are counted from."""

    def __init__(
        self, inventory: Inventory, now_ns: int, *, epochs: Mapping[int, frozenset[EpochKey]] | None = None
    ) -> None:
        self._db = inventory.db
        self._chooser = Chooser(inventory, now_ns, epochs or {})

    @property
    def owners(self) -> dict[int, Owner]:
        return self._chooser.owners

    @property
    def cohorts(self) -> dict[int, Cohort]:
        return self._chooser.cohorts

    def matching(self, where: RecordFilter) -> list[Cohort]:
        """The cohorts that can hold matching records."""
        return self._chooser.matching(where)

    def page(
        self, where: RecordFilter, order: Order, size: int, after: list[CursorValue] | None, *, budget: int = BUDGET
    ) -> RowPage:
        """At most `size` rows after a position. Raises ValueError for a position that is none."""
        spent = Budget(budget)
        found: list[tuple[tuple[Any, ...], RecordRow | int]] = []
        for key, row in Ordered(self._chooser, where, order, size + 1).rows(after, spent):
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
        marks = ",".join("?" * len(ids))
        query = f"SELECT {COLUMNS} FROM record WHERE id IN ({marks})"  # noqa: S608
        stored = self._db.execute(query, ids) if ids else ()
        rows = {row[0]: self._chooser.row(row) for row in stored}
        # A row that a run of ours took out between the two queries is simply gone.
        shown = [rows.get(entry) if isinstance(entry, int) else entry for entry in entries]
        return [row for row in shown if row is not None]

    def stream(self, where: RecordFilter, order: Order | None = None) -> Iterator[RecordRow]:
        """All matching rows; without an order in that of the inventory, which is the quickest."""
        if order is not None:
            for _, row in Ordered(self._chooser, where, order, _CHUNK, whole=True).rows():
                if row is not None and not isinstance(row, int):
                    yield row
            return
        for cohort in self._chooser.matching(where):
            cursor = self._db.cursor()
            for stored in cursor.execute(f"SELECT {COLUMNS} FROM record WHERE cohort=?", (cohort.id,)):  # noqa: S608
                if self._chooser.row_matches(stored, cohort, where):
                    yield self._chooser.row(stored)

    def count(self, where: RecordFilter, limit: int) -> tuple[int, int, bool]:
        """(records, bytes, exact). Looks at no more than `limit` rows that no counter covers."""
        records = total = 0
        left = limit
        exact = True
        for cohort in self._chooser.matching(where):
            if self._chooser.holds_all(cohort, where):
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
            cursor = self._db.execute(f"SELECT {COLUMNS} FROM record WHERE cohort=?", (cohort.id,))  # noqa: S608
            for stored in cursor:
                if left <= 0:
                    exact = False
                    break
                left -= 1
                if self._chooser.row_matches(stored, cohort, where):
                    records += 1
                    total += stored[4]
        return records, total, exact

    def get(self, ident: int) -> RecordRow | None:
        """One row by its id."""
        stored = self._db.execute(f"SELECT {COLUMNS} FROM record WHERE id=?", (ident,)).fetchone()  # noqa: S608
        return self._chooser.row(stored) if stored is not None and stored[1] in self._chooser.cohorts else None

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
        if where.q is not None and where.q not in self._chooser.owners[cohort.owner].head:
            return None
        column, index = ("mtime", "record_mtime") if where.older_than is not None else ("used", "record_used")
        found = self._db.execute(
            f"SELECT count(*) FROM (SELECT 1 FROM record INDEXED BY {index}"  # noqa: S608
            f" WHERE cohort=? AND {column}<? LIMIT ?)",
            (cohort.id, self._chooser.oldest(where), max(0, limit)),
        )
        return int(found.fetchone()[0])
