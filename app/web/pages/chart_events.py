"""What happened around a server, an engine or a store, for the marks on its charts."""

from __future__ import annotations

from collections.abc import Sequence

from app.clock import iso, parse_iso
from app.fleet.schemas import EngineView, ServerView, StoreView
from app.services import Services
from app.web import formats, overview
from app.web.contexts import Event

#: Of each kind; a chart with more marks than this says nothing any more.
EACH = 20
#: Of each kind, on a page of its own, where the span may be years.
EACH_OF_HISTORY = 100
#: Seconds before now that the charts of a target's own page show.
WINDOW = 3600.0


def events_of(
    services: Services, target: ServerView | EngineView | StoreView, since: float | None = None, each: int = EACH
) -> tuple[Event, ...]:
    """What happened from `since` on (default: the hour that a target's own page shows), newest first: restarts, layout
    changes, changes of health, cleanups and acceptance runs, each as far as it concerns the target."""
    since = services.clock() - WINDOW if since is None else since
    if isinstance(target, ServerView):
        found = _of_server(services, target, since, each)
    elif isinstance(target, EngineView):
        found = _of_engine(services, target, since, each)
    else:
        found = _of_store(services, target, since, each)
    return overview.newest((e for e in found if parse_iso(e.at) >= since), 3 * each)


def _of_server(services: Services, server: ServerView, since: float, each: int) -> list[Event]:
    ident = int(server.id)
    stores = services.fleet.list_stores(page_size=20, page_token=None, server_id=ident).items
    engines = services.fleet.list_engines(page_size=100, page_token=None, server_id=ident).items
    tests = services.acceptance.list_runs(page_size=each, page_token=None, server_id=ident).items
    return [
        *_restarts(services, server, engines, since),
        *overview.layout_events([server]),
        *_health(services, "server", ident, each),
        *(event for store in stores for event in _cleanups(services, store, each)),
        *(overview.acceptance_event(run) for run in tests),
    ]


def _of_engine(services: Services, engine: EngineView, since: float, each: int) -> list[Event]:
    ident = int(engine.id)
    tests = services.acceptance.list_runs(page_size=each, page_token=None, engine_id=ident).items
    server = services.fleet.get_server(int(engine.server_id)) if engine.server_id else None
    found = [*_health(services, "engine", ident, each), *(overview.acceptance_event(run) for run in tests)]
    if server is not None:
        found += [*_restarts(services, server, [engine], since), *overview.layout_events([server])]
    own = [event for event in found if event.what == "restart" and event.path == f"/engines/{engine.id}"]
    # An engine that no server tells of (LMCache inside it, or not linked) tells its last start itself.
    if engine.started_at and not own and parse_iso(engine.started_at) > parse_iso(engine.created_at):
        found.append(_restart(engine.started_at, engine.name, f"/engines/{engine.id}"))
    return found


def _of_store(services: Services, store: StoreView, since: float, each: int) -> list[Event]:
    servers = [services.fleet.get_server(int(ident)) for ident in store.server_ids]
    return [
        *_cleanups(services, store, each),
        *overview.layout_events(servers),
        *(event for server in servers for event in _restarts(services, server, [], since)),
    ]


def _restarts(services: Services, server: ServerView, engines: Sequence[EngineView], since: float) -> list[Event]:
    names = {("engine", int(engine.id)): engine.name for engine in engines}
    names["server", int(server.id)] = server.name
    return [
        _restart(iso(one.at) or "", name, f"/{one.kind}s/{one.target_id}")
        for one in services.telemetry.restarts(int(server.id), since)
        if (name := names.get((one.kind, one.target_id))) is not None
    ]


def _restart(at: str, name: str, path: str) -> Event:
    return Event(at, "restart", "info", f"{formats.printable(name)} restarted", "", path)


def _health(services: Services, kind: str, ident: int, each: int) -> list[Event]:
    changes = services.telemetry.health_changes(page_size=each, page_token=None, target_kind=kind, target_id=ident)
    return [overview.health_event(change) for change in changes.items]


def _cleanups(services: Services, store: StoreView, each: int) -> list[Event]:
    runs = services.cleanup.list_runs(page_size=each, page_token=None, store_id=int(store.id)).items
    return [overview.cleanup_event(run) for run in runs]
