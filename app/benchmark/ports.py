"""What a run needs from other rooms, as small protocols: passed in, never imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from sqlalchemy.orm import Session

from app.fleet.clients import engine_client, server_client
from app.fleet.schemas import EngineView, ServerView
from app.fleet.targets import EngineTarget, ServerTarget, StoreTarget
from app.lmcache.client import LMCacheClient
from app.vllm.client import VLLMClient


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


class Removed(Protocol):
    """What became of a run's own records. `left` None: not known."""

    @property
    def removed(self) -> int: ...

    @property
    def left(self) -> int | None: ...

    @property
    def reason(self) -> str | None: ...


class RecordRemover(Protocol):
    """Removes records by their salt through cleanup (`app.acceptance.removal`)."""

    def remove_salted(self, store_id: int, salt_prefix: str, *, actor: str) -> Removed: ...


@dataclass(frozen=True)
class Openers:
    """How clients are made; tests replace them. The second argument: requests that may be under way at once."""

    vllm: Callable[[EngineTarget, int], VLLMClient] = field(default=lambda t, n: engine_client(t, connections=n))
    lmcache: Callable[[ServerTarget], LMCacheClient] = server_client


@dataclass(frozen=True)
class Pace:
    """How often and how long things are waited for, seconds.

    `watch`: between two looks at the cache servers while requests go on. `settle`: a queue that is empty must still be
    empty after so long, because a store is submitted shortly after its answer.
    """

    poll: float = 0.1
    reset: float = 30.0
    stored: float = 120.0
    settle: float = 0.3
    counters: float = 3.0
    watch: float = 1.0
    registered: float = 180.0
