"""`create_app(settings)`: the one place where everything is wired to HTTP and to the process's life."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable

import anyio.to_thread
import structlog
from fastapi import APIRouter, FastAPI
from fastapi.responses import JSONResponse
from starlette.middleware import Middleware

from app import __version__, data_dir, migrate
from app.api import document, metrics, problems
from app.api.routers import api_routers
from app.clock import Clock, system_clock
from app.services import Services
from app.settings import Settings
from app.web.downloads import TableDownloads
from app.web.middleware import Idempotency, RequestContext, RequestLimits, SameOrigin, SecurityHeaders
from app.web.proxy import AllowedHosts, BehindProxy
from app.web.routers import install_pages
from app.web.streams import Streams
from app.wiring import Background, apply_targets_file, build_services

log = structlog.get_logger()


def create_app(
    settings: Settings,
    *,
    clock: Clock = system_clock,
    url: str | None = None,
    on_ready: Callable[[Services, str | None], None] | None = None,
) -> FastAPI:
    """The ASGI application. Nothing is opened before its lifespan starts.

    url: where it will be reachable, for the lock file that a second panel reads.
    on_ready: called once with the services and a made-up admin password (None unless this start made one).
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            try:
                await _start(app, stack)
            except Exception as error:
                # uvicorn only says that the start failed: whoever started us reads the reason here.
                app.state.startup_error = error
                raise
            yield

    async def _start(app: FastAPI, stack: contextlib.AsyncExitStack) -> None:
        data_dir.prepare(settings.data_dir)
        lock = data_dir.ServeLock(settings.data_dir)
        lock.acquire(url or f"http://{settings.host}:{settings.port}")
        stack.callback(lock.release)
        services = build_services(settings, clock)
        stack.callback(services.db.dispose)
        migrate.upgrade(services.db, settings.data_dir)
        made_password = services.auth.ensure_admin()
        app.state.services = services
        app.state.metrics = metrics.PanelMetrics(services)
        app.state.streams = Streams(services.runner.news)
        stack.callback(app.state.streams.close)
        background = Background(services)
        await anyio.to_thread.run_sync(apply_targets_file, services)
        stack.push_async_callback(background.stop)
        await background.start()
        services.scheduling.every(10.0, "metrics", app.state.metrics.refresh)
        if on_ready is not None:
            await anyio.to_thread.run_sync(on_ready, services, made_password)

    app = FastAPI(
        title="Tierkeeper",
        version=__version__,
        description="Operations panel for LMCache. Errors are RFC 9457 problems; times are RFC 3339 in UTC.",
        openapi_url=None,  # FastAPI's own route would make the document, seconds of work, on the event loop
        docs_url=None,
        redoc_url=None,
        # Links are made with our own prefix: the framework's redirect of /x/ to /x would not know it.
        redirect_slashes=False,
        servers=[{"url": settings.root_path}] if settings.root_path else None,
        lifespan=lifespan,
        middleware=[
            Middleware(BehindProxy, settings),
            Middleware(RequestContext),
            Middleware(SecurityHeaders),
            Middleware(AllowedHosts, settings),
            Middleware(RequestLimits),
            Middleware(SameOrigin),
            Middleware(Idempotency),
            Middleware(TableDownloads),
        ],
    )
    app.state.startup_error = None
    app.state.streams = None  # until the lifespan has started
    app.state.root_path = settings.root_path
    problems.install(app)
    app.include_router(_open_routes(app))
    app.include_router(metrics.router)
    document.install(app)
    api = APIRouter(prefix="/api/v1")
    for router in api_routers():
        api.include_router(router)
    app.include_router(api)
    install_pages(app)
    return app


def _open_routes(app: FastAPI) -> APIRouter:
    """The routes that need no credentials: liveness, readiness, our own metrics."""
    router = APIRouter(tags=["process"])

    @router.get("/livez")
    async def livez() -> dict[str, str]:
        """The process runs and its loop turns. Needs no sign-in."""
        return {"status": "alive"}

    @router.get("/readyz", responses={503: {"description": "Not ready"}})
    def readyz() -> JSONResponse:
        """Whether database, migrations and scheduler are ready: 200 or 503, with each check. Never the health of a
        cache server.
        """
        checks = _readiness(app.state.services)
        ready = all(value == "ok" for value in checks.values())
        body = {"status": "ready" if ready else "not_ready", "checks": checks}
        return JSONResponse(body, 200 if ready else 503)

    return router


def _readiness(services: Services) -> dict[str, str]:
    checks = {}
    try:
        at = migrate.current_revision(services.db)
        checks["database"] = "ok"
        head = migrate.head_revision()
        checks["migrations"] = "ok" if at == head else f"at {at}, needs {head}"
    except Exception as error:
        checks["database"] = f"{type(error).__name__}: {error}"
        checks["migrations"] = "unknown: the database does not answer"
    checks["scheduler"] = "ok" if services.scheduling.alive() else "no heartbeat in the last minute"
    return checks
