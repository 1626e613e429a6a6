"""A database that another process holds."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import event

from app.database import Database


@contextmanager
def held(db: Database) -> Iterator[None]:
    """Another connection holds the file's write lock, until the block ends."""
    other = sqlite3.connect(str(db.url.database), isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        other.close()


@contextmanager
def impatient(db: Database) -> Iterator[None]:
    """Writers of ours that do wait give up at once."""

    def hurry(connection: sqlite3.Connection, _record: object, _proxy: object) -> None:
        connection.execute("PRAGMA busy_timeout=20")

    event.listen(db.engine, "checkout", hurry)
    try:
        yield
    finally:
        event.remove(db.engine, "checkout", hurry)
