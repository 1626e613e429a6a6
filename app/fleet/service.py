"""Cache servers, engines and stores: registering, changing, forgetting, and the views that join the last readings.

Validation (which may look at the disk or the resolver) happens before the unit of work; rows and their audit entry are
written in one. Other rooms use `server_target`, `engine_targets`, `store_target`, the `find_*` methods and the hooks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from sqlalchemy.orm import Session

from app.audit.service import AuditService
from app.clock import Clock
from app.database import Database
from app.fleet.live import LiveSource, NothingKnown
from app.fleet.schemas import (
    EngineCreate,
    EnginePatch,
    EngineView,
    ProbeRequest,
    ProbeView,
    ServerCreate,
    ServerPatch,
    ServerView,
    StoreCreate,
    StorePatch,
    StoreView,
)
from app.fleet.targets import EngineTarget, ServerTarget, StoreTarget
from app.scheduling.schemas import Page
from app.settings import Settings

TargetKind = Literal["server", "engine", "store"]
#: Called in the unit of work that forgets a target, before its row goes; may raise Conflict.
ForgetHook = Callable[[Session, TargetKind, int], None]
#: Called after a target was added or its address changed.
ChangeHook = Callable[[TargetKind, int], None]


class FleetService:
    """All targets. Methods raise InvalidInput, Conflict and NotFound as their names suggest; nothing is half done."""

    def __init__(
        self, *, db: Database, clock: Clock, settings: Settings, audit: AuditService, live: LiveSource | None = None
    ) -> None:
        self._db = db
        self._clock = clock
        self._settings = settings
        self._audit = audit
        self._live: LiveSource = live or NothingKnown()

    # wiring

    def attach_live(self, source: LiveSource) -> None:
        """Gives the views their readings (TelemetryService does this itself)."""
        raise NotImplementedError

    def on_forget(self, hook: ForgetHook) -> None:
        """Registers a hook for deletions: rooms drop their rows, or refuse with Conflict while work is active."""
        raise NotImplementedError

    def on_change(self, hook: ChangeHook) -> None:
        """Registers a hook for new or re-addressed targets (the poller polls them at once)."""
        raise NotImplementedError

    # servers

    def create_server(self, body: ServerCreate, *, actor: str) -> ServerView:
        raise NotImplementedError

    def get_server(self, server_id: int) -> ServerView:
        raise NotImplementedError

    def list_servers(
        self, *, page_size: int, page_token: str | None, q: str | None = None, health: str | None = None
    ) -> Page[ServerView]:
        """By name. `q` is part of the name or URL, `health` one state."""
        raise NotImplementedError

    def patch_server(self, server_id: int, body: ServerPatch, *, actor: str, if_match: str | None = None) -> ServerView:
        raise NotImplementedError

    def delete_server(self, server_id: int, *, actor: str) -> None:
        """Forgets it; touches nothing outside."""
        raise NotImplementedError

    def mark_data_path_proven(self, server_id: int, at: float) -> None:
        """Acceptance says: at this time records came back right through this server. Never moves backwards."""
        raise NotImplementedError

    # engines

    def create_engine(self, body: EngineCreate, *, actor: str) -> EngineView:
        raise NotImplementedError

    def get_engine(self, engine_id: int) -> EngineView:
        raise NotImplementedError

    def list_engines(
        self,
        *,
        page_size: int,
        page_token: str | None,
        q: str | None = None,
        health: str | None = None,
        server_id: int | None = None,
    ) -> Page[EngineView]:
        raise NotImplementedError

    def patch_engine(self, engine_id: int, body: EnginePatch, *, actor: str, if_match: str | None = None) -> EngineView:
        raise NotImplementedError

    def delete_engine(self, engine_id: int, *, actor: str) -> None:
        raise NotImplementedError

    # stores

    def create_store(self, body: StoreCreate, *, actor: str) -> StoreView:
        raise NotImplementedError

    def get_store(self, store_id: int) -> StoreView:
        raise NotImplementedError

    def list_stores(
        self, *, page_size: int, page_token: str | None, q: str | None = None, server_id: int | None = None
    ) -> Page[StoreView]:
        raise NotImplementedError

    def patch_store(self, store_id: int, body: StorePatch, *, actor: str, if_match: str | None = None) -> StoreView:
        raise NotImplementedError

    def delete_store(self, store_id: int, *, actor: str) -> None:
        raise NotImplementedError

    # for other rooms

    def server_target(self, server_id: int) -> ServerTarget:
        raise NotImplementedError

    def server_targets(self) -> list[ServerTarget]:
        raise NotImplementedError

    def engine_target(self, engine_id: int) -> EngineTarget:
        raise NotImplementedError

    def engine_targets(self, server_id: int | None = None) -> list[EngineTarget]:
        """All engines, or those of one server."""
        raise NotImplementedError

    def store_target(self, store_id: int) -> StoreTarget:
        raise NotImplementedError

    def store_targets(self, server_id: int | None = None) -> list[StoreTarget]:
        """All stores, or those that one server uses."""
        raise NotImplementedError

    def find(self, kind: TargetKind, name_or_id: str) -> int:
        """The row id of a target named or numbered so (a name wins). Raises NotFound."""
        raise NotImplementedError

    # probes

    def probe(self, body: ProbeRequest) -> ProbeView:
        """What answers at an address and what to enter instead. Network; call it from a worker thread."""
        raise NotImplementedError
