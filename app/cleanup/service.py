"""The cleanup service: what routes, pages, commands and the scheduler call.

All methods are synchronous and hold no session while a disk or a server is touched. Mutating methods take the actor
and write the audit trail in the same unit of work. Long work is a row run by WorkRunner: kinds `plan`, `cleanup` and
`quarantine` (restore and purge).
"""

from __future__ import annotations

import asyncio

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.audit.service import AuditService
from app.cleanup.adapters import RecordsInventory, serving_of
from app.cleanup.chunks import CHUNK
from app.cleanup.clients import HttpTierCalls
from app.cleanup.execution import RunExecutor
from app.cleanup.jobs import JobRunner
from app.cleanup.past import past_of_name
from app.cleanup.planning import PlanMaker
from app.cleanup.ports import Inventory
from app.cleanup.recovery import Recovery
from app.cleanup.service_plans import PlanMethods
from app.cleanup.service_policies import PolicyMethods
from app.cleanup.service_quarantine import QuarantineMethods
from app.cleanup.service_runs import RunMethods
from app.cleanup.tables import CleanupRun, Plan, QuarantineJob
from app.cleanup.tiers import Sleep, TierCalls
from app.cleanup.waiting import is_tied
from app.clock import Clock
from app.database import Database
from app.errors import Conflict
from app.fleet.service import FleetService
from app.records.service import RecordsService
from app.scheduling.runner import WorkKind, WorkRunner
from app.scheduling.service import SchedulingService
from app.scheduling.work import ACTIVE_STATES
from app.settings import Settings
from app.telemetry.service import TelemetryService


class CleanupService(RunMethods, PolicyMethods, PlanMethods, QuarantineMethods):
    """Policies, plans, runs, quarantine.

    `inventory` and `calls` replace the records room and the servers in tests; `chunk` is how many records go between
    two commits of the journal.
    """

    def __init__(
        self,
        *,
        db: Database,
        clock: Clock,
        runner: WorkRunner,
        audit: AuditService,
        fleet: FleetService,
        scheduling: SchedulingService,
        settings: Settings | None = None,
        records: RecordsService | None = None,
        telemetry: TelemetryService | None = None,
        inventory: Inventory | None = None,
        calls: TierCalls | None = None,
        sleep: Sleep = asyncio.sleep,
        chunk: int = CHUNK,
    ) -> None:
        del settings  # every room is built alike; this one has none yet
        self._db = db
        self._clock = clock
        self._runner = runner
        self._audit = audit
        self._fleet = fleet
        self._scheduling = scheduling
        self._telemetry = telemetry
        if inventory is None:
            if records is None:
                raise TypeError("give records or inventory")
            inventory = RecordsInventory(db=db, clock=clock, records=records, runner=runner)
        self._inventory = inventory
        owner = runner.owner
        self._recovery = Recovery(db=db, clock=clock, fleet=fleet, inventory=inventory, owner=owner)
        self._plans = PlanMaker(
            db=db,
            clock=clock,
            inventory=inventory,
            fleet=fleet,
            serving=lambda store_id: serving_of(fleet, store_id),
            chunk=chunk,
        )
        runs = RunExecutor(
            db=db,
            clock=clock,
            inventory=inventory,
            fleet=fleet,
            audit=audit,
            plans=self._plans,
            recovery=self._recovery,
            calls=calls or HttpTierCalls(),
            owner=owner,
            sleep=sleep,
        )
        jobs = JobRunner(
            db=db,
            clock=clock,
            inventory=inventory,
            fleet=fleet,
            audit=audit,
            recovery=self._recovery,
            owner=owner,
        )
        runner.register(WorkKind("plan", Plan, self._make_plan))
        runner.register(WorkKind("cleanup", CleanupRun, runs.execute, self._recovery.recover_run, runs.ended))
        runner.register(WorkKind("quarantine", QuarantineJob, jobs.execute, jobs.recover, jobs.ended))
        fleet.on_forget(self._forbid_forgetting)
        if records is not None:
            records.on_past(lambda store_id, name: past_of_name(db, store_id, name))
            records.directories.on_follow(lambda store_id: is_tied(db, store_id))

    def _forbid_forgetting(self, session: Session, kind: str, target_id: int) -> None:
        """A store whose files are being moved cannot be forgotten."""
        if kind != "store":
            return
        active = session.scalar(
            select(CleanupRun.id).where(CleanupRun.store_id == target_id, CleanupRun.state.in_(ACTIVE_STATES))
        )
        if active is not None:
            raise Conflict(f"cleanup run {active} works on this store; cancel it or wait for it")
        job = session.scalar(
            select(QuarantineJob.id)
            .join(CleanupRun, CleanupRun.id == QuarantineJob.run_id)
            .where(CleanupRun.store_id == target_id, QuarantineJob.state.in_(ACTIVE_STATES))
        )
        if job is not None:
            raise Conflict(f"quarantine job {job} works on this store; cancel it or wait for it")
