"""Notices that the KV layouts of a server changed and tells the rooms that act on it."""

from __future__ import annotations

import structlog
from sqlalchemy import select

from app.errors import TierkeeperError
from app.lmcache.layouts import KVLayout, compare_layouts
from app.services import Services
from app.telemetry.tables import Observation

log = structlog.get_logger()


class LayoutWatch:
    """Remembers the layouts each server showed last; `look` is called about once a poll interval.

    Learning more about a layout (its dtype, once the engine was asked) is no change; only layouts that are proven
    different, new or gone are.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._seen: dict[int, list[KVLayout]] = {}

    def look(self) -> None:
        """Compares the latest good observation of every server with the one before and acts on a difference."""
        for server in self._services.fleet.server_targets():
            layouts = self._layouts(server.id)
            if layouts is None:
                continue
            before = self._seen.get(server.id)
            self._seen[server.id] = layouts
            if before is not None and (_any_without_like(layouts, before) or _any_without_like(before, layouts)):
                self._act(server.id)

    def _layouts(self, server_id: int) -> list[KVLayout] | None:
        with self._services.db.read() as session:
            contexts = session.scalar(
                select(Observation.contexts)
                .where(Observation.server_id == server_id, Observation.ok)
                .order_by(Observation.last_at.desc())
                .limit(1)
            )
        return None if contexts is None else [KVLayout.from_json(context) for context in contexts.values()]

    def _act(self, server_id: int) -> None:
        for store in self._services.fleet.store_targets(server_id):
            log.info("layout.changed", server=server_id, store=store.id)
            try:
                self._services.records.on_layout_change(store.id)
                self._services.cleanup.on_layout_change(store.id)
            except TierkeeperError as error:
                log.warning("layout.change_not_handled", store=store.id, reason=error.detail)


def _any_without_like(layouts: list[KVLayout], others: list[KVLayout]) -> bool:
    """Whether some layout has no counterpart of the same model and world size that it does not differ from."""

    def alike(a: KVLayout, b: KVLayout) -> bool:
        same_owner = (a.model_name, a.world_size) == (b.model_name, b.world_size)
        return same_owner and not compare_layouts(a, b).different

    return any(not any(alike(layout, other) for other in others) for layout in layouts)
