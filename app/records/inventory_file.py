"""The inventory of one store: a SQLite file of its own in the data directory, whatever the panel's database is.

It holds what a scan found, a row a record, and can be rebuilt from the disk at any time. Its own file, because a first
scan of a million records can then be loaded without a journal and put in place by a rename, while readers and the
panel's database go on undisturbed.

A record's class is not in its row. Rows belong to a *cohort*: same owner (name form, model, rank, group), same size,
written in a stretch of time in which nothing that decides classes changed. A cohort has one class, so a new layout
re-classes a million records by updating a few cohorts (`judging.py`).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from app.errors import StoreError
from app.lmcache.object_keys import ObjectKey, decode_model
from app.records.classify import RecordOwner

VERSION = 2

_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE owner (
  id INTEGER PRIMARY KEY, folder TEXT NOT NULL, levels TEXT NOT NULL, model TEXT NOT NULL, kv_rank INTEGER NOT NULL,
  object_group INTEGER, suffix TEXT NOT NULL, UNIQUE (folder, levels, model, kv_rank, object_group, suffix)
);
CREATE TABLE salt (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);
CREATE TABLE cohort (
  id INTEGER PRIMARY KEY, owner INTEGER NOT NULL, size INTEGER, cls TEXT NOT NULL, reason TEXT, epoch TEXT,
  records INTEGER NOT NULL, bytes INTEGER NOT NULL, min_mtime INTEGER, max_mtime INTEGER, min_size INTEGER,
  max_size INTEGER
);
CREATE TABLE record (
  id INTEGER PRIMARY KEY, cohort INTEGER NOT NULL, owner INTEGER NOT NULL, salt INTEGER NOT NULL, hash BLOB NOT NULL,
  size INTEGER NOT NULL, mtime INTEGER NOT NULL, ctime INTEGER NOT NULL, atime INTEGER NOT NULL,
  inode INTEGER NOT NULL, flags INTEGER NOT NULL, used INTEGER AS (max(atime, mtime)) VIRTUAL
);
"""
# Cohorts of mixed sizes have negative ids, so that only they pay for an index on sizes.
_INDEXES = """
CREATE INDEX record_mtime ON record (cohort, mtime, used);
CREATE INDEX record_used ON record (cohort, used);
CREATE INDEX record_hash ON record (cohort, substr(hash, 1, 8));
CREATE INDEX record_size ON record (cohort, size, mtime, used) WHERE cohort < 0;
CREATE INDEX record_salt ON record (salt, mtime) WHERE salt > 0;
"""

#: Folder, lengths of hash sub-directories as a text, model, kv rank, object group, suffix.
Identity = tuple[str, str, str, int, int | None, str]
#: Bits of `record.flags`.
HARD_LINKS = 1


@dataclass(frozen=True)
class Owner:
    """One owner row: all of a record's name but hash and salt. `levels` are the lengths of hash sub-directories."""

    id: int
    folder: str
    levels: tuple[int, ...]
    model: str
    kv_rank: int
    group: int | None
    suffix: str
    temporary: bool

    @cached_property
    def judged(self) -> RecordOwner:
        return RecordOwner(self.model, self.kv_rank, self.group, self.temporary)

    @cached_property
    def identity(self) -> Identity:
        """What makes two owners one."""
        levels = ",".join(str(length) for length in self.levels)
        return self.folder, levels, self.model, self.kv_rank, self.group, self.suffix

    @cached_property
    def head(self) -> str:
        """The file name before the hash."""
        group = "" if self.group is None else f"@{self.group:x}"
        return f"{self.model}@0x{self.kv_rank:08x}{group}@"

    def name(self, chunk_hash: bytes, salt: str) -> str:
        """The record's relative name."""
        text = chunk_hash.hex()
        base = f"{self.head}{text}@{salt}.{self.suffix}" if salt else f"{self.head}{text}.{self.suffix}"
        if not self.folder and not self.levels:
            return base
        parts = [self.folder] if self.folder else []
        at = 0
        for length in self.levels:
            parts.append(text[at : at + length])
            at += length
        return "/".join([*parts, base])

    def key(self, chunk_hash: bytes, salt: str) -> ObjectKey:
        return ObjectKey(decode_model(self.model), self.kv_rank, self.group, chunk_hash, salt)


@dataclass
class Cohort:
    """One cohort row. `size` None: mixed sizes. The bounds hold all its records and may be wider."""

    id: int
    owner: int
    size: int | None
    cls: str
    reason: str | None
    epoch: str | None
    records: int
    bytes: int
    min_mtime: int
    max_mtime: int
    min_size: int
    max_size: int


class Inventory:
    """An open inventory file. One thread at a time."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self.db = connection
        #: Where the ids of a new inventory begin: an id that meant another record once names nothing.
        self.first_id = 1

    @classmethod
    def open(cls, path: Path) -> Inventory | None:
        """An existing inventory, for reading and small writes; None when there is none that this version can read."""
        if not path.is_file():
            return None
        try:
            connection = _connect(path)
        except sqlite3.OperationalError:
            raise  # busy or out of room: not the file's fault
        except sqlite3.DatabaseError:
            return None  # cut off or not ours: a scan makes a new one
        if connection.execute("PRAGMA user_version").fetchone()[0] == VERSION:
            return cls(path, connection)
        connection.close()
        return None

    @classmethod
    def require(cls, path: Path) -> Inventory:
        """An inventory that must be there. Raises StoreError."""
        inventory = cls.open(path)
        if inventory is None:
            raise StoreError("the inventory of this store cannot be read; scan it again")
        return inventory

    @classmethod
    def build(cls, path: Path) -> Inventory:
        """A new, empty inventory in a file beside `path`; `finish_build` puts it in place."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        building = path.with_suffix(".building")
        for stale in _files(building):
            stale.unlink(missing_ok=True)
        connection = _connect(building)
        # Nothing is lost when this is cut off: the file is thrown away.
        connection.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA locking_mode=EXCLUSIVE;")
        connection.executescript(_TABLES)
        connection.execute("BEGIN")
        inventory = cls(path, connection)
        inventory.first_id = _after_last_id(path)
        return inventory

    def finish_build(self) -> None:
        """Indexes, fsync, rename into place. The connection is closed."""
        self.db.executescript(_INDEXES)
        self.db.execute(f"PRAGMA user_version={VERSION}")
        if self.db.in_transaction:
            self.db.execute("COMMIT")
        self.db.close()
        building = self.path.with_suffix(".building")
        fd = os.open(building, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        # A write-ahead log of the file that is replaced must not be taken for the new one's.
        for leftover in _files(self.path)[1:]:
            leftover.unlink(missing_ok=True)
        building.replace(self.path)

    def abandon_build(self) -> None:
        """Throws an unfinished build away."""
        self.db.close()
        for stale in _files(self.path.with_suffix(".building")):
            stale.unlink(missing_ok=True)

    def close(self) -> None:
        self.db.close()

    def __enter__(self) -> Inventory:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """One unit of work."""
        if self.db.in_transaction:
            yield self.db
            return
        self.db.execute("BEGIN IMMEDIATE")
        try:
            yield self.db
        except BaseException:
            self.db.execute("ROLLBACK")
            raise
        self.db.execute("COMMIT")

    # small tables

    def meta(self) -> dict[str, Any]:
        return dict(self.db.execute("SELECT key, value FROM meta"))

    def set_meta(self, **values: object) -> None:
        self.db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", values.items())

    def owners(self) -> dict[int, Owner]:
        rows = self.db.execute("SELECT id, folder, levels, model, kv_rank, object_group, suffix FROM owner")
        return {row[0]: make_owner(*row) for row in rows}

    def cohorts(self) -> dict[int, Cohort]:
        rows = self.db.execute(
            "SELECT id, owner, size, cls, reason, epoch, records, bytes, min_mtime, max_mtime, min_size, max_size"
            " FROM cohort"
        )
        return {row[0]: Cohort(*row) for row in rows}

    def move_cohort_counts(self, moves: Iterable[tuple[int, int, int, int, int, int, int]]) -> None:
        """Adds to cohorts: (records, bytes, mtime from, to, size from, to, cohort id). Safe beside other writers."""
        self.db.executemany(
            "UPDATE cohort SET records=records+?, bytes=bytes+?, min_mtime=min(min_mtime, ?),"
            " max_mtime=max(max_mtime, ?), min_size=min(min_size, ?), max_size=max(max_size, ?) WHERE id=?",
            moves,
        )

    def insert_cohort(self, cohort: Cohort) -> None:
        """A new cohort, still empty."""
        self.db.execute(
            "INSERT INTO cohort VALUES (?, ?, ?, ?, ?, ?, 0, 0, ?, ?, ?, ?)",
            (
                cohort.id,
                cohort.owner,
                cohort.size,
                cohort.cls,
                cohort.reason,
                cohort.epoch,
                cohort.min_mtime,
                cohort.max_mtime,
                cohort.min_size,
                cohort.max_size,
            ),
        )

    def save_cohort(self, cohort: Cohort) -> None:
        """The whole row, counts included: only where nobody else writes."""
        self.db.execute(
            "INSERT OR REPLACE INTO cohort VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                cohort.id,
                cohort.owner,
                cohort.size,
                cohort.cls,
                cohort.reason,
                cohort.epoch,
                cohort.records,
                cohort.bytes,
                cohort.min_mtime,
                cohort.max_mtime,
                cohort.min_size,
                cohort.max_size,
            ),
        )

    def salts(self) -> dict[int, str]:
        return {0: "", **dict(self.db.execute("SELECT id, text FROM salt"))}

    def salt_text(self, ident: int) -> str:
        if ident == 0:
            return ""
        return str(self.db.execute("SELECT text FROM salt WHERE id=?", (ident,)).fetchone()[0])


def make_owner(ident: int, folder: str, levels: str, model: str, kv_rank: int, group: int | None, suffix: str) -> Owner:
    lengths = tuple(int(part) for part in levels.split(",")) if levels else ()
    return Owner(ident, folder, lengths, model, kv_rank, group, suffix, bool(folder) or suffix == "tmp")


def _after_last_id(path: Path) -> int:
    old = Inventory.open(path)
    if old is None:
        return 1
    with old:
        return int(old.db.execute("SELECT coalesce(max(id), 0) FROM record").fetchone()[0]) + 1


def remove_inventory(path: Path) -> None:
    """Forgets an inventory."""
    for file in (*_files(path), *_files(path.with_suffix(".building"))):
        with suppress(OSError):
            file.unlink(missing_ok=True)


def _files(path: Path) -> list[Path]:
    return [path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm"), _journal(path)]


def _journal(path: Path) -> Path:
    return path.with_name(path.name + "-journal")


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=30.0, isolation_level=None, check_same_thread=False)
    try:
        connection.executescript(
            "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA cache_size=-16000;"
            "PRAGMA temp_store=FILE; PRAGMA journal_size_limit=33554432;"
        )
    except BaseException:
        connection.close()
        raise
    return connection
