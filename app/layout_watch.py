"""Notices that the KV layouts of a server changed and tells the rooms that act on it."""

from __future__ import annotations

import structlog
from sqlalchemy import select

from app.errors import TierkeeperError
from app.services import Services
from app.telemetry.tables import Observation

log = structlog.get_logger()


class LayoutWatch:
    """Remembers the layouts each server showed last; `look` is called about once a poll interval."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._seen: dict[int, frozenset[str]] = {}

    def look(self) -> None:
        """Compares the latest good observation of every server with the one before and acts on a difference."""
        for server in self._services.fleet.server_targets():
            layouts = self._layouts(server.id)
            if layouts is None or self._seen.get(server.id) == layouts:
                continue
            first_look = server.id not in self._seen
            self._seen[server.id] = layouts
            if not first_look:
                self._act(server.id)

    def _layouts(self, server_id: int) -> frozenset[str] | None:
        with self._services.db.read() as session:
            contexts = session.scalar(
                select(Observation.contexts)
                .where(Observation.server_id == server_id, Observation.ok)
                .order_by(Observation.id.desc())
                .limit(1)
            )
        if contexts is None:
            return None
        return frozenset(repr(sorted(layout.items(), key=str)) for layout in contexts.values())

    def _act(self, server_id: int) -> None:
        for store in self._services.fleet.store_targets(server_id):
            log.info("layout.changed", server=server_id, store=store.id)
            try:
                self._services.records.on_layout_change(store.id)
                self._services.cleanup.on_layout_change(store.id)
            except TierkeeperError as error:
                log.warning("layout.change_not_handled", store=store.id, reason=error.detail)
