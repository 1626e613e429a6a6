"""Builds every service once and starts what runs in the background. Order matters: lower rooms first."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import anyio.to_thread
import structlog

from app.acceptance.service import AcceptanceService
from app.audit.service import AuditService
from app.auth.service import AuthService
from app.cleanup.service import CleanupService
from app.clock import Clock
from app.database import Database
from app.fleet.service import FleetService
from app.records.service import RecordsService
from app.scheduling.runner import WorkRunner
from app.scheduling.service import SchedulingService, StartedWork
from app.services import Services
from app.settings import Settings
from app.telemetry.poller import Poller
from app.telemetry.service import TelemetryService

log = structlog.get_logger()


def build_services(settings: Settings, clock: Clock) -> Services:
    """Every service over the database of `settings`; opens no network connection and starts no thread."""
    db = Database(settings.sqlalchemy_url)
    runner = WorkRunner(db, clock)
    audit = AuditService(db=db, clock=clock)
    scheduling = SchedulingService(db=db, clock=clock, audit=audit, runner=runner)
    fleet = FleetService(db=db, clock=clock, settings=settings, audit=audit)
    telemetry = TelemetryService(db=db, clock=clock, settings=settings, fleet=fleet)
    records = RecordsService(
        db=db, clock=clock, runner=runner, settings=settings, audit=audit, fleet=fleet, telemetry=telemetry
    )
    cleanup = CleanupService(
        db=db, clock=clock, runner=runner, audit=audit, fleet=fleet, records=records, scheduling=scheduling
    )
    acceptance = AcceptanceService(db=db, clock=clock, runner=runner, settings=settings, audit=audit, fleet=fleet)
    services = Services(
        settings=settings,
        db=db,
        clock=clock,
        runner=runner,
        auth=AuthService(db=db, clock=clock, settings=settings, audit=audit),
        audit=audit,
        scheduling=scheduling,
        fleet=fleet,
        telemetry=telemetry,
        records=records,
        cleanup=cleanup,
        acceptance=acceptance,
    )
    _register_schedules(services)
    return services
