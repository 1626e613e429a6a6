"""Notices restarts, upgrades and cleanups, and has the canaries of the engines concerned read back (RULES.md E7)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select

from app.acceptance.canaries import CanaryService, basis_of
from app.acceptance.ports import Fleet
from app.acceptance.tables import Canary, CanaryRun
from app.cleanup.tables import CleanupRun
from app.clock import Clock
from app.database import Database
from app.errors import NotFound
from app.scheduling.work import ACTIVE_STATES

#: A check that could not be made for trouble with a target is tried again after this many seconds.
RETRY_SECONDS = 900.0
_RESTARTED = {"engine_started": "restart", "server_started": "restart"}
_UPGRADED = {"engine_version": "upgrade", "server_version": "upgrade"}


def due(before: Mapping[str, Any], now: Mapping[str, Any], *, cleaned_since: bool) -> str | None:
    """Why canaries must be read back: "upgrade", "restart" or "cleanup"; None when nothing happened. Pure.

    What is not known on one side is no change.
    """
    for names in (_UPGRADED, _RESTARTED):
        for name, reason in names.items():
            if before.get(name) is not None and now.get(name) is not None and before[name] != now[name]:
                return reason
    return "cleanup" if cleaned_since else None


class CanaryWatch:
    """`look` is called about once a minute; it starts at most one check an engine."""

    def __init__(self, *, db: Database, clock: Clock, fleet: Fleet, canaries: CanaryService) -> None:
        self._db = db
        self._clock = clock
        self._fleet = fleet
        self._canaries = canaries

    def look(self) -> None:
        """Starts the checks that are due."""
        with self._db.read() as session:
            engines = list(session.scalars(select(Canary.engine_id).distinct()))
        for engine_id in engines:
            reason = self._reason(engine_id)
            if reason is not None:
                self._canaries.notice(engine_id, reason)

    def _reason(self, engine_id: int) -> str | None:
        try:
            engine = self._fleet.get_engine(engine_id)
            server = self._fleet.get_server(int(engine.server_id)) if engine.server_id is not None else None
        except NotFound:
            return None
        # A check while a target is still coming up would only say so.
        if server is None or engine.health.state != "healthy" or server.health.state not in ("healthy", "degraded"):
            return None
        with self._db.read() as session:
            last = session.scalar(
                select(CanaryRun).where(CanaryRun.engine_id == engine_id).order_by(CanaryRun.id.desc()).limit(1)
            )
            if last is None or last.state in ACTIVE_STATES:
                return None
            stores = [s.id for s in self._fleet.store_targets(int(server.id))]
            cleaned = session.scalar(
                select(CleanupRun.id)
                .where(
                    CleanupRun.store_id.in_(stores),
                    CleanupRun.trigger != "housekeeping",  # the removal of a run's own records
                    CleanupRun.finished_at > last.created_at,
                    CleanupRun.removed_records > 0,
                )
                .limit(1)
            )
        if last.outcome in (None, "error") and self._clock() - last.created_at > RETRY_SECONDS:
            return "retry"
        return due(last.basis, basis_of(engine, server), cleaned_since=cleaned is not None)
