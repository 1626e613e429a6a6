"""A small server that shows every page of `pages.py`: ``python -m tests.unit.web.preview PORT``.

A page is at /p/NAME and at its own address, so that live parts, links between pages and charts work; forms do not.
"""

from __future__ import annotations

import sys

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from app.clock import iso
from app.paths import STATIC, TEMPLATES
from app.scheduling.news import News
from app.web.middleware import CSP
from app.web.static_files import StaticFiles
from app.web.streams import Streams
from app.web.templating import Templates, is_fragment
from tests.unit.web import pages, samples


def templates() -> tuple[Templates, StaticFiles]:
    static = StaticFiles(STATIC)
    return Templates(TEMPLATES, static=static, clock=lambda: samples.NOW), static


def preview_app() -> Starlette:
    """One route a page; templates are read anew for every request."""
    _, static = templates()

    def answer(request: Request, name: str) -> Response:
        shown, _ = templates()
        template, context = pages.all_pages()[name]
        text = shown.render(template, context, fragment=is_fragment(request))
        return HTMLResponse(text, headers={"Content-Security-Policy": CSP})

    async def by_name(request: Request) -> Response:
        return answer(request, request.path_params["name"])

    async def by_address(request: Request) -> Response:
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        for name, (_, context) in pages.all_pages().items():
            if context.shell.path == path:
                return answer(request, name)
        return HTMLResponse("no such page", 404)

    async def some_samples(request: Request) -> JSONResponse:
        metric = request.query_params["metric"]
        scale = {"l1_used_bytes": 2e10, "l2_store_bytes_per_second": 1.8e8, "up": 1.7}.get(metric, 1.0)
        values = samples.wave(120, gap=40)
        points = [
            (iso(samples.NOW - 30 * (len(values) - i)), None if v is None else v * scale) for i, v in enumerate(values)
        ]
        unit = {"l1_used_bytes": "bytes", "up": "bool"}.get(metric, "ratio")
        extremes = {}
        if metric == "l1_used_bytes":  # a gauge tells the lowest and highest of each bucket
            known = [value for _, value in points]
            extremes = {
                "lowest": [None if v is None else v * 0.9 for v in known],
                "highest": [None if v is None else v * 1.1 for v in known],
            }
        return JSONResponse({"metric": metric, "unit": unit, "points": points, **extremes})

    news = News()
    streams = Streams(news)

    async def live(_: Request) -> Response:
        text = streams.open(stays)
        assert text is not None
        return StreamingResponse(text, media_type="text/event-stream")

    app = Starlette(
        routes=[
            Route("/p/{name}", by_name),
            Mount("/static", static),
            Route("/api/v1/{kind}/{ident}/samples", some_samples),
            Route("/live", live),
            Route("/{path:path}", by_address),
        ]
    )
    app.state.news, app.state.streams = news, streams
    return app


async def stays() -> bool:
    return True


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(preview_app(), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
