"""What a run needs from other rooms, as small protocols: passed in, never imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sqlalchemy.orm import Session

from app.fleet.schemas import EngineView, ServerView
from app.fleet.targets import EngineTarget, ServerTarget, StoreTarget


class Audit(Protocol):
    """The audit trail."""

    def record(
        self,
        session: Session,
        *,
        actor: str,
        action: str,
        target_kind: str,
        target_id: object,
        detail: Mapping[str, Any] | None = None,
    ) -> None: ...


class Fleet(Protocol):
    """The targets."""

    def engine_target(self, engine_id: int) -> EngineTarget: ...

    def server_target(self, server_id: int) -> ServerTarget: ...

    def store_targets(self, server_id: int | None = None) -> list[StoreTarget]: ...

    def get_engine(self, engine_id: int) -> EngineView: ...

    def get_server(self, server_id: int) -> ServerView: ...

    def mark_data_path(self, server_id: int, at: float, *, right: bool, by: str) -> None: ...


@dataclass(frozen=True)
class Removal:
    """What became of a run's own records. `left` counts those that stayed (None: not known), `reason` says why."""

    removed: int
    bytes: int
    left: int | None
    reason: str | None = None


class RecordRemover(Protocol):
    """Removal of a run's records by cleanup's rules (RULES.md §2): `app.acceptance.removal` goes through cleanup."""

    def remove_salted(
        self, store_id: int, salt_prefix: str, *, actor: str, cancelled: Callable[[], bool] = ...
    ) -> Removal: ...
