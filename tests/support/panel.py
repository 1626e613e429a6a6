"""A whole panel on a real socket, in a thread of the test's process."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import uvicorn
from fastapi import FastAPI

from app.auth.schemas import Role, TokenInput
from app.clock import Clock, system_clock
from app.main import create_app
from app.services import Services
from app.settings import load_settings
from app.web.connections import GuardedProtocol, guarded

ADMIN_PASSWORD = "correct horse battery"


class Panel:
    """A running panel: `url`, `services`, `app`, and clients for each role."""

    def __init__(self, url: str, services: Services, app: FastAPI) -> None:
        self.url = url
        self.services = services
        self.app = app
        self._clients: list[httpx.Client] = []

    def client(self, role: Role | None = "admin") -> httpx.Client:
        """A client with a token of that role; None for a client without credentials."""
        headers = {}
        if role is not None:
            name = f"test-{role}-{len(self._clients)}"
            token = self.services.auth.create_token(TokenInput(name=name, role=role), actor="test").token
            headers["Authorization"] = f"Bearer {token}"
        client = httpx.Client(base_url=self.url, headers=headers, timeout=30.0)
        self._clients.append(client)
        return client

    def browser(self, username: str = "admin", password: str = ADMIN_PASSWORD) -> httpx.Client:
        """A client with a session cookie that sends what a browser sends."""
        client = httpx.Client(base_url=self.url, headers={"Origin": self.url, "Accept": "text/html"}, timeout=30.0)
        answer = client.post("/login", data={"username": username, "password": password})
        assert answer.status_code == 303, answer.text
        self._clients.append(client)
        return client

    def close(self) -> None:
        for client in self._clients:
            client.close()


@contextmanager
def running_panel(
    data_dir: Path, *, clock: Clock = system_clock, protocol: type[GuardedProtocol] | None = None, **environment: str
) -> Iterator[Panel]:
    """Starts a panel on a free port and stops it again; `environment` holds settings without their prefix."""
    values = {"DATA_DIR": str(data_dir), "ADMIN_PASSWORD": ADMIN_PASSWORD, "LOG_LEVEL": "ERROR", **environment}
    settings = load_settings({f"TIERKEEPER_{name}": value for name, value in values.items()})
    ready = threading.Event()
    found: list[Services] = []
    app = create_app(settings, clock=clock, on_ready=lambda services, _password: found.append(services))

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready.set()

    sock = socket.socket(proto=socket.IPPROTO_TCP)  # as `serve` does
    sock.bind(("127.0.0.1", 0))
    server = Server(
        uvicorn.Config(
            app,
            http=protocol or guarded(),
            log_config=None,
            access_log=False,
            proxy_headers=False,
            timeout_graceful_shutdown=2,
        )
    )
    failure: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(server.serve(sockets=[sock]))
        except BaseException as error:
            failure.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run, name="panel", daemon=True)
    thread.start()
    assert ready.wait(30), "the panel did not start within 30 s"
    if failure or not found:
        sock.close()
        raise app.state.startup_error or AssertionError(f"the panel did not start: {failure}")
    panel = Panel(f"http://127.0.0.1:{sock.getsockname()[1]}", found[0], app)
    try:
        yield panel
    finally:
        panel.close()
        server.should_exit = True
        thread.join(15)
        sock.close()
        assert not thread.is_alive(), "the panel did not stop within 15 s"
