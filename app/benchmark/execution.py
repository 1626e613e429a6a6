"""The work kind ``benchmark``: runs one row in a worker thread and writes what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import structlog
from sqlalchemy import update
from sqlalchemy.orm import Session

from app.acceptance.tables import RestartHook
from app.benchmark.fill import sweep
from app.benchmark.forms import SALT_PREFIX
from app.benchmark.ports import Fleet, Openers, Pace, RecordRemover
from app.benchmark.recorder import Recorder
from app.benchmark.requests import plan_of
from app.benchmark.restarting import Hook
from app.benchmark.run import Outcome, Run, RunInput
from app.benchmark.schemas import BenchmarkInput
from app.benchmark.tables import BenchmarkRun
from app.benchmark.verdict import Finding, Verdict
from app.clock import Clock
from app.database import Database
from app.errors import TierkeeperError
from app.fleet.targets import StoreTarget
from app.paging import parse_id
from app.scheduling.runner import Cancelled, WorkContext

log = structlog.get_logger()
_CANCEL_SECONDS = 0.25


class RunFailed(TierkeeperError):
    """The run ended with verdict ``error``: the row's state becomes ``failed`` with this sentence."""

    code = "benchmark_error"
    title = "The benchmark could not be carried out"


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
        self._pace = pace
        self._openers = openers

    def __call__(self, context: WorkContext) -> None:
        """The work kind's `run`: ends with a verdict in the row, with Cancelled, or (verdict error) with RunFailed."""
        run: Run | None = None
        try:
            given = self._input(context.id)
            recorder = Recorder(self._db, context.id, _progress(context))
            run = Run(given, recorder, self._clock, pace=self._pace, openers=self._openers)
            try:
                asyncio.run(_watched(run, context.cancelled))
            finally:
                if run.filler is not None:
                    run.filler.remove()
        except Cancelled:
            self._write(context.id, run.outcome if run is not None else Outcome(), with_verdict=False)
            raise
        except Exception as problem:
            # A fault of ours: the row must still end with a verdict, and never with a good one.
            finding = Finding("internal_error", "error", f"{type(problem).__name__}: {problem}")
            self._write(context.id, Outcome(verdict=Verdict("error", (finding,))))
            raise
        outcome = run.outcome
        assert outcome.verdict is not None
        note = self._clean_up(context.id, given)
        if note is not None:
            outcome.verdict = Verdict(outcome.verdict.name, (*outcome.verdict.findings, note))
        self._write(context.id, outcome)
        if outcome.verdict.name == "error":
            raise RunFailed(headline(outcome))

    def recover(self, run_id: int) -> None:
        """After a crash: empty records that a lookup run had written are taken away."""
        with self._db.read() as session:
            row = session.get(BenchmarkRun, run_id)
        if row is None or row.form != "lookup" or row.server_id is None:
            return
        try:
            for store in self._stores(row.server_id):
                sweep(store, f"{SALT_PREFIX}{row.run_key}-fill")
        except TierkeeperError as error:
            log.warning("benchmark.fill_left", run=run_id, reason=error.detail)

    def _input(self, run_id: int) -> RunInput:
        with self._db.read() as session:
            row = session.get(BenchmarkRun, run_id)
            assert row is not None
            if row.engine_id is None:
                raise TierkeeperError("the engine was forgotten before the run began")
            request = BenchmarkInput.model_validate(row.request)
            run_key, engine_id, baseline_id = row.run_key, row.engine_id, row.baseline_engine_id
            hook = _hook(session, request)
        engine = self._fleet.engine_target(engine_id)
        baseline = None if baseline_id is None else self._fleet.engine_target(baseline_id)
        other = None if baseline is None else baseline.server_id
        return RunInput(
            request=request,
            run_key=run_key,
            plan=plan_of(request),
            engine=engine,
            server=None if engine.server_id is None else self._fleet.server_target(engine.server_id),
            stores=self._stores(engine.server_id),
            readers=tuple(self._fleet.engine_target(parse_id("engine", r)) for r in request.reader_engine_ids),
            baseline=baseline,
            baseline_server=None if other is None else self._fleet.server_target(other),
            baseline_stores=self._stores(other),
            hook=hook,
        )

    def _stores(self, server_id: int | None) -> tuple[StoreTarget, ...]:
        if server_id is None:
            return ()
        return tuple(s for s in self._fleet.store_targets(server_id) if s.kind == "lmcache_fs")

    def _clean_up(self, run_id: int, given: RunInput) -> Finding | None:
        """Removes the run's own records if that was wished; says what stays and why."""
        stores = {s.id: s for s in (*given.stores, *given.baseline_stores)}
        if not stores:
            return None
        prefix = f"{SALT_PREFIX}{given.run_key}-"
        stay = f"the run's own records (salts {prefix}…) stay in the store"
        if not given.request.remove_records:
            return Finding("records_left", "note", f"{stay}: that was the wish")
        if self._remover is None:
            return Finding("records_left", "note", f"{stay}: this panel has no cleanup to remove them with")
        with self._db.read() as session:
            row = session.get(BenchmarkRun, run_id)
            actor = row.requested_by if row is not None else "system"
        reasons: list[str] = []
        for store_id in stores:
            try:
                done = self._remover.remove_salted(store_id, prefix, actor=actor)
            except TierkeeperError as error:
                reasons.append(error.detail)
            else:
                reasons += [done.reason] if done.reason else []
        return Finding("records_left", "note", f"{stay}: {'; '.join(reasons)}") if reasons else None

    def _write(self, run_id: int, outcome: Outcome, *, with_verdict: bool = True) -> None:
        """Everything a run saw, in one unit of work."""
        values: dict[str, Any] = {
            "snapshots": outcome.snapshots,
            "scope": outcome.scope,
            "result": None if outcome.result is None else outcome.result.model_dump(mode="json"),
            "stage": "",
        }
        if outcome.verdict is not None:
            values["findings"] = [f.to_json() for f in outcome.verdict.findings]
        if with_verdict and outcome.verdict is not None:
            values["verdict"] = outcome.verdict.name
            values["headline"] = headline(outcome)
        with self._db.write() as session:
            session.execute(update(BenchmarkRun).where(BenchmarkRun.id == run_id).values(**values))


def headline(outcome: Outcome) -> str:
    """One line for people: what spoiled the run, or what it says."""
    decided = outcome.verdict
    if decided is None:
        return "not ended"
    if decided.deciding:
        more = f" (and {len(decided.deciding) - 1} more)" if len(decided.deciding) > 1 else ""
        return decided.deciding[0].text + more
    return outcome.result.conclusion.text if outcome.result is not None else "nothing was measured"


def _hook(session: Session, request: BenchmarkInput) -> Hook | None:
    if request.restart is None or request.restart.hook_id is None:
        return None
    row = session.get(RestartHook, parse_id("hook", request.restart.hook_id))
    if row is None:
        raise TierkeeperError(f"the restart hook {request.restart.hook_id} was deleted before the run began")
    return Hook(row.server_action, row.engine_action, row.timeout_seconds)


def _progress(context: WorkContext) -> Callable[[int, int | None], None]:
    return lambda done, total: context.progress(done, total, "requests", force=done == total)


async def _watched(run: Run, cancelled: Callable[[], bool]) -> None:
    """The run, with the cancel flag looked at every quarter of a second."""
    task = asyncio.create_task(run.main())
    try:
        while True:
            done, _ = await asyncio.wait({task}, timeout=_CANCEL_SECONDS)
            if done:
                task.result()
                return
            if await asyncio.to_thread(cancelled):
                run.stop_filling = True
                task.cancel()
                await asyncio.wait({task}, timeout=1.5)
                raise Cancelled
    finally:
        task.cancel()
