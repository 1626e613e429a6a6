"""Writes a migration from the difference between the tables and a database migrated so far: new_migration.py "why"."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from alembic import command

from app.database import Database
from app.migrate import migration_config, upgrade


def main() -> None:
    """Makes migrations/versions/<next number>_<why>.py; read it before you commit it."""
    why = sys.argv[1]
    with tempfile.TemporaryDirectory() as directory:
        db = Database(f"sqlite:///{directory}/schema.db")
        upgrade(db, Path(directory))
        with db.engine.connect() as connection:
            config = migration_config(connection)
            number = len(list(Path("migrations/versions").glob("[0-9]*.py"))) + 1
            command.revision(config, why, autogenerate=True, rev_id=f"{number:04d}")


main()
