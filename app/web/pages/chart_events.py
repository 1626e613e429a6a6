"""What happened around a server or an engine, for the marks on its charts."""

from __future__ import annotations

from app.fleet.schemas import EngineView, ServerView
from app.services import Services
from app.web import overview
from app.web.contexts import Event

#: Of each kind; a chart with more marks than this says nothing any more.
EACH = 20


def server_events(services: Services, server: ServerView) -> tuple[Event, ...]:
    """Restarts, layout changes, health, cleanups of its stores, acceptance runs behind it; newest first."""
    ident = int(server.id)
    stores = services.fleet.list_stores(page_size=20, page_token=None, server_id=ident).items
    changes = services.telemetry.health_changes(
        page_size=EACH, page_token=None, target_kind="server", target_id=ident
    ).items
    tests = services.acceptance.list_runs(page_size=EACH, page_token=None, server_id=ident).items
    cleanups = [
        run
        for store in stores
        for run in services.cleanup.list_runs(page_size=EACH, page_token=None, store_id=int(store.id)).items
    ]
    found = [
        *overview.restart_events([server]),
        *overview.layout_events([server]),
        *(overview.health_event(change) for change in changes),
        *(overview.cleanup_event(run) for run in cleanups),
        *(overview.acceptance_event(run) for run in tests),
    ]
    return overview.newest(found, 3 * EACH)


def engine_events(services: Services, engine: EngineView) -> tuple[Event, ...]:
    """Its own health and tests, and what happened to its server."""
    ident = int(engine.id)
    changes = services.telemetry.health_changes(
        page_size=EACH, page_token=None, target_kind="engine", target_id=ident
    ).items
    tests = services.acceptance.list_runs(page_size=EACH, page_token=None, engine_id=ident).items
    server = services.fleet.get_server(int(engine.server_id)) if engine.server_id else None
    found = [
        *(overview.health_event(change) for change in changes),
        *(overview.acceptance_event(run) for run in tests),
        *(overview.restart_events([server]) if server else ()),
        *(overview.layout_events([server]) if server else ()),
    ]
    return overview.newest(found, 3 * EACH)
