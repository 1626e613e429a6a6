"""The container of every service; `app.wiring` builds it, routes and commands use it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.audit.service import AuditService
from app.auth.service import AuthService
from app.clock import Clock
from app.database import Database
from app.scheduling.runner import WorkRunner
from app.scheduling.service import SchedulingService
from app.settings import Settings

if TYPE_CHECKING:
    from app.acceptance.service import AcceptanceService
    from app.alerts.service import AlertsService
    from app.benchmark.service import BenchmarkService
    from app.checks.service import ChecksService
    from app.cleanup.service import CleanupService
    from app.fleet.service import FleetService
    from app.launch.service import LaunchService
    from app.readiness.service import ReadinessService
    from app.records.service import RecordsService
    from app.sizing.service import SizingService
    from app.telemetry.service import TelemetryService


@dataclass(frozen=True)
class Services:
    """Everything a route or a command may call."""

    settings: Settings
    db: Database
    clock: Clock
    runner: WorkRunner
    auth: AuthService
    audit: AuditService
    scheduling: SchedulingService
    fleet: FleetService
    telemetry: TelemetryService
    records: RecordsService
    cleanup: CleanupService
    acceptance: AcceptanceService
    checks: ChecksService
    sizing: SizingService
    launch: LaunchService
    benchmark: BenchmarkService
    alerts: AlertsService
    readiness: ReadinessService
