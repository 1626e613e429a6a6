"""Plans: starting, showing, cancelling."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.cleanup.execution import policy_body
from app.cleanup.planning import PlanMaker
from app.cleanup.policy_parsing import parse_filter_spec
from app.cleanup.schemas import FilterPlanInput, ItemView, PlanView
from app.cleanup.service_base import ServiceBase
from app.cleanup.tables import CleanupRun, Plan, Policy
from app.cleanup.views import plan_view
from app.errors import InvalidInput, NotFound
from app.scheduling.runner import WorkContext
from app.scheduling.schemas import Page


class PlanMethods(ServiceBase):
    """Part of CleanupService."""

    _plans: PlanMaker

    def start_policy_plan(self, policy_id: int, *, actor: str) -> PlanView:
        """Queues a dry run of a policy. Raises NotFound."""
        with self._db.write() as session:
            policy = session.get(Policy, policy_id)
            if policy is None:
                raise NotFound.of("policy", policy_id)
            row = Plan(
                store_id=policy.store_id,
                policy_id=policy.id,
                policy_name=policy.name,
                origin="policy",
                body=policy_body(policy),
                removal=policy.removal,
                quarantine_for=policy.quarantine_for,
                created_at=self._clock(),
                requested_by=actor,
            )
            self._add_plan(session, row, actor)
        self._runner.submit("plan", row.id)
        return self.get_plan(row.id)

    def start_filter_plan(
        self, store_id: int, body: FilterPlanInput, *, actor: str, housekeeping: bool = False
    ) -> PlanView:
        """Queues a plan of all records of a store that match a filter. Raises NotFound, InvalidInput.

        `housekeeping`: a test takes its own records away; no person cleans.
        """
        wanted = {name: value for name, value in body.filter.items() if value is not None}
        if not wanted:
            raise InvalidInput.field(
                "filter", 'say which records, for instance {"class": "corrupt"}; {"q": "@"} means all of them'
            )
        for name, value in wanted.items():
            # On a page an empty field means "any"; where records go it is more likely a variable that nobody set.
            if name != "salt" and (value == [] or (isinstance(value, str) and not value.strip())):
                raise InvalidInput.field(
                    f"filter.{name}", "is empty, which would mean any; give a value, or leave it out if any is meant"
                )
        if wanted.get("class") == "foreign":
            raise InvalidInput.field("filter.class", "foreign files are not this store's records and are never touched")
        stored: dict[str, Any] = {
            "filter": self._inventory.check_filter(wanted),
            "removal": body.removal,
            "quarantine_for": body.quarantine_for,
            "protect": body.protect,
            "limits": body.limits,
            "seen": None if body.seen is None else body.seen.model_dump(),
        }
        parse_filter_spec(stored)
        with self._db.write() as session:
            self._require_store(session, store_id)
            row = Plan(
                store_id=store_id,
                origin="housekeeping" if housekeeping else "filter",
                body=stored,
                removal=body.removal,
                quarantine_for=body.quarantine_for,
                created_at=self._clock(),
                requested_by=actor,
            )
            self._add_plan(session, row, actor)
        self._runner.submit("plan", row.id)
        return self.get_plan(row.id)

    def _add_plan(self, session: Session, row: Plan, actor: str) -> None:
        self._runner.queue(session, row)
        detail = {"store_id": row.store_id, "policy": row.policy_name, "filter": row.body.get("filter")}
        self._audit.record(
            session, actor=actor, action="plan.create", target_kind="plan", target_id=row.id, detail=detail
        )

    def get_plan(self, plan_id: int) -> PlanView:
        """Raises NotFound."""
        with self._db.read() as session:
            return self._plan_view(session, self._plan_row(session, plan_id))

    def list_plans(
        self, *, page_size: int, page_token: str | None, store_id: int | None = None, policy_id: int | None = None
    ) -> Page[PlanView]:
        """Newest first."""
        query = select(Plan).where(Plan.origin != "quarantine")
        if store_id is not None:
            query = query.where(Plan.store_id == store_id)
        if policy_id is not None:
            query = query.where(Plan.policy_id == policy_id)
        with self._db.read() as session:
            return self._page(
                session,
                query,
                Plan.id,
                list_name=f"plans|{store_id}|{policy_id}",
                page_size=page_size,
                page_token=page_token,
                newest_first=True,
                view=lambda row: self._plan_view(session, row),
            )

    def plan_records(
        self, plan_id: int, *, page_size: int, page_token: str | None, reason: str | None = None
    ) -> Page[ItemView]:
        """In the order in which they would go."""
        with self._db.read() as session:
            self._plan_row(session, plan_id)
        return self._item_page(
            plan_id,
            list_name=f"plan_records|{plan_id}|{reason}",
            page_size=page_size,
            page_token=page_token,
            reason=reason,
            planned_only=True,
        )

    def cancel_plan(self, plan_id: int, *, actor: str) -> PlanView:
        """Asks a plan to stop being made. Raises NotFound."""
        self.get_plan(plan_id)
        self._runner.cancel("plan", plan_id)
        with self._db.write() as session:
            self._audit.record(session, actor=actor, action="plan.cancel", target_kind="plan", target_id=plan_id)
        return self.get_plan(plan_id)

    def _make_plan(self, context: WorkContext) -> None:
        """The work kind `plan`."""
        self._plans.make(
            context.id,
            check_cancel=context.check_cancel,
            progress=lambda done: context.progress(done, None, "records planned"),
        )

    def _plan_row(self, session: Session, plan_id: int) -> Plan:
        row = session.get(Plan, plan_id)
        if row is None:
            raise NotFound.of("plan", plan_id)
        return row

    def _plan_view(self, session: Session, row: Plan) -> PlanView:
        run_id = session.scalar(select(CleanupRun.id).where(CleanupRun.plan_id == row.id).limit(1))
        return plan_view(row, store_name=self._store_name(session, row.store_id), run_id=run_id, now=self._clock())
