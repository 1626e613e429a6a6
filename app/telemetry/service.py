"""What was measured, for routes, pages and other rooms: samples, health changes, token flow, observations."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from app.clock import Clock
from app.database import Database
from app.fleet.live import EngineLive, ServerLive, StoreLive
from app.fleet.service import FleetService
from app.scheduling.schemas import Page
from app.settings import Settings
from app.telemetry.schemas import HealthChangeView, SamplesView, TokenFlowView
from app.telemetry.tables import Observation

PolledKind = Literal["server", "engine", "store"]


@dataclass(frozen=True)
class TargetSnapshot:
    """The last reading of one target; `data` has the shape of `app.telemetry.reading`."""

    target_kind: str
    target_id: int
    polled_at: float
    scraped_at: float | None
    data: Mapping[str, Any]


class TelemetryService:
    """Reads what the poller wrote. Attaches itself to `fleet` as the source of live values."""

    def __init__(self, *, db: Database, clock: Clock, settings: Settings, fleet: FleetService) -> None:
        self._db = db
        self._clock = clock
        self._settings = settings
        self._fleet = fleet

    # app.fleet.live.LiveSource

    def servers_live(self, ids: Collection[int]) -> Mapping[int, ServerLive]:
        raise NotImplementedError

    def engines_live(self, ids: Collection[int]) -> Mapping[int, EngineLive]:
        raise NotImplementedError

    def stores_live(self, ids: Collection[int]) -> Mapping[int, StoreLive]:
        raise NotImplementedError

    # reading

    def samples(
        self,
        target_kind: PolledKind,
        target_id: int,
        metric: str,
        *,
        start: float | None = None,
        end: float | None = None,
        step: float | None = None,
    ) -> SamplesView:
        """One metric over time (default: the last hour). Raises InvalidInput naming metric, from, to or step."""
        raise NotImplementedError

    def sparkline(
        self, target_kind: PolledKind, target_id: int, metric: str, *, points: int = 60, seconds: float = 3600.0
    ) -> list[float | None]:
        """The last `seconds` as `points` values, oldest first; None where nothing was known."""
        raise NotImplementedError

    def health_changes(
        self,
        *,
        page_size: int,
        page_token: str | None,
        target_kind: str | None = None,
        target_id: int | None = None,
    ) -> Page[HealthChangeView]:
        """Newest first."""
        raise NotImplementedError

    def token_flow(self, server_id: int | None, window_seconds: float = 900.0) -> TokenFlowView:
        """Where prompt tokens came from, for one server's engines or for all."""
        raise NotImplementedError

    def snapshot(self, target_kind: PolledKind, target_id: int) -> TargetSnapshot | None:
        """The last reading, good or not; None before the first poll."""
        raise NotImplementedError

    def observations(self, server_ids: Sequence[int], since: float | None = None) -> list[Observation]:
        """Observation rows of these servers that end at or after `since`, by (server, first_at), detached."""
        raise NotImplementedError
