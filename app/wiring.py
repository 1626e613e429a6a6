"""Builds every service once and starts what runs in the background. Order matters: lower rooms first."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import anyio.to_thread
from pydantic import ValidationError

from app.acceptance.schemas import AcceptanceRequest
from app.acceptance.service import AcceptanceService
from app.audit.service import AuditService
from app.auth.service import AuthService
from app.cleanup.service import CleanupService
from app.clock import Clock
from app.database import Database
from app.errors import InvalidInput
from app.fleet.service import FleetService
from app.layout_watch import LayoutWatch
from app.records.service import RecordsService
from app.scheduling.runner import WorkRunner
from app.scheduling.service import SchedulingService, StartedWork
from app.services import Services
from app.settings import Settings
from app.telemetry.poller import Poller
from app.telemetry.service import TelemetryService


def build_services(settings: Settings, clock: Clock) -> Services:
    """Every service over the database of `settings`; opens no network connection and starts no thread."""
    db = Database(settings.sqlalchemy_url)
    runner = WorkRunner(db, clock)
    audit = AuditService(db=db, clock=clock)
    scheduling = SchedulingService(db=db, clock=clock, audit=audit, runner=runner)
    fleet = FleetService(db=db, clock=clock, settings=settings, audit=audit)
    telemetry = TelemetryService(db=db, clock=clock, settings=settings, fleet=fleet)
    records = RecordsService(
        db=db, clock=clock, settings=settings, runner=runner, fleet=fleet, telemetry=telemetry, audit=audit
    )
    cleanup = CleanupService(
        db=db,
        clock=clock,
        runner=runner,
        settings=settings,
        audit=audit,
        fleet=fleet,
        records=records,
        scheduling=scheduling,
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


def _register_schedules(services: Services) -> None:
    def fire_scan(store_id: int, options: Mapping[str, Any], actor: str) -> StartedWork:
        scan = services.records.start_scan(store_id, actor=actor, gentle=bool(options.get("gentle", False)))
        return StartedWork("scan", int(scan.id))

    def check_scan(store_id: int, options: Mapping[str, Any]) -> None:
        services.fleet.get_store(store_id)
        _only(options, {"gentle"})

    def fire_acceptance(engine_id: int, options: Mapping[str, Any], actor: str) -> StartedWork:
        run = services.acceptance.start(_acceptance_request(engine_id, options), actor=actor)
        return StartedWork("acceptance", int(run.id))

    def check_acceptance(engine_id: int, options: Mapping[str, Any]) -> None:
        services.fleet.get_engine(engine_id)
        _acceptance_request(engine_id, options)

    services.scheduling.register("scan", fire_scan, check_scan)
    services.scheduling.register("policy", services.cleanup.fire, services.cleanup.check_schedule)
    services.scheduling.register("acceptance", fire_acceptance, check_acceptance)


def _only(options: Mapping[str, Any], known: set[str]) -> None:
    unknown = sorted(set(options) - known)
    if unknown:
        raise InvalidInput.field(f"options.{unknown[0]}", f"is not known here; use {', '.join(sorted(known))}")


def _acceptance_request(engine_id: int, options: Mapping[str, Any]) -> AcceptanceRequest:
    try:
        return AcceptanceRequest.model_validate({**options, "engine_id": str(engine_id)})
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise InvalidInput.field(f"options.{field}", first["msg"]) from None


class Background:
    """What runs beside the requests: polls, schedules, long work, layout watch, retention."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._stop = asyncio.Event()
        self._poller = Poller(db=services.db, clock=services.clock, settings=services.settings, fleet=services.fleet)
        self._polling: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Settles what the last process left, then starts everything."""
        services = self._services
        await anyio.to_thread.run_sync(services.runner.recover)
        services.runner.start()
        await anyio.to_thread.run_sync(services.runner.resume_queued)
        await anyio.to_thread.run_sync(services.scheduling.start)
        watch = LayoutWatch(services)
        every = services.scheduling.every
        every(services.settings.poll_seconds, "layout-watch", watch.look)
        every(60.0, "roll-up", services.telemetry.roll_up)
        every(300.0, "retention", services.telemetry.retire)
        every(60.0, "quarantine-expiry", lambda: services.cleanup.purge_expired(services.clock()))
        every(30.0, "called-policies", services.cleanup.start_pending)
        self._polling = asyncio.create_task(self._poller.run(self._stop), name="poller")

    async def stop(self) -> None:
        """Stops everything within a few seconds; running work ends `interrupted`."""
        self._stop.set()
        if self._polling is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._polling
        await anyio.to_thread.run_sync(self._services.scheduling.stop)
        await anyio.to_thread.run_sync(self._services.runner.stop)
        self._services.db.dispose()
