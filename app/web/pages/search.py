"""One search over servers, engines, stores, models, records and runs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from app.errors import InvalidInput, NotFound
from app.records.filters import DEFAULT_ORDER, RecordFilter
from app.services import Services
from app.web.contexts import Crumb, Found, SearchPage
from app.web.frame import ViewerFrame

router = APIRouter(prefix="/search")

EACH = 8


@router.get("")
def search_page(frame: ViewerFrame, q: Annotated[str, Query(max_length=255)] = "") -> Response:
    text = q.strip()
    found = [*_targets(frame.services, text), *_runs(frame.services, text), *_records(frame.services, text)]
    return frame.page("search.html", SearchPage, "", Crumb("Search"), q=text, found=found if text else [])


def _targets(services: Services, text: str) -> list[Found]:
    fleet = services.fleet
    servers = fleet.list_servers(page_size=EACH, page_token=None, q=text).items
    engines = fleet.list_engines(page_size=500, page_token=None).items
    stores = fleet.list_stores(page_size=EACH, page_token=None, q=text).items
    wanted = text.casefold()
    # Engines also by the models they serve.
    matching = [
        e for e in engines if any(wanted in part.casefold() for part in (e.name, e.url, *e.model_names, *e.model_roots))
    ][:EACH]
    return [
        *(Found("cache server", "server", s.name, s.url, f"/servers/{s.id}") for s in servers),
        *(Found("engine", "cpu", e.name, ", ".join(e.model_names) or e.url, f"/engines/{e.id}") for e in matching),
        *(Found("store", "hard-drive", s.name, s.path, f"/stores/{s.id}") for s in stores),
    ]


def _runs(services: Services, text: str) -> list[Found]:
    number = text.removeprefix("#")
    if not number.isdecimal() or len(number) > 12:
        return []
    found = []
    for what, icon, get, path in (
        ("cleanup run", "brush-cleaning", services.cleanup.get_run, "/cleanup/runs"),
        ("plan", "list-checks", services.cleanup.get_plan, "/cleanup/plans"),
        ("acceptance run", "badge-check", services.acceptance.get, "/acceptance/runs"),
    ):
        try:
            view = get(int(number))
        except NotFound:
            continue
        found.append(Found(what, icon, f"#{view.id}", view.state, f"{path}/{view.id}"))
    return found


def _records(services: Services, text: str) -> list[Found]:
    if len(text) < 4:
        return []
    try:
        where = RecordFilter.from_query({"q": text})
    except InvalidInput:
        return []
    found = []
    for store in services.fleet.list_stores(page_size=20, page_token=None).items:
        page = services.records.list_records(int(store.id), where, order=DEFAULT_ORDER, page_size=EACH, page_token=None)
        found += [Found(f"record on {store.name}", "files", r.name, r.class_, f"/records/{r.id}") for r in page.items]
    return found[: 3 * EACH]
