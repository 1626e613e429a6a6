"""Every page router, listed by hand, and what all of them need: templates, static files, the error page."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter, FastAPI, Request
from starlette.responses import Response

from app.errors import FieldError
from app.paths import DOCS, STATIC, TEMPLATES
from app.web.contexts import ErrorPage
from app.web.frame import make_shell
from app.web.manual import read_manual
from app.web.pages import (
    acceptance,
    activity,
    alarms,
    api_docs,
    benchmark,
    canaries,
    checks,
    cleanup,
    help,
    history,
    hooks,
    launch,
    live,
    overview,
    readiness,
    records,
    schedules,
    search,
    session,
    settings,
    sizing,
    targets,
    undo,
)
from app.web.static_files import StaticFiles
from app.web.templating import Templates
from app.web.undo import UndoStore

#: Pictures of the documentation; they show a sandbox and nothing of anybody.
HELP_PICTURES = "/help/images"


def page_routers() -> list[APIRouter]:
    """Routers of the pages, in the order of the side bar."""
    return [
        session.router,
        overview.router,
        targets.router,
        history.router,
        records.router,
        cleanup.router,
        acceptance.router,
        readiness.router,
        canaries.router,
        hooks.router,
        checks.router,
        benchmark.router,
        sizing.router,
        launch.router,
        alarms.router,
        activity.router,
        schedules.router,
        settings.router,
        search.router,
        undo.router,
        live.router,
        api_docs.router,
        help.router,
    ]


def install_pages(app: FastAPI) -> None:
    """Adds the pages to the application. Files are read now; services are there once the lifespan has started."""
    static = StaticFiles(STATIC, prefix=app.state.root_path)
    templates = Templates(
        TEMPLATES, static=static, clock=lambda: app.state.services.clock(), prefix=app.state.root_path
    )
    app.state.templates = templates
    app.state.undo = UndoStore(lambda: app.state.services.clock())
    app.mount("/static", static, name="static")
    pictures = StaticFiles(DOCS / "images", mount=HELP_PICTURES, prefix=app.root_path)
    app.mount(HELP_PICTURES, pictures, name="help-pictures")
    app.state.manual = read_manual(
        DOCS, prefix=app.root_path, pictures=lambda name: pictures.url(name) if pictures.find(name) else None
    )

    def error_page(request: Request, status: int, title: str, detail: str, errors: Sequence[FieldError]) -> Response:
        context = ErrorPage(make_shell(request, ""), status=status, title=title, detail=detail, errors=errors)
        return templates.response(request, "error.html", context, status=status)

    app.state.error_page = error_page
    for router in page_routers():
        app.include_router(router, include_in_schema=False)
