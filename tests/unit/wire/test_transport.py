"""A target over a real socket: every way to misbehave is one TargetError with the right kind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import socket
import time
import weakref

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidInput, TargetError
from app.wire import greeting
from app.wire.transport import TargetHttp, normalise_base_url
from app.wire.troubles import describe_error
from tests.unit.wire.raw_http import RawServer, Script, chunked, reply

ZMQ_GREETING = b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f"


async def get(url: str, *, read_timeout: float = 0.3, max_bytes: int = 10_000) -> bytes:
    async with TargetHttp(url, connect_timeout=0.5, read_timeout=read_timeout, max_bytes=max_bytes) as http:
        return (await http.fetch("GET", "/x")).body


async def error_of(url: str, **options: float) -> TargetError:
    with pytest.raises(TargetError) as caught:
        await get(url, **options)  # type: ignore[arg-type]
    return caught.value


def send(data: bytes, *, close: bool = True, slowly: float = 0) -> Script:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if slowly:
            for index in range(len(data)):
                writer.write(data[index : index + 1])
                await writer.drain()
                await asyncio.sleep(slowly)
        writer.write(data)
        await writer.drain()
        if not close:
            await asyncio.sleep(30)

    return script


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n")
    while True:
        writer.write(b"x" * 1000)
        await writer.drain()


@pytest.mark.parametrize(
    ("script", "kind", "says"),
    [
        (send(b"+OK what is this\r\n\r\n"), "unreadable", "does not speak HTTP"),
        (send(b""), "closed", "cut off"),
        (send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nabc"), "closed", "cut off"),
        (send(chunked(b"abc", end=False)), "closed", "cut off"),
        (send(b"HTTP/1.1 200 OK\r\ncontent-le", close=False), "timeout", "waited too long"),
        (send(b"HTTP/1.1 200 OK\r\ncontent-length: 200\r\n\r\n" + b"x" * 100, slowly=0.02), "timeout", "longer than"),
        (send(reply(b"x" * 20_000)), "too_large", "more than 10000 bytes"),
        (endless, "too_large", "more than 10000 bytes"),
        (send(reply(gzip.compress(b"x" * 10**7), extra="content-encoding: gzip\r\n")), "unreadable", "encoding"),
    ],
    ids=["not-http", "closed", "cut-body", "cut-chunk", "hanging", "dripping", "large", "endless", "compressed"],
)
async def test_each_misbehaviour_has_its_kind(script: Script, kind: str, says: str) -> None:
    async with RawServer({"GET /x": script}) as server:
        error = await error_of(server.url)
    assert error.kind == kind
    assert says in error.detail
    assert server.url.removeprefix("http://") in error.detail


async def test_nothing_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        error = await error_of(f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert error.kind == "refused"
    assert "only on 127.0.0.1" in error.detail


async def test_an_unknown_host_name() -> None:
    assert (await error_of("http://no-such-host.invalid")).kind == "dns"


async def test_plain_http_behind_an_https_address() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.read(10):
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await writer.drain()

    async with RawServer(on_connect=plain) as server:
        error = await error_of(server.url.replace("http:", "https:"))
    assert error.kind == "tls"


async def test_a_full_backlog_times_out() -> None:
    with socket.socket() as quiet:
        quiet.bind(("127.0.0.1", 0))
        quiet.listen(1)
        error = await error_of(f"http://127.0.0.1:{quiet.getsockname()[1]}")
    assert error.kind == "timeout"


async def test_http_is_never_sent_to_a_zeromq_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """One request there ends an LMCache server's message thread (measured on 0.5.6)."""
    monkeypatch.setattr(greeting, "_LOCAL_WAIT", 2)
    heard: list[bytes] = []

    async def zeromq(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(ZMQ_GREETING)
        await writer.drain()
        heard.append(await reader.read(1000))

    async with RawServer(on_connect=zeromq) as server:
        for scheme in ("http", "https"):
            error = await error_of(f"{scheme}://127.0.0.1:{server.port}")
            assert error.kind == "unreadable"
            assert "ZeroMQ" in error.detail
            assert "8080" in error.detail
            assert error.http_status is None
        await asyncio.sleep(0)
    assert set(heard) <= {b""}


async def test_what_speaks_first_is_no_http_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greeting, "_LOCAL_WAIT", 2)

    async def mail(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail ESMTP\r\n")
        await writer.drain()
        await reader.read()

    async with RawServer(on_connect=mail) as server:
        error = await error_of(server.url)
    assert "speaks first" in error.detail


async def test_an_address_is_listened_to_once_and_again_after_it_was_gone() -> None:
    async with RawServer({"GET /x": reply("a")}) as server:
        port = server.port
        for _ in range(3):
            assert await get(server.url) == b"a"
        assert server.connections == 4  # one only listened
        async with TargetHttp(server.url) as http:
            await asyncio.gather(*(http.fetch("GET", "/x") for _ in range(3)))
        assert server.connections == 7
    assert greeting.speaks_http("127.0.0.1", port)
    assert (await error_of(f"http://127.0.0.1:{port}")).kind == "refused"
    assert not greeting.speaks_http("127.0.0.1", port)


async def test_redirects_are_not_followed() -> None:
    async with RawServer({"GET /x": reply("", 302, extra="location: http://127.0.0.1:1/\r\n")}) as server:
        async with TargetHttp(server.url) as http:
            answer = await http.fetch("GET", "/x")
        assert answer.status == 302
        with pytest.raises(TargetError) as caught:
            answer.ok()
        assert caught.value.http_status == 302


async def test_key_and_headers_go_along_and_nothing_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    async with (
        RawServer({"GET /pre/x": reply("a")}) as server,
        TargetHttp(f"{server.url}/pre/", api_key="k1", headers={"X-Tenant": "t"}) as http,
    ):
        assert (await http.fetch("GET", "/x")).body == b"a"
    assert server.headers[-1]["authorization"] == "Bearer k1"
    assert server.headers[-1]["x-tenant"] == "t"
    assert server.headers[-1]["accept-encoding"] == "identity"


async def test_errors_never_hold_the_key() -> None:
    async with (
        RawServer({"GET /x": reply({"detail": "no"}, 401)}) as server,
        TargetHttp(server.url, api_key="hush-hush") as http,
    ):
        answer = await http.fetch("GET", "/x")
    assert "hush" not in answer.error().detail
    assert "401" in answer.error().detail


async def test_unreadable_answers_carry_their_status() -> None:
    page = reply("<html>", content_type="text/html")
    async with RawServer({"GET /x": page}) as server, TargetHttp(server.url) as http:
        answer = await http.fetch("GET", "/x")
    with pytest.raises(TargetError) as caught:
        answer.json()
    assert (caught.value.kind, caught.value.http_status) == ("unreadable", 200)


async def test_cancelling_a_call_is_not_an_error_of_the_target() -> None:
    asked = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await asyncio.sleep(30)

    async with RawServer({"GET /x": silent}) as server:
        task = asyncio.create_task(get(server.url, read_timeout=5))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"detail":"Not Found"}', "Not Found"),
        (b'{"error":"engine not initialized"}', "engine not initialized"),
        (b'{"status":"unhealthy","reason":"engine not initialized"}', "engine not initialized"),
        (
            b'{"error":{"message":"The model `x`\\n does not exist.","type":"NotFoundError","code":404}}',
            "The model `x` does not exist.",
        ),
        (
            b'{"detail":[{"loc":["body","keys"],"msg":"Field required"},{"msg":"more"}]}',
            "body.keys: Field required; more",
        ),
        (b"<html><h1>502</h1></html>", "a web page, not an API answer"),
        (b"upstream connect error", "upstream connect error"),
        (b"", "no explanation"),
        (b"[1]", "no explanation"),
        (b"\xff\xfe", "\ufffd\ufffd"),
    ],
)
def test_error_bodies_become_one_sentence(body: bytes, says: str) -> None:
    assert describe_error(503, body) == says


@given(st.binary(max_size=200))
def test_any_error_body_becomes_one_line(body: bytes) -> None:
    said = describe_error(500, body)
    assert said
    assert len(said) <= 300
    assert "\n" not in said


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("http://a:8080/", "http://a:8080"),
        (" https://A.example/prefix/ ", "https://A.example/prefix"),
        ("http://[::1]:8080", "http://[::1]:8080"),
    ],
)
def test_addresses_are_normalised(url: str, wanted: str) -> None:
    assert normalise_base_url(url) == wanted


@pytest.mark.parametrize(
    "url",
    [
        "",
        "a:8080",
        "ftp://a",
        "http://",
        "http://u:p@a",
        "http://a?x",
        "http://a#x",
        "http://a:0",
        "http://a:99999",
        "http://a b",
        "http://a\nb",
        "file:///etc/passwd",
    ],
)
def test_other_addresses_are_refused_by_field(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        normalise_base_url(url)
    assert caught.value.errors[0].field == "url"


@given(st.text(max_size=60))
def test_any_address_is_normalised_or_refused(url: str) -> None:
    with contextlib.suppress(InvalidInput):
        assert httpx.URL(normalise_base_url(url)).host


@pytest.mark.parametrize("headers", [{"X\n": "1"}, {"X": "a\r\nb"}, {"X": "ü"}, {"": "x"}, {"a b": "c"}])
def test_headers_that_would_break_the_request_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        TargetHttp("http://a", headers=headers)


async def test_a_plain_client_costs_little_to_make() -> None:
    """Polls make one per target: loading a trust store each time would cost 20 ms."""
    best = 1.0
    for _ in range(5):
        began = time.process_time()
        async with TargetHttp("http://127.0.0.1:9"):
            pass
        best = min(best, time.process_time() - began)
    assert best < 0.005


async def test_another_transport_may_stand_in_for_the_network() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=httpx.ByteStream(b'{"path":"' + request.url.raw_path + b'"}'))

    async with TargetHttp("http://nowhere.invalid", transport=httpx.MockTransport(answer)) as http:
        assert (await http.fetch("GET", "/a")).json() == {"path": "/a"}


async def test_a_call_that_is_given_more_time_may_be_silent_for_as_long() -> None:
    """vLLM's first answer to /server_info collects facts of the host for seconds before its first byte."""

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.5)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nlate")
        await writer.drain()

    async with RawServer({"GET /x": late}) as server, TargetHttp(server.url, read_timeout=0.1) as http:
        assert (await http.fetch("GET", "/x", deadline=60.0)).body == b"late"
        with pytest.raises(TargetError) as caught:
            await http.fetch("GET", "/x")
        assert caught.value.kind == "timeout"


async def test_an_answer_that_was_read_is_gone_without_the_garbage_collector() -> None:
    """With it go connection and buffers: thousands a minute in a panel of a fleet."""
    async with RawServer({"GET /x": send(reply(b"hello"))}) as server, TargetHttp(server.url) as http:
        gc.collect()
        gc.disable()
        try:
            async with http.open("GET", "/x") as response:
                assert b"".join([chunk async for chunk in response.aiter_raw()]) == b"hello"
                answer = weakref.ref(response)
            del response
            assert answer() is None
        finally:
            gc.enable()
