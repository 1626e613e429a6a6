"""Real TLS on loopback: who is believed, and what is said when nobody is."""

from __future__ import annotations

import asyncio

import pytest

from app.errors import TargetError
from app.wire.tls import SYSTEM, UNVERIFIED, Tls, context_of
from app.wire.transport import TargetHttp
from tests.support.authorities import Authority
from tests.unit.wire.raw_http import RawServer, reply


@pytest.fixture(scope="module")
def rack() -> Authority:
    return Authority.made()


async def ask(url: str, tls: Tls) -> str:
    """The body of /x, or the sentence that says why there is none."""
    async with TargetHttp(url, tls=tls, connect_timeout=1.0, read_timeout=1.0) as http:
        try:
            return (await http.fetch("GET", "/x")).body.decode()
        except TargetError as error:
            assert error.kind == "tls"
            return error.detail


async def test_its_own_authority_is_believed_and_so_is_anybody_who_need_not_be_verified(rack: Authority) -> None:
    async with RawServer({"GET /x": reply("here")}, tls=rack.serving()) as server:
        assert await ask(server.url, Tls(ca=rack.pem)) == "here"
        assert await ask(server.url, UNVERIFIED) == "here"


async def test_the_systems_authorities_do_not_know_it_and_the_way_out_is_said(rack: Authority) -> None:
    async with RawServer({"GET /x": reply("here")}, tls=rack.serving()) as server:
        said = await ask(server.url, SYSTEM)
        assert "its certificate is not accepted" in said
        assert "give the CA that signed it (tls_ca)" in said
        assert "not accepted" in await ask(server.url, Tls(ca=Authority.made("another CA").pem))
        assert server.seen == []  # nothing was sent: no key can have been read


async def test_a_certificate_for_another_name_or_of_the_past_is_refused(rack: Authority) -> None:
    async with RawServer({"GET /x": reply("here")}, tls=rack.serving("gpu-9.rack")) as server:
        assert "register it by a name that its certificate holds" in await ask(server.url, Tls(ca=rack.pem))
    async with RawServer({"GET /x": reply("here")}, tls=rack.serving(days=-1)) as server:
        said = await ask(server.url, Tls(ca=rack.pem))
        assert "expired" in said
        assert "needs a new certificate" in said


async def test_plain_http_behind_an_https_address_is_named() -> None:
    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(64)
        writer.write(reply("Invalid HTTP request received.", 400))  # as uvicorn answers a TLS greeting
        await writer.drain()

    async with RawServer(on_connect=answers) as server:
        assert "does not speak TLS there" in await ask(server.url.replace("http:", "https:"), UNVERIFIED)


async def test_an_authority_that_cannot_be_used_is_told_by_each_call_and_nothing_is_sent(rack: Authority) -> None:
    async with RawServer({"GET /x": reply("here")}, tls=rack.serving()) as server:
        assert "the file is gone" in await ask(server.url, Tls(problem="the file is gone"))
        assert "tls_ca cannot be used" in await ask(server.url, Tls(ca="-----BEGIN CERTIFICATE-----\nno"))
        assert server.connections == 0


def test_contexts_are_made_once_for_each_text(rack: Authority) -> None:
    assert context_of(Tls(ca=rack.pem)) is context_of(Tls(ca=str(rack.pem)))
    assert context_of(SYSTEM) is context_of(Tls())
    assert context_of(Tls(ca=rack.pem)) is not context_of(Tls(ca=Authority.made("other").pem))
