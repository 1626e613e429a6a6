"""Trouble of the system below a command (database, disk) in one line with the way out."""

from __future__ import annotations

import sqlite3

from sqlalchemy.exc import DBAPIError

from app.database import trouble_of


def told(error: BaseException) -> str | None:
    """One line for an error that is not ours to explain with a traceback; None for one that is a bug."""
    if isinstance(error, DBAPIError):
        return trouble_of(error.orig or error)
    if isinstance(error, sqlite3.Error):
        return trouble_of(error)
    if isinstance(error, OSError):
        where = f": {error.filename}" if error.filename else ""
        return f"{error.strerror or error}{where}; see to its permissions and free space, then run it again"
    return None
