"""One run, a straight line: policy, plan, intent journalled, quarantine, compare, settle, L1, L0, verify, result.

`RunExecutor.execute` is what the work runner calls; `recover` settles what a crash left behind. Errors of single files
are counted and skipped; a store that is not what it was stops the run; a cancelled run ends with true counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from app.audit.service import AuditService
from app.cleanup.clearing import Clearing, ClearingResult
from app.cleanup.dirty import DirtyItems, derived_left
from app.cleanup.disk import StoreRoot, keep_reserve, release_reserve, store_root
from app.cleanup.episodes import Episodes
from app.cleanup.footing import FootingLost
from app.cleanup.journal import Journal, RunTally, tell_removed
from app.cleanup.lock import StoreLock
from app.cleanup.lost import account_for_lost
from app.cleanup.passes import Interrupted, PassDeps, RemovalPass
from app.cleanup.planning import PlanMaker, spec_of
from app.cleanup.policy import PolicySpec
from app.cleanup.ports import Inventory
from app.cleanup.recovery import Recovery, folders_of
from app.cleanup.steps import Steps
from app.cleanup.tables import CleanupRun, Plan, Policy
from app.cleanup.tiers import Sleep, TierCalls, Tiers
from app.cleanup.verdict import Ended, verdict_of
from app.clock import Clock, iso
from app.database import Database
from app.errors import Conflict, NotFound, StoreError, TierkeeperError
from app.fleet.service import FleetService
from app.fleet.targets import StoreTarget
from app.scheduling.runner import WorkContext
from app.scheduling.work import FAILED, INTERRUPTED, RUNNING, SUCCEEDED
from app.sizes import disk_size


class RunExecutor:
    """Executes runs of this process."""

    def __init__(
        self,
        *,
        db: Database,
        clock: Clock,
        inventory: Inventory,
        fleet: FleetService,
        audit: AuditService,
        plans: PlanMaker,
        recovery: Recovery,
        calls: TierCalls,
        owner: str,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._db = db
        self._clock = clock
        self._inventory = inventory
        self._fleet = fleet
        self._audit = audit
        self._plans = plans
        self._recovery = recovery
        self._calls = calls
        self._owner = owner
        self._sleep = sleep

    def execute(self, context: WorkContext) -> None:
        """Runs one `cleanup_run` row. Raises Cancelled, StoreError, Conflict (store locked)."""
        run = self._load(context.id)
        try:
            self._execute(context, run)
        except Interrupted:
            self._note(run.id, [])
            context.check_cancel()
            raise
        except TierkeeperError as error:
            self._note(run.id, [error.detail], verdict="failed")
            raise

    def _execute(self, context: WorkContext, run: CleanupRun) -> None:
        plan = self._plan_of(context, run)
        store = self._fleet.store_target(run.store_id)
        spec = spec_of(plan.body)
        tally = RunTally()
        steps = Steps(self._db, self._clock, run.id)
        try:
            with (
                store_root(self._inventory, store) as root,
                StoreLock(
                    root,
                    owner=self._owner,
                    work=f"cleanup run {run.id}",
                    clock=self._clock,
                    make_room=lambda: release_reserve(root),  # never that of a run that goes on there
                ) as lock,
            ):
                if plan.root_inode is not None and (root.device, root.inode) != (plan.root_device, plan.root_inode):
                    raise StoreError(
                        f"{store.path} is not the directory that was planned for (replaced or remounted since); "
                        "scan it and plan again"
                    )
                self._recovery.settle_store(root, run.store_id, but=run.id)
                before = root.free_bytes()
                self._save(run.id, free_bytes_before=before)
                deps = self._deps(context, run, plan, spec, root, lock, tally)
                passes = RemovalPass(deps)
                try:
                    cleared = self._remove(context, store, deps, passes, steps, plan.records)
                    root.verify()
                except FootingLost as lost:
                    place = folders_of(run.folder)
                    raise account_for_lost(
                        self._db, self._clock, root, lost, run_id=run.id, plan_id=plan.id, folder_of_round=place
                    ) from lost
                finally:
                    keep_reserve(root)
                    after = root.free_bytes()
                    self._save(run.id, free_bytes_after=after)
        finally:
            tell_removed(self._db, self._inventory, run.id)
        self._finish(run, plan, tally, cleared, after)

    def _remove(
        self, context: WorkContext, store: StoreTarget, deps: PassDeps, passes: RemovalPass, steps: Steps, planned: int
    ) -> ClearingResult:
        """Both passes over L2 with L1 and L0 between them."""

        def beat() -> None:
            deps.lock.beat()
            context.check_cancel()

        servers = [self._fleet.server_target(server_id) for server_id in store.server_ids]
        engines = [e for server_id in store.server_ids for e in self._fleet.engine_targets(server_id)]
        tiers = Tiers(self._calls, servers, engines, clock=self._clock, sleep=self._sleep, beat=beat)
        clearing = Clearing(
            deps,
            passes,
            tiers,
            Episodes(self._db, self._clock),
            steps,
            items_of=self._dirty_items,
            check_cancel=context.check_cancel,
            tell=lambda: tell_removed(self._db, self._inventory, deps.journal.run_id),
        )
        clearing.announce()
        gone = passes.go(1)
        size = disk_size(deps.tally.removed_bytes)
        steps.add("l2", "done", f"{gone} of {planned} planned records left the directory ({size})")
        return clearing.go()

    def _plan_of(self, context: WorkContext, run: CleanupRun) -> Plan:
        """The run's plan; a run of a policy makes its own first."""
        plan_id = run.plan_id
        if plan_id is None:
            plan_id = self._new_plan(run)
            try:
                self._plans.make(
                    plan_id,
                    check_cancel=context.check_cancel,
                    progress=lambda done: context.progress(done, None, "records planned"),
                    always_fresh=True,
                )
            except BaseException as error:
                detail = error.detail if isinstance(error, TierkeeperError) else type(error).__name__
                self._end_plan(plan_id, FAILED, detail)
                raise
            self._end_plan(plan_id, SUCCEEDED, None, run.id)
        with self._db.read() as session:
            plan = session.get(Plan, plan_id)
        if plan is None:
            raise NotFound.of("plan", plan_id)
        if plan.expires_at is not None and self._clock() > plan.expires_at:
            raise Conflict(f"plan {plan_id} expired at {iso(plan.expires_at)} while the run waited; plan again")
        return plan

    def _new_plan(self, run: CleanupRun) -> int:
        now = self._clock()
        with self._db.write() as session:
            policy = session.get(Policy, run.policy_id) if run.policy_id is not None else None
            if policy is None:
                raise NotFound("the policy of this run was deleted before it began")
            plan = Plan(
                store_id=run.store_id,
                policy_id=policy.id,
                policy_name=policy.name,
                origin="policy",
                body=policy_body(policy),
                removal=policy.removal,
                quarantine_for=policy.quarantine_for,
                state=RUNNING,
                created_at=now,
                started_at=now,
                requested_by=run.requested_by,
                owner=run.owner,
            )
            session.add(plan)
            session.flush()
            session.execute(update(CleanupRun).where(CleanupRun.id == run.id).values(plan_id=plan.id))
            return plan.id

    def _end_plan(self, plan_id: int, state: str, error: str | None, run_id: int | None = None) -> None:
        """Ends the making of a plan; its counts become those of the run at the same instant."""
        with self._db.write() as session:
            session.execute(
                update(Plan).where(Plan.id == plan_id).values(state=state, error=error, finished_at=self._clock())
            )
            plan = None if run_id is None else session.get(Plan, plan_id)
            if plan is not None:
                plan.progress_done, plan.progress_unit = plan.records, "records planned"
                planned = {"planned_records": plan.records, "planned_bytes": plan.bytes}
                session.execute(update(CleanupRun).where(CleanupRun.id == run_id).values(**planned))

    def _deps(
        self,
        context: WorkContext,
        run: CleanupRun,
        plan: Plan,
        spec: PolicySpec,
        root: StoreRoot,
        lock: StoreLock,
        tally: RunTally,
    ) -> PassDeps:
        purge_after = None if spec.quarantine_for is None else self._clock() + spec.quarantine_for.seconds
        self._save(run.id, purge_after=purge_after)
        header = {
            "run": run.id,
            "folder": run.folder,
            "policy": plan.policy_name,
            "owner": self._owner,
            "started_at": iso(self._clock()),
            "purge_after": iso(purge_after),
        }
        return PassDeps(
            root=root,
            lock=lock,
            journal=Journal(self._db, self._clock, run_id=run.id, plan_id=plan.id),
            tally=tally,
            inventory=self._inventory,
            clock=self._clock,
            store_id=run.store_id,
            folder=run.folder,
            header=header,
            spec=spec,
            interrupted=context.cancelled,
            progress=lambda done: context.progress(done, max(plan.records, done), "records"),
        )

    def _dirty_items(self, run_ids: Sequence[int]) -> DirtyItems:
        with self._db.read() as session:
            plan_ids = session.scalars(
                select(CleanupRun.plan_id).where(CleanupRun.id.in_(run_ids), CleanupRun.plan_id.is_not(None))
            ).all()
        return DirtyItems(self._db, [p for p in plan_ids if p is not None])

    def _finish(
        self,
        run: CleanupRun,
        plan: Plan,
        tally: RunTally,
        cleared: ClearingResult,
        after: int | None,
    ) -> None:
        verdict, notes = verdict_of(
            Ended(
                planned=plan.records,
                removed=tally.removed_records,
                deleted_bytes=tally.deleted_bytes,
                failed=tally.failed_total,
                skipped=tally.skipped,
                limited=plan.limited,
                goal=plan.goal,
                waiting=cleared.waiting,
                closed_episodes=cleared.closed,
                left=cleared.left or derived_left(self._inventory, run.store_id),
            )
        )
        with self._db.write() as session:
            session.execute(
                update(CleanupRun)
                .where(CleanupRun.id == run.id)
                .values(**tally.values(), verdict=verdict, notes=notes, free_bytes_after=after)
            )

    def ended(self, session: Session, run_id: int, state: str) -> None:
        """For the work runner: the audit trail tells how a run ended, in the unit of work that ends it.

        A plan that the run was making and could not end (the database was full, say) ends with it.
        """
        run = session.get(CleanupRun, run_id, populate_existing=True)
        if run is None:
            return
        session.execute(
            update(Plan)
            .where(Plan.id == run.plan_id, Plan.state == RUNNING)
            .values(state=INTERRUPTED, error=f"its run {run_id} ended {state}", finished_at=self._clock())
        )
        before, after = run.free_bytes_before, run.free_bytes_after
        self._audit.record(
            session,
            actor=run.requested_by,
            action="cleanup.finish",
            target_kind="cleanup_run",
            by_request=False,
            target_id=run_id,
            detail={
                "store_id": run.store_id,
                "policy": run.policy_name,
                "state": state,
                "verdict": run.verdict,
                "planned_records": None if run.plan_id is None else run.planned_records,
                "removed_records": run.removed_records,
                "removed_bytes": run.removed_bytes,
                "by_reason": run.by_reason,
                "failed_records": run.failed_total,
                "freed_bytes_measured": None if before is None or after is None else after - before,
            },
        )

    # rows

    def _load(self, run_id: int) -> CleanupRun:
        with self._db.read() as session:
            run = session.get(CleanupRun, run_id)
        if run is None:
            raise NotFound.of("cleanup run", run_id)
        return run

    def _save(self, run_id: int, **values: Any) -> None:
        with self._db.write() as session:
            session.execute(update(CleanupRun).where(CleanupRun.id == run_id).values(**values))

    def _note(self, run_id: int, notes: list[str], *, verdict: str | None = None) -> None:
        self._save(run_id, notes=notes, verdict=verdict)


def policy_body(policy: Policy) -> dict[str, Any]:
    """The JSON that a plan freezes of a policy."""
    return {**policy.body, "removal": policy.removal, "quarantine_for": policy.quarantine_for}
