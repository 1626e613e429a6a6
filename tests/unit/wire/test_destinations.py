"""A name that leads to a forbidden address when it is used, whatever it led to when it was entered."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

import httpx
import pytest

from app.acceptance.hooks import HookFailed, HookTarget, run_action
from app.alerts.delivery import Destination, Sender
from app.alerts.messages import Message
from app.errors import TargetError
from app.wire import destinations
from app.wire.transport import TargetHttp
from tests.unit.wire.raw_http import RawServer, reply


@pytest.fixture
def rebound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback plays the metadata service: `localhost` is a name that leads to it."""
    monkeypatch.setattr(destinations, "_METADATA", frozenset({ipaddress.ip_address("127.0.0.1")}))


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    destinations.allow_link_local(False)
    yield
    destinations.allow_link_local(False)


async def test_a_name_that_leads_to_a_metadata_address_gets_no_byte(rebound: None) -> None:
    async with RawServer({"GET /status": reply({})}) as raw:
        async with TargetHttp(f"http://localhost:{raw.port}") as http:
            with pytest.raises(TargetError, match="forbidden") as caught:
                await http.fetch("GET", "/status")
        assert caught.value.kind == "refused"
        assert raw.seen == []


async def test_it_may_where_the_setting_allows_it(rebound: None) -> None:
    destinations.allow_link_local(True)
    async with (
        RawServer({"GET /status": reply({"ok": True})}) as raw,
        TargetHttp(f"http://localhost:{raw.port}") as http,
    ):
        assert (await http.fetch("GET", "/status")).json() == {"ok": True}


async def test_nor_does_a_restart_hook(rebound: None) -> None:
    async with RawServer({"POST /restart": reply({})}) as raw:
        action = {"webhook": f"http://localhost:{raw.port}/restart"}

        async def nobody(_target: HookTarget) -> None: ...

        with pytest.raises(HookFailed, match="forbidden"):
            await run_action(action, HookTarget("server", "lmc", "http://x"), seconds=10, ask_operator=nobody)
        assert raw.seen == []


async def test_an_endless_answer_to_a_restart_hook_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async with RawServer({"POST /restart": reply(b"x" * 200_000)}) as raw:

        async def nobody(_target: HookTarget) -> None: ...

        with pytest.raises(HookFailed, match="more than 65536 bytes"):
            await run_action(
                {"webhook": f"{raw.url}/restart"}, HookTarget("server", "lmc", "x"), seconds=30, ask_operator=nobody
            )


@pytest.mark.parametrize(
    "address",
    [
        *("169.254.169.254", "169.254.0.9", "fe80::1", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "fd00:ec2::254"),
        *("::a9fe:a9fe", "64:ff9b:1::a9fe:a9fe", "::ffff:0:169.254.169.254"),
    ],
)
def test_every_way_of_writing_it(address: str) -> None:
    with pytest.raises(TargetError, match="forbidden"):
        destinations.check_peer(address)


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.7", "2001:db8::1", "/run/x.sock", ""])
def test_what_is_allowed(address: str) -> None:
    destinations.check_peer(address)


def test_a_webhook_gets_no_byte_either(rebound: None) -> None:
    class Stream:
        closed = False

        def get_extra_info(self, _name: str) -> tuple[str, int]:
            return ("127.0.0.1", 80)

        def close(self) -> None:
            self.closed = True

    stream = Stream()
    with pytest.raises(TargetError):
        destinations.guard_sync("connection.connect_tcp.complete", {"return_value": stream})
    assert stream.closed

    class Network(httpx.BaseTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            request.extensions["trace"]("connection.connect_tcp.complete", {"return_value": Stream()})
            raise AssertionError("it went on after the guard")

    sender = Sender(resolve=lambda _host: [], transport=Network())
    message = Message("test", "info", "title", "body", {"id": "1"})
    sent = sender.send(Destination("webhook", "http://alerts.example/x"), [message])
    assert (sent.ok, "forbidden" in sent.detail) == (False, True)
