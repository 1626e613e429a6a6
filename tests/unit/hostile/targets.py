"""Cache servers and engines that mean harm, on real sockets: one way of misbehaving each."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Self

from tests.unit.wire.raw_http import CAPTURES, capture, reply

#: In every string that a server or engine may say.
SCRIPT = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>{{7*7}}"
#: What must never stand on a page as it is.
LIVE = ("<script>alert(1)", "<img src=x", "49\"'>")

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


def _spoiled(value: object, key: str = "") -> object:
    """A JSON value with the script in every string; words that decide what is read at all stay."""
    if isinstance(value, dict):
        return {k: _spoiled(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [_spoiled(v, key) for v in value]
    return f"{value}{SCRIPT}" if isinstance(value, str) else value


def _spoiled_metrics(text: str) -> str:
    inside = SCRIPT.replace("\\", "\\\\").replace('"', '\\"')
    return "\n".join(
        line if line.startswith("#") or '="' not in line else line.replace('="', f'="{inside}', 1)
        for line in text.splitlines()
    ).replace("# HELP ", f"# HELP x{SCRIPT} ")


def script_pages() -> Mapping[str, bytes]:
    """What a server and an engine said when they were well, with the script in every string."""
    folder = CAPTURES / "server-with-engine"

    def spoiled(name: str) -> bytes:
        return reply(json.dumps(_spoiled(json.loads(capture(name)))))

    plain = "text/plain; charset=utf-8"
    server = _spoiled_metrics((folder / "after-traffic.metrics.txt").read_text())
    engine = _spoiled_metrics(capture("engine/with-lmcache.metrics.txt").decode())
    return {
        "/": spoiled("server-with-engine/root.json"),
        "/healthcheck": spoiled("server-with-engine/healthcheck.json"),
        "/status": spoiled("server-with-engine/after-traffic.status.json"),
        "/config": spoiled("server-with-engine/after-traffic.config.json"),
        "/config/adapters": spoiled("server-with-engine/config_adapters.json"),
        "/metrics": reply(server + "\n" + engine, content_type=plain),
        "/version": reply(json.dumps({"version": f"0.5.6{SCRIPT}"})),
        "/v1/models": spoiled("engine/with-lmcache.v1_models.json"),
        "/server_info": spoiled("engine/with-lmcache.server_info.json"),
    }


async def malformed(writer: asyncio.StreamWriter) -> None:
    writer.write(reply(b'{"is_healthy": tru\xff\xfe', content_type="application/json"))


async def not_http(writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x00\x01\x02SSH-2.0-nothing\r\n" * 40)


async def lying_length(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n{}")


async def deep(writer: asyncio.StreamWriter) -> None:
    writer.write(reply(b"[" * 200_000 + b"]" * 200_000))


async def bomb(writer: asyncio.StreamWriter) -> None:
    writer.write(reply(b"\x1f\x8b\x08" + b"\x00" * 4096, extra="content-encoding: gzip\r\n"))


async def endless(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n")
    piece = b"x" * 65536
    while True:
        writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        await writer.drain()


async def endless_head(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"x-more: " + b"y" * 8000 + b"\r\n")
        await writer.drain()


async def dripping(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"1\r\n{\r\n")
        await writer.drain()
        await asyncio.sleep(0.2)


async def silent(_writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


MISBEHAVIOURS: dict[str, Answer] = {
    f.__name__: f for f in (malformed, not_http, lying_length, deep, bomb, endless, endless_head, dripping, silent)
}


class HostileHost:
    """Every misbehaviour on a port of its own, plus `script` and `redirecting`, in a thread of their own.

    `asked[name]` lists the paths asked of each; the honeypot is where `redirecting` sends people.
    """

    def __init__(self) -> None:
        self.urls: dict[str, str] = {}
        self.asked: dict[str, list[str]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="hostile", daemon=True)
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(30)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _start(self) -> None:
        pages = script_pages()

        async def nothing(writer: asyncio.StreamWriter) -> None:
            writer.write(reply({"secret": "found"}))

        await self._listen("honeypot", lambda _path: nothing)
        target = self.urls["honeypot"]

        async def away(writer: asyncio.StreamWriter) -> None:
            writer.write(reply(b"", 307, extra=f"location: {target}/latest/meta-data\r\n"))

        def scripted(path: str) -> Answer:
            async def answer(writer: asyncio.StreamWriter) -> None:
                writer.write(pages.get(path, reply({"detail": SCRIPT}, 404)))

            return answer

        await self._listen("redirecting", lambda _path: away)
        for name in ("script", "script-engine"):
            await self._listen(name, scripted)
        for name, misbehave in MISBEHAVIOURS.items():
            for role in (name, f"{name}-engine"):
                await self._listen(role, lambda _path, m=misbehave: m)  # type: ignore[misc]

    async def _listen(self, name: str, answer: Callable[[str], Answer]) -> None:
        asked = self.asked.setdefault(name, [])

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                while True:
                    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                    path = head.split(" ", 2)[1].partition("?")[0]
                    asked.append(path)
                    await answer(path)(writer)
                    await writer.drain()
            except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                pass
            finally:
                self._tasks.discard(task)
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self._servers.append(server)
        self.urls[name] = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _stop(self) -> None:
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
