"""Builds every service once and starts what runs in the background. Order matters: lower rooms first."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import anyio.to_thread
import structlog
from pydantic import BaseModel, ValidationError

from app.acceptance.removal import CleanupRemover
from app.acceptance.schemas import AcceptanceRequest
from app.acceptance.service import AcceptanceService
from app.alerts.service import AlertsService
from app.audit.service import AuditService
from app.auth.service import AuthService
from app.benchmark.service import BenchmarkService
from app.checks.commands import check_texts
from app.checks.service import ChecksService
from app.checks.views import finding_view
from app.cleanup.schemas import PolicyInput, PolicyPatch
from app.cleanup.service import CleanupService
from app.clock import Clock
from app.database import Database
from app.errors import InvalidInput
from app.fleet import targets_file
from app.fleet.service import FleetService
from app.launch.service import LaunchService
from app.layout_watch import LayoutWatch
from app.readiness.service import ReadinessService
from app.records.service import RecordsService
from app.scheduling.runner import WorkRunner
from app.scheduling.service import SchedulingService, StartedWork
from app.services import Services
from app.settings import Settings
from app.sizing.service import SizingService
from app.telemetry.poller import Poller
from app.telemetry.service import TelemetryService
from app.vault import Vault
from app.wire import destinations
from app.wording import location

log = structlog.get_logger()

#: Names that may be looked up at a time; threads are made when they are needed.
LOOKUPS = 256
#: How often the panel looks whether the processes behind running rows live (a few indexed queries).
DEAD_OWNERS_SECONDS = 5.0


def build_services(settings: Settings, clock: Clock) -> Services:
    """Every service over the database of `settings`; its data directory exists. No network connection, no thread."""
    destinations.allow_link_local(settings.allow_link_local)
    db = Database(settings.sqlalchemy_url, vault=Vault.of(settings.data_dir))
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
        telemetry=telemetry,
    )
    remover = CleanupRemover(runner=runner, records=records, cleanup=cleanup)
    acceptance = AcceptanceService(
        db=db, clock=clock, runner=runner, settings=settings, audit=audit, fleet=fleet, remover=remover
    )
    checks = ChecksService(db=db, clock=clock, runner=runner, audit=audit, fleet=fleet, cleanup=cleanup)
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
        checks=checks,
        sizing=SizingService(clock=clock, fleet=fleet),
        launch=LaunchService(check=_check_commands, fleet=fleet),
        benchmark=BenchmarkService(
            db=db, clock=clock, runner=runner, settings=settings, audit=audit, fleet=fleet, remover=remover
        ),
        alerts=AlertsService(
            db=db, clock=clock, settings=settings, audit=audit, fleet=fleet, telemetry=telemetry, records=records
        ),
        readiness=ReadinessService(
            clock=clock, fleet=fleet, telemetry=telemetry, records=records, acceptance=acceptance, checks=checks
        ),
    )
    _register_schedules(services)
    return services


def _check_commands(text: str) -> list[Any]:
    """The verdicts of our own checks on generated commands."""
    return [finding_view(item) for item in check_texts(commands=text)]


def apply_targets_file(services: Services) -> None:
    """Applies TARGETS_FILE, if there is one. Raises InvalidInput or Conflict that name file, line and field."""
    path = services.settings.targets_file
    if path is None:
        return
    report = targets_file.apply(
        services.fleet, path, policies=lambda values, actor: _declare_policy(services, values, actor)
    )
    log.info("targets_file.applied", created=report.created, changed=report.changed, policies=report.policies)


def _declare_policy(services: Services, values: Mapping[str, Any], actor: str) -> None:
    body = _validated(PolicyInput, values)
    token = None
    while True:
        page = services.cleanup.list_policies(page_size=500, page_token=token)
        present = next((policy for policy in page.items if policy.name == body.name), None)
        token = page.next_page_token
        if present is not None or token is None:
            break
    if present is None:
        services.cleanup.create_policy(body, actor=actor)
        return
    if present.store_id != body.store_id:
        raise InvalidInput.field(
            "store", f"the policy {body.name!r} belongs to another store; give this one another name"
        )
    change = {field: value for field, value in values.items() if field not in ("name", "store_id")}
    services.cleanup.patch_policy(int(present.id), _validated(PolicyPatch, change), actor=actor)


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
    services.scheduling.register(
        "policy", services.cleanup.fire, services.cleanup.check_schedule, services.cleanup.schedule_paused
    )
    services.scheduling.register("acceptance", fire_acceptance, check_acceptance)
    canaries = services.acceptance.canaries
    services.scheduling.register("canary", canaries.fire, canaries.check_schedule)


def _only(options: Mapping[str, Any], known: set[str]) -> None:
    unknown = sorted(set(options) - known)
    if unknown:
        raise InvalidInput.field(f"options.{unknown[0]}", f"is not known here; use {', '.join(sorted(known))}")


def _acceptance_request(engine_id: int, options: Mapping[str, Any]) -> AcceptanceRequest:
    return _validated(AcceptanceRequest, {**options, "engine_id": str(engine_id)}, prefix="options.")


M = TypeVar("M", bound=BaseModel)


def _validated(model: type[M], values: Mapping[str, Any], *, prefix: str = "") -> M:
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in location(first))
        raise InvalidInput.field(f"{prefix}{field}", first["msg"]) from None


class Background:
    """What runs beside the requests: polls, schedules, long work, layout watch, retention."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._stop = asyncio.Event()
        self._poller = Poller(
            db=services.db,
            clock=services.clock,
            settings=services.settings,
            fleet=services.fleet,
            store_trouble=services.records.directories.trouble,
        )
        self._polling: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Settles what the last process left, then starts everything."""
        services = self._services
        # The loop looks names up in these threads. A resolver that hangs holds one a name; with as few as there are by
        # default (six on two cores) all other targets would wait for it, too.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(LOOKUPS, thread_name_prefix="lookup"))
        left = await anyio.to_thread.run_sync(services.runner.take_over_queue)
        await anyio.to_thread.run_sync(services.runner.recover)
        services.runner.start()
        for kind, work_id in left:
            services.runner.submit(kind, work_id)
        await anyio.to_thread.run_sync(services.scheduling.start)
        watch = LayoutWatch(services)
        every = services.scheduling.every
        every(services.settings.poll_seconds, "layout-watch", watch.look)
        every(DEAD_OWNERS_SECONDS, "dead-owners", services.runner.recover, prompt=True)
        every(60.0, "roll-up", services.telemetry.roll_up)
        every(60.0, "recent", services.telemetry.read_recent)
        every(300.0, "retention", services.telemetry.retire)
        every(60.0, "distributions", services.records.count_anew)
        every(60.0, "names-of-plans", services.cleanup.index_names)
        every(services.settings.poll_seconds, "alarms", self._look_at_alarms, prompt=True)
        every(5.0, "messages", services.alerts.deliver)
        every(600.0, "checks", services.checks.refresh)
        every(3600.0, "alarm-retention", services.alerts.retire)
        every(60.0, "quarantine-expiry", lambda: services.cleanup.purge_expired(services.clock()))
        every(30.0, "called-policies", services.cleanup.start_pending)
        every(60.0, "canary-watch", services.acceptance.canary_watch.look)
        every(3600.0, "acceptance-retention", services.acceptance.retire)
        every(3600.0, "cleanup-retention", lambda: services.cleanup.retire(services.clock()))
        self._polling = asyncio.create_task(self._poller.run(self._stop), name="poller")

    def _look_at_alarms(self) -> None:
        if self._services.alerts.evaluate():
            self._services.runner.news.tell("alarms")

    async def stop(self) -> None:
        """Stops everything within a few seconds; running work ends `interrupted`."""
        self._stop.set()
        if self._polling is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._polling
        await anyio.to_thread.run_sync(self._services.scheduling.stop)
        await anyio.to_thread.run_sync(self._services.runner.stop)
