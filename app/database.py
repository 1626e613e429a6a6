"""The database: engine, the two kinds of session, dialect differences. Nothing else may depend on SQLite.

Reading takes `Database.read()`, writing `Database.write()` (SQLite: BEGIN IMMEDIATE, the write lock up front; a
deferred transaction that reads and then writes fails at once with "database is locked" whatever busy_timeout says).
The unit of work commits, never the code inside it. No network call and no directory walk inside a session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, MetaData, Table, create_engine, event, make_url
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Session, sessionmaker

from app.vault import Vault, attach

#: How long a writer waits for another one.
BUSY_MS = 15_000

_NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    """Base of every table class; rooms declare theirs in `app.<room>.tables`."""

    metadata = MetaData(naming_convention=_NAMING)


class Database:
    """One engine, made once per process by `app.main` or a command. `vault` seals what `app.vault` calls a secret."""

    def __init__(self, url: str, *, vault: Vault | None = None) -> None:
        self.url = make_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.engine = _make_engine(url, self.is_sqlite)
        if vault is not None:
            attach(self.engine.dialect, vault)
        self._read = sessionmaker(self.engine, expire_on_commit=False)
        self._write = sessionmaker(self.engine.execution_options(sqlite_begin="IMMEDIATE"), expire_on_commit=False)
        self._durable = sessionmaker(
            self.engine.execution_options(sqlite_begin="IMMEDIATE", sqlite_durable=True), expire_on_commit=False
        )

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A short consistent snapshot. Writing in it is a bug."""
        with self._read() as session:
            yield session

    @contextmanager
    def write(self, *, durable: bool = False) -> Iterator[Session]:
        """One unit of work: commits at the end, rolls back on an exception.

        `durable` commits with synchronous=FULL: what it wrote survives a power cut (RULES.md R7 intents).
        """
        with (self._durable if durable else self._write)() as session, session.begin():
            yield session

    def write_if_free(self, work: Callable[[Session], object], *, patience: float = 0.0) -> str | None:
        """One unit of work that may as well be left out: None when it is written, else why the database could not.

        For notes beside what somebody asked for. It waits at most `patience` seconds for another writer, so that a
        database which somebody holds for long delays neither pages nor work.
        """
        engine = self.engine.execution_options(sqlite_begin="IMMEDIATE", sqlite_patience=patience)
        try:
            with Session(engine, expire_on_commit=False) as session, session.begin():
                work(session)
        except DBAPIError as error:
            found = trouble(error)
            if found is None:
                raise
            return found
        return None

    def dispose(self) -> None:
        self.engine.dispose()


def _make_engine(url: str, is_sqlite: bool) -> Engine:
    if not is_sqlite:
        return create_engine(url, pool_pre_ping=True)
    # The connection used last is used next: taken in turn, each would fill a page cache (below) with the same pages.
    engine = create_engine(url, connect_args={"timeout": BUSY_MS / 1000}, pool_use_lifo=True)

    @event.listens_for(engine, "connect")
    def _on_connect(connection: DBAPIConnection, _record: object) -> None:
        connection.isolation_level = None  # we say BEGIN ourselves
        cursor = connection.cursor()
        cursor.execute("PRAGMA page_count")
        if not (cursor.fetchone() or (1,))[0]:
            # Only takes effect before the first table; later it would wait for the write lock at every new connection.
            cursor.execute("PRAGMA auto_vacuum=INCREMENTAL")
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=NORMAL")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.execute(f"PRAGMA busy_timeout={BUSY_MS}")
        # 4 MB each: with 16 a panel of four hundred targets held 40 MB of pages, and nothing was faster for it.
        cursor.execute("PRAGMA cache_size=-4000")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        options = connection.get_execution_options()
        mode = options.get("sqlite_begin")
        if mode is None:
            # A page opens dozens of short snapshots: on the driver's own cursor this costs a tenth. It takes no lock
            # and touches no file, so there is no failure of it that callers would have to be told in our terms.
            cursor = connection.connection.cursor()
            cursor.execute("BEGIN DEFERRED")
            cursor.close()
            return
        # synchronous cannot change inside a transaction, and the connection goes back to a pool: set it every time.
        connection.exec_driver_sql(f"PRAGMA synchronous={'FULL' if options.get('sqlite_durable') else 'NORMAL'}")
        patience = options.get("sqlite_patience")
        if patience is None:
            connection.exec_driver_sql(f"BEGIN {mode}")
            return
        connection.exec_driver_sql(f"PRAGMA busy_timeout={round(patience * 1000)}")
        try:
            connection.exec_driver_sql(f"BEGIN {mode}")
        finally:  # the connection goes back to a pool
            connection.exec_driver_sql(f"PRAGMA busy_timeout={BUSY_MS}")

    return engine


#: What a sentence on a failure begins with in SQLite's words, and the way out.
_WAYS_OUT = (
    ("database is locked", "another process has been writing for long; run it again when that is done"),
    ("attempt to write a readonly database", "give its directory and files write permission, or choose another one"),
    ("unable to open database file", "see to the permissions of its directory, or set another data directory"),
    ("database or disk is full", "free space on its file system, then run it again"),
    ("disk i/o error", "see to its disk (the kernel's log says more)"),
    ("no such table", "it is not a whole database of a panel: restore a backup, or set another data directory"),
    ("no such column", "it is not a whole database of a panel: restore a backup, or set another data directory"),
)
_DAMAGED = (
    "move it away and restore a backup in its place (tierkeeper backup makes them), or set another data directory"
)


def trouble_of(error: BaseException, where: str = "") -> str:
    """What the database says went wrong, in one line with the way out."""
    said = " ".join(str(error).split())
    known = next((way for words, way in _WAYS_OUT if words in said.lower()), None)
    return f"the database{f' {where}' if where else ''} cannot be used ({said[:300]}); {known or _DAMAGED}"


def trouble(error: DBAPIError) -> str | None:
    """As `trouble_of` for a database that cannot be used just now; None for an error in what was asked of it."""
    said = str(error.orig).lower()
    unusable = ("is locked", "readonly", "unable to open", "is full", "i/o error", "malformed", "not a database")
    return trouble_of(error.orig or error) if any(words in said for words in unusable) else None


def said_by(error: BaseException) -> str:
    """An error in one line: what the database has to say, without the statement that met it."""
    if not isinstance(error, DBAPIError):
        return f"{type(error).__name__}: {error}"
    return trouble(error) or f"{type(error).__name__}: {error.orig}"


def insert_ignore(session: Session, table: Table, rows: Sequence[Mapping[str, Any]]) -> int:
    """INSERT … ON CONFLICT DO NOTHING; returns how many rows were really inserted (0 = somebody else has it)."""
    result = session.execute(_insert(session, table).on_conflict_do_nothing(), list(rows))
    return int(result.rowcount)  # type: ignore[attr-defined]


def upsert(
    session: Session, table: Table, rows: Sequence[Mapping[str, Any]], *, key: Sequence[str], update: Sequence[str]
) -> None:
    """INSERT … ON CONFLICT (key) DO UPDATE SET the `update` columns."""
    statement = _insert(session, table)
    session.execute(
        statement.on_conflict_do_update(index_elements=list(key), set_={c: statement.excluded[c] for c in update}),
        list(rows),
    )


def _insert(session: Session, table: Table) -> Any:
    postgres = session.get_bind().dialect.name == "postgresql"
    return postgresql.insert(table) if postgres else sqlite.insert(table)
