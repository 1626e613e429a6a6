"""/benchmark-runs: measure, watch, export, compare; /experiments: published tables and mine beside them."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse

from app.api.deps import Operator, PageQuery, ServicesDep, Viewer, parse_id
from app.api.responses import BODY, NOT_FOUND, READ
from app.benchmark.experiment_schemas import ExperimentView
from app.benchmark.exports import FORMS
from app.benchmark.schemas import (
    BenchmarkInput,
    BenchmarkRunView,
    EstimateView,
    Form,
    RequestView,
    RunComparisonView,
    VerdictName,
)
from app.scheduling.schemas import Page

router = APIRouter(tags=["benchmark"])

Wait = Annotated[
    float, Query(ge=0, le=3600, description="Seconds to wait for the run's end; answers at the latest after 60.")
]
Statistic = Annotated[Literal["mean", "median", "p99"] | None, Query(description="Which number of the request rates.")]
EXPORTS = {
    **NOT_FOUND,
    200: {"description": "The export", "content": {media.partition(";")[0]: {} for media in FORMS.values()}},
}


@router.post("/benchmark-runs", status_code=202, responses=BODY)
def start_run(body: BenchmarkInput, response: Response, services: ServicesDep, principal: Operator) -> BenchmarkRunView:
    """Starts a measurement; 409 while another run uses the same engines or cache server."""
    view = services.benchmark.start(body, actor=principal.actor)
    response.headers["Location"] = f"/api/v1/benchmark-runs/{view.id}"
    return view


@router.get("/benchmark-runs", responses=READ)
def list_runs(
    services: ServicesDep,
    principal: Viewer,
    paging: PageQuery,
    engine_id: Annotated[str | None, Query(max_length=32)] = None,
    form: Form | None = None,
    experiment: Annotated[str | None, Query(max_length=60)] = None,
    verdict: VerdictName | None = None,
    state: Annotated[str | None, Query(max_length=32)] = None,
) -> Page[BenchmarkRunView]:
    """Benchmark runs, newest first."""
    return services.benchmark.list_runs(
        page_size=paging.page_size,
        page_token=paging.page_token,
        engine_id=None if engine_id is None else parse_id("engine", engine_id),
        form=form,
        experiment=experiment,
        verdict=verdict,
        state=state,
    )


@router.get("/benchmark-runs/compare", responses=BODY)
def compare_runs(
    services: ServicesDep,
    principal: Viewer,
    a: Annotated[str, Query(max_length=32)],
    b: Annotated[str, Query(max_length=32)],
) -> RunComparisonView:
    """Two ended runs side by side; `a` is the slower one by custom (scenario A)."""
    return services.benchmark.compare(parse_id("benchmark run", a), parse_id("benchmark run", b))


@router.post("/benchmark-runs/estimate", responses=BODY)
def estimate_run(body: BenchmarkInput, services: ServicesDep, principal: Operator) -> EstimateView:
    """What a run would take and disturb; starts nothing."""
    return services.benchmark.estimate(body)


@router.get("/benchmark-runs/{run_id}", responses=NOT_FOUND)
def get_run(run_id: str, services: ServicesDep, principal: Viewer, wait: Wait = 0.0) -> BenchmarkRunView:
    """One run; with `wait` it is answered when the run has ended."""
    return services.benchmark.get(parse_id("benchmark run", run_id), wait=wait)


@router.post("/benchmark-runs/{run_id}/cancel", status_code=202, responses=BODY)
def cancel_run(run_id: str, services: ServicesDep, principal: Operator) -> BenchmarkRunView:
    """Asks a run to stop; an ended run stays as it is."""
    return services.benchmark.cancel(parse_id("benchmark run", run_id), actor=principal.actor)


@router.get("/benchmark-runs/{run_id}/requests", responses=NOT_FOUND)
def list_requests(
    run_id: str,
    services: ServicesDep,
    principal: Viewer,
    paging: PageQuery,
    scenario: Annotated[str | None, Query(max_length=8)] = None,
    phase: Annotated[str | None, Query(max_length=40)] = None,
) -> Page[RequestView]:
    """Every request of a run with its times and tokens."""
    return services.benchmark.requests(
        parse_id("benchmark run", run_id),
        page_size=paging.page_size,
        page_token=paging.page_token,
        scenario=scenario,
        phase=phase,
    )


@router.get("/benchmark-runs/{run_id}/export.{form}", responses=EXPORTS, response_class=Response)
def export(run_id: str, form: str, services: ServicesDep, principal: Viewer) -> Response:
    """The run as json, md, txt (in the shape of `vllm bench serve`) or svg; its requests as csv or jsonl, streamed."""
    pieces, media = services.benchmark.export(parse_id("benchmark run", run_id), form)
    headers = {
        "Content-Disposition": f'attachment; filename="benchmark-{run_id}.{form}"',
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "X-Content-Type-Options": "nosniff",
    }
    return StreamingResponse(pieces, media_type=media, headers=headers)


@router.get("/experiments", responses=READ)
def list_experiments(
    services: ServicesDep,
    principal: Viewer,
    engine_id: Annotated[str | None, Query(max_length=32)] = None,
    statistic: Statistic = None,
) -> Page[ExperimentView]:
    """Published experiments, read-only, with the latest valid run of mine beside each."""
    engine = None if engine_id is None else parse_id("engine", engine_id)
    items = services.benchmark.experiments(engine_id=engine, statistic=statistic or "")
    return Page(items=items, next_page_token=None)


@router.get("/experiments/{experiment_id}", responses=NOT_FOUND)
def get_experiment(
    experiment_id: str,
    services: ServicesDep,
    principal: Viewer,
    engine_id: Annotated[str | None, Query(max_length=32)] = None,
    statistic: Statistic = None,
) -> ExperimentView:
    """One published experiment, by its id or a variant's."""
    engine = None if engine_id is None else parse_id("engine", engine_id)
    return services.benchmark.experiment(experiment_id, engine_id=engine, statistic=statistic or "")
