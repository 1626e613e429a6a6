"""A raw HTTP server for tests: it answers exactly the bytes it is told to, also such that no library would send."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

CAPTURES = Path(__file__).parents[2] / "fixtures" / "captures"

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def reply(
    body: bytes | str | object = b"", status: int = 200, content_type: str = "application/json", extra: str = ""
) -> bytes:
    """A whole HTTP answer; anything but bytes and text is sent as JSON."""
    if not isinstance(body, (bytes, str)):
        body = json.dumps(body)
    raw = body.encode() if isinstance(body, str) else body
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\ncontent-length: {len(raw)}\r\n{extra}\r\n"
    return head.encode() + raw


def capture(name: str) -> bytes:
    """A captured answer."""
    return (CAPTURES / name).read_bytes()


class RawServer:
    """Routes by "METHOD /path" to bytes, or to a script that owns the connection. Unknown routes are 404.

    `seen` lists (method, target, body) of every request, `connections` counts them.
    """

    def __init__(
        self,
        routes: Mapping[str, bytes | Script] | None = None,
        *,
        on_connect: Script | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.routes: dict[str, bytes | Script] = dict(routes or {})
        self.seen: list[tuple[str, str, bytes]] = []
        self.headers: list[dict[str, str]] = []
        self.connections = 0
        self.port = 0
        self._on_connect = on_connect
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def paths(self) -> list[str]:
        """ "METHOD /path" of every request, without queries."""
        return [f"{method} {target.partition('?')[0]}" for method, target, _ in self.seen]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            if self._on_connect is not None:
                await self._on_connect(reader, writer)
                return
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ", 2)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        self.seen.append((method, target, body))
        self.headers.append(headers)
        answer = self.routes.get(f"{method} {target.partition('?')[0]}", reply({"detail": "Not Found"}, 404))
        if not isinstance(answer, bytes):
            await answer(reader, writer)
            return False
        writer.write(answer)
        await writer.drain()
        return True


def chunked(*pieces: bytes, content_type: str = "text/event-stream", end: bool = True) -> bytes:
    """A chunked answer with these pieces as its chunks."""
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return head + body + (b"0\r\n\r\n" if end else b"")
