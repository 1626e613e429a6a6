"""A request goes out in one piece, and its sender is told just before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from app.wire import sending
from app.wire.transport import TargetHttp

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Peer:
    """Notes each piece that arrives, with its time; answers whole requests."""

    def __init__(self) -> None:
        self.pieces: list[tuple[float, bytes]] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(2**20):
            self.pieces.append((time.perf_counter(), piece))
            writer.write(ANSWER)
            await writer.drain()
        writer.close()


@asynccontextmanager
async def peer() -> AsyncIterator[Peer]:
    found = Peer()
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0, limit=2**20)
    async with server:
        found.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield found


class TestOneRequest:
    def test_head_and_body_arrive_together_and_after_the_sender_was_told(self) -> None:
        told: list[float] = []

        async def go() -> Peer:
            async with peer() as there, TargetHttp(there.url) as http:
                for _ in range(3):
                    opened = http.open(
                        "POST", "/x", payload={"a": 1}, on_sending=lambda: told.append(time.perf_counter())
                    )
                    async with opened as response:
                        assert await response.aread() == b"ok"
                return there

        there = asyncio.run(go())
        assert len(told) == len(there.pieces) == 3
        for at, (arrived, piece) in zip(told, there.pieces, strict=True):
            assert piece.startswith(b"POST /x HTTP/1.1\r\n") and piece.endswith(b'{"a":1}')
            assert at <= arrived

    def test_a_request_without_a_body_goes_out_as_well(self) -> None:
        async def go() -> Peer:
            async with peer() as there, TargetHttp(there.url) as http:
                assert (await http.fetch("GET", "/y")).body == b"ok"
                return there

        assert [piece[:7] for _, piece in asyncio.run(go()).pieces] == [b"GET /y "]

    def test_nobody_else_is_told(self) -> None:
        told: list[str] = []

        async def go() -> None:
            async with (
                peer() as there,
                TargetHttp(there.url) as http,
                http.open("POST", "/x", payload={}, on_sending=lambda: told.append("mine")) as response,
            ):
                await response.aread()
                await http.fetch("GET", "/y")

        asyncio.run(go())
        assert told == ["mine"]


class Stream:
    """Stands for a network stream."""

    def __init__(self) -> None:
        self.wrote: list[tuple[bytes, float | None]] = []

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as httpcore's
        self.wrote.append((buffer, timeout))


def written(*buffers: bytes) -> list[tuple[bytes, float | None]]:
    """What a stream was given of a request written in these pieces."""
    stream = Stream()
    given = stream.wrote
    sending.whole_requests("connection.connect_tcp.complete", {"return_value": stream})

    async def go() -> None:
        for buffer in buffers:
            await stream.write(buffer, timeout=2.0)

    asyncio.run(go())
    return given


class TestHeld:
    def test_until_its_end(self) -> None:
        assert written(b"head", b"body", b"") == [(b"headbody", 2.0)]
        assert written(b"head", b"body") == []
        assert written(b"") == []

    def test_a_large_body_is_not_kept_back(self) -> None:
        large = b"x" * 300_000
        assert written(b"head", large, b"tail", b"") == [(b"head" + large, 2.0), (b"tail", 2.0)]

    @pytest.mark.parametrize("event", ["connection.connect_tcp.started", "http11.send_request_body.complete"])
    def test_only_new_connections_are_changed(self, event: str) -> None:
        stream = Stream()
        sending.whole_requests(event, {"return_value": stream})
        assert "write" not in vars(stream)
