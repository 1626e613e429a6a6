"""TLS of targets: what may be given, how it is stored and shown, and what a real server on loopback makes of it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from textwrap import dedent

import pytest

from app.errors import InvalidInput
from app.fleet import targets_file
from app.fleet.clients import server_client
from app.fleet.probe_schemas import ProbeRequest
from app.fleet.schemas import EngineCreate, EnginePatch, ServerCreate, ServerPatch
from tests.support.authorities import Authority
from tests.unit.fleet.support import Bench
from tests.unit.wire.raw_http import RawServer, capture, reply

URL = "https://10.0.0.7:8080"


@pytest.fixture(scope="module")
def rack() -> Authority:
    return Authority.made()


@pytest.fixture
def ca_file(tmp_path: Path, rack: Authority) -> Path:
    file = tmp_path / "rack.pem"
    file.write_text(rack.pem)
    return file


class TestGiven:
    def test_pem_text_and_files_are_kept_as_given_and_read_when_used(
        self, bench: Bench, rack: Authority, ca_file: Path
    ) -> None:
        server = bench.fleet.create_server(ServerCreate(url=URL, tls_ca=rack.pem), actor="a")
        engine = bench.fleet.create_engine(EngineCreate(url=URL, tls_ca=str(ca_file)), actor="a")
        assert (server.tls.verified_by, server.tls.ca_names) == ("own_ca", ["CN=rack CA"])
        assert engine.tls.ca == str(ca_file)
        assert engine.tls.ca_expires_at is not None
        assert bench.fleet.server_target(int(server.id)).tls.ca == rack.pem.strip()
        assert bench.fleet.engine_target(int(engine.id)).tls.ca == rack.pem
        renewed = Authority.made("new CA")
        ca_file.write_text(renewed.pem)
        assert bench.fleet.engine_target(int(engine.id)).tls.ca == renewed.pem
        assert bench.fleet.get_engine(int(engine.id)).tls.ca_names == ["CN=new CA"]

    def test_a_file_that_is_gone_is_trouble_with_that_target_alone(self, bench: Bench, ca_file: Path) -> None:
        server = bench.fleet.create_server(ServerCreate(url=URL, tls_ca=str(ca_file)), actor="a")
        ca_file.unlink()
        target = bench.fleet.server_target(int(server.id))
        assert target.tls.problem is not None
        assert "cannot be read (No such file" in target.tls.problem
        assert any("cannot be read" in warning for warning in bench.fleet.get_server(int(server.id)).warnings)

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ("rack.pem", "neither PEM text"),
            ("/nowhere/rack.pem", "cannot be read (No such file"),
            ("/tmp", "is not a file"),
            ("-----BEGIN CERTIFICATE-----\nbm8=\n-----END CERTIFICATE-----", "holds no certificate"),
            ("-----BEGIN CERTIFICATE-----", "holds no certificate"),
            ("   ", "is empty"),
        ],
    )
    def test_what_is_no_authority_is_refused_by_name_and_nothing_is_saved(
        self, bench: Bench, given: str, says: str
    ) -> None:
        with pytest.raises(InvalidInput) as refused:
            bench.fleet.create_server(ServerCreate(url=URL, tls_ca=given), actor="a")
        assert refused.value.errors[0].field == "tls_ca"
        assert says in refused.value.errors[0].message
        assert bench.fleet.server_targets() == []

    def test_pipes_private_keys_and_files_without_a_certificate(
        self, bench: Bench, tmp_path: Path, rack: Authority
    ) -> None:
        pipe, plain, large = tmp_path / "pipe", tmp_path / "plain.txt", tmp_path / "large.pem"
        os.mkfifo(pipe)
        plain.write_text("root:x:0")
        large.write_bytes(b"x" * 600_000)
        for given, says in (
            (str(pipe), "is not a file"),
            (str(plain), "holds no certificate"),
            (str(large), "larger than"),
            (rack.pem + rack.key_pem, "holds a private key"),
        ):
            with pytest.raises(InvalidInput, match=says) as refused:
                bench.fleet.create_engine(EngineCreate(url=URL, tls_ca=given), actor="a")
            assert "root:x" not in refused.value.detail
            assert rack.key_pem.splitlines()[1] not in refused.value.detail

    def test_changing_and_taking_it_away(self, bench: Bench, rack: Authority) -> None:
        made = bench.fleet.create_server(ServerCreate(url=URL), actor="a")
        ident = int(made.id)
        assert (made.tls.verified_by, made.warnings) == ("system", [])
        patch = ServerPatch(tls_ca=rack.pem)
        assert bench.fleet.patch_server(ident, patch, actor="a").tls.verified_by == "own_ca"
        open_door = bench.fleet.patch_server(ident, ServerPatch(tls_verify=False), actor="a")
        assert open_door.tls.verified_by == "nobody"
        assert "NOT verified" in open_door.warnings[0]
        assert not bench.fleet.server_target(ident).tls.verify
        back = bench.fleet.patch_server(ident, ServerPatch(tls_verify=True, tls_ca=None), actor="a")
        assert (back.tls.verified_by, back.tls.ca) == ("system", None)
        plain = bench.fleet.patch_server(ident, ServerPatch(url="http://10.0.0.7:8080", tls_verify=False), actor="a")
        assert (plain.tls.verified_by, plain.warnings) == (None, [])
        with pytest.raises(InvalidInput, match="tls_verify"):
            bench.fleet.patch_server(ident, ServerPatch(tls_verify=None), actor="a")
        engine = bench.fleet.create_engine(EngineCreate(url=URL, tls_verify=False), actor="a")
        changed = bench.fleet.patch_engine(int(engine.id), EnginePatch(tls_verify=True, tls_ca=rack.pem), actor="a")
        assert changed.tls.verified_by == "own_ca"

    def test_an_authority_that_has_expired_is_said(self, bench: Bench) -> None:
        old = Authority.made(days=-1)
        bench.clock.now = old.certificate.not_valid_after_utc.timestamp() + 5
        view = bench.fleet.create_server(ServerCreate(url=URL, tls_ca=old.pem), actor="a")
        assert "the CA has expired" in view.warnings[0]


async def test_a_real_server_with_its_own_authority(bench: Bench, rack: Authority) -> None:
    routes = {
        "GET /": reply(b'{"status":"ok","service":"LMCache HTTP API"}'),
        "GET /status": reply(capture("server-with-engine/status.json")),
    }
    async with RawServer(routes, tls=rack.serving()) as server:
        view = await asyncio.to_thread(
            lambda: bench.fleet.create_server(ServerCreate(url=server.url, tls_ca=rack.pem), actor="a")
        )
        async with server_client(bench.fleet.server_target(int(view.id))) as client:
            assert (await client.status()).is_healthy is not None
        found = await asyncio.to_thread(lambda: bench.fleet.probe(ProbeRequest(url=server.url, tls_ca=rack.pem)))
        assert found.kind == "lmcache_http"
        lost = await asyncio.to_thread(lambda: bench.fleet.probe(ProbeRequest(url=server.url)))
        assert lost.kind == "nothing"
        assert "give the CA that signed its certificate" in lost.detail
        anyhow = await asyncio.to_thread(lambda: bench.fleet.probe(ProbeRequest(url=server.url, tls_verify=False)))
        assert anyhow.kind == "lmcache_http"


class TestTargetsFile:
    def declare(self, bench: Bench, tmp_path: Path, ca: str, verify: str = "true") -> targets_file.Report:
        file = tmp_path / "targets.yaml"
        file.write_text(
            dedent(
                f"""
                servers:
                  - name: rack-1
                    url: {URL}
                    tls_ca: {ca}
                engines:
                  - name: rack-1-engine
                    url: https://10.0.0.7:8000
                    tls_verify: {verify}
                """
            )
        )
        return targets_file.apply(bench.fleet, file)

    def test_it_is_applied_kept_and_changed(self, bench: Bench, tmp_path: Path, ca_file: Path) -> None:
        assert self.declare(bench, tmp_path, str(ca_file)).created == {
            "server": ["rack-1"],
            "engine": ["rack-1-engine"],
        }
        assert self.declare(bench, tmp_path, str(ca_file)).unchanged == {
            "server": ["rack-1"],
            "engine": ["rack-1-engine"],
        }
        report = self.declare(bench, tmp_path, str(ca_file), "false")
        assert (report.changed, report.unchanged) == ({"engine": ["rack-1-engine"]}, {"server": ["rack-1"]})
        assert bench.fleet.list_engines(page_size=9, page_token=None).items[0].tls.verified_by == "nobody"

    def test_a_file_that_is_missing_is_named_with_its_line(self, bench: Bench, tmp_path: Path) -> None:
        with pytest.raises(InvalidInput, match=r"targets\.yaml line 5, servers\[0\]\.tls_ca: the file '/no/ca\.pem'"):
            self.declare(bench, tmp_path, "/no/ca.pem")
