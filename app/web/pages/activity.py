"""What happened, and who did what."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from app.api.deps import PageQuery, parse_id
from app.errors import Forbidden
from app.web import overview
from app.web.contexts import ActivityPage
from app.web.frame import Frame, ViewerFrame
from app.web.pages.overview import events_of
from app.web.table_state import TableState

router = APIRouter(prefix="/activity")


@router.get("")
def activity_page(
    frame: ViewerFrame, paging: PageQuery, view: Annotated[str, Query(max_length=20)] = "events"
) -> Response:
    state = TableState.parse(frame.request.query_params, names=("view", "target", "action"))
    if view == "audit":
        return _audit(frame, state, paging.page_token)
    services = frame.services
    kind, _, ident = state.get("target").partition(":")
    if kind in ("server", "engine"):
        changes = services.telemetry.health_changes(
            page_size=state.page_size,
            page_token=paging.page_token,
            target_kind=kind,
            target_id=parse_id(kind, ident),
        )
        events = tuple(overview.health_event(change) for change in changes.items)
        token = changes.next_page_token
    else:
        servers = services.fleet.list_servers(page_size=500, page_token=None).items
        events, token = events_of(services, servers, state.page_size), None
    return frame.page(
        "activity.html",
        ActivityPage,
        "activity",
        view="events",
        state=state,
        events=events,
        audit=[],
        next_page_token=token,
    )


def _audit(frame: Frame, state: TableState, token: str | None) -> Response:
    if not frame.principal.may("admin"):
        raise Forbidden("who did what is for admins")
    page = frame.services.audit.list_events(
        page_size=state.page_size, page_token=token, action=state.get("action") or None
    )
    return frame.page(
        "activity.html",
        ActivityPage,
        "activity",
        view="audit",
        state=state,
        events=[],
        audit=page.items,
        next_page_token=page.next_page_token,
    )
