"""Canaries: kept from a passed run with one click, read back by hand, their history drawn."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from app.acceptance.canary_schemas import CanaryInput, CanaryRunInput
from app.api.deps import PageQuery, parse_id
from app.errors import InvalidInput, TierkeeperError
from app.web.acceptance_contexts import CanariesPage
from app.web.contexts import Crumb
from app.web.frame import FormValues, OperatorFrame, ViewerFrame, confirmed, one
from app.web.table_state import TableState

router = APIRouter(prefix="/acceptance")
HERE = "/acceptance/canaries"
SHOWN_RUNS = 10


@router.get("/canaries")
def canaries_page(
    frame: ViewerFrame, paging: PageQuery, engine_id: Annotated[str, Query(max_length=40)] = ""
) -> Response:
    service = frame.services.acceptance.canaries
    engine = parse_id("engine", engine_id) if engine_id else None
    state = TableState.parse(frame.request.query_params, names=("engine_id",))
    page = service.list_canaries(page_size=state.page_size, page_token=paging.page_token, engine_id=engine)
    engines = frame.services.fleet.list_engines(page_size=500, page_token=None).items
    return frame.page(
        "acceptance_canaries.html",
        CanariesPage,
        "acceptance",
        Crumb("Canaries"),
        canaries=page.items,
        engine_names={e.id: e.name for e in engines},
        runs=service.list_runs(page_size=SHOWN_RUNS, page_token=None, engine_id=engine).items,
        state=state,
        next_page_token=page.next_page_token,
    )


@router.post("/runs/{run_id}/canaries")
def keep(frame: OperatorFrame, run_id: str) -> Response:
    """Keeps prompts of a passed run: one click."""
    try:
        frame.services.acceptance.canaries.keep(CanaryInput(run_id=run_id), actor=frame.actor)
    except TierkeeperError as error:
        return frame.refused(f"/acceptance/runs/{run_id}", error)
    return frame.done(HERE, "The prompts are asked once more and kept when their records are on disk.")


@router.post("/canaries/check")
def check(frame: OperatorFrame, values: FormValues) -> Response:
    """Reads an engine's canaries back now."""
    try:
        frame.services.acceptance.canaries.check(
            CanaryRunInput(engine_id=one(values, "engine_id") or ""), actor=frame.actor
        )
    except TierkeeperError as error:
        return frame.refused(HERE, error)
    return frame.done(HERE, "The canaries are being read back.")


@router.post("/canaries/{canary_id}/delete")
def forget(frame: OperatorFrame, canary_id: str, values: FormValues) -> Response:
    """Needs the name typed: its readings cannot be brought back."""
    canaries, ident = frame.services.acceptance.canaries, parse_id("canary", canary_id)
    try:
        confirmed(values, canaries.get(ident).name)
    except InvalidInput as error:
        return frame.refused(HERE, error)
    canaries.forget(ident, actor=frame.actor)
    return frame.done(HERE, "The canary was forgotten; its records are no longer protected.")
