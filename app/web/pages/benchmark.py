"""Benchmark runs: the list, starting one, watching it, its result, two side by side; published experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from app.api.deps import PageQuery, parse_id
from app.benchmark.experiment_schemas import BesideView, ExperimentView
from app.benchmark.prompt_files import parse_prompts
from app.benchmark.references import VARIANTS
from app.benchmark.result import phase_title
from app.benchmark.schemas import (
    FORMS,
    SHAPES,
    BenchmarkInput,
    BenchmarkRunView,
    EstimateView,
    FindingView,
    RunComparisonView,
)
from app.benchmark.shapes import MEANINGS, TITLES
from app.benchmark.verdict import by_kind
from app.errors import Conflict, InvalidInput, NotFound, TierkeeperError
from app.fleet.schemas import EngineView
from app.services import Services
from app.web.contexts import Crumb, PageContext
from app.web.forms import FormState
from app.web.frame import FormValues, Frame, OperatorFrame, Values, ViewerFrame, build_input, one
from app.web.pages.benchmark_strip import Strip, draw
from app.web.table_state import TableState

router = APIRouter()

#: form -> (title, what it answers)
FORM_WORDS: Mapping[str, tuple[str, str]] = {
    "two_pass": ("Two passes", "pass 1 fills, pass 2 measures; several runs, median and range"),
    "request_rate": ("Request rate", "requests at Poisson times, asked twice: TTFT, TPOT and ITL"),
    "restart": ("Restarts", "cold start, restart with records, restart with an empty store"),
    "accumulation": ("Accumulation", "record files that cold requests leave, against the layout"),
    "lookup": ("Lookups", "time of a lookup against the number of records in the store"),
}
SAME = "same"
_WHOLE = ("contexts", "tokens", "users", "turns", "output_tokens", "repeats", "concurrency", "prompts", "seed")
_DECIMAL = ("rate", "wait_seconds", "deadline_seconds", "request_timeout_seconds")
_TEXT = ("shape", "prefix_cache", "hardware", "image", "baseline_hardware", "baseline_image")
_CHECKS = ("empty_l1", "noise_repeat", "remove_records")
FIELDS = (
    *("engine_id", "baseline_engine_id", "reader_engine_ids", "form", "experiment", "experiment_mode"),
    *_WHOLE,
    *_DECIMAL,
    *_TEXT,
    *_CHECKS,
    *("restart_target", "restart_hook_id", "lookup_records", "lookup_allow_fill", "texts"),
)
_ALIASES = {
    "restart.target": "restart_target",
    "restart.hook_id": "restart_hook_id",
    "restart": "restart_target",
    "lookup": "lookup_records",
    "lookup.records": "lookup_records",
}


@dataclass(frozen=True)
class BenchmarkPage(PageContext):
    """benchmark.html"""

    runs: Sequence[BenchmarkRunView]
    state: TableState
    next_page_token: str | None
    forms: Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class BenchmarkStartPage(PageContext):
    """benchmark_start.html. `variants`: (id, title) of the experiments that can be repeated.

    `simulated`: some engine is the sandbox's, whose own requests never stop.
    """

    engines: Sequence[EngineView]
    hooks: Sequence[tuple[str, str]]
    form: FormState
    estimate: EstimateView | None
    forms: Mapping[str, tuple[str, str]]
    shapes: Sequence[tuple[str, str, str]]
    variants: Sequence[tuple[str, str]]
    simulated: bool


@dataclass(frozen=True)
class BenchmarkRunPage(PageContext):
    """benchmark_run.html: live progress, then the result. `beside`: the published numbers of its experiment.

    `kinds`: the run's findings, those of one kind together.
    """

    run: BenchmarkRunView
    kinds: Sequence[Sequence[FindingView]]
    strips: Sequence[Strip]
    others: Sequence[Strip]
    beside: Sequence[BesideView]
    forms: Mapping[str, tuple[str, str]]
    shape_titles: Mapping[str, str]


@dataclass(frozen=True)
class BenchmarkComparePage(PageContext):
    """benchmark_compare.html"""

    comparison: RunComparisonView


@dataclass(frozen=True)
class ExperimentsPage(PageContext):
    """experiments.html. `engine_id` is the engine that "run on my servers" is reckoned for, or empty."""

    experiments: Sequence[ExperimentView]
    engines: Sequence[EngineView]
    engine_id: str
    statistic: str
    form: FormState


@router.get("/benchmark")
def benchmark_page(frame: ViewerFrame, paging: PageQuery) -> Response:
    state = TableState.parse(frame.request.query_params, names=("verdict", "form", "engine_id"))
    engine = state.get("engine_id")
    form = state.get("form")
    page = frame.services.benchmark.list_runs(
        page_size=state.page_size,
        page_token=paging.page_token,
        engine_id=parse_id("engine", engine) if engine else None,
        form=form if form in FORMS else None,
        verdict=state.get("verdict") or None,
    )
    return frame.page(
        "benchmark.html",
        BenchmarkPage,
        "benchmark",
        runs=page.items,
        state=state,
        next_page_token=page.next_page_token,
        forms=FORM_WORDS,
    )


def _engines(services: Services) -> Sequence[EngineView]:
    return services.fleet.list_engines(page_size=500, page_token=None).items


def _start_page(frame: Frame, form: FormState, estimate: EstimateView | None = None, status: int = 200) -> Response:
    services = frame.services
    hooks = services.acceptance.hooks.list_hooks(page_size=200, page_token=None).items
    return frame.page(
        "benchmark_start.html",
        BenchmarkStartPage,
        "benchmark",
        Crumb("Start a run"),
        status=status,
        engines=_engines(services),
        hooks=[(hook.id, hook.name) for hook in hooks],
        form=form,
        estimate=estimate,
        forms=FORM_WORDS,
        shapes=[(name, TITLES[name], MEANINGS[name]) for name in SHAPES],
        variants=[(name, variant.title) for name, variant in VARIANTS.items()],
        simulated=any(target.kind == "engine" for target in services.fleet.sandbox_targets()),
    )


@router.get("/benchmark/new")
def start_page(
    frame: OperatorFrame,
    engine_id: Annotated[str, Query(max_length=40)] = "",
    experiment: Annotated[str, Query(max_length=60)] = "",
    mode: Annotated[str, Query(max_length=20)] = "scaled",
) -> Response:
    engines = _engines(frame.services)
    chosen = engine_id or (engines[0].id if engines else "")
    defaults = BenchmarkInput(engine_id=chosen)
    values: dict[str, object] = {name: getattr(defaults, name) for name in (*_WHOLE, *_DECIMAL, *_TEXT, *_CHECKS)}
    values |= {"engine_id": chosen, "form": "two_pass", "restart_target": "both", "experiment_mode": "scaled"}
    values["lookup_records"] = "1000, 10000, 100000, 1000000"
    if experiment in VARIANTS:
        fields = VARIANTS[experiment].fields
        values |= {"experiment": experiment, "experiment_mode": mode, "form": fields["form"]}
        # Sizes come from the experiment; what it leaves open is left empty, so that it is asked for.
        values |= {name: None for name in (*_WHOLE, "rate") if name in fields or name in VARIANTS[experiment].needs}
    return _start_page(frame, FormState.of(values, fields=FIELDS))


@router.post("/benchmark/new")
def start(frame: OperatorFrame, values: FormValues, estimate: Annotated[bool, Query()] = False) -> Response:
    """Starts a run, or (``?estimate=1``) says what it would take."""
    form = FormState(values=values, fields=frozenset(FIELDS), aliases=_ALIASES)
    try:
        request = build_input(BenchmarkInput, _body(values))
        if estimate:
            return _start_page(frame, form, frame.services.benchmark.estimate(request))
        run = frame.services.benchmark.start(request, actor=frame.actor)
    except TierkeeperError as error:
        return _start_page(frame, form.failed(error, _ALIASES), status=error.status)
    return frame.done(f"/benchmark/runs/{run.id}")


def _body(values: Values) -> dict[str, Any]:
    """The body of POST /benchmark-runs from the form; what is left empty is left out."""
    engine = one(values, "engine_id") or ""
    form = one(values, "form") or "two_pass"
    body: dict[str, Any] = {"engine_id": engine, "form": form}
    baseline = one(values, "baseline_engine_id")
    if baseline is not None:
        body["baseline_engine_id"] = engine if baseline == SAME else baseline
    if readers := [r for r in values.get("reader_engine_ids", []) if r]:
        body["reader_engine_ids"] = readers
    for names, kind in ((_WHOLE, int), (_DECIMAL, float)):
        for name in names:
            text = one(values, name)
            if text is not None:
                body[name] = _number(name, text, kind)
    for name in _TEXT:
        if (text := one(values, name)) is not None:
            body[name] = text
    for name in _CHECKS:
        body[name] = name in values
    if (experiment := one(values, "experiment")) is not None:
        body |= {"experiment": experiment, "experiment_mode": one(values, "experiment_mode") or "scaled"}
    if form == "restart":
        body["restart"] = {"target": one(values, "restart_target") or "both", "hook_id": one(values, "restart_hook_id")}
    if form == "lookup":
        records = [
            _number("lookup_records", x, int) for x in (one(values, "lookup_records") or "").split(",") if x.strip()
        ]
        body["lookup"] = {"records": records, "allow_fill": "lookup_allow_fill" in values}
    if (texts := one(values, "texts")) is not None:
        body["texts"] = _texts(texts, one(values, "prompts"))
    return body


def _texts(given: str, prompts: str | None) -> list[str]:
    """Texts with a line --- between two, or what a ShareGPT-style file holds."""
    given = given.replace("\r\n", "\n")
    if given[:1] not in ("[", "{"):
        return [x.strip() for x in given.split("\n---\n") if x.strip()]
    limit = 1024 if prompts is None else int(_number("prompts", prompts, int))
    try:
        return parse_prompts(given, limit=limit)
    except ValueError as error:
        raise InvalidInput.field("texts", f"what was pasted {error}") from None


def _number(name: str, text: str, kind: type[int] | type[float]) -> int | float:
    try:
        return kind(text.strip().replace(",", ""))
    except ValueError:
        raise InvalidInput.field(name, f"{text[:40]!r} is not a number") from None


@router.get("/benchmark/compare")
def compare_page(
    frame: ViewerFrame, a: Annotated[str, Query(max_length=40)] = "", b: Annotated[str, Query(max_length=40)] = ""
) -> Response:
    first, second = parse_id("benchmark run", a), parse_id("benchmark run", b)
    return frame.page(
        "benchmark_compare.html",
        BenchmarkComparePage,
        "benchmark",
        Crumb(f"Runs #{first} and #{second}"),
        comparison=frame.services.benchmark.compare(first, second),
    )


@router.get("/benchmark/runs/{run_id}")
def run_page(frame: ViewerFrame, run_id: str) -> Response:
    run = frame.services.benchmark.get(parse_id("benchmark run", run_id))
    strips, others = _strips(frame.services, run)
    return frame.page(
        "benchmark_run.html",
        BenchmarkRunPage,
        "benchmark",
        Crumb(f"Run #{run.id}"),
        run=run,
        kinds=by_kind(run.findings),
        strips=strips,
        others=others,
        beside=_beside(frame.services, run),
        forms=FORM_WORDS,
        shape_titles=TITLES,
    )


def _strips(services: Services, run: BenchmarkRunView) -> tuple[list[Strip], list[Strip]]:
    """Every request's time to first token: the measured passes, and all others."""
    samples = services.benchmark.strips(int(run.id))
    from_run = 1 if run.form == "two_pass" else 0
    shown = {"two_pass": ("second",), "request_rate": ("first", "second")}.get(run.form)
    rows: tuple[list[tuple[str, list[tuple[int, float]]]], ...] = ([], [])
    for (scenario, repeat, phase), points in sorted(samples.items(), key=lambda item: item[0][:2]):
        aside = not (repeat >= from_run and (shown is None or phase in shown))
        rows[aside].append((f"{scenario.upper()}, run {repeat}, {phase_title(phase)}", points))
    measured, others = ([draw(label, points, _highest(some)) for label, points in some] for some in rows)
    return measured, others


def _highest(rows: Sequence[tuple[str, Sequence[tuple[int, float]]]]) -> float:
    return max((ms for _, points in rows for _, ms in points), default=0.0)


def _beside(services: Services, run: BenchmarkRunView) -> list[BesideView]:
    """Published | mine | ratio, where the run repeats an experiment and its own numbers are the latest."""
    if run.experiment is None or run.verdict != "valid":
        return []
    try:
        shown = services.benchmark.experiment(run.experiment)
    except NotFound:
        return []
    return next((v.rows for v in shown.variants if v.id == run.experiment and v.run_id == run.id), [])


@router.post("/benchmark/runs/{run_id}/cancel")
def cancel(frame: OperatorFrame, run_id: str) -> Response:
    frame.services.benchmark.cancel(parse_id("benchmark run", run_id), actor=frame.actor)
    return frame.done(f"/benchmark/runs/{run_id}", "The run is stopping.")


@router.get("/experiments")
def experiments_page(
    frame: ViewerFrame,
    engine_id: Annotated[str, Query(max_length=40)] = "",
    statistic: Annotated[str, Query(max_length=10)] = "mean",
) -> Response:
    chosen = statistic if statistic in ("mean", "median", "p99") else "mean"
    services = frame.services
    try:
        engine = parse_id("engine", engine_id) if engine_id else None
        found = services.benchmark.experiments(engine_id=engine, statistic=chosen)
    except (NotFound, Conflict):
        # A damaged address only means that nothing is reckoned for an engine.
        engine_id, found = "", services.benchmark.experiments(statistic=chosen)
    return frame.page(
        "experiments.html",
        ExperimentsPage,
        "benchmark",
        Crumb("Published experiments"),
        experiments=found,
        engines=_engines(services),
        engine_id=engine_id,
        statistic=chosen,
        form=FormState.of({"engine_id": engine_id}),
    )
