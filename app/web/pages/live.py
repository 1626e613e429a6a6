"""The event stream of an open page (`app.web.streams`)."""

from __future__ import annotations

from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Depends, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from app.api.deps import RequireRole, ServicesDep, Viewer
from app.errors import TierkeeperError
from app.web.streams import Streams

router = APIRouter()


def _streams(request: Request) -> Streams:
    streams: Streams = request.app.state.streams
    return streams


@router.get("/live")
async def live(
    request: Request, services: ServicesDep, principal: Viewer, streams: Annotated[Streams, Depends(_streams)]
) -> Response:
    """Server-sent events, one `change` with a topic for each thing that moved; 503 where there are too many streams.
    Pages then poll, as they do anyway, only less often.
    """

    def signed_in() -> bool:
        try:
            return bool(RequireRole("viewer")(request, services))
        except TierkeeperError:
            return False

    async def may_go_on() -> bool:
        return await anyio.to_thread.run_sync(signed_in)

    text = streams.open(may_go_on)
    if text is None:
        return PlainTextResponse("too many event streams are open; the page polls instead\n", 503)
    # A proxy that gathers an answer before it passes it on would hold all news back.
    return StreamingResponse(text, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
