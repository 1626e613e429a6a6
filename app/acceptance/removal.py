"""Removing a run's own records through cleanup: a scan, a plan over the run's salts, a run. Every rule of removal
(RULES.md §2) is cleanup's; this room never unlinks anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from app.acceptance.ports import Removal
from app.cleanup.schemas import FilterPlanInput, PlanView, RunView
from app.errors import Conflict
from app.records.schemas import ANOTHER_SCAN, ScanView
from app.scheduling.schemas import WorkView
from app.scheduling.work import ACTIVE_STATES

V = TypeVar("V", bound=WorkView)


class Records(Protocol):
    """What is needed of the records room."""

    def start_scan(self, store_id: int, *, actor: str, gentle: bool = False) -> ScanView: ...

    def get_scan(self, scan_id: int) -> ScanView: ...


class Cleanup(Protocol):
    """What is needed of the cleanup room."""

    def start_filter_plan(
        self, store_id: int, body: FilterPlanInput, *, actor: str, housekeeping: bool = False
    ) -> PlanView: ...

    def get_plan(self, plan_id: int) -> PlanView: ...

    def start_run(self, plan_id: int, *, actor: str) -> RunView: ...

    def get_run(self, run_id: int) -> RunView: ...


class Runner(Protocol):
    """Runs a queued row in the calling thread; False when somebody else has it."""

    def run_here(self, kind_name: str, work_id: int) -> bool: ...


class _GivenUp(Exception):
    """Waiting for cleanup ended; the text says why."""


class CleanupRemover:
    """Implements `ports.RecordRemover`."""

    def __init__(
        self, *, runner: Runner, records: Records, cleanup: Cleanup, poll: float = 0.2, patience: float = 300.0
    ) -> None:
        self._runner = runner
        self._records = records
        self._cleanup = cleanup
        self._poll = poll
        self._patience = patience

    def remove_salted(
        self, store_id: int, salt_prefix: str, *, actor: str, cancelled: Callable[[], bool] = lambda: False
    ) -> Removal:
        """Deletes the records whose salt starts with `salt_prefix`.

        Raises TierkeeperError when cleanup refuses. Gives up waiting when `cancelled` says so.
        """
        try:
            return self._remove(store_id, salt_prefix, actor, cancelled)
        except _GivenUp as reason:
            return Removal(0, 0, None, str(reason))

    def _remove(self, store_id: int, salt_prefix: str, actor: str, cancelled: Callable[[], bool]) -> Removal:
        scan = self._scan(store_id, actor, cancelled)
        if scan.state != "succeeded":
            return Removal(0, 0, None, f"the scan before it ended {scan.state}: {scan.error or 'no reason given'}")
        body = FilterPlanInput(filter={"q": f"@{salt_prefix}"}, removal="delete")
        plan = self._cleanup.start_filter_plan(store_id, body, actor=actor, housekeeping=True)
        plan = self._until("plan", int(plan.id), lambda: self._cleanup.get_plan(int(plan.id)), cancelled)
        if plan.state != "succeeded":
            return Removal(0, 0, None, f"the plan ended {plan.state}: {plan.error or 'no reason given'}")
        if plan.records == 0:
            return Removal(0, 0, 0)
        run = self._cleanup.start_run(int(plan.id), actor=actor)
        run = self._until("cleanup", int(run.id), lambda: self._cleanup.get_run(int(run.id)), cancelled)
        left = plan.records - run.removed.records
        why = None
        if run.verdict != "succeeded" or left:
            why = f"cleanup run {run.id} ended {run.verdict or run.state}; {'; '.join(run.notes) or run.error or ''}"
        return Removal(run.removed.records, run.removed.bytes, left, why)

    def _scan(self, store_id: int, actor: str, cancelled: Callable[[], bool]) -> ScanView:
        """A scan that began after the call: one that is under way may have passed our records already."""
        until = time.monotonic() + self._patience
        while True:
            try:
                scan_id = int(self._records.start_scan(store_id, actor=actor).id)
            except Conflict:
                if time.monotonic() > until:
                    raise
            else:
                scan = self._until("scan", scan_id, partial(self._records.get_scan, scan_id), cancelled)
                # A scan may also meet the end of another one, which still holds the inventory.
                if scan.error != ANOTHER_SCAN or time.monotonic() > until:
                    return scan
            self._pause(cancelled)

    def _until(self, kind: str, work_id: int, look: Callable[[], V], cancelled: Callable[[], bool]) -> V:
        """The work's end. It is done in this thread unless somebody has it: the pool may be full of runs that wait."""
        self._runner.run_here(kind, work_id)
        until = time.monotonic() + self._patience
        while (view := look()).state in ACTIVE_STATES:
            if time.monotonic() > until:
                raise _GivenUp(f"{kind} {work_id} did not end within {self._patience:g} s")
            self._pause(cancelled)
        return view

    def _pause(self, cancelled: Callable[[], bool]) -> None:
        if cancelled():
            raise _GivenUp("the removal was cancelled")
        time.sleep(self._poll)
