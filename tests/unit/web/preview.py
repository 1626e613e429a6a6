"""A small server that shows every page of `pages.py`: ``python -m tests.unit.web.preview PORT``."""

from __future__ import annotations

import sys

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Mount, Route

from app.paths import STATIC, TEMPLATES
from app.web.middleware import CSP
from app.web.static_files import StaticFiles
from app.web.templating import Templates
from tests.unit.web import pages, samples


def templates() -> tuple[Templates, StaticFiles]:
    static = StaticFiles(STATIC)
    return Templates(TEMPLATES, static=static, clock=lambda: samples.NOW), static


def preview_app() -> Starlette:
    """One route a page, under /p/NAME; templates are read anew for every request."""
    _, static = templates()

    async def page(request: Request) -> HTMLResponse:
        shown, _ = templates()
        name, context = pages.all_pages()[request.path_params["name"]]
        return HTMLResponse(shown.render(name, context), headers={"Content-Security-Policy": CSP})

    return Starlette(routes=[Route("/p/{name}", page), Mount("/static", static)])


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(preview_app(), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
