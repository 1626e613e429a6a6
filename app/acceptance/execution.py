"""The work kind ``acceptance``: runs one row in a worker thread and writes what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog
from sqlalchemy import update
from sqlalchemy.orm import Session

from app.acceptance import own_records
from app.acceptance.finding import EXTERNAL_ARMS, Finding
from app.acceptance.ports import Fleet, RecordRemover, Removal
from app.acceptance.preparation import RunInput
from app.acceptance.prompts import SALT_PREFIX
from app.acceptance.recorder import Recorder
from app.acceptance.requests import run_input
from app.acceptance.restarts import Hook
from app.acceptance.results import arm_view, comparison_view
from app.acceptance.run import Openers, Outcome, Run
from app.acceptance.stack import Pace
from app.acceptance.tables import AcceptanceRun, RestartHook
from app.acceptance.verdict import Verdict
from app.clock import Clock
from app.database import Database
from app.errors import StoreError, TierkeeperError
from app.scheduling.runner import Cancelled, WorkContext

log = structlog.get_logger()
_CANCEL_SECONDS = 0.25
_PASSES = ("pass", "pass_with_near_ties")


class RunFailed(TierkeeperError):
    """The run ended with verdict ``error``: the row's state becomes ``failed`` with this sentence."""

    code = "acceptance_error"
    title = "The acceptance run could not be carried out"


class Execution:
    """Runs rows. One instance per process, shared by all worker threads."""

    def __init__(
        self,
        db: Database,
        clock: Clock,
        fleet: Fleet,
        *,
        remover: RecordRemover | None = None,
        pace: Pace | None = None,
        openers: Openers | None = None,
    ) -> None:
        self._db = db
        self._clock = clock
        self._fleet = fleet
        self._remover = remover
        self._pace = pace or Pace()
        self._openers = openers or Openers()

    def __call__(self, context: WorkContext) -> None:
        """The work kind's `run`: ends with a verdict in the row, with Cancelled, or (verdict error) with RunFailed."""
        recorder = Recorder(self._db, self._clock, context.id)
        run: Run | None = None
        try:
            given = self._input(context.id)
            run = Run(given, recorder, self._clock, _progress(context), pace=self._pace, openers=self._openers)
            asyncio.run(watched(run.main, context.cancelled))
        except Cancelled:
            self._write(context.id, run.outcome if run is not None else Outcome(), with_verdict=False)
            recorder.close("skipped", "cancelled")
            raise
        except Exception as problem:
            # A fault of ours: the row must still end with a verdict, and never with a pass.
            finding = Finding("internal_error", "error", f"{type(problem).__name__}: {problem}")
            self._write(context.id, Outcome(verdict=Verdict("error", (finding,))))
            recorder.close("failed", finding.text)
            raise
        outcome = run.outcome
        assert outcome.verdict is not None
        name, headline = outcome.verdict.name, _headline(outcome)
        recorder.close("failed" if name not in _PASSES else "skipped", headline)
        # The verdict first: removing records scans a whole store, and must not be able to lose it.
        self._write(context.id, outcome)
        if name in (*_PASSES, "fail") and any(a in EXTERNAL_ARMS for a in given.plan.arms):
            by = f"acceptance run {context.id} of {given.engine.name}"
            self._fleet.mark_data_path(given.server.id, self._clock(), right=name in _PASSES, by=by)
        self._write(context.id, self._clean_up(context, given, outcome))
        if name == "error":
            raise RunFailed(headline)

    def recover(self, run_id: int) -> None:
        """After a crash: what was running ends as a failed step; the runner marks the row itself."""
        Recorder(self._db, self._clock, run_id).close("failed", "the process that ran it is gone")

    def _input(self, run_id: int) -> RunInput:
        with self._db.read() as session:
            row = session.get(AcceptanceRun, run_id)
            assert row is not None
            if row.engine_id is None or row.server_id is None:
                raise TierkeeperError("the engine or its cache server was forgotten before the run began")
            frozen, ids = dict(row.request), (row.run_key, row.engine_id, row.server_id, row.second_engine_id)
            hook = _hook(session, frozen.get("restart_hook_id"))
        return run_input(
            frozen, self._fleet, run_key=ids[0], engine_id=ids[1], server_id=ids[2], second_engine_id=ids[3], hook=hook
        )

    def _clean_up(self, context: WorkContext, given: RunInput, outcome: Outcome) -> Outcome:
        """Removes the run's own records if that was wished, and says what stays and why."""
        assert outcome.verdict is not None
        removal, why = self._removal(context, given, outcome.verdict)
        if removal is None and why is None:
            return outcome
        left = removal.left if removal is not None else None
        reason = why or (removal.reason if removal is not None else None)
        outcome.evidence["removal"] = {
            "removed": removal.removed if removal is not None else 0,
            "bytes": removal.bytes if removal is not None else 0,
            "left": left,
            "reason": reason,
        }
        if reason is not None:
            text = f"the run's own records (salts {SALT_PREFIX}{given.plan.run_key}-…) stay in the store: {reason}"
            note = Finding("records_left", "note", text)
            outcome.verdict = Verdict(outcome.verdict.name, (*outcome.verdict.findings, note))
        return outcome

    def _removal(self, context: WorkContext, given: RunInput, verdict: Verdict) -> tuple[Removal | None, str | None]:
        with self._db.read() as session:
            row = session.get(AcceptanceRun, context.id)
            wished, actor = (bool(row.request.get("remove_records")), row.requested_by) if row else (False, "system")
        if not wished:
            return None, "that was the wish"
        if verdict.name == "fail":
            return None, "they are the evidence of a failed run"
        if not given.stores:
            return None, "no store with a directory is registered for this server"
        prefix = f"{SALT_PREFIX}{given.plan.run_key}-"
        try:
            mine = own_records.find(given.stores, prefix)
        except StoreError as error:
            return None, error.detail
        if not mine.records:
            return None, None
        if self._remover is None:
            return None, "this panel has no cleanup to remove them with"
        parts: list[Removal] = []
        for store in given.stores:
            if not any(r.store_id == store.id for r in mine.records):
                continue
            try:
                parts.append(self._remover.remove_salted(store.id, prefix, actor=actor, cancelled=context.cancelled))
            except TierkeeperError as error:
                parts.append(Removal(0, 0, None, error.detail))
        left = None if any(p.left is None for p in parts) else sum(p.left or 0 for p in parts)
        why = "; ".join(p.reason for p in parts if p.reason) or None
        return Removal(sum(p.removed for p in parts), sum(p.bytes for p in parts), left, why), None

    def _write(self, run_id: int, outcome: Outcome, *, with_verdict: bool = True) -> None:
        """Everything a run saw, in one unit of work."""
        tolerance = outcome.run.tolerance if outcome.run is not None else None
        cold = outcome.results.get("cold")
        cold_ttft = cold.ttft if cold is not None else {}
        found = outcome.verdict.findings if with_verdict and outcome.verdict is not None else ()
        failed = {f.arm for f in found if f.severity == "fail"}
        values: dict[str, Any] = {
            "arms": [
                arm_view(r, cold_ttft, tolerance, failed=r.name in failed).model_dump()
                for r in outcome.results.values()
            ],
            "comparisons": [
                comparison_view(r.comparison, outcome.token_texts).model_dump()
                for r in outcome.results.values()
                if r.comparison is not None
            ],
            "evidence": outcome.evidence,
            "frozen": outcome.frozen,
        }
        if with_verdict and outcome.verdict is not None:
            values["verdict"] = outcome.verdict.name
            values["findings"] = [f.to_json() for f in outcome.verdict.findings]
            values["headline"] = _headline(outcome)
        with self._db.write() as session:
            session.execute(update(AcceptanceRun).where(AcceptanceRun.id == run_id).values(**values))


def _hook(session: Session, hook_id: str | None) -> Hook | None:
    row = session.get(RestartHook, int(hook_id)) if hook_id is not None else None
    return None if row is None else Hook(row.server_action, row.engine_action, row.timeout_seconds)


def _headline(outcome: Outcome) -> str:
    """One line for people."""
    verdict = outcome.verdict
    if verdict is None:
        return "no verdict"
    if verdict.deciding:
        first = verdict.deciding[0]
        more = f" (and {len(verdict.deciding) - 1} more)" if len(verdict.deciding) > 1 else ""
        head = f"{first.arm}: " if first.arm else ""
        return f"{head}{first.text}{more}"
    external = [r for n, r in outcome.results.items() if n in EXTERNAL_ARMS and r.evidence.totals is not None]
    tokens = sum((r.evidence.totals.external_tokens or 0) for r in external if r.evidence.totals is not None)
    answers = sum(r.comparison.count("exact") for r in outcome.results.values() if r.comparison is not None)
    if external:
        return f"{answers} answers are the same; the cache supplied {tokens} tokens, all that were expected"
    return f"{answers} answers are the same; no external arm was asked for"


def _progress(context: WorkContext) -> Callable[[int, int], None]:
    return lambda done, total: context.progress(done, total, "requests", force=done >= total)


async def watched(work: Callable[[], Coroutine[Any, Any, None]], cancelled: Callable[[], bool]) -> None:
    """The work, with the cancel flag looked at every quarter of a second. Raises Cancelled."""
    task = asyncio.create_task(work())
    try:
        while True:
            done, _ = await asyncio.wait({task}, timeout=_CANCEL_SECONDS)
            if done:
                task.result()
                return
            if await asyncio.to_thread(cancelled):
                task.cancel()
                await asyncio.wait({task}, timeout=1.0)
                raise Cancelled
    finally:
        task.cancel()
