"""Connections that wait for their client: how many there may be, and for how long.

A request that is ours to answer takes the time it takes. What waits for the client (no request yet, half a head, a body
that does not come, an answer that is not read) costs memory and a file descriptor, and those are bounded:

- a head is complete within `HEAD_SECONDS` and `MAX_HEAD` bytes (the parser itself knows no end);
- a body and the reading of an answer move at least once in `CLIENT_SECONDS`;
- above `limit` connections those that have waited longest for their client make room, so that a storm of connections
  neither takes all descriptors (the database needs some, too) nor keeps anybody else out.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

HEAD_SECONDS = 20.0
CLIENT_SECONDS = 60.0
MAX_HEAD = 64 * 1024
#: Far more than people and their programs open; browsers open six each.
MAX_CONNECTIONS = 1000
#: So many go at once when there are too many: looking for them at each connection would cost more than they do.
ROOM = 16
_LOOK_SECONDS = 5.0
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n"
    b"x-content-type-options: nosniff\r\n\r\n"
)


def connection_limit() -> int:
    """Half of the descriptors this process may open, at most MAX_CONNECTIONS."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else max(ROOM, min(MAX_CONNECTIONS, soft // 2))


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with an end to waiting."""

    limit = MAX_CONNECTIONS
    head_seconds = HEAD_SECONDS
    client_seconds = CLIENT_SECONDS
    look_seconds = _LOOK_SECONDS

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._free_since = self._moved_at = self.loop.time()
        self._buffered = 0
        self._in_head, self._head = False, 0
        self._looking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._free_since = self._moved_at = self.loop.time()
        self._looking = self.loop.call_later(self.look_seconds, self._look)
        if len(self.connections) > self.limit:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._looking is not None:
            self._looking.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._moved_at = self.loop.time()
        super().data_received(data)
        if not self._in_head:
            return
        self._head += len(data)
        if self._head > MAX_HEAD and not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        self._in_head, self._head = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        self._free_since = self._moved_at = self.loop.time()
        super().on_response_complete()

    def _is_free(self) -> bool:
        """Whether no request is under way: nothing came yet, or the last one is answered."""
        return self.cycle is None or self.cycle.response_complete

    def _waits_for_client(self) -> bool:
        return self._is_free() or self.cycle.more_body or self.transport.get_write_buffer_size() > 0

    def _look(self) -> None:
        now = self.loop.time()
        self._looking = self.loop.call_later(self.look_seconds, self._look)
        buffered = self.transport.get_write_buffer_size()
        if buffered != self._buffered:
            self._buffered, self._moved_at = buffered, now
        if not self._waits_for_client():
            self._moved_at = now
        elif now - self._moved_at > self.client_seconds or (
            self._is_free() and not buffered and now - self._free_since > self.head_seconds
        ):
            self.transport.abort()

    def _make_room(self) -> None:
        """Ends the connections that have waited longest for their client; when all are ours to answer, this one."""
        waiting = sorted(
            (
                other
                for other in self.connections
                if isinstance(other, GuardedProtocol) and other is not self and other._waits_for_client()
            ),
            key=lambda other: other._moved_at,
        )
        for other in waiting[: max(1, self.limit // ROOM)] or [self]:
            # At once, not when the transport says so: the next connection of a storm must not count it again.
            self.connections.discard(other)
            other.transport.abort()


def guarded(limit: int | None = None) -> type[GuardedProtocol]:
    """The protocol for `uvicorn.Config(http=…)`, with the limit of this process."""
    return type("Guarded", (GuardedProtocol,), {"limit": limit or connection_limit()})
