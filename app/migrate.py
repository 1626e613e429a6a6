"""Brings the database to this version's schema: one process at a time; an older panel refuses a newer schema."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError
from sqlalchemy import Connection
from sqlalchemy.exc import DatabaseError

from app.database import Database, trouble_of
from app.errors import Conflict
from app.paths import MIGRATIONS

log = structlog.get_logger()


def migration_config(connection: Connection | None = None) -> Config:
    """Alembic configuration over our migrations folder and one open connection."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def head_revision() -> str | None:
    """The schema revision this version of the panel writes."""
    return ScriptDirectory.from_config(migration_config()).get_current_head()


def current_revision(db: Database) -> str | None:
    """The schema revision of the database; None when it is empty."""
    with db.engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def upgrade(db: Database, data_dir: Path) -> None:
    """Migrates to the head revision, under a lock in the data directory. Idempotent.

    Raises Conflict when the database was written by a newer panel.
    """
    with _lock(data_dir / "migrate.lock"):
        try:
            before = current_revision(db)
        except DatabaseError as error:
            raise Conflict(trouble_of(error.orig or error, db.url.render_as_string(hide_password=True))) from error
        if before is not None:
            try:
                ScriptDirectory.from_config(migration_config()).get_revision(before)
            except CommandError:
                raise Conflict(
                    f"the database has schema {before}, which this version does not know: it was written by a newer "
                    "Tierkeeper. Install that version again, or restore the backup made before the upgrade"
                ) from None
        if before == head_revision():
            return
        # Batch migrations rebuild tables: foreign keys must not fire meanwhile, and a pragma needs no transaction.
        with db.engine.connect().execution_options(sqlite_begin="IMMEDIATE") as connection:
            if db.is_sqlite:
                raw = connection.connection.driver_connection
                if raw is not None:
                    raw.execute("PRAGMA foreign_keys=OFF")
            try:
                command.upgrade(migration_config(connection), "head")
                connection.commit()
            finally:
                if db.is_sqlite and raw is not None:
                    raw.execute("PRAGMA foreign_keys=ON")
        log.info("database.migrated", before=before, now=head_revision())


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
