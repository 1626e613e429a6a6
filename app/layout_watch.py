"""Notices that the KV layouts of a server changed and tells the rooms that act on it."""

from __future__ import annotations

import structlog
from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError

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
        self._read_to: int | None = None  # id of the last observation that was looked at
        #: Stores whose rooms are still to be told: an observation is read once, and the database may be locked then.
        self._owed: dict[int, None] = {}

    def look(self) -> None:
        """Compares the latest good observation of every server with the one before and acts on a difference."""
        for server_id, layouts in self._newest().items():
            before = self._seen.get(server_id)
            self._seen[server_id] = layouts
            if before is not None and (_any_without_like(layouts, before) or _any_without_like(before, layouts)):
                for store in self._services.fleet.store_targets(server_id):
                    log.info("layout.changed", server=server_id, store=store.id)
                    self._owed[store.id] = None
        for store_id in list(self._owed):
            del self._owed[store_id]
            try:
                self._act(store_id)
            except DBAPIError:
                self._owed[store_id] = None
                raise

    def _newest(self) -> dict[int, list[KVLayout]]:
        """The layouts of each server with an observation that is new since the last look. A row that is extended keeps
        its layouts: other layouts begin another row."""
        query = select(Observation.id, Observation.server_id, Observation.contexts)
        if self._read_to is None:
            newest = select(func.max(Observation.id)).where(Observation.ok).group_by(Observation.server_id)
            query = query.where(Observation.id.in_(newest))
        else:
            query = query.where(Observation.ok, Observation.id > self._read_to)
        found: dict[int, list[KVLayout]] = {}
        with self._services.db.read() as session:
            for row in session.execute(query.order_by(Observation.id)):
                found[row.server_id] = [KVLayout.from_json(context) for context in row.contexts.values()]
                self._read_to = row.id
        self._read_to = self._read_to or 0
        return found

    def _act(self, store_id: int) -> None:
        try:
            self._services.records.on_layout_change(store_id)
            self._services.cleanup.on_layout_change(store_id)
        except TierkeeperError as error:
            log.warning("layout.change_not_handled", store=store_id, reason=error.detail)


def _any_without_like(layouts: list[KVLayout], others: list[KVLayout]) -> bool:
    """Whether some layout has no counterpart of the same model and world size that it does not differ from."""

    def alike(a: KVLayout, b: KVLayout) -> bool:
        same_owner = (a.model_name, a.world_size) == (b.model_name, b.world_size)
        return same_owner and not compare_layouts(a, b).different

    return any(not any(alike(layout, other) for other in others) for layout in layouts)
