"""Cache servers and engines: lists and details."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from starlette.responses import Response

from app.api.deps import PageQuery, parse_id
from app.errors import InvalidInput
from app.fleet.schemas import EnginePatch, EnteredFacts
from app.services import Services
from app.web import overview
from app.web.contexts import Crumb, EnginePage, EnginesPage, Event, ServerPage, ServersPage
from app.web.forms import FormState
from app.web.frame import AdminFrame, FormValues, Frame, ViewerFrame, build_input, one
from app.web.pages.chart_events import events_of
from app.web.pages.charts import ENGINE_CHARTS, SERVER_CHARTS, charts_of, load_charts
from app.web.pages.overview import hops, store_cards
from app.web.table_state import TableState

router = APIRouter()

_FACTS = ("dtype", "kv_cache_dtype")
_HEALTH: dict[str, Literal["healthy", "degraded", "unhealthy", "unreachable", "unknown"]] = {
    "healthy": "healthy",
    "degraded": "degraded",
    "unhealthy": "unhealthy",
    "unreachable": "unreachable",
    "unknown": "unknown",
}


def _changes(services: Services, kind: str, ident: str) -> list[Event]:
    page = services.telemetry.health_changes(page_size=8, page_token=None, target_kind=kind, target_id=int(ident))
    return [overview.health_event(change) for change in page.items]


@router.get("/servers")
def servers_page(frame: ViewerFrame, paging: PageQuery) -> Response:
    state = TableState.parse(frame.request.query_params, names=("health", "q", "label"))
    page = frame.services.fleet.list_servers(
        page_size=state.page_size,
        page_token=paging.page_token,
        q=state.get("q") or None,
        health=_HEALTH.get(state.get("health")),
        label=state.get("label") or None,
    )
    return frame.page(
        "servers.html",
        ServersPage,
        "servers",
        servers=page.items,
        labels=frame.services.fleet.labels("server"),
        state=state,
        next_page_token=page.next_page_token,
        store_names={},
    )


@router.get("/servers/{server_id}")
def server_page(frame: ViewerFrame, server_id: str) -> Response:
    services = frame.services
    ident = parse_id("server", server_id)
    server = services.fleet.get_server(ident)
    engines = services.fleet.list_engines(page_size=100, page_token=None, server_id=ident).items
    stores = services.fleet.list_stores(page_size=100, page_token=None, server_id=ident).items
    cards = store_cards(services, stores)
    return frame.page(
        "server.html",
        ServerPage,
        "servers",
        Crumb(server.name),
        server=server,
        engines=engines,
        stores=cards,
        charts_shown=charts_of(services, "server", server.id, SERVER_CHARTS),
        load_charts=load_charts(services, server.id, stores),
        changes=_changes(services, "server", server_id),
        marks=events_of(services, server),
        hit_rates=services.alerts.hit_rates(ident),
        flow=overview.flow_picture(
            services.telemetry.token_flow(ident), [server], engines, cards, hops(services, [server])
        ),
    )


@router.get("/engines")
def engines_page(frame: ViewerFrame, paging: PageQuery) -> Response:
    state = TableState.parse(frame.request.query_params, names=("health", "q", "label"))
    page = frame.services.fleet.list_engines(
        page_size=state.page_size,
        page_token=paging.page_token,
        q=state.get("q") or None,
        health=_HEALTH.get(state.get("health")),
        label=state.get("label") or None,
    )
    return frame.page(
        "engines.html",
        EnginesPage,
        "engines",
        engines=page.items,
        labels=frame.services.fleet.labels("engine"),
        state=state,
        next_page_token=page.next_page_token,
        server_names={},
    )


def _engine(frame: Frame, engine_id: str, form: FormState | None = None, status: int = 200) -> Response:
    services = frame.services
    ident = parse_id("engine", engine_id)
    engine = services.fleet.get_engine(ident)
    return frame.page(
        "engine.html",
        EnginePage,
        "engines",
        Crumb(engine.name),
        status=status,
        engine=engine,
        server=services.fleet.get_server(int(engine.server_id)) if engine.server_id else None,
        latest=services.acceptance.latest_for_engine(ident),
        charts_shown=charts_of(services, "engine", engine.id, ENGINE_CHARTS),
        changes=_changes(services, "engine", engine_id),
        marks=events_of(services, engine),
        form=form or FormState.of({name: engine.entered_facts.get(name) for name in _FACTS}, fields=_FACTS),
    )


@router.get("/engines/{engine_id}")
def engine_page(frame: ViewerFrame, engine_id: str) -> Response:
    return _engine(frame, engine_id)


@router.post("/engines/{engine_id}/facts")
def enter_facts(frame: AdminFrame, engine_id: str, values: FormValues) -> Response:
    """What the operator knows of an engine that does not tell it."""
    ident = parse_id("engine", engine_id)
    form = FormState(values=values, fields=frozenset(_FACTS))
    try:
        facts = build_input(EnteredFacts, {name: one(values, name) for name in _FACTS})
        frame.services.fleet.patch_engine(ident, EnginePatch(entered_facts=facts), actor=frame.actor)
    except InvalidInput as error:
        aliases = {f"entered_facts.{name}": name for name in _FACTS}
        return _engine(frame, engine_id, form.failed(error, aliases), error.status)
    return frame.done(f"/engines/{engine_id}", "Saved. It holds for the process that runs now.")
