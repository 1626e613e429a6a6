"""The cleanup service: what routes, pages, commands and the scheduler call.

All methods are synchronous and hold no session while a disk or a server is touched. Mutating methods take the actor
and write the audit trail in the same unit of work. Long work is a row (plan, cleanup, quarantine) run by WorkRunner.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from app.cleanup.schemas import (
    EpisodeView,
    FilterPlanInput,
    ItemView,
    PlanView,
    PolicyInput,
    PolicyPatch,
    PolicyView,
    PresetView,
    QuarantineJobView,
    QuarantineView,
    RunView,
    SelectionInput,
)
from app.scheduling.schemas import Page
from app.scheduling.service import StartedWork


class CleanupService:
    """Policies, plans, runs, quarantine."""

    # policies

    def list_policies(self, *, page_size: int, page_token: str | None, store_id: int | None = None) -> Page[PolicyView]:
        """Oldest first."""
        raise NotImplementedError

    def get_policy(self, policy_id: int) -> PolicyView:
        """Raises NotFound."""
        raise NotImplementedError

    def create_policy(self, body: PolicyInput, *, actor: str) -> PolicyView:
        """Raises InvalidInput (each field named) or Conflict (name taken)."""
        raise NotImplementedError

    def patch_policy(self, policy_id: int, body: PolicyPatch, *, actor: str) -> PolicyView:
        """Raises NotFound, InvalidInput, Conflict. Plans made before keep what they froze."""
        raise NotImplementedError

    def delete_policy(self, policy_id: int, *, actor: str) -> None:
        """Forgets the policy; its plans, runs and quarantine stay."""
        raise NotImplementedError

    def presets(self) -> list[PresetView]:
        """ "keep it safe", "keep it under 85 %", "two weeks unused"."""
        raise NotImplementedError

    # plans

    def start_policy_plan(self, policy_id: int, *, actor: str) -> PlanView:
        """Queues a dry run of a policy. Raises NotFound."""
        raise NotImplementedError

    def start_filter_plan(self, store_id: int, body: FilterPlanInput, *, actor: str) -> PlanView:
        """Queues a plan of all records of a store that match a filter. Raises NotFound, InvalidInput."""
        raise NotImplementedError

    def get_plan(self, plan_id: int) -> PlanView:
        """Raises NotFound."""
        raise NotImplementedError

    def list_plans(
        self, *, page_size: int, page_token: str | None, store_id: int | None = None, policy_id: int | None = None
    ) -> Page[PlanView]:
        """Newest first."""
        raise NotImplementedError

    def plan_records(
        self, plan_id: int, *, page_size: int, page_token: str | None, reason: str | None = None
    ) -> Page[ItemView]:
        """In the order in which they would go."""
        raise NotImplementedError

    def cancel_plan(self, plan_id: int, *, actor: str) -> PlanView:
        raise NotImplementedError

    # runs

    def start_run(self, plan_id: int, *, actor: str) -> RunView:
        """Queues a plan's run. Raises NotFound; Conflict when the plan has expired, has run, or is not ready, or while
        another run of the store is active."""
        raise NotImplementedError

    def start_policy_run(self, policy_id: int, *, actor: str, trigger: str = "hand") -> RunView:
        """Queues a run that plans for itself (scanning first where the inventory is old). NotFound, Conflict."""
        raise NotImplementedError

    def get_run(self, run_id: int) -> RunView:
        """Raises NotFound."""
        raise NotImplementedError

    def list_runs(
        self, *, page_size: int, page_token: str | None, store_id: int | None = None, policy_id: int | None = None
    ) -> Page[RunView]:
        """Newest first."""
        raise NotImplementedError

    def run_records(
        self, run_id: int, *, page_size: int, page_token: str | None, state: str | None = None
    ) -> Page[ItemView]:
        """What became of each record; `state` filters."""
        raise NotImplementedError

    def export_run_records(self, run_id: int) -> Iterator[ItemView]:
        """All of them, streamed. Raises NotFound at once."""
        raise NotImplementedError

    def cancel_run(self, run_id: int, *, actor: str) -> RunView:
        """Stops between two records; what is in quarantine stays there."""
        raise NotImplementedError

    # quarantine

    def restore(self, run_id: int, body: SelectionInput | None, *, actor: str) -> QuarantineJobView:
        """Puts records back, never over an existing name, and holds them. Small ones are done on return."""
        raise NotImplementedError

    def purge(self, run_id: int, body: SelectionInput | None, *, actor: str) -> QuarantineJobView:
        """Deletes quarantined records for good. Small ones are done on return."""
        raise NotImplementedError

    def get_quarantine_job(self, job_id: int) -> QuarantineJobView:
        raise NotImplementedError

    def list_quarantine_jobs(
        self, *, page_size: int, page_token: str | None, run_id: int | None = None
    ) -> Page[QuarantineJobView]:
        raise NotImplementedError

    def cancel_quarantine_job(self, job_id: int, *, actor: str) -> QuarantineJobView:
        raise NotImplementedError

    def quarantine(self, store_id: int, *, page_size: int, page_token: str | None) -> QuarantineView:
        """What waits on the store's disk, also of runs that this panel does not know. Raises NotFound, StoreError."""
        raise NotImplementedError

    def adopt_quarantine(self, store_id: int, folder: str, *, actor: str) -> RunView:
        """Makes a run of a folder whose manifest another panel wrote, so that it can be restored or purged."""
        raise NotImplementedError

    def purge_expired(self, now: float) -> int:
        """Purges what has waited for its policy's `quarantine_for`; returns how many jobs ended. For the scheduler."""
        raise NotImplementedError

    def episodes(self, store_id: int | None = None, *, open_only: bool = True) -> list[EpisodeView]:
        """Caches that may still hold wrong records, oldest first."""
        raise NotImplementedError

    # for the scheduler

    def fire(self, policy_id: int, options: Mapping[str, Any], actor: str) -> StartedWork | None:
        """One firing of a policy's schedule; None in a blackout window or when the policy is disabled."""
        raise NotImplementedError

    def check_schedule(self, policy_id: int, options: Mapping[str, Any]) -> None:
        """Raises NotFound when there is no such policy."""
        raise NotImplementedError

    def on_layout_change(self, store_id: int) -> list[StartedWork]:
        """Starts the enabled `@layout-change` policies of a store; ones that cannot start now are left to the next."""
        raise NotImplementedError
