"""Reading matching records by the thousand, for plans over a whole store.

A plan looks at every record of a store; an object a record would cost ten times what the rows do. So records come in
batches of one cohort (one class, reason, model), as plain tuples that nobody has to touch.
"""

from __future__ import annotations

import heapq
from binascii import hexlify
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from app.lmcache.object_keys import decode_model
from app.records.filters import RecordFilter
from app.records.inventory_file import HARD_LINKS, Cohort, Inventory, Owner
from app.records.query import Reader
from app.records.timeline import NS
from app.records.views import record_id

#: (name, size, mtime_ns, ctime_ns, atime_ns, inode as signed 64 bit, outside id).
BulkRow = tuple[bytes, int, int, int, int, int, int]
Sorting = Literal["used", "written"]
_ROWS = 4096
_IDS = 4000
_USED = "used"
_SALTS_KEPT = 100_000


class _Source(NamedTuple):
    """How the rows of one cohort are read: a sort key to select first (or none), an index, an order."""

    key: str
    by: str
    order: str


_SOURCES: dict[Sorting | None, _Source] = {
    None: _Source("", " INDEXED BY record_mtime", ""),
    "used": _Source(f"{_USED},", " INDEXED BY record_used", f" ORDER BY {_USED}, id"),
    "written": _Source("mtime,", " INDEXED BY record_mtime", " ORDER BY mtime, used, id"),
}


class BulkBatch(NamedTuple):
    """Records of one class, reason and model, at most a few thousand."""

    cls: str
    reason: str | None
    model_name: str
    device: int
    rows: list[BulkRow]


def batches(
    inventory: Inventory,
    reader: Reader,
    where: RecordFilter,
    *,
    store_id: int,
    now_ns: int,
    names: Mapping[str, str],
    oldest_first: Sorting | None = None,
    hard_links: bool = False,
) -> Iterator[BulkBatch]:
    """All matching records that have one name only (others are never taken), or with `hard_links` all.

    `names`: model names as servers use them, by how record names spell them. `oldest_first`: by the last use, or by the
    last write.
    """
    device = int(inventory.meta().get("device") or 0)
    cohorts = reader.matching(where)
    owners = reader.owners

    def made(cohort: Cohort, rows: list[BulkRow]) -> BulkBatch:
        spelt = owners[cohort.owner].model
        return BulkBatch(cohort.cls, cohort.reason, names.get(spelt) or decode_model(spelt), device, rows)

    total = sum(cohort.records for cohort in reader.cohorts.values())
    streams = [
        _Stream(inventory, store_id, owners[c.owner], c, where, now_ns, oldest_first, total, hard_links)
        for c in cohorts
    ]
    if oldest_first is None or len(streams) < 2:
        for stream in streams:
            yield from (made(stream.cohort, found) for found in stream.batches())
        return
    merged = heapq.merge(*(stream.keyed(number) for number, stream in enumerate(streams)), key=itemgetter(0))
    # Neighbours of one cohort go together; a batch may be a single record.
    for number, run in groupby(merged, key=itemgetter(1)):
        rows: list[BulkRow] = []
        for _, _, row in run:
            rows.append(row)
            if len(rows) >= _ROWS:
                yield made(streams[number].cohort, rows)
                rows = []
        if rows:
            yield made(streams[number].cohort, rows)


class _Stream:
    """The matching records of one cohort."""

    def __init__(
        self,
        inventory: Inventory,
        store_id: int,
        owner: Owner,
        cohort: Cohort,
        where: RecordFilter,
        now_ns: int,
        oldest_first: Sorting | None,
        total: int,
        hard_links: bool,
    ) -> None:
        self._db = inventory.db
        self.cohort = cohort
        self._owner = owner
        self._sorted = oldest_first
        # A text that may stand in the hash or the salt is looked for row by row.
        self._text = where.q if where.q is not None and where.q not in owner.head else None
        #: What follows the hash, by salt id; None: names are made inside SQLite.
        self._tails = None if owner.folder or owner.levels else _tails(inventory, owner)
        name, values = ("hash, salt", []) if self._tails is not None else _name_sql(owner)
        conditions, bound = _conditions(where, now_ns)
        source = _SOURCES[oldest_first]
        if oldest_first is None and 4 * cohort.records >= total:
            # Most rows are wanted: reading all of them in their own order is three times quicker than by an index.
            source = _Source("", " NOT INDEXED", "")
        names_wanted = "" if hard_links else f" AND flags & {HARD_LINKS} = 0"
        self._sql = (
            f"SELECT {source.key} {name}, size, mtime, ctime, atime, inode, ? + id"  # noqa: S608
            f" FROM record{source.by} WHERE cohort=?{names_wanted}{conditions}{source.order}"
        )
        self._bound: Sequence[Any] = (*values, record_id(store_id, 0), cohort.id, *bound)

    def _rows(self, name_at: int) -> Iterator[list[tuple[Any, ...]]]:
        cursor = self._db.cursor()
        cursor.execute(self._sql, self._bound)
        wanted = self._text.encode() if self._text is not None else None
        while rows := cursor.fetchmany(_ROWS):
            if self._tails is not None:
                rows = self._named(rows, name_at)
            if wanted is not None:
                rows = [row for row in rows if wanted in row[name_at]]
            if rows:
                yield rows

    def _named(self, rows: list[tuple[Any, ...]], name_at: int) -> list[tuple[Any, ...]]:
        """Rows with the name in place of hash and salt."""
        head, tails = self._owner.head.encode(), self._tails or {}
        # Written out: a plan over a whole store does this a million times.
        if name_at:
            hashes = _hex([row[1] for row in rows])
            return [
                (key, head + text + tails[s], size, mtime, ctime, atime, inode, ident)
                for text, (key, _, s, size, mtime, ctime, atime, inode, ident) in zip(hashes, rows, strict=True)
            ]
        hashes = _hex([row[0] for row in rows])
        return [
            (head + text + tails[s], size, mtime, ctime, atime, inode, ident)
            for text, (_, s, size, mtime, ctime, atime, inode, ident) in zip(hashes, rows, strict=True)
        ]

    def batches(self) -> Iterator[list[BulkRow]]:
        """Rows in the order asked for."""
        if self._sorted is None:
            yield from self._rows(0)
            return
        for rows in self._rows(1):
            yield [row[1:] for row in rows]

    def keyed(self, number: int) -> Iterator[tuple[int, int, BulkRow]]:
        """(sort key, the given number, row), in the order asked for."""
        for rows in self._rows(1):
            for row in rows:
                yield row[0], number, row[1:]


def _hex(hashes: list[bytes]) -> list[bytes]:
    """Hashes as their names spell them; those of one length, which is nearly always all, in one go."""
    length = len(hashes[0])
    if not length or set(map(len, hashes)) != {length}:
        return [hexlify(found) for found in hashes]
    return b"".join(hashes).hex(" ", length).encode().split(b" ")


def _tails(inventory: Inventory, owner: Owner) -> dict[int, bytes] | None:
    """What follows the hash in names of an owner, by salt id; None where there are too many salts to keep."""
    if inventory.db.execute("SELECT count(*) FROM salt").fetchone()[0] > _SALTS_KEPT:
        return None
    suffix = "." + owner.suffix
    return {ident: (f"@{text}{suffix}" if ident else suffix).encode() for ident, text in inventory.salts().items()}


def _name_sql(owner: Owner) -> tuple[str, list[str]]:
    """An expression for the relative name, and its bound values."""
    parts: list[str] = []
    values: list[str] = []
    if owner.folder:
        parts.append("?")
        values.append(owner.folder + "/")
    at = 1
    for length in owner.levels:
        parts.append(f"substr(lower(hex(hash)), {at}, {length}) || '/'")
        at += length
    parts.append("? || lower(hex(hash))")
    values.append(owner.head)
    parts.append("CASE WHEN salt=0 THEN '' ELSE '@' || (SELECT text FROM salt WHERE salt.id=record.salt) END || ?")
    values.append("." + owner.suffix)
    return f"CAST({' || '.join(parts)} AS BLOB)", values


def _conditions(where: RecordFilter, now_ns: int) -> tuple[str, list[Any]]:
    """What the filter says of single rows (class, model, rank and the like are of whole cohorts)."""
    conditions: list[str] = []
    bound: list[Any] = []
    for column, condition, value in (
        ("size", ">=", where.min_size),
        ("mtime", "<", None if where.older_than is None else now_ns - round(where.older_than * NS)),
        (_USED, "<", None if where.unused_for is None else now_ns - round(where.unused_for * NS)),
    ):
        if value is not None:
            conditions.append(f" AND {column}{condition}?")
            bound.append(value)
    if where.salt is not None:
        if where.salt:
            conditions.append(" AND salt=(SELECT id FROM salt WHERE text=?)")
            bound.append(where.salt)
        else:
            conditions.append(" AND salt=0")
    return "".join(conditions), bound


def remove_rows(inventory: Inventory, row_ids: Sequence[int]) -> tuple[int, int]:
    """Takes rows out by their ids; (records, bytes) that were there. An id that names nothing any more is no error."""
    records = size = 0
    with inventory.write() as db:
        for at in range(0, len(row_ids), _IDS):
            chosen = row_ids[at : at + _IDS]
            where = f"FROM record WHERE id IN ({', '.join('?' * len(chosen))})"
            moves = []
            for cohort, count, total, *bounds in db.execute(
                f"SELECT cohort, count(*), sum(size), min(mtime), max(mtime), min(size), max(size) {where}"
                " GROUP BY cohort",
                chosen,
            ):
                moves.append((-count, -total, *bounds, cohort))
                records += count
                size += total
            inventory.move_cohort_counts(moves)
            db.execute(f"DELETE {where}", chosen)
    return records, size
