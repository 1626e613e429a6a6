"""Makes the pages ready before somebody asks for them: templates compiled, queries prepared, connections opened.

Whoever came first after a start would wait for all of it otherwise. The overview is made once before the panel says
where it is; the rest follows beside the first requests. What is made is thrown away: no number is kept.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import structlog
from fastapi import FastAPI, Request

from app.api.deps import Paging
from app.auth.service import Principal
from app.fleet.service import FleetService
from app.paging import DEFAULT_PAGE_SIZE
from app.services import Services
from app.web.frame import Frame
from app.web.pages import overview, records, targets

log = structlog.get_logger()

_LONGEST_REST = 0.5
_NOBODY = Principal("start", "viewer", "system")


def warm_overview(app: FastAPI) -> None:
    """Makes the page that people land on."""
    _make(lambda: overview.overview_page(_frame(app, "/")))


def warm_rest(app: FastAPI) -> None:
    """Makes the other large pages and compiles the remaining templates. The API's document takes a second of computing
    that every page would feel: whoever asks for it first waits for it.

    In the end what the start has made is taken out of the garbage collector's sight: it stays anyway, and walking over
    it is the longest pause a request can meet.
    """
    services: Services = app.state.services
    for part in (_servers, _engines, _stores):
        _gently(partial(part, app, services.fleet))
    environment = app.state.templates.env
    for name in environment.list_templates():
        _gently(partial(environment.get_template, name))
    gc.collect()
    gc.freeze()


def _servers(app: FastAPI, fleet: FleetService) -> None:
    for server in fleet.list_servers(page_size=1, page_token=None).items:
        targets.server_page(_frame(app, f"/servers/{server.id}"), server.id)


def _engines(app: FastAPI, fleet: FleetService) -> None:
    for engine in fleet.list_engines(page_size=1, page_token=None).items:
        targets.engine_page(_frame(app, f"/engines/{engine.id}"), engine.id)


def _stores(app: FastAPI, fleet: FleetService) -> None:
    for store in fleet.list_stores(page_size=1, page_token=None).items:
        path = f"/stores/{store.id}"
        records.store_page(_frame(app, path), store.id)
        records.records_page(_frame(app, f"{path}/records"), store.id, Paging(DEFAULT_PAGE_SIZE, None))


def _gently(make: Callable[[], object]) -> None:
    """As `_make`, with a rest as long as the work: requests come first."""
    began = time.monotonic()
    _make(make)
    time.sleep(min(_LONGEST_REST, time.monotonic() - began))


def _make(make: Callable[[], object]) -> None:
    try:
        make()
    except Exception:
        # Nobody asked for it: whoever does is told what is wrong. A panel that stops at once ends here, too.
        log.info("pages.not_ready", exc_info=True)


def _frame(app: FastAPI, path: str) -> Frame:
    scope: dict[str, Any] = {
        "type": "http", "method": "GET", "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": [], "server": ("127.0.0.1", 80), "client": None, "root_path": "", "app": app,
    }  # fmt: skip
    return Frame(Request(scope), app.state.services, _NOBODY, app.state.templates)
