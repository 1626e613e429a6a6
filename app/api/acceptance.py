"""/acceptance-runs: start a test, watch it, take its report, compare two."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.concurrency import run_in_threadpool

from app.acceptance.canary_schemas import CanaryInput, CanaryRunInput, CanaryRunView, CanaryView
from app.acceptance.hook_schemas import HookInput, HookPatch, HookView
from app.acceptance.reports import FORMS
from app.acceptance.schemas import (
    AcceptanceRequest,
    AcceptanceRunView,
    AnswerView,
    EstimateView,
    LatestView,
    RunComparisonView,
    VerdictName,
)
from app.acceptance.service import MAX_WAIT_SECONDS
from app.api.deps import Admin, Operator, PageQuery, ServicesDep, Viewer, parse_id
from app.api.responses import BODY, NOT_FOUND, READ
from app.scheduling.schemas import Page

router = APIRouter(tags=["acceptance"])
_POLL_SECONDS = 0.25

Wait = Annotated[
    float, Query(ge=0, le=3600, description="Seconds to wait for the run's end; answers at the latest after 60.")
]
REPORTS = {
    **NOT_FOUND,
    200: {"description": "The report", "content": {media.partition(";")[0]: {} for media in FORMS.values()}},
}


@router.post("/acceptance-runs", status_code=202, responses=BODY)
def start_run(
    body: AcceptanceRequest, response: Response, services: ServicesDep, principal: Operator
) -> AcceptanceRunView:
    """Starts a run; 409 while one is active on that engine's cache server."""
    view = services.acceptance.start(body, actor=principal.actor)
    response.headers["Location"] = f"/api/v1/acceptance-runs/{view.id}"
    return view


@router.get("/acceptance-runs", responses=READ)
def list_runs(
    services: ServicesDep,
    principal: Viewer,
    paging: PageQuery,
    engine_id: Annotated[str | None, Query(max_length=32)] = None,
    server_id: Annotated[str | None, Query(max_length=32)] = None,
    verdict: VerdictName | None = None,
    state: Annotated[str | None, Query(max_length=32)] = None,
) -> Page[AcceptanceRunView]:
    """Acceptance runs, newest first."""
    return services.acceptance.list_runs(
        page_size=paging.page_size,
        page_token=paging.page_token,
        engine_id=None if engine_id is None else parse_id("engine", engine_id),
        server_id=None if server_id is None else parse_id("server", server_id),
        verdict=verdict,
        state=state,
    )


@router.get("/acceptance-runs/compare", responses=BODY)
def compare_runs(
    services: ServicesDep,
    principal: Viewer,
    a: Annotated[str, Query(max_length=32)],
    b: Annotated[str, Query(max_length=32)],
) -> RunComparisonView:
    """Two ended runs side by side."""
    return services.acceptance.compare(parse_id("acceptance run", a), parse_id("acceptance run", b))


@router.post("/acceptance-runs/estimate", responses=BODY)
def estimate_run(body: AcceptanceRequest, services: ServicesDep, principal: Operator) -> EstimateView:
    """What a run would take and disturb; starts nothing."""
    return services.acceptance.estimate(body)


@router.get("/acceptance-runs/{run_id}", responses=NOT_FOUND)
async def get_run(run_id: str, services: ServicesDep, principal: Viewer, wait: Wait = 0.0) -> AcceptanceRunView:
    """One run; with `wait` it is answered when the run has ended."""
    # Waits on the loop: pipelines that wait must not hold the threads that everybody's requests need.
    ident = parse_id("acceptance run", run_id)
    until = time.monotonic() + min(wait, MAX_WAIT_SECONDS)
    while True:
        waiting = time.monotonic() < until and await run_in_threadpool(services.acceptance.is_active, ident)
        if not waiting:
            return await run_in_threadpool(services.acceptance.get, ident)
        await asyncio.sleep(_POLL_SECONDS)


@router.post("/acceptance-runs/{run_id}/cancel", status_code=202, responses=BODY)
def cancel_run(run_id: str, services: ServicesDep, principal: Operator) -> AcceptanceRunView:
    """Asks a run to stop; an ended run stays as it is."""
    return services.acceptance.cancel(parse_id("acceptance run", run_id), actor=principal.actor)


@router.post("/acceptance-runs/{run_id}/continue", status_code=202, responses=BODY)
def continue_run(run_id: str, services: ServicesDep, principal: Operator) -> AcceptanceRunView:
    """Says that what the run waits for (a restart by hand) is done; 409 when it waits for nobody."""
    return services.acceptance.go_on(parse_id("acceptance run", run_id), actor=principal.actor)


@router.get("/acceptance-runs/{run_id}/answers", responses=NOT_FOUND)
def list_answers(
    run_id: str,
    services: ServicesDep,
    principal: Viewer,
    paging: PageQuery,
    arm: Annotated[str | None, Query(max_length=40)] = None,
    prompt: Annotated[str | None, Query(max_length=40)] = None,
) -> Page[AnswerView]:
    """Every request of a run with its evidence, in the order of asking."""
    return services.acceptance.answers(
        parse_id("acceptance run", run_id),
        page_size=paging.page_size,
        page_token=paging.page_token,
        arm=arm,
        prompt=prompt,
    )


@router.get("/acceptance-runs/{run_id}/report.{form}", responses=REPORTS, response_class=Response)
def report(run_id: str, form: str, services: ServicesDep, principal: Viewer) -> Response:
    """The run as json, xml (JUnit), html (self-contained) or md."""
    body, media = services.acceptance.report(parse_id("acceptance run", run_id), form)
    name = f"acceptance-{run_id}.{form}"
    # A page of answers from models must never run as one of ours.
    headers = {
        "Content-Disposition": f'inline; filename="{name}"',
        "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
        "X-Content-Type-Options": "nosniff",
    }
    return Response(body, media_type=media, headers=headers)


@router.get("/engines/{engine_id}/acceptance", responses=NOT_FOUND)
def latest(engine_id: str, services: ServicesDep, principal: Viewer) -> LatestView:
    """The last run and pass of an engine, and what changed since."""
    return services.acceptance.latest_for_engine(parse_id("engine", engine_id))


@router.get("/hooks", responses=READ)
def list_hooks(services: ServicesDep, principal: Viewer, paging: PageQuery) -> Page[HookView]:
    """Restart hooks: what the panel may run or call to have a server or an engine restarted."""
    return services.acceptance.hooks.list_hooks(page_size=paging.page_size, page_token=paging.page_token)


@router.post("/hooks", status_code=201, responses=BODY)
def create_hook(body: HookInput, response: Response, services: ServicesDep, principal: Admin) -> HookView:
    """A way to restart a cache server, an engine, or both: a command without a shell, a webhook, or a person."""
    view = services.acceptance.hooks.create(body, actor=principal.actor)
    response.headers["Location"] = f"/api/v1/hooks/{view.id}"
    return view


@router.get("/hooks/{hook_id}", responses=NOT_FOUND)
def get_hook(hook_id: str, services: ServicesDep, principal: Viewer) -> HookView:
    """One restart hook, without its secrets."""
    return services.acceptance.hooks.get(parse_id("hook", hook_id))


@router.patch("/hooks/{hook_id}", responses=BODY)
def patch_hook(hook_id: str, body: HookPatch, services: ServicesDep, principal: Admin) -> HookView:
    """Changes only what is sent."""
    return services.acceptance.hooks.patch(parse_id("hook", hook_id), body, actor=principal.actor)


@router.delete("/hooks/{hook_id}", status_code=204, responses=BODY)
def delete_hook(hook_id: str, services: ServicesDep, principal: Admin) -> None:
    """Forgets the hook. Nothing is restarted."""
    services.acceptance.hooks.delete(parse_id("hook", hook_id), actor=principal.actor)


@router.get("/canaries", responses=READ)
def list_canaries(
    services: ServicesDep,
    principal: Viewer,
    paging: PageQuery,
    engine_id: Annotated[str | None, Query(max_length=32)] = None,
) -> Page[CanaryView]:
    """Kept prompts with their histories."""
    return services.acceptance.canaries.list_canaries(
        page_size=paging.page_size,
        page_token=paging.page_token,
        engine_id=None if engine_id is None else parse_id("engine", engine_id),
    )


@router.post("/canaries", status_code=202, responses=BODY)
def keep_canaries(body: CanaryInput, response: Response, services: ServicesDep, principal: Operator) -> CanaryRunView:
    """Keeps prompts of a passed run: asks them once more under salts of their own and protects their records."""
    view = services.acceptance.canaries.keep(body, actor=principal.actor)
    response.headers["Location"] = f"/api/v1/canaries/runs/{view.id}"
    return view


@router.post("/canaries/runs", status_code=202, responses=BODY)
def check_canaries(
    body: CanaryRunInput, response: Response, services: ServicesDep, principal: Operator
) -> CanaryRunView:
    """Reads canaries back from their old records and compares."""
    view = services.acceptance.canaries.check(body, actor=principal.actor)
    response.headers["Location"] = f"/api/v1/canaries/runs/{view.id}"
    return view


@router.get("/canaries/runs", responses=READ)
def list_canary_runs(
    services: ServicesDep,
    principal: Viewer,
    paging: PageQuery,
    engine_id: Annotated[str | None, Query(max_length=32)] = None,
) -> Page[CanaryRunView]:
    """Readings of canaries, newest first."""
    return services.acceptance.canaries.list_runs(
        page_size=paging.page_size,
        page_token=paging.page_token,
        engine_id=None if engine_id is None else parse_id("engine", engine_id),
    )


@router.get("/canaries/runs/{run_id}", responses=NOT_FOUND)
def get_canary_run(run_id: str, services: ServicesDep, principal: Viewer) -> CanaryRunView:
    """One reading: each canary's outcome, and how far it is."""
    return services.acceptance.canaries.get_run(parse_id("canary run", run_id))


@router.post("/canaries/runs/{run_id}/cancel", status_code=202, responses=BODY)
def cancel_canary_run(run_id: str, services: ServicesDep, principal: Operator) -> CanaryRunView:
    """Stops a reading; canaries not read yet keep their last outcome."""
    return services.acceptance.canaries.cancel(parse_id("canary run", run_id), actor=principal.actor)


@router.get("/canaries/{canary_id}", responses=NOT_FOUND)
def get_canary(canary_id: str, services: ServicesDep, principal: Viewer) -> CanaryView:
    """One canary with every reading of it."""
    return services.acceptance.canaries.get(parse_id("canary", canary_id))


@router.delete("/canaries/{canary_id}", status_code=204, responses=NOT_FOUND)
def delete_canary(canary_id: str, services: ServicesDep, principal: Operator) -> None:
    """Forgets a canary; its records are no longer protected."""
    services.acceptance.canaries.forget(parse_id("canary", canary_id), actor=principal.actor)
