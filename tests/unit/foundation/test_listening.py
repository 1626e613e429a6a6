"""The socket a panel listens on, and what is ready by then."""

from __future__ import annotations

import asyncio
import gc
import socket
from pathlib import Path

import pytest
from fastapi import FastAPI

from app.commands.serve import _bind
from app.web.pages import overview
from app.web.warm import warm_overview, warm_rest
from tests.support.panel import running_panel


def test_answers_do_not_wait_for_acknowledgements() -> None:
    """Head and body of an answer are two writes: with Nagle's algorithm the second waits 40 ms for the client."""
    delays: list[int] = []

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted: socket.socket = writer.get_extra_info("socket")
        delays.append(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    async def connect() -> None:
        sock = _bind("127.0.0.1", 0)
        server = await asyncio.start_server(answer, sock=sock)
        async with server:
            reader, writer = await asyncio.open_connection(*sock.getsockname())
            await reader.read()
            writer.close()

    asyncio.run(connect())
    assert delays and all(delays)


def test_pages_are_made_ready_and_nothing_of_them_is_kept(tmp_path: Path) -> None:
    collected = gc.get_freeze_count()
    with running_panel(tmp_path / "var") as panel:
        environment = panel.app.state.templates.env
        warm_overview(panel.app)
        assert "overview.html" in {name for _, name in environment.cache}
        warm_rest(panel.app)
        assert {name for _, name in environment.cache} >= set(environment.list_templates())
        events = panel.services.audit.list_events(page_size=10, page_token=None).items
        assert [event.action for event in events] == ["user.create"]  # the administrator's: making pages does nothing
    assert gc.get_freeze_count() > collected
    gc.unfreeze()


def test_a_page_that_cannot_be_made_ready_does_not_stop_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def fail(_frame: object) -> None:
        asked.append("/")
        raise OSError("no room")

    monkeypatch.setattr(overview, "overview_page", fail)
    application = FastAPI()
    application.state.services = application.state.templates = None
    warm_overview(application)
    assert asked == ["/"]
