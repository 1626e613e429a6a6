"""The acceptance room's service: start, watch, cancel, report, compare. Runs are work of kind ``acceptance``."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from sqlalchemy import delete, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.acceptance import history, reports, standing
from app.acceptance.canaries import CanaryService
from app.acceptance.canary_watch import CanaryWatch
from app.acceptance.estimate import estimate
from app.acceptance.execution import Execution
from app.acceptance.hook_service import HookService
from app.acceptance.ports import Audit, Fleet, RecordRemover
from app.acceptance.requests import check, engine_of
from app.acceptance.run import Openers
from app.acceptance.schemas import (
    AcceptanceRequest,
    AcceptanceRunView,
    AnswerView,
    EstimateView,
    LatestView,
    RunComparisonView,
)
from app.acceptance.stack import Pace
from app.acceptance.tables import AcceptanceAnswer, AcceptancePrompt, AcceptanceRun, AcceptanceStep, CanaryRun
from app.acceptance.views import answer_view, listed, run_view
from app.clock import Clock
from app.database import Database
from app.errors import Conflict, FieldError, InvalidInput, NotFound
from app.fleet.schemas import EngineView, ServerView
from app.paging import decode_cursor, encode_cursor, parse_id
from app.scheduling.runner import WorkKind, WorkRunner
from app.scheduling.schemas import Page
from app.scheduling.service import StartedWork
from app.scheduling.work import ACTIVE_STATES
from app.settings import Settings

WORK_KIND = "acceptance"
#: A long poll holds a thread of the server; longer waits are answered with the state as it is.
MAX_WAIT_SECONDS = 60.0
_POLL_SECONDS = 0.2
ANSWERS_KEPT_SECONDS = 90 * 86_400.0


class AcceptanceService:
    """Acceptance runs. Every method is sync and called in threads."""

    def __init__(
        self,
        *,
        db: Database,
        clock: Clock,
        runner: WorkRunner,
        settings: Settings,
        audit: Audit,
        fleet: Fleet,
        remover: RecordRemover | None = None,
        pace: Pace | None = None,
        openers: Openers | None = None,
    ) -> None:
        self._db = db
        self._clock = clock
        self._runner = runner
        self._settings = settings
        self._audit = audit
        self._fleet = fleet
        self.hooks = HookService(db=db, clock=clock, settings=settings, audit=audit)
        self.canaries = CanaryService(
            db=db,
            clock=clock,
            runner=runner,
            audit=audit,
            fleet=fleet,
            remover=remover,
            pace=pace,
            openers=openers,
        )
        self.canary_watch = CanaryWatch(db=db, clock=clock, fleet=fleet, canaries=self.canaries)
        self._execution = Execution(db, clock, fleet, remover=remover, pace=pace, openers=openers)
        runner.register(WorkKind(WORK_KIND, AcceptanceRun, run=self._execution, recover=self._execution.recover))

    # runs

    def start(self, request: AcceptanceRequest, *, actor: str) -> AcceptanceRunView:
        """Queues a run and submits it. InvalidInput names the field; Conflict while one is active on the server."""
        engine, server, frozen = check(request, self._fleet)
        self._check_hook(frozen)
        second = None
        if request.second_engine_id is not None:
            second = engine_of(self._fleet, "second_engine_id", request.second_engine_id)
        row = AcceptanceRun(
            created_at=self._clock(),
            requested_by=actor,
            engine_id=engine.id,
            server_id=server.id,
            second_engine_id=second.id if second is not None else None,
            engine_name=engine.name,
            server_name=server.name,
            run_key=secrets.token_hex(5),
            profile=request.profile,
            request=frozen,
            deadline_seconds=frozen["deadline_seconds"],
        )
        self._runner.recover()
        try:
            with self._db.write() as session:
                self._refuse_second(session, server.id, server.name)
                self._refuse_canaries(session, server.id, server.name)
                self._runner.queue(session, row)
                self._audit.record(
                    session,
                    actor=actor,
                    action="acceptance.start",
                    target_kind="acceptance_run",
                    target_id=row.id,
                    detail={"engine": engine.name, "profile": request.profile, "arms": frozen["arms"]},
                )
        except IntegrityError as error:
            raise Conflict(f"an acceptance run is active on the cache server {server.name!r}") from error
        self._runner.submit(WORK_KIND, row.id)
        return self.get(row.id)

    def _refuse_canaries(self, session: Session, server_id: int, name: str) -> None:
        active = session.scalar(
            select(CanaryRun.id).where(CanaryRun.server_id == server_id, CanaryRun.state.in_(sorted(ACTIVE_STATES)))
        )
        if active is not None:
            raise Conflict(
                f"canaries are being read back through the cache server {name!r} (work {active}); wait for it"
            )

    def _check_hook(self, frozen: Mapping[str, Any]) -> None:
        """The hook of a request exists and has an action for each restart arm. Raises InvalidInput."""
        if frozen["restart_hook_id"] is None:
            return
        try:
            hook = self.hooks.get(parse_id("hook", frozen["restart_hook_id"]))
        except NotFound:
            raise InvalidInput.field("restart_hook_id", f"no hook has the id {frozen['restart_hook_id']!r}") from None
        for arm, action in (("restarted_server", hook.server), ("restarted_engine", hook.engine)):
            if arm in frozen["arms"] and action is None:
                kind = arm.removeprefix("restarted_")
                raise InvalidInput.field("restart_hook_id", f"hook {hook.name!r} has no action for the {kind}")

    def _refuse_second(self, session: Session, server_id: int, name: str) -> None:
        active = session.scalar(
            select(AcceptanceRun.id).where(
                AcceptanceRun.server_id == server_id, AcceptanceRun.state.in_(sorted(ACTIVE_STATES))
            )
        )
        if active is not None:
            raise Conflict(
                f"acceptance run {active} is active on the cache server {name!r}: two at once would disturb each "
                "other's evidence. Wait for it or cancel it."
            )

    def estimate(self, request: AcceptanceRequest) -> EstimateView:
        """What the run would take and disturb, from the last polls and past runs; asks nothing of the engine."""
        engine, server, frozen = check(request, self._fleet)
        with self._db.read() as session:
            past = history.last_row(session, engine.id, history.PASSES) or history.last_row(session, engine.id)
            arms = list(past.arms) if past is not None else []
        return estimate(frozen, self._fleet.get_engine(engine.id), self._fleet.get_server(server.id), arms)

    def list_runs(
        self,
        *,
        page_size: int,
        page_token: str | None,
        engine_id: int | None = None,
        server_id: int | None = None,
        verdict: str | None = None,
        state: str | None = None,
    ) -> Page[AcceptanceRunView]:
        """Newest first, with arms and steps; evidence and differing answers only where one run is asked for."""
        name = f"acceptance_runs|{engine_id}|{server_id}|{verdict}|{state}"
        query = select(AcceptanceRun).order_by(AcceptanceRun.id.desc()).limit(page_size + 1)
        if page_token:
            query = query.where(AcceptanceRun.id < decode_cursor(name, page_token)[0])
        for column, value in (
            (AcceptanceRun.engine_id, engine_id),
            (AcceptanceRun.server_id, server_id),
            (AcceptanceRun.verdict, verdict),
            (AcceptanceRun.state, state),
        ):
            if value is not None:
                query = query.where(column == value)
        with self._db.read() as session:
            rows = list(session.scalars(query))
            more = len(rows) > page_size
            rows = rows[:page_size]
            items = [listed(v) for v in self._views(session, rows)]
        return Page(items=items, next_page_token=encode_cursor(name, [rows[-1].id]) if more else None)

    def get(self, run_id: int, *, wait: float = 0.0) -> AcceptanceRunView:
        """One run. `wait` > 0 long-polls: returns when the run has ended, or after that many seconds (60 at most)."""
        until = time.monotonic() + min(max(0.0, wait), MAX_WAIT_SECONDS)
        while True:
            with self._db.read() as session:
                row = session.get(AcceptanceRun, run_id)
                if row is None:
                    raise NotFound.of("acceptance run", run_id)
                if row.state not in ACTIVE_STATES or time.monotonic() >= until:
                    return self._views(session, [row])[0]
            time.sleep(_POLL_SECONDS)

    def is_active(self, run_id: int) -> bool:
        """Whether a run is queued or running; cheap. False for what is not there."""
        with self._db.read() as session:
            return session.scalar(select(AcceptanceRun.state).where(AcceptanceRun.id == run_id)) in ACTIVE_STATES

    def cancel(self, run_id: int, *, actor: str) -> AcceptanceRunView:
        """Asks a run to stop; within 2 s it has. An ended run stays as it is."""
        with self._db.write() as session:
            row = session.get(AcceptanceRun, run_id)
            if row is None:
                raise NotFound.of("acceptance run", run_id)
            if row.state in ACTIVE_STATES:
                self._audit.record(
                    session,
                    actor=actor,
                    action="acceptance.cancel",
                    target_kind="acceptance_run",
                    target_id=run_id,
                    detail={"engine": row.engine_name},
                )
        self._runner.cancel(WORK_KIND, run_id)
        return self.get(run_id)

    def go_on(self, run_id: int, *, actor: str) -> AcceptanceRunView:
        """The person a run waits for says that it is done. Conflict when it waits for nobody."""
        with self._db.write() as session:
            row = session.get(AcceptanceRun, run_id)
            if row is None:
                raise NotFound.of("acceptance run", run_id)
            if row.waiting_for is None or row.state not in ACTIVE_STATES:
                raise Conflict(f"acceptance run {run_id} waits for nobody just now")
            row.continued = True
            self._audit.record(
                session,
                actor=actor,
                action="acceptance.continue",
                target_kind="acceptance_run",
                target_id=run_id,
                detail={"done": row.waiting_for},
            )
        return self.get(run_id)

    def answers(
        self, run_id: int, *, page_size: int, page_token: str | None, arm: str | None = None, prompt: str | None = None
    ) -> Page[AnswerView]:
        """Every request of a run in the order of asking."""
        self.get(run_id)
        name = f"acceptance_answers|{run_id}|{arm}|{prompt}"
        query = select(AcceptanceAnswer).where(AcceptanceAnswer.run_id == run_id)
        if arm is not None:
            query = query.where(AcceptanceAnswer.arm == arm)
        if prompt is not None:
            query = query.where(AcceptanceAnswer.prompt_key == prompt)
        if page_token:
            query = query.where(AcceptanceAnswer.id > decode_cursor(name, page_token)[0])
        with self._db.read() as session:
            rows = list(session.scalars(query.order_by(AcceptanceAnswer.id).limit(page_size + 1)))
        more = len(rows) > page_size
        rows = rows[:page_size]
        return Page(
            items=[answer_view(r) for r in rows],
            next_page_token=encode_cursor(name, [rows[-1].id]) if more else None,
        )

    def ttft_samples(self, run_id: int) -> list[tuple[str, list[float]]]:
        """(arm, milliseconds of every streamed request) in the order of the arms, for the distribution chart."""
        with self._db.read() as session:
            rows = session.execute(
                select(AcceptanceAnswer.arm, AcceptanceAnswer.ttft_seconds)
                .where(
                    AcceptanceAnswer.run_id == run_id,
                    AcceptanceAnswer.ttft_seconds.is_not(None),
                    AcceptanceAnswer.repeat == 0,
                    AcceptanceAnswer.probe.is_(False),
                )
                .order_by(AcceptanceAnswer.id)
            ).all()
        samples: dict[str, list[float]] = {}
        for arm, seconds in rows:
            samples.setdefault(arm, []).append((seconds or 0.0) * 1000)
        return list(samples.items())

    # reports and history

    def report(self, run_id: int, form: str) -> tuple[str, str]:
        """(body, media type) of json | xml | html | md. NotFound for other forms."""
        view = self.get(run_id)
        if form not in reports.FORMS:
            raise NotFound(f"there is no report.{form[:20]}; take one of {', '.join(reports.FORMS)}")
        return reports.render(view, form, self.ttft_samples(run_id)), reports.FORMS[form]

    def compare(self, a: int, b: int) -> RunComparisonView:
        """Two ended runs side by side: frozen differences, arms, and the answers of the same prompts."""
        one, two = self.get(a), self.get(b)
        for view in (one, two):
            if view.state in ACTIVE_STATES:
                raise Conflict(f"acceptance run {view.id} has not ended yet; compare it when it has")
        with self._db.read() as session:
            return history.compare_runs(session, one, two)

    def latest_for_engine(self, engine_id: int) -> LatestView:
        """The last run, the last pass, and what changed since. NotFound for an unknown engine."""
        engine = self._fleet.get_engine(engine_id)
        server = self._server_of(engine)
        with self._db.read() as session:
            run, passed, decided = (
                history.last_row(session, engine_id, verdicts) for verdicts in ((), history.PASSES, history.DECIDING)
            )
            without = history.count_without_verdict(session, engine_id, decided)
            views = (
                {r.id: v for r, v in zip(rows, self._views(session, rows), strict=True)}
                if (rows := [r for r in dict.fromkeys((run, passed, decided)) if r is not None])
                else {}
            )
        last, last_pass, verdict = (views.get(row.id) if row else None for row in (run, passed, decided))
        return history.latest(engine, server, last, last_pass, verdict, without)

    def latest_for_engines(self, engines: Sequence[EngineView]) -> dict[str, LatestView]:
        """`latest_for_engine` of many, by id: a few queries for all, and nothing for what was never tested."""
        with self._db.read() as session:
            known = standing.read(session, lambda rows: self._views(session, rows))
        return standing.of_all(engines, known, self._server_of)

    def _server_of(self, engine: EngineView) -> ServerView | None:
        if engine.server_id is None:
            return None
        try:
            return self._fleet.get_server(int(engine.server_id))
        except NotFound:
            return None

    def _views(self, session: Session, rows: Sequence[AcceptanceRun]) -> list[AcceptanceRunView]:
        steps: dict[int, list[AcceptanceStep]] = {}
        found = session.scalars(
            select(AcceptanceStep)
            .where(AcceptanceStep.run_id.in_([r.id for r in rows]))
            .order_by(AcceptanceStep.run_id, AcceptanceStep.position)
        )
        for step in found:
            steps.setdefault(step.run_id, []).append(step)
        return [run_view(r, steps.get(r.id, [])) for r in rows]

    def retire(self, *, batch: int = 2000) -> int:
        """Forgets the prompts and answers of old runs, a batch a call; returns how many answers went.

        Runs themselves (verdict, arms, comparisons) stay, and so do the answers of each engine's last pass.
        """
        horizon = self._clock() - ANSWERS_KEPT_SECONDS
        with self._db.write() as session:
            kept = select(func.max(AcceptanceRun.id)).where(AcceptanceRun.verdict.in_(history.PASSES))
            old = select(AcceptanceRun.id).where(
                AcceptanceRun.finished_at < horizon, AcceptanceRun.id.not_in(kept.group_by(AcceptanceRun.engine_id))
            )
            ids = list(
                session.scalars(select(AcceptanceAnswer.id).where(AcceptanceAnswer.run_id.in_(old)).limit(batch))
            )
            if ids:
                session.execute(delete(AcceptanceAnswer).where(AcceptanceAnswer.id.in_(ids)))
            else:
                session.execute(delete(AcceptancePrompt).where(AcceptancePrompt.run_id.in_(old)))
        return len(ids)

    # schedules

    def fire(self, engine_id: int, options: Mapping[str, Any], actor: str) -> StartedWork | None:
        """One firing of an acceptance schedule; `options` are the fields of a request without its engine."""
        view = self.start(_scheduled(engine_id, options), actor=actor)
        return StartedWork(WORK_KIND, int(view.id))

    def check_schedule(self, engine_id: int, options: Mapping[str, Any]) -> None:
        """Raises NotFound when there is no such engine, InvalidInput for options that make no request."""
        self._fleet.engine_target(engine_id)
        check(_scheduled(engine_id, options), self._fleet)


def _scheduled(engine_id: int, options: Mapping[str, Any]) -> AcceptanceRequest:
    try:
        return AcceptanceRequest.model_validate({**options, "engine_id": str(engine_id)})
    except ValidationError as error:
        found = tuple(FieldError(f"options.{'.'.join(map(str, e['loc']))}", str(e["msg"])) for e in error.errors())
        raise InvalidInput("; ".join(f"{f.field}: {f.message}" for f in found), errors=found) from None
