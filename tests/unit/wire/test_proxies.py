"""Proxies of the environment: whom they are for, that nothing goes around them, and that they open no door."""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import Iterator
from typing import Any, Self
from urllib.parse import urlsplit

import pytest

from app.acceptance.hooks import HookFailed, HookTarget, run_action
from app.alerts.delivery import Destination, Sender
from app.alerts.messages import Message
from app.errors import TargetError
from app.wire import destinations, greeting
from app.wire.proxies import proxy_of
from app.wire.transport import TargetHttp
from tests.unit.wire.raw_http import RawServer, reply

REAL = socket.getaddrinfo


class Proxy:
    """A proxy of HTTP and of tunnels. Whatever host is asked for, the one at 127.0.0.1 with that port answers."""

    def __init__(self, *, tunnels: bool = True, password: str | None = None) -> None:
        self._tunnels, self._password = tunnels, password
        self.asked: list[str] = []
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            method, target, _ = head.split(b"\r\n")[0].decode().split(" ")
            self.asked.append(f"{method} {target}")
            wanted = self._password and base64.b64encode(self._password.encode()).decode()
            if wanted and f"Basic {wanted}" not in head.decode():
                writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n")
            elif method == "CONNECT" and not self._tunnels:
                writer.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n")
            else:
                await self._pass_on(method, target, head, reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _pass_on(
        self, method: str, target: str, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        port = int(target.rpartition(":")[2]) if method == "CONNECT" else urlsplit(target).port
        other, to_other = await asyncio.open_connection("127.0.0.1", port)
        if method == "CONNECT":
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            path = urlsplit(target).path
            to_other.write(head.replace(target.encode(), path.encode(), 1))
        await asyncio.wait([asyncio.create_task(_pump(other, writer)), asyncio.create_task(_pump(reader, to_other))])
        to_other.close()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
        sink.write_eof()
    except OSError:
        pass


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`*.test` is known to nobody here, as behind a proxy; what an address spoke before is forgotten."""

    def lookup(host: Any, *rest: Any, **options: Any) -> Any:
        if str(host).endswith(".test"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return REAL(host, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    greeting._proven.clear()
    yield
    greeting._proven.clear()


class TestWhomTheyAreFor:
    @pytest.mark.parametrize(
        ("url", "environment", "name"),
        [
            ("http://lmc.test:8080", {"http": "http://proxy:3128"}, "proxy:3128"),
            ("http://lmc.test:8080", {"http": "proxy:3128"}, "proxy:3128"),
            ("http://lmc.test:8080", {"https": "http://proxy:3128"}, None),
            ("https://lmc.test", {"https": "http://user:word@proxy"}, "proxy:80"),
            ("http://lmc.test:8080", {"all": "https://proxy"}, "proxy:443"),
            ("http://lmc.test:8080", {"http": "http://proxy:3128", "no": "lmc.test"}, None),
            ("http://lmc.test:8080", {"http": "http://proxy:3128", "no": "other, .test"}, None),
            ("http://lmc.test:8080", {"http": "http://proxy:3128", "no": "lmc.test:8081"}, "proxy:3128"),
            ("http://lmc.test:8080", {"http": "http://proxy:3128", "no": "*"}, None),
            ("http://10.1.2.3:8080", {"http": "http://proxy:3128", "no": "10.0.0.0/8"}, None),
            ("http://11.1.2.3:8080", {"http": "http://proxy:3128", "no": "10.0.0.0/8"}, "proxy:3128"),
            # Nobody's proxy reaches our own loopback.
            ("http://127.0.0.1:8080", {"http": "http://proxy:3128"}, None),
            ("http://127.1.2.3:8080", {"http": "http://proxy:3128"}, None),
            ("http://localhost:8080", {"all": "http://proxy:3128"}, None),
            ("http://[::1]:8080", {"http": "http://proxy:3128"}, None),
            ("http://lmc.test:8080", {}, None),
        ],
    )
    def test_by_the_rules_of_the_environment(self, url: str, environment: dict[str, str], name: str | None) -> None:
        found = proxy_of(url, environment)
        assert (found and found.name) == name

    @pytest.mark.parametrize("proxy", ["socks5://user:hidden@proxy:1080", "http://:hidden@", "http://[::1:hidden"])
    def test_one_that_cannot_be_used_is_said_and_shows_no_password(self, proxy: str) -> None:
        with pytest.raises(TargetError, match="NO_PROXY") as caught:
            proxy_of("http://lmc.test:8080", {"all": proxy})
        assert "hidden" not in str(caught.value.detail)


class TestTargets:
    async def test_a_name_only_the_proxy_knows_is_reached(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with RawServer({"GET /status": reply({"ok": True})}) as raw, Proxy() as proxy:
            monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
            async with TargetHttp(f"http://lmc.test:{raw.port}") as http:
                assert (await http.fetch("GET", "/status")).json() == {"ok": True}
            # Listened to first, through a tunnel; then asked.
            assert proxy.asked == [f"CONNECT lmc.test:{raw.port}", f"GET http://lmc.test:{raw.port}/status"]

    async def test_a_message_port_behind_a_proxy_gets_no_byte(self, monkeypatch: pytest.MonkeyPatch) -> None:
        got: list[bytes] = []

        async def greets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f")
            got.append(await reader.read(100))

        async with RawServer(on_connect=greets) as raw, Proxy() as proxy:
            monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
            async with TargetHttp(f"http://lmc.test:{raw.port}") as http:
                with pytest.raises(TargetError, match="ZeroMQ port"):
                    await http.fetch("GET", "/status")
        assert b"".join(got) == b""

    async def test_where_nobody_may_listen_nothing_is_asked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with RawServer({"GET /status": reply({})}) as raw, Proxy(tunnels=False) as proxy:
            monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
            async with TargetHttp(f"http://lmc.test:{raw.port}") as http:
                with pytest.raises(TargetError, match=r"403 Forbidden.*allow CONNECT.*NO_PROXY") as caught:
                    await http.fetch("GET", "/status")
            assert caught.value.kind == "refused"
            assert raw.seen == []

    async def test_trouble_behind_a_proxy_names_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            port = nobody.getsockname()[1]
        monkeypatch.setenv("http_proxy", f"http://me:s3cret@127.0.0.1:{port}")
        async with TargetHttp("http://lmc.test:8080") as http:
            with pytest.raises(TargetError) as caught:
                await http.fetch("GET", "/status")
        assert f"by way of the proxy 127.0.0.1:{port}; NO_PROXY" in caught.value.detail
        assert "s3cret" not in caught.value.detail

    async def test_its_password_is_sent_and_never_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with RawServer({"GET /status": reply({"ok": 1})}) as raw, Proxy(password="me:s3cret/") as proxy:
            monkeypatch.setenv("http_proxy", f"http://me:s3cret%2F@127.0.0.1:{proxy.port}")
            async with TargetHttp(f"http://lmc.test:{raw.port}") as http:
                assert (await http.fetch("GET", "/status")).json() == {"ok": 1}
            greeting._proven.clear()
            monkeypatch.setenv("http_proxy", f"http://me:wr0ng@127.0.0.1:{proxy.port}")
            async with TargetHttp(f"http://lmc.test:{raw.port}") as http:
                with pytest.raises(TargetError, match="407") as caught:
                    await http.fetch("GET", "/status")
            assert "wr0ng" not in caught.value.detail

    async def test_what_is_listed_is_asked_directly(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with RawServer({"GET /status": reply({"ok": True})}) as raw, Proxy() as proxy:
            monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
            async with TargetHttp(raw.url) as http:
                assert (await http.fetch("GET", "/status")).json() == {"ok": True}
            assert proxy.asked == []

    async def test_a_proxy_is_no_way_around_what_is_forbidden(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("169.254.169.254", 0))
        monkeypatch.setattr(socket, "getaddrinfo", lambda host, *_, **__: [found] if "example" in str(host) else [])
        destinations.allow_link_local(False)
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
        async with TargetHttp("http://metadata.example") as http:
            with pytest.raises(TargetError, match="forbidden"):
                await http.fetch("GET", "/latest")


class TestWebhooks:
    async def test_a_restart_hook_and_a_message_go_by_the_proxy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with RawServer({"POST /restart": reply({}), "POST /alarm": reply({})}) as raw, Proxy() as proxy:
            monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")

            async def nobody(_target: HookTarget) -> None: ...

            action = {"webhook": f"http://ops.test:{raw.port}/restart"}
            told = await run_action(action, HookTarget("server", "lmc", "x"), seconds=30, ask_operator=nobody)
            assert told == "the webhook answered 200"
            sender = Sender(allow_link_local=False, resolve=lambda _host: [])
            message = Message(event="test", severity="info", title="a", body="b", alert={})
            sent = await asyncio.to_thread(
                sender.send, Destination("webhook", f"http://ops.test:{raw.port}/alarm", {}), [message]
            )
            assert sent.ok, sent
            assert proxy.asked == [
                f"POST http://ops.test:{raw.port}/restart",
                f"POST http://ops.test:{raw.port}/alarm",
            ]

    async def test_one_that_cannot_be_used_is_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("all_proxy", "socks5://proxy:1080")

        async def nobody(_target: HookTarget) -> None: ...

        with pytest.raises(HookFailed, match="no HTTP proxy"):
            await run_action(
                {"webhook": "http://ops.test/restart"}, HookTarget("server", "lmc", "x"), seconds=5, ask_operator=nobody
            )
