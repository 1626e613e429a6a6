"""`tierkeeper target`: what it registers is what pages and API show, and what it refuses names the option."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli import cli
from app.errors import InvalidInput, NotFound
from app.sandbox import SandboxThread
from tests.support.authorities import Authority


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    monkeypatch.setenv("TIERKEEPER_DATA_DIR", str(tmp_path / "panel"))

    def call(*arguments: str) -> str:
        return CliRunner().invoke(cli, ["target", *arguments], catch_exceptions=False, standalone_mode=False).stdout

    return call


def test_a_server_an_engine_and_a_store(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("RACK_KEY", "s3cret")
    added = ("--name", "rack", "--label", "zone=b", "--header", "X-Tenant=research", "--api-key-env", "RACK_KEY")
    assert run("add", "server", "http://cache.example:8080/", *added) == "server 1: rack\n"
    assert run("add", "engine", "http://gpu.example:8000", "--server", "rack") == "engine 1: gpu.example\n"
    store = tmp_path / "kv"
    store.mkdir()
    made = json.loads(run("add", "store", str(store), "--server", "1", "--confirm", "--json"))
    assert (made["server_ids"], made["path"]) == (["1"], str(store))
    listed = json.loads(run("list", "--json"))
    server = listed["servers"][0]
    assert (server["url"], server["labels"]) == ("http://cache.example:8080", {"zone": "b"})
    assert (server["has_api_key"], server["header_names"]) == (True, ["X-Tenant"])
    assert "s3cret" not in json.dumps(listed)
    assert (listed["engines"][0]["server_id"], listed["engines"][0]["server_link"]) == ("1", "given")
    assert run("list", "server") == "server 1\track\thttp://cache.example:8080\tzone=b\n"
    assert run("forget", "engine", "gpu.example") == "engine 1 forgotten\n"
    assert json.loads(run("list", "engine", "--json")) == {"engines": []}


def test_whose_certificates_are_believed(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "ca.pem").write_text(Authority.made("rack CA").pem)
    monkeypatch.chdir(tmp_path)
    made = json.loads(run("add", "server", "https://cache.example:8080", "--tls-ca", "ca.pem", "--json"))
    assert made["tls"]["ca"] == str(tmp_path / "ca.pem")
    assert made["tls"]["ca_names"] == ["CN=rack CA"]
    made = json.loads(run("add", "engine", "https://gpu.example:8000", "--no-tls-verify", "--json"))
    assert made["tls"]["verified_by"] == "nobody"


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("add", "rack", "http://a:1"), "KIND"),
        (("add", "server", "http://a:1", "--label", "zone"), "--label"),
        (("add", "server", "http://a:1", "--server", "x"), "--server"),
        (("add", "server", "http://a:1", "--api-key-env", "NOT_SET_ANYWHERE"), "--api-key-env"),
        (("add", "server", ""), "ADDRESS"),
        (("add", "store", "/srv/kv", "--header", "A=b"), "--header"),
        (("add", "store", "/srv/kv", "--no-tls-verify"), "--header"),
        (("add", "server", "https://a:1", "--tls-ca", "/no/ca.pem"), "tls_ca"),
        (("add", "engine", "http://a:1", "--server", "x", "--server", "y"), "--server"),
        (("change", "server", "x", "--server", "y"), "--server"),
        (("change", "store", "x", "--address", "/srv/other"), "--address"),
        (("probe", "http://a:1", "--header", "A"), "--header"),
        (("probe", "http://169.254.169.254"), "ADDRESS"),
    ],
)
def test_what_cannot_be_used_names_the_option(run, arguments: tuple[str, ...], field: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidInput) as caught:
        run(*arguments)
    assert field in {error.field for error in caught.value.errors}


def test_nothing_by_that_name(run) -> None:  # type: ignore[no-untyped-def]
    run("add", "server", "http://a:1")
    with pytest.raises((NotFound, InvalidInput)):
        run("forget", "server", "nobody")


def test_a_change_leaves_what_is_not_named(run) -> None:  # type: ignore[no-untyped-def]
    run("add", "server", "http://a:1", "--name", "rack", "--label", "zone=b", "--label", "gpu=h100")
    run("add", "server", "http://b:1", "--name", "other")
    run("add", "engine", "http://a:2", "--name", "e")
    assert run("change", "server", "rack", "--label", "zone=c", "--rename", "rack-1") == "server 1: rack-1\n"
    assert json.loads(run("list", "server", "--json"))["servers"][1]["labels"] == {"gpu": "h100", "zone": "c"}
    run("change", "server", "rack-1", "--drop-label", "gpu", "--address", "http://a:3")
    assert run("list", "server", "--label", "zone=c") == "server 1\track-1\thttp://a:3\tzone=c\n"
    engine = json.loads(run("change", "engine", "e", "--server", "other", "--json"))
    assert (engine["server_id"], engine["server_link"]) == ("2", "given")


@pytest.mark.parametrize(
    ("arguments", "field"),
    [(("--drop-label", "gpu"), "--drop-label"), ((), "--label"), (("--address", "not an address"), "url")],
)
def test_a_change_that_cannot_be_made(run, arguments: tuple[str, ...], field: str) -> None:  # type: ignore[no-untyped-def]
    run("add", "server", "http://a:1", "--name", "rack")
    with pytest.raises(InvalidInput) as caught:
        run("change", "server", "rack", *arguments)
    assert field in {error.field for error in caught.value.errors}


def test_a_probe_says_what_is_there_and_saves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERKEEPER_DATA_DIR", str(tmp_path / "panel"))
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
        found = CliRunner().invoke(cli, ["target", "probe", address])
        assert (found.exit_code, found.stdout.partition(".")[0]) == (3, "Nothing answers there")
    with SandboxThread(tmp_path / "box") as box:
        url = box.server_url
        found = CliRunner().invoke(cli, ["target", "probe", url])
        assert found.exit_code == 0
        assert f"register it: tierkeeper target add server {url}\n" in found.stdout
        assert json.loads(CliRunner().invoke(cli, ["target", "probe", url, "--json"]).stdout)["kind"] == "lmcache_http"
    assert not (tmp_path / "panel").exists()
