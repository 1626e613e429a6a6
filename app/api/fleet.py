"""/servers, /engines, /stores, /probes: targets are added, changed and forgotten here; nothing outside is touched."""

from __future__ import annotations

from typing import Annotated, TypeVar

from fastapi import APIRouter, Header, Query, Response

from app.api.deps import Admin, PageQuery, ServicesDep, Viewer, parse_id
from app.api.responses import BODY, NOT_FOUND, READ
from app.fleet.probe_schemas import ProbeRequest, ProbeView
from app.fleet.schemas import (
    EngineCreate,
    EnginePatch,
    EngineView,
    HealthState,
    ServerCreate,
    ServerPatch,
    ServerView,
    StoreCreate,
    StorePatch,
    StoreView,
)
from app.shapes import Page

View = TypeVar("View", ServerView, EngineView, StoreView)

router = APIRouter(tags=["targets"])

SearchQuery = Annotated[str | None, Query(max_length=200, description="part of the name or address")]
HealthQuery = Annotated[HealthState | None, Query(description="only targets in this state")]
ServerQuery = Annotated[str | None, Query(max_length=40, description="only those of this server")]
LabelQuery = Annotated[str | None, Query(max_length=300, description="only those with this label, as KEY=VALUE")]
IfMatch = Annotated[str | None, Header(description="ETag of the target as it was read; 409 when it has changed")]


@router.get("/servers", responses=READ)
def list_servers(
    services: ServicesDep,
    principal: Viewer,
    paging: PageQuery,
    q: SearchQuery = None,
    health: HealthQuery = None,
    label: LabelQuery = None,
) -> Page[ServerView]:
    """Cache servers by name, each as its last poll left it, with that poll's age."""
    return services.fleet.list_servers(
        page_size=paging.page_size, page_token=paging.page_token, q=q, health=health, label=label
    )


@router.post("/servers", status_code=201, responses=BODY)
def create_server(body: ServerCreate, response: Response, services: ServicesDep, principal: Admin) -> ServerView:
    """Registers a cache server. One that does not answer just now is saved and shown as such; a malformed, duplicate
    or forbidden address is refused.
    """
    made = services.fleet.create_server(body, actor=principal.actor)
    made = made.model_copy(update={"notice": services.fleet.advice("server", body)})
    return _created(response, "servers", made)


@router.get("/servers/{server_id}", responses=NOT_FOUND)
def get_server(server_id: str, response: Response, services: ServicesDep, principal: Viewer) -> ServerView:
    """One cache server: health, L1, hit rate, layouts and L2 adapters, with the time of the poll they come from."""
    return _tagged(response, services.fleet.get_server(parse_id("server", server_id)))


@router.patch("/servers/{server_id}", responses=BODY)
def patch_server(
    server_id: str,
    body: ServerPatch,
    response: Response,
    services: ServicesDep,
    principal: Admin,
    if_match: IfMatch = None,
) -> ServerView:
    """Changes only what is sent. Another address starts with unknown health; `api_key: null` removes the key."""
    view = services.fleet.patch_server(parse_id("server", server_id), body, actor=principal.actor, if_match=if_match)
    return _tagged(response, view)


@router.delete("/servers/{server_id}", status_code=204, responses=BODY)
def delete_server(server_id: str, services: ServicesDep, principal: Admin) -> None:
    """Forgets the server and its history. Nothing outside the panel is touched."""
    services.fleet.delete_server(parse_id("server", server_id), actor=principal.actor)


@router.get("/engines", responses=READ)
def list_engines(
    services: ServicesDep,
    principal: Viewer,
    paging: PageQuery,
    q: SearchQuery = None,
    health: HealthQuery = None,
    server_id: ServerQuery = None,
    label: LabelQuery = None,
) -> Page[EngineView]:
    """Engines by name, each as its last poll left it, with that poll's age."""
    return services.fleet.list_engines(
        page_size=paging.page_size,
        page_token=paging.page_token,
        q=q,
        label=label,
        health=health,
        server_id=None if server_id is None else parse_id("server", server_id),
    )


@router.post("/engines", status_code=201, responses=BODY)
def create_engine(body: EngineCreate, response: Response, services: ServicesDep, principal: Admin) -> EngineView:
    """Registers an engine, for one of the servers or alone. One that does not answer just now is saved and shown as
    such.
    """
    made = services.fleet.create_engine(body, actor=principal.actor)
    made = made.model_copy(update={"notice": services.fleet.advice("engine", body)})
    return _created(response, "engines", made)


@router.get("/engines/{engine_id}", responses=NOT_FOUND)
def get_engine(engine_id: str, response: Response, services: ServicesDep, principal: Viewer) -> EngineView:
    """One engine: health, GPU cache, queues, prefix cache rates, and whether its cache can be reset."""
    return _tagged(response, services.fleet.get_engine(parse_id("engine", engine_id)))


@router.patch("/engines/{engine_id}", responses=BODY)
def patch_engine(
    engine_id: str,
    body: EnginePatch,
    response: Response,
    services: ServicesDep,
    principal: Admin,
    if_match: IfMatch = None,
) -> EngineView:
    """Changes only what is sent; `server_id: null` unlinks it from its server."""
    view = services.fleet.patch_engine(parse_id("engine", engine_id), body, actor=principal.actor, if_match=if_match)
    return _tagged(response, view)


@router.delete("/engines/{engine_id}", status_code=204, responses=BODY)
def delete_engine(engine_id: str, services: ServicesDep, principal: Admin) -> None:
    """Forgets the engine and its history. Nothing outside the panel is touched."""
    services.fleet.delete_engine(parse_id("engine", engine_id), actor=principal.actor)


@router.get("/stores", responses=READ)
def list_stores(
    services: ServicesDep,
    principal: Viewer,
    paging: PageQuery,
    q: SearchQuery = None,
    server_id: ServerQuery = None,
    label: LabelQuery = None,
) -> Page[StoreView]:
    """Record directories by name, with the servers that write there."""
    return services.fleet.list_stores(
        page_size=paging.page_size,
        page_token=paging.page_token,
        q=q,
        label=label,
        server_id=None if server_id is None else parse_id("server", server_id),
    )


@router.post("/stores", status_code=201, responses=BODY)
def create_store(body: StoreCreate, response: Response, services: ServicesDep, principal: Admin) -> StoreView:
    """Registers a record directory. It is read only by a scan; where its files are not what its server writes, the
    answer says so and how to confirm.
    """
    return _created(response, "stores", services.fleet.create_store(body, actor=principal.actor))


@router.get("/stores/{store_id}", responses=NOT_FOUND)
def get_store(store_id: str, response: Response, services: ServicesDep, principal: Viewer) -> StoreView:
    """One record directory: path, servers, kind, and what the last look at it found."""
    return _tagged(response, services.fleet.get_store(parse_id("store", store_id)))


@router.patch("/stores/{store_id}", responses=BODY)
def patch_store(
    store_id: str,
    body: StorePatch,
    response: Response,
    services: ServicesDep,
    principal: Admin,
    if_match: IfMatch = None,
) -> StoreView:
    """Changes only what is sent. Another path needs the same confirmation as a new one."""
    view = services.fleet.patch_store(parse_id("store", store_id), body, actor=principal.actor, if_match=if_match)
    return _tagged(response, view)


@router.delete("/stores/{store_id}", status_code=204, responses=BODY)
def delete_store(store_id: str, services: ServicesDep, principal: Admin) -> None:
    """Forgets the store and its inventory. Not one file of it is touched."""
    services.fleet.delete_store(parse_id("store", store_id), actor=principal.actor)


@router.post("/probes", responses=BODY)
def probe(body: ProbeRequest, services: ServicesDep, principal: Admin) -> ProbeView:
    """What answers at an address, and what to enter. Saves nothing."""
    return services.fleet.probe(body)


def _created(response: Response, collection: str, view: View) -> View:
    response.headers["Location"] = f"/api/v1/{collection}/{view.id}"
    return _tagged(response, view)


def _tagged(response: Response, view: View) -> View:
    response.headers["ETag"] = f'"{view.revision}"'
    return view
