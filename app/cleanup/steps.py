"""The steps of a run as its page shows them, written as they happen."""

from __future__ import annotations

from typing import Any, Literal

from sqlalchemy import update

from app.cleanup.tables import CleanupRun
from app.clock import Clock
from app.database import Database

StepState = Literal["done", "skipped", "failed", "waiting"]


class Steps:
    """Steps of one run, in order."""

    def __init__(self, db: Database, clock: Clock, run_id: int) -> None:
        self._db = db
        self._clock = clock
        self._run_id = run_id
        self.found: list[dict[str, Any]] = []

    def add(self, name: str, state: StepState, detail: str) -> None:
        """Adds one and saves all."""
        self.found.append({"name": name, "state": state, "detail": detail, "at": self._clock()})
        with self._db.write() as session:
            session.execute(update(CleanupRun).where(CleanupRun.id == self._run_id).values(steps=list(self.found)))
