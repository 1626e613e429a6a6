"""Ends of work that could not be written yet: a database that is full, or that another process holds for long.

The work is over and its process lives, so nobody else may settle the row. It is written as soon as the database can be;
meanwhile every view of the row says so, whichever room makes it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm.attributes import set_committed_value

from app.database import Database
from app.scheduling.work import RUNNING

#: (name of the kind, id of the row).
Key = tuple[str, int]


@dataclass(frozen=True)
class End:
    """How a piece of work ended, and when. `progress` is what was not written of it before."""

    state: str
    error: str | None
    at: float
    progress: Mapping[str, Any] = field(default_factory=dict)

    def values(self) -> dict[str, Any]:
        """What is written into the row."""
        values = {**self.progress, "state": self.state, "finished_at": self.at}
        return values if self.error is None else {**values, "error": self.error}


class UnwrittenEnds:
    """The ends that this process still owes the database."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._guard = threading.Lock()
        self._ends: dict[Key, tuple[type[Any], End, str]] = {}

    def keep(self, kind: str, table: type[Any], work_id: int, end: End, error: Exception) -> None:
        """`error` is why it could not be written."""
        why = str(error.orig) if isinstance(error, DBAPIError) else f"{type(error).__name__}: {error}"
        told = f"it has ended ({end.state}{f': {end.error}' if end.error else ''}), which could not be written yet "
        told += f"({why}); this is tried again every few seconds, see to the database"
        with self._guard:
            if not any(kept is table for kept, _, _ in self._ends.values()):
                event.listen(table, "load", self._tell)
            self._ends[kind, work_id] = (table, end, told)

    def waiting(self) -> list[tuple[Key, End]]:
        with self._guard:
            return [(key, end) for key, (_, end, _) in self._ends.items()]

    def written(self, key: Key) -> None:
        with self._guard:
            table = self._ends.pop(key, (None,))[0]
            if table is not None and not any(kept is table for kept, _, _ in self._ends.values()):
                event.remove(table, "load", self._tell)

    def _tell(self, row: Any, context: Any) -> None:
        """A row was loaded. In memory alone: nothing of this is ever written."""
        loaded = row.__dict__  # what was not asked for must not be fetched here
        if loaded.get("state") != RUNNING or context.session.get_bind().pool is not self._db.engine.pool:
            return
        with self._guard:
            told = [text for (_, i), (table, _, text) in self._ends.items() if (table, i) == (type(row), loaded["id"])]
        if told:
            set_committed_value(row, "error", told[0])
