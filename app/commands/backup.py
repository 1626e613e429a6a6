"""`tierkeeper backup`: a consistent copy of a database in use."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from app.commands.context import command_services
from app.errors import InvalidInput, TierkeeperError


def backup(target: Path) -> str:
    """Copies the database to `target` (mode 0600) and checks the copy; returns one line for the user.

    Raises InvalidInput when the target exists or cannot be written, or the database is not SQLite.
    """
    with command_services() as services:
        if not services.db.is_sqlite:
            raise InvalidInput.field("TIERKEEPER_DATABASE_URL", "is not SQLite; use your database's own backup")
        source_path = services.db.url.database or ""
    try:
        handle = os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except OSError as error:
        raise InvalidInput.field("TARGET", f"{target} cannot be made ({error.strerror})") from error
    os.close(handle)
    source, copy = sqlite3.connect(source_path), sqlite3.connect(target)
    try:
        # All in one step: a copy in steps begins anew whenever somebody writes, and a panel always does. In WAL one
        # long read holds nobody up.
        source.backup(copy)
        verdict = copy.execute("PRAGMA quick_check").fetchone()[0]
    except BaseException:
        target.unlink()
        raise
    finally:
        source.close()
        copy.close()
    if verdict != "ok":
        target.unlink()
        found = str(verdict).splitlines()[0]
        raise TierkeeperError(
            f"the database {source_path} is damaged ({found}), and so would be its copy: no backup was kept; restore "
            "an earlier backup"
        )
    return f"backed up to {target} ({target.stat().st_size} bytes)"
