"""/readiness: every pair of engine and cache server judged over all that the panel knows; one pair's report."""

from __future__ import annotations

from fastapi import APIRouter, Response

from app.api.deps import PageQuery, ServicesDep, Viewer, parse_id
from app.api.responses import NOT_FOUND, READ
from app.readiness.reports import FORMS
from app.readiness.schemas import ReadinessView
from app.shapes import Page

router = APIRouter(tags=["readiness"])
REPORTS = {
    **NOT_FOUND,
    200: {"description": "The report", "content": {media.partition(";")[0]: {} for media in FORMS.values()}},
}


@router.get("/readiness", responses=READ)
def list_readiness(services: ServicesDep, principal: Viewer, paging: PageQuery) -> Page[ReadinessView]:
    """Every engine with its cache server: ready, not ready or unknown, and each part with its age."""
    return services.readiness.list_readiness(page_size=paging.page_size, page_token=paging.page_token)


@router.get("/engines/{engine_id}/readiness", responses=NOT_FOUND)
def get_readiness(engine_id: str, services: ServicesDep, principal: Viewer) -> ReadinessView:
    """One engine with its cache server."""
    return services.readiness.of_engine(parse_id("engine", engine_id))


@router.get("/engines/{engine_id}/readiness/report.{form}", responses=REPORTS, response_class=Response)
def readiness_report(engine_id: str, form: str, services: ServicesDep, principal: Viewer) -> Response:
    """The judgement as json, md or html (self-contained)."""
    body, media = services.readiness.report(parse_id("engine", engine_id), form)
    headers = {
        "Content-Disposition": f'inline; filename="readiness-{engine_id}.{form}"',
        "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
        "X-Content-Type-Options": "nosniff",
    }
    return Response(body, media_type=media, headers=headers)
