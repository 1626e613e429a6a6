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
from app.web.contexts import ChartSpec, Crumb, EnginePage, EnginesPage, Event, ServerPage, ServersPage, Trend
from app.web.forms import FormState
from app.web.frame import AdminFrame, FormValues, Frame, ViewerFrame, build_input, one
from app.web.pages.overview import WINDOW, hops, store_cards
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
#: (title, metric, unit on the chart, tier, lowest, highest)
_SERVER_CHARTS: tuple[tuple[str, str, str, str, float | None, float | None], ...] = (
    ("Hit rate", "hit_rate", "ratio", "", 0.0, 1.0),
    ("L1 memory used", "l1_used_bytes", "bytes", "l1", 0.0, None),
    ("Evicted from L1", "l1_evicted_per_second", "chunks_per_second", "l1", 0.0, None),
    ("Written to L2", "l2_store_bytes_per_second", "bytes_per_second", "l2", 0.0, None),
    ("Retrieves", "retrieves_per_second", "retrieves_per_second", "", 0.0, None),
    ("Processor of the server", "cpu_cores", "cores", "", 0.0, None),
)
_ENGINE_CHARTS: tuple[tuple[str, str, str, str, float | None, float | None], ...] = (
    ("L0 in use", "kv_usage_ratio", "ratio", "l0", 0.0, 1.0),
    ("Tokens from L1 and L2", "external_tokens_per_second", "tokens_per_second", "l1", 0.0, None),
    ("Tokens from L0", "local_tokens_per_second", "tokens_per_second", "l0", 0.0, None),
    ("Tokens computed again", "recomputed_tokens_per_second", "tokens_per_second", "rc", 0.0, None),
)


def _charts(services: Services, kind: Literal["server", "engine"], ident: str) -> list[ChartSpec]:
    specs = _SERVER_CHARTS if kind == "server" else _ENGINE_CHARTS
    return [
        ChartSpec(
            title,
            metric,
            unit,
            f"/api/v1/{kind}s/{ident}/samples?metric={metric}",
            Trend(tuple(services.telemetry.sparkline(kind, int(ident), metric, seconds=WINDOW)), WINDOW),
            tier,
            low,
            high,
        )
        for title, metric, unit, tier, low, high in specs
    ]


def _changes(services: Services, kind: str, ident: str) -> list[Event]:
    page = services.telemetry.health_changes(page_size=8, page_token=None, target_kind=kind, target_id=int(ident))
    return [overview.health_event(change) for change in page.items]


@router.get("/servers")
def servers_page(frame: ViewerFrame, paging: PageQuery) -> Response:
    state = TableState.parse(frame.request.query_params, names=("health", "q"))
    page = frame.services.fleet.list_servers(
        page_size=state.page_size,
        page_token=paging.page_token,
        q=state.get("q") or None,
        health=_HEALTH.get(state.get("health")),
    )
    return frame.page(
        "servers.html",
        ServersPage,
        "servers",
        servers=page.items,
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
        charts_shown=_charts(services, "server", server_id),
        changes=_changes(services, "server", server_id),
        flow=overview.flow_picture(
            services.telemetry.token_flow(ident), [server], engines, cards, hops(services, [server])
        ),
    )


@router.get("/engines")
def engines_page(frame: ViewerFrame, paging: PageQuery) -> Response:
    state = TableState.parse(frame.request.query_params, names=("health", "q"))
    page = frame.services.fleet.list_engines(
        page_size=state.page_size,
        page_token=paging.page_token,
        q=state.get("q") or None,
        health=_HEALTH.get(state.get("health")),
    )
    return frame.page(
        "engines.html",
        EnginesPage,
        "engines",
        engines=page.items,
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
        charts_shown=_charts(services, "engine", engine_id),
        changes=_changes(services, "engine", engine_id),
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
