"""Real HTTP on a loopback port that can refuse connections and come back on the same port.

The port is reserved by a second socket that is bound but never listens: while the server is stopped, connecting is
refused, and nobody else can take the port.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn

from app.sandbox.misbehaviour import ASGIApp


class _Quiet(uvicorn.Server):
    """A server inside somebody else's event loop: signals are not its business, and it ends when told to."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._wake = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        counter = 0
        while not await self.on_tick(counter):
            counter = (counter + 1) % 864_000
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), 0.1)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close everything now: nobody is waited for, as with a process that was killed."""
        for server in self.servers:
            server.close()
        for sock in sockets or []:
            sock.close()
        for connection in list(self.server_state.connections):
            transport = getattr(connection, "transport", None)
            if transport is not None:
                transport.abort()
        tasks = list(self.server_state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def finish(self) -> None:
        self.should_exit = self.force_exit = True
        self._wake.set()


def _bind(port: int) -> socket.socket:
    # asyncio switches Nagle's algorithm off only for sockets that name their protocol
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    sock.setblocking(False)
    return sock


class Host:
    """One component's HTTP server. Use only inside the event loop that `start` ran in."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._reserved: socket.socket | None = None
        self._server: _Quiet | None = None
        self._task: asyncio.Task[None] | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def listening(self) -> bool:
        return self._server is not None

    async def start(self) -> None:
        """Listen; the first time on a free port, afterwards on the same one."""
        if self._server is not None:
            return
        if self._reserved is None:
            self._reserved = _bind(0)
            self.port = self._reserved.getsockname()[1]
        sock = _bind(self.port)
        sock.listen(256)
        config = uvicorn.Config(
            self._app,
            log_config=None,
            access_log=False,
            log_level="critical",
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=0,
        )
        server = _Quiet(config)
        self._task = asyncio.create_task(server.serve(sockets=[sock]))
        while not server.started:
            if self._task.done():
                await self._task
            await asyncio.sleep(0.001)
        self._server = server

    async def stop(self) -> None:
        """Refuse connections from now on; open ones are closed."""
        server, task = self._server, self._task
        self._server = self._task = None
        if server is None or task is None:
            return
        server.finish()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def close(self) -> None:
        """Stop and give the port back."""
        await self.stop()
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None
