"""The benchmark room's service: start, watch, cancel, export, compare; the experiments. Work of kind ``benchmark``."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.acceptance.tables import AcceptanceRun, RestartHook
from app.benchmark import exports
from app.benchmark.chart import strip_svg
from app.benchmark.comparing import compare
from app.benchmark.estimate import estimate
from app.benchmark.execution import Execution
from app.benchmark.experiment_schemas import ExperimentView
from app.benchmark.experiments import Mine, mine_of
from app.benchmark.ports import Audit, Fleet, Openers, Pace, RecordRemover
from app.benchmark.references import REFERENCES, VARIANTS, Reference
from app.benchmark.requests import check, frozen, plan_of
from app.benchmark.schemas import (
    BenchmarkInput,
    BenchmarkRunView,
    EstimateView,
    RequestView,
    ResultView,
    RunComparisonView,
)
from app.benchmark.tables import BenchmarkRun, BenchmarkSample
from app.benchmark.views import experiment_view, request_view, run_view
from app.clock import Clock
from app.database import Database
from app.errors import Conflict, InvalidInput, NotFound
from app.fleet.targets import EngineTarget
from app.paging import decode_cursor, encode_cursor, parse_id
from app.scheduling.runner import WorkKind, WorkRunner
from app.scheduling.schemas import Page
from app.scheduling.work import ACTIVE_STATES
from app.settings import Settings

WORK_KIND = "benchmark"
#: A long poll holds a thread of the server; longer waits are answered with the state as it is.
MAX_WAIT_SECONDS = 60.0
_POLL_SECONDS = 0.2
_PIECE = 1000


class BenchmarkService:
    """Benchmark runs and published experiments. Every method is sync and called in threads."""

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
        execution = Execution(db, clock, fleet, remover=remover, pace=pace, openers=openers)
        runner.register(WorkKind(WORK_KIND, BenchmarkRun, run=execution, recover=execution.recover))

    # runs

    def start(self, request: BenchmarkInput, *, actor: str) -> BenchmarkRunView:
        """Queues a run and submits it. InvalidInput names the field; Conflict while the engines or the server are
        measured or tested by another run."""
        request, engine, baseline = check(request, self._fleet)
        self._check_hook(request)
        server = None if engine.server_id is None else self._fleet.server_target(engine.server_id)
        row = BenchmarkRun(
            created_at=self._clock(),
            requested_by=actor,
            engine_id=engine.id,
            baseline_engine_id=baseline.id if baseline is not None else None,
            server_id=engine.server_id,
            engine_name=engine.name,
            baseline_engine_name=baseline.name if baseline is not None else None,
            server_name=server.name if server is not None else None,
            run_key=secrets.token_hex(5),
            form=request.form,
            shape=request.shape,
            experiment=request.experiment,
            experiment_mode=request.experiment_mode,
            request=frozen(request),
            deadline_seconds=request.deadline_seconds,
            progress_unit="requests",
        )
        self._runner.recover()
        try:
            with self._db.write() as session:
                self._refuse_second(session, engine, baseline)
                self._runner.queue(session, row)
                self._audit.record(
                    session,
                    actor=actor,
                    action="benchmark.start",
                    target_kind="benchmark_run",
                    target_id=row.id,
                    detail={"engine": engine.name, "form": request.form, "experiment": request.experiment},
                )
        except IntegrityError as error:
            raise Conflict(f"a benchmark run is active on the engine {engine.name!r}") from error
        self._runner.submit(WORK_KIND, row.id)
        return self.get(row.id)

    def _refuse_second(self, session: Session, engine: EngineTarget, baseline: EngineTarget | None) -> None:
        """Two runs on the same targets are each other's foreign traffic."""
        engines = {e.id for e in (engine, baseline) if e is not None}
        servers = {e.server_id for e in (engine, baseline) if e is not None and e.server_id is not None}
        for row in session.scalars(select(BenchmarkRun).where(BenchmarkRun.state.in_(sorted(ACTIVE_STATES)))):
            if engines & {row.engine_id, row.baseline_engine_id} or row.server_id in servers:
                raise Conflict(f"benchmark run {row.id} is active on the same targets; wait for it or cancel it")
        testing = session.scalar(
            select(AcceptanceRun.id).where(
                AcceptanceRun.state.in_(sorted(ACTIVE_STATES)), AcceptanceRun.server_id.in_(sorted(servers))
            )
        )
        if testing is not None:
            raise Conflict(f"acceptance run {testing} is active on the same cache server; wait for it or cancel it")

    def _check_hook(self, request: BenchmarkInput) -> None:
        if request.restart is None or request.restart.hook_id is None:
            return
        try:
            hook_id = parse_id("hook", request.restart.hook_id)
        except NotFound:
            hook_id = -1
        with self._db.read() as session:
            hook = session.get(RestartHook, hook_id)
        if hook is None:
            raise InvalidInput.field("restart.hook_id", f"no hook has the id {request.restart.hook_id[:80]!r}")
        for kind, action in (("server", hook.server_action), ("engine", hook.engine_action)):
            if action is None and request.restart.target in (kind, "both"):
                raise InvalidInput.field("restart.hook_id", f"hook {hook.name!r} has no action for the {kind}")

    def estimate(self, request: BenchmarkInput) -> EstimateView:
        """What the run would take and disturb, from the last polls and the last run; asks nothing of the targets."""
        request, engine, baseline = check(request, self._fleet)
        with self._db.read() as session:
            past = session.scalar(
                select(BenchmarkRun.result)
                .where(BenchmarkRun.engine_id == engine.id, BenchmarkRun.verdict == "valid")
                .order_by(BenchmarkRun.id.desc())
                .limit(1)
            )
        return estimate(
            request,
            plan_of(request),
            self._fleet.get_engine(engine.id),
            None if engine.server_id is None else self._fleet.get_server(engine.server_id),
            None if baseline is None else self._fleet.get_engine(baseline.id),
            None if past is None else ResultView.model_validate(past),
        )

    def list_runs(
        self,
        *,
        page_size: int,
        page_token: str | None,
        engine_id: int | None = None,
        form: str | None = None,
        experiment: str | None = None,
        verdict: str | None = None,
        state: str | None = None,
    ) -> Page[BenchmarkRunView]:
        """Newest first. Filters combine."""
        name = f"benchmark_runs|{engine_id}|{form}|{experiment}|{verdict}|{state}"
        query = select(BenchmarkRun).order_by(BenchmarkRun.id.desc()).limit(page_size + 1)
        if page_token:
            query = query.where(BenchmarkRun.id < decode_cursor(name, page_token)[0])
        for column, value in (
            (BenchmarkRun.engine_id, engine_id),
            (BenchmarkRun.form, form),
            (BenchmarkRun.experiment, experiment),
            (BenchmarkRun.verdict, verdict),
            (BenchmarkRun.state, state),
        ):
            if value is not None:
                query = query.where(column == value)
        with self._db.read() as session:
            rows = list(session.scalars(query))
        more = len(rows) > page_size
        rows = rows[:page_size]
        return Page(
            items=[run_view(r) for r in rows], next_page_token=encode_cursor(name, [rows[-1].id]) if more else None
        )

    def get(self, run_id: int, *, wait: float = 0.0) -> BenchmarkRunView:
        """One run. `wait` > 0 long-polls: returns when the run has ended, or after that many seconds (60 at most)."""
        until = time.monotonic() + min(max(0.0, wait), MAX_WAIT_SECONDS)
        while True:
            with self._db.read() as session:
                row = session.get(BenchmarkRun, run_id)
                if row is None:
                    raise NotFound.of("benchmark run", run_id)
                if row.state not in ACTIVE_STATES or time.monotonic() >= until:
                    return run_view(row)
            time.sleep(_POLL_SECONDS)

    def cancel(self, run_id: int, *, actor: str) -> BenchmarkRunView:
        """Asks a run to stop; within 2 s it has. An ended run stays as it is."""
        with self._db.write() as session:
            row = session.get(BenchmarkRun, run_id)
            if row is None:
                raise NotFound.of("benchmark run", run_id)
            if row.state in ACTIVE_STATES:
                self._audit.record(
                    session,
                    actor=actor,
                    action="benchmark.cancel",
                    target_kind="benchmark_run",
                    target_id=run_id,
                    detail={"engine": row.engine_name},
                )
        self._runner.cancel(WORK_KIND, run_id)
        return self.get(run_id)

    # requests and exports

    def requests(
        self,
        run_id: int,
        *,
        page_size: int,
        page_token: str | None,
        scenario: str | None = None,
        phase: str | None = None,
    ) -> Page[RequestView]:
        """Every request of a run in the order in which it was kept."""
        self.get(run_id)
        name = f"benchmark_requests|{run_id}|{scenario}|{phase}"
        after = 0 if not page_token else decode_cursor(name, page_token)[0]
        assert isinstance(after, int)
        rows = self._samples(run_id, after, page_size + 1, scenario, phase)
        more = len(rows) > page_size
        rows = rows[:page_size]
        return Page(
            items=[request_view(r) for r in rows],
            next_page_token=encode_cursor(name, [rows[-1].id]) if more else None,
        )

    def strips(self, run_id: int) -> dict[tuple[str, int, str], list[tuple[int, float]]]:
        """(scenario, run, phase) -> (position, TTFT in ms) of every answered request, for the strip chart."""
        with self._db.read() as session:
            rows = session.execute(
                select(
                    BenchmarkSample.scenario,
                    BenchmarkSample.repeat,
                    BenchmarkSample.phase,
                    BenchmarkSample.position,
                    BenchmarkSample.ttft_seconds,
                )
                .where(BenchmarkSample.run_id == run_id, BenchmarkSample.ttft_seconds.is_not(None))
                .order_by(BenchmarkSample.id)
            ).all()
        found: dict[tuple[str, int, str], list[tuple[int, float]]] = {}
        for scenario, repeat, phase, position, seconds in rows:
            found.setdefault((scenario, repeat, phase), []).append((position, (seconds or 0.0) * 1000))
        return found

    def export(self, run_id: int, form: str) -> tuple[Iterator[str], str]:
        """(pieces of text, media type) of json | md | txt | svg | csv | jsonl. NotFound for other forms."""
        run = self.get(run_id)
        if form not in exports.FORMS:
            raise NotFound(f"there is no export.{form[:20]}; take one of {', '.join(exports.FORMS)}")
        if form in ("csv", "jsonl"):
            return exports.lines(self._every_request(run_id), form), exports.FORMS[form]
        if form == "svg":
            title = f"Time to first token of every request: benchmark run {run.id} of {run.engine_name}"
            picture = strip_svg(title, run.scope.sentence if run.scope is not None else "", self.strips(run_id))
            return iter((picture,)), exports.FORMS[form]
        return iter((exports.whole(run, form),)), exports.FORMS[form]

    def _every_request(self, run_id: int) -> Iterator[RequestView]:
        after = 0
        while rows := self._samples(run_id, after, _PIECE, None, None):
            yield from map(request_view, rows)
            after = rows[-1].id

    def _samples(
        self, run_id: int, after: int, limit: int, scenario: str | None, phase: str | None
    ) -> list[BenchmarkSample]:
        query = select(BenchmarkSample).where(BenchmarkSample.run_id == run_id, BenchmarkSample.id > after)
        if scenario is not None:
            query = query.where(BenchmarkSample.scenario == scenario)
        if phase is not None:
            query = query.where(BenchmarkSample.phase == phase)
        with self._db.read() as session:
            return list(session.scalars(query.order_by(BenchmarkSample.id).limit(limit)))

    def compare(self, a: int, b: int) -> RunComparisonView:
        """Two ended runs side by side."""
        one, two = self.get(a), self.get(b)
        for view in (one, two):
            if view.state in ACTIVE_STATES:
                raise Conflict(f"benchmark run {view.id} has not ended yet; compare it when it has")
        return compare(one, two)

    # experiments

    def experiments(self, *, engine_id: int | None = None, statistic: str = "") -> list[ExperimentView]:
        """The published experiments with the latest valid run of each variant beside them.

        `engine_id`: only runs on that engine, and what "run on my servers" would ask for there.
        """
        mine = None if engine_id is None else mine_of(self._fleet, self._fleet.engine_target(engine_id))
        return [self._experiment(r, engine_id, mine, statistic) for r in REFERENCES]

    def experiment(self, name: str, *, engine_id: int | None = None, statistic: str = "") -> ExperimentView:
        """One of them, by its own id or a variant's."""
        for reference in REFERENCES:
            if name == reference.id or name in {v.id for v in reference.variants}:
                mine = None if engine_id is None else mine_of(self._fleet, self._fleet.engine_target(engine_id))
                return self._experiment(reference, engine_id, mine, statistic)
        raise NotFound.of("experiment", name[:80])

    def _experiment(
        self, reference: Reference, engine_id: int | None, mine: Mine | None, statistic: str
    ) -> ExperimentView:
        runs: dict[str, BenchmarkRunView] = {}
        with self._db.read() as session:
            for variant in reference.variants:
                query = select(BenchmarkRun).where(
                    BenchmarkRun.experiment == variant.id, BenchmarkRun.verdict == "valid"
                )
                if engine_id is not None:
                    query = query.where(BenchmarkRun.engine_id == engine_id)
                row = session.scalar(query.order_by(BenchmarkRun.id.desc()).limit(1))
                if row is not None:
                    runs[variant.id] = run_view(row)
        return experiment_view(reference, runs, mine, statistic=statistic)

    def experiment_ids(self) -> list[str]:
        """The ids a run may name."""
        return list(VARIANTS)
