"""The acceptance room's service: start, watch, cancel, report, compare."""

from __future__ import annotations

from typing import Any, Protocol

from sqlalchemy.orm import Session

from app.acceptance.schemas import (
    AcceptanceRequest,
    AcceptanceRunView,
    EstimateView,
    LatestView,
    RunComparisonView,
)
from app.clock import Clock
from app.database import Database
from app.scheduling.runner import WorkRunner
from app.scheduling.schemas import Page
from app.settings import Settings


class Audit(Protocol):
    """The one call of the audit room that is needed here."""

    def record(
        self, session: Session, *, actor: str, action: str, target_kind: str, target_id: object, detail: Any = None
    ) -> None: ...


class Fleet(Protocol):
    """The one call of the fleet room that is needed here."""

    def mark_data_path_proven(self, server_id: int, at: float) -> None: ...


class AcceptanceService:
    """Acceptance runs. Every method is sync; the runs themselves are work of kind ``acceptance``."""

    def __init__(
        self, *, db: Database, clock: Clock, runner: WorkRunner, settings: Settings, audit: Audit, fleet: Fleet
    ) -> None:
        raise NotImplementedError

    def start(self, request: AcceptanceRequest, *, actor: str) -> AcceptanceRunView:
        """Queues a run and submits it. InvalidInput names the field; Conflict while one is active on the server."""
        raise NotImplementedError

    def estimate(self, request: AcceptanceRequest) -> EstimateView:
        """What the run would take and disturb; asks nothing of the engine."""
        raise NotImplementedError

    def list_runs(
        self,
        *,
        page_size: int,
        page_token: str | None,
        engine_id: int | None = None,
        server_id: int | None = None,
        verdict: str | None = None,
    ) -> Page[AcceptanceRunView]:
        """Newest first. Arms are included, steps and comparisons too."""
        raise NotImplementedError

    def get(self, run_id: int, *, wait: float = 0.0) -> AcceptanceRunView:
        """One run. `wait` > 0 long-polls: returns when the run has ended or after that many seconds."""
        raise NotImplementedError

    def cancel(self, run_id: int, *, actor: str) -> AcceptanceRunView:
        """Asks a run to stop; within 2 s it has."""
        raise NotImplementedError

    def report(self, run_id: int, form: str) -> tuple[str, str]:
        """(body, media type) of json | xml | html | md. NotFound for other forms."""
        raise NotImplementedError

    def compare(self, a: int, b: int) -> RunComparisonView:
        """Two ended runs side by side: frozen differences, arms, and the answers of the same prompts."""
        raise NotImplementedError

    def latest_for_engine(self, engine_id: int) -> LatestView:
        """The last run, the last pass, and what changed since."""
        raise NotImplementedError
