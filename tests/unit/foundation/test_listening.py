"""The socket a panel listens on."""

from __future__ import annotations

import asyncio
import socket

from app.commands.serve import _bind


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
