"""Compares a directory with its inventory: a first scan builds one, a re-scan writes only what changed.

A re-scan reads the inventory in the order of its rows, which is the order the directory had when they were written,
and compares whole batches at once; where the two fall out of step, records are looked up one by one. Memory stays flat
however many records there are.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from app.records.facts import display_name
from app.records.inventory_file import HARD_LINKS, Inventory
from app.records.owners import HASH_AT, SUFFIX_AT, KnownOwner, OwnerBook
from app.records.store_dir import Entries

BATCH = 8192
EXAMPLES = 10
_REGULAR = 0o100000
_KIND = 0o170000
_BIG = 1 << 63

#: (owner, salt, hash, size, mtime, ctime, atime, inode, flags): one record as the directory shows it.
Row = tuple[int, int, bytes, int, int, int, int, int, int]
#: The same as the inventory has it, then the row's id and its cohort.
Stored = tuple[Any, ...]
#: Batches of one directory each: (sub-directory or "", entries).
Walk = Iterable[tuple[str, Entries]]
#: Called after each batch with the number of files seen; raises to stop the scan.
Tick = Callable[[int], None]

INSERT_ROW = (
    "INSERT INTO record (cohort, owner, salt, hash, size, mtime, ctime, atime, inode, flags)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_INSERT_NUMBERED = INSERT_ROW.replace("(cohort", "(id, cohort").replace("(?", "(?, ?")
_SELECT = "SELECT owner, salt, hash, size, mtime, ctime, atime, inode, flags, id, cohort FROM record ORDER BY id"
_SELECT_ONE = (
    "SELECT owner, salt, hash, size, mtime, ctime, atime, inode, flags, id, cohort FROM record"
    " WHERE cohort=? AND substr(hash, 1, 8)=?"
)
_FACTS = 9
#: Where a stored row has its size, its modification time, its id and its cohort.
SIZE, MTIME, ID, COHORT = 3, 4, 9, 10


@dataclass
class Totals:
    """What a scan found. `foreign` are all files that are no records; bytes are apparent sizes."""

    files: int = 0
    records: int = 0
    bytes: int = 0
    blocks: int = 0  # of 512 bytes, as allocated
    foreign: int = 0
    foreign_bytes: int = 0
    examples: list[str] = field(default_factory=list)
    added: int = 0
    changed: int = 0
    vanished: int = 0
    vanished_bytes: int = 0


def full_scan(walk: Walk, inventory: Inventory, book: OwnerBook, tick: Tick) -> Totals:
    """Fills an inventory under construction (`Inventory.build`)."""
    totals = Totals()
    db = inventory.db
    counts: Counter[int] = Counter()
    mixed: Counter[int] = Counter()
    numbers = itertools.count(inventory.first_id)
    for rows in _rows(walk, book, totals, tick):
        placed = [(next(numbers), book.cohort(book.owner(row[0]), row[4], row[3]), *row) for row in rows]
        counts.update(row[1] for row in placed)
        for row in placed:
            if row[1] < 0:
                mixed[row[1]] += row[5]
        db.executemany(_INSERT_NUMBERED, placed)
    totals.added = totals.records
    for cohort in book.cohorts.values():
        cohort.records = counts[cohort.id]
        cohort.bytes = mixed[cohort.id] if cohort.size is None else cohort.size * cohort.records
        inventory.save_cohort(cohort)
    return totals


def re_scan(walk: Walk, inventory: Inventory, book: OwnerBook, tick: Tick, unreadable: Iterable[bytes] = ()) -> Totals:
    """Brings an inventory in step with the directory; small transactions, readers are never blocked.

    `unreadable` is filled by the walk: what lies in those directories is not taken for gone.
    """
    totals = Totals()
    merge = _Merge(inventory, book, totals)
    try:
        for rows in _rows(walk, book, totals, tick):
            merge.batch(rows)
        merge.finish(unreadable)
    finally:
        merge.close()
    return totals


def drop_doubles(inventory: Inventory, since_ns: int) -> int:
    """Takes out the older of two rows of one name: a file replaced while we walked may have been listed twice.

    Only files written since the walk began can be such a second one. Returns how many rows went.
    """
    dropped = 0
    for cohort in inventory.cohorts().values():
        rows = inventory.db.execute(
            "SELECT id, owner, salt, hash FROM record WHERE cohort=? AND mtime>=?", (cohort.id, since_ns)
        ).fetchall()
        for ident, owner, salt, chunk_hash in rows:
            for other in find_rows(inventory.db, _cohorts_of(inventory, owner), (owner, salt, chunk_hash)):
                if other[ID] < ident:
                    with inventory.write() as db:
                        db.execute("DELETE FROM record WHERE id=?", (other[ID],))
                        inventory.move_cohort_counts([(-1, -other[3], *_bounds(other[3], other[4]), other[COHORT])])
                    dropped += 1
    return dropped


def find_rows(db: sqlite3.Connection, cohorts: Iterable[int], key: tuple[int, int, bytes]) -> list[Stored]:
    """The rows of one name: by owner, salt and hash, in any of the owner's cohorts."""
    found: list[Stored] = []
    for cohort in cohorts:
        for stored in db.execute(_SELECT_ONE, (cohort, key[2][:8])):
            if stored[:3] == key:
                found.append(stored)  # noqa: PERF401 (a comprehension over two loops reads worse)
    return found


def _cohorts_of(inventory: Inventory, owner: int) -> list[int]:
    return [row[0] for row in inventory.db.execute("SELECT id FROM cohort WHERE owner=?", (owner,))]


def _bounds(size: int, mtime: int) -> tuple[int, int, int, int]:
    return mtime, mtime, size, size


class _Merge:
    """The state of a re-scan between batches."""

    def __init__(self, inventory: Inventory, book: OwnerBook, totals: Totals) -> None:
        self._inventory = inventory
        self._db = inventory.db
        self._book = book
        self._totals = totals
        # A second connection reads in row order while this one writes: a snapshot of the inventory as it was.
        reader = Inventory.open(inventory.path)
        assert reader is not None
        self._reader = reader
        reader.db.execute("BEGIN")
        self._cursor = reader.db.execute(_SELECT)
        self._window: list[Stored] = []  # stored rows read but not matched yet, at most a batch
        self._passed: set[int] = set()  # ids left behind unmatched: gone, or out of order
        self._ahead: set[int] = set()  # ids matched before the cursor reached them
        self._saved = set(book.cohorts)
        self._moves: dict[int, list[int]] = {}  # by cohort: records, bytes and bounds to add

    def close(self) -> None:
        self._reader.close()
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    def batch(self, rows: list[Row]) -> None:
        window = self._window + self._fetch(len(rows) - len(self._window))
        if len(window) == len(rows) and [stored[:_FACTS] for stored in window] == rows:
            self._window = []
            return
        by_key = {stored[:3]: stored for stored in window}
        left: list[Row] = []
        changed: list[tuple[Stored, Row]] = []
        for row in rows:
            stored = by_key.pop(row[:3], None)
            if stored is None:
                left.append(row)
            elif stored[:_FACTS] != row:
                changed.append((stored, row))
        # What did not match may come in the next rows of the inventory (records deleted in between).
        while left:
            more = self._fetch(len(left))
            if not more:
                break
            fresh = {stored[:3]: stored for stored in more}
            still: list[Row] = []
            for row in left:
                stored = fresh.pop(row[:3], None)
                if stored is None:
                    still.append(row)
                elif stored[:_FACTS] != row:
                    changed.append((stored, row))
            by_key.update(fresh)
            if len(still) > len(left) // 2:
                left = still
                break
            left = still
        rest = list(by_key.values())
        # Rows that waited a whole batch are left behind; the younger ones may still come.
        keep = max(0, len(rest) - BATCH)
        self._passed.update(stored[ID] for stored in rest[:keep])
        self._window = rest[keep:]
        added: list[Row] = []
        for row in left:
            found = self._look_up(row)
            if found is None:
                added.append(row)
                continue
            if found[ID] in self._passed:
                self._passed.discard(found[ID])
            else:
                self._ahead.add(found[ID])
            if found[:_FACTS] != row:
                changed.append((found, row))
        if added or changed:
            self._write(added, changed)
        if self._db.in_transaction:  # also when only an owner or a salt was new
            self._db.execute("COMMIT")

    def _fetch(self, count: int) -> list[Stored]:
        """Up to `count` rows that no file has matched yet. None are returned only where there are none left: a run of
        rows that were all matched ahead is no end.
        """
        while count > 0 and (rows := self._cursor.fetchmany(count)):
            if not self._ahead:
                return rows
            kept = [stored for stored in rows if stored[ID] not in self._ahead]
            self._ahead.difference_update(stored[ID] for stored in rows)
            if kept:
                return kept
        return []

    def _look_up(self, row: Row) -> Stored | None:
        found = find_rows(self._reader.db, self._book.owner(row[0]).cohort_ids, row[:3])
        return found[0] if found else None

    def _write(self, added: list[Row], changed: list[tuple[Stored, Row]]) -> None:
        book, totals = self._book, self._totals
        self._begin()
        placed = [(book.cohort(book.owner(row[0]), row[4], row[3]), *row) for row in added]
        self._db.executemany(INSERT_ROW, placed)
        for row in placed:
            self._count(row[0], +1, row[4], row[5])
        for stored, now in changed:
            cohort = book.cohort(book.owner(now[0]), now[4], now[3])
            updated = self._db.execute(
                "UPDATE record SET cohort=?, size=?, mtime=?, ctime=?, atime=?, inode=?, flags=? WHERE id=?",
                (cohort, *now[3:], stored[ID]),
            )
            if updated.rowcount != 1:
                continue  # a run of ours took it out meanwhile
            self._count(stored[COHORT], -1, stored[3], stored[4])
            self._count(cohort, +1, now[3], now[4])
            # A moved access time alone is no change of the record.
            if stored[3:6] != now[3:6] or stored[7] != now[7]:
                totals.changed += 1
        totals.added += len(added)
        self._save()

    def _begin(self) -> None:
        if not self._db.in_transaction:
            self._db.execute("BEGIN IMMEDIATE")

    def _count(self, ident: int, step: int, size: int, mtime: int) -> None:
        move = self._moves.setdefault(ident, [0, 0, mtime, mtime, size, size])
        move[0] += step
        move[1] += step * size
        move[2], move[3] = min(move[2], mtime), max(move[3], mtime)
        move[4], move[5] = min(move[4], size), max(move[5], size)

    def _save(self) -> None:
        for ident in self._moves.keys() - self._saved:
            self._inventory.insert_cohort(self._book.cohorts[ident])
            self._saved.add(ident)
        self._inventory.move_cohort_counts(
            (move[0], move[1], move[2], move[3], move[4], move[5], ident) for ident, move in self._moves.items()
        )
        self._moves.clear()

    def finish(self, unreadable: Iterable[bytes]) -> None:
        """Rows that no file matched are gone from the directory."""
        gone = self._passed | {stored[ID] for stored in self._window}
        while rows := self._fetch(BATCH):
            gone.update(stored[ID] for stored in rows)
        hidden = tuple(os.fsdecode(folder) + "/" for folder in unreadable)
        ids = sorted(gone)
        for at in range(0, len(ids), BATCH):
            self._begin()
            for ident in ids[at : at + BATCH]:
                self._remove(ident, hidden)
            self._save()
            self._db.execute("COMMIT")

    def _remove(self, ident: int, hidden: tuple[str, ...]) -> None:
        found = self._db.execute("SELECT cohort, size, mtime, owner, hash FROM record WHERE id=?", (ident,)).fetchone()
        if found is None:
            return  # a run of ours took it out meanwhile
        cohort, size, mtime, owner, chunk_hash = found
        if hidden and self._book.owner(owner).owner.name(chunk_hash, "").startswith(hidden):
            return
        self._db.execute("DELETE FROM record WHERE id=?", (ident,))
        self._count(cohort, -1, size, mtime)
        self._totals.vanished += 1
        self._totals.vanished_bytes += size


def _rows(walk: Walk, book: OwnerBook, totals: Totals, tick: Tick) -> Iterator[list[Row]]:
    """The records of a walk as rows, in batches; everything else is counted as foreign."""
    rows: list[Row] = []
    for folder, entries in walk:
        place = book.place(folder)
        totals.files += len(entries)
        if place is None:
            for name, found in entries:
                _foreign(totals, folder, name, found.st_size)
        else:
            heads, prefix = place.heads, place.prefix
            fromhex = bytes.fromhex
            total = blocks = 0
            before = len(rows)
            append = rows.append
            for name, found in entries:
                known: KnownOwner | None = None
                salt = 0
                if name[SUFFIX_AT:] == ".data" and (known := heads.get(name[:HASH_AT])) is not None:
                    text = name[HASH_AT:SUFFIX_AT]
                    try:
                        chunk_hash = fromhex(text)
                    except ValueError:
                        known = None
                    else:
                        # fromhex also takes capitals and spaces
                        if chunk_hash.hex() != text or not text.startswith(prefix):
                            known = None
                if known is None:
                    parsed = book.parse(place, name)
                    if parsed is None:
                        _foreign(totals, folder, name, found.st_size)
                        continue
                    known, salt, chunk_hash = parsed
                if found.st_mode & _KIND != _REGULAR:
                    _foreign(totals, folder, name, found.st_size)
                    continue
                size = found.st_size
                inode = found.st_ino
                total += size
                blocks += found.st_blocks
                append(
                    (
                        known.owner.id,
                        salt,
                        chunk_hash,
                        size,
                        found.st_mtime_ns,
                        found.st_ctime_ns,
                        found.st_atime_ns,
                        inode if inode < _BIG else inode - 2 * _BIG,
                        0 if found.st_nlink == 1 else HARD_LINKS,
                    )
                )
            totals.records += len(rows) - before
            totals.bytes += total
            totals.blocks += blocks
        if len(rows) >= BATCH:
            yield rows
            rows = []
        tick(totals.files)
    if rows:
        yield rows


def _foreign(totals: Totals, folder: str, name: str, size: int) -> None:
    totals.foreign += 1
    totals.foreign_bytes += size
    if len(totals.examples) < EXAMPLES:
        path = f"{folder}/{name}" if folder else name
        totals.examples.append(display_name(path.encode("utf-8", "surrogateescape")))
