"""Is a pair of engine and cache server ready? Every part with its age, and what to do next."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from app.api.deps import PageQuery, parse_id
from app.web.acceptance_contexts import ReadinessPage
from app.web.contexts import Crumb
from app.web.frame import ViewerFrame
from app.web.table_state import TableState

router = APIRouter()


@router.get("/readiness")
def readiness_address(frame: ViewerFrame) -> Response:
    """The address that people type, and the API has: it leads to the page."""
    query = frame.request.url.query
    return frame.done("/acceptance/readiness" + (f"?{query}" if query else ""))


@router.get("/acceptance/readiness")
def readiness_page(
    frame: ViewerFrame, paging: PageQuery, engine_id: Annotated[str, Query(max_length=40)] = ""
) -> Response:
    service = frame.services.readiness
    state = TableState.parse(frame.request.query_params, names=("engine_id",))
    pairs, token = [], None
    if engine_id:
        pairs = [service.of_engine(parse_id("engine", engine_id))]
    else:
        page = service.list_readiness(page_size=state.page_size, page_token=paging.page_token)
        pairs, token = page.items, page.next_page_token
    return frame.page(
        "acceptance_readiness.html",
        ReadinessPage,
        "acceptance",
        Crumb("Readiness"),
        pairs=pairs,
        one=bool(engine_id),
        state=state,
        next_page_token=token,
    )
