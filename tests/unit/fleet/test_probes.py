"""What a probe says: judged from captured answers, and over real sockets where nothing or something odd answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from app.errors import InvalidInput, TargetError
from app.fleet.addresses import parse_address
from app.fleet.probes import Findings, judge
from app.fleet.schemas import EngineCreate, ProbeRequest, ServerCreate
from app.lmcache.metrics import parse_metrics, server_metrics
from app.lmcache.status import parse_status
from app.vllm.metrics import engine_metrics
from tests.unit.fleet.support import Bench
from tests.unit.telemetry.support import captured_engine, captured_server

ADDRESS = parse_address("http://gpu-1:9090")
MISSING = TargetError("http", "GET http://gpu-1:9090/status answered 404: Not Found", http_status=404)


def server_found(**changes: object) -> Findings:
    fake = captured_server()
    text = fake.answers["/metrics"]
    assert not isinstance(text, Exception)
    found = Findings(
        greeting="LMCache HTTP API",
        status=parse_status(fake.json("/status")),
        server_version="0.5.6",
        server_metrics=server_metrics(parse_metrics(text[2], text[1])),
    )
    return replace(found, **changes)  # type: ignore[arg-type]


def engine_found(**changes: object) -> Findings:
    text = captured_engine().answers["/metrics"]
    assert not isinstance(text, Exception)
    found = Findings(
        engine_version="0.32.0",
        model_names=("/models/tiny-llama",),
        engine_metrics=engine_metrics(parse_metrics(text[2], text[1])),
    )
    return replace(found, **changes)  # type: ignore[arg-type]


class TestJudge:
    def test_a_cache_server(self) -> None:
        view = judge(ADDRESS, server_found())
        assert (view.kind, view.register_as, view.suggested_url) == ("lmcache_http", "server", "http://gpu-1:9090")
        assert (view.version, view.model_names) == ("0.5.6", ["/models/tiny-llama"])

    def test_a_cache_server_that_pushes_its_metrics(self) -> None:
        view = judge(ADDRESS, server_found(server_metrics=None, errors={"/metrics": MISSING}))
        assert view.kind == "lmcache_http"
        assert "no hit rate" in view.detail

    def test_its_prometheus_port_alone(self) -> None:
        view = judge(ADDRESS, server_found(greeting=None, status=None, errors={"/status": MISSING}))
        assert (view.kind, view.register_as) == ("lmcache_prometheus_only", None)
        assert view.suggested_url == "http://gpu-1:8080"
        assert "404" in view.evidence[1]

    def test_a_coordinator(self) -> None:
        view = judge(ADDRESS, Findings(greeting="LMCache Coordinator"))
        assert (view.kind, view.register_as) == ("lmcache_coordinator", None)

    def test_engines(self) -> None:
        attached = judge(ADDRESS, engine_found())
        assert (attached.kind, attached.register_as) == ("vllm_with_connector", "engine")
        assert "Dev mode is off" in attached.detail
        metrics = engine_found().engine_metrics
        assert metrics is not None
        plain = judge(ADDRESS, engine_found(engine_metrics=replace(metrics, lookup_seconds_count=None)))
        assert plain.kind == "vllm"
        assert "No KV connector" in plain.detail
        inside = replace(metrics, lookup_seconds_count=None, in_process={"lmcache:num_hit_tokens_total": 1.0})
        view = judge(ADDRESS, engine_found(engine_metrics=inside))
        assert view.kind == "vllm_with_connector"
        assert "runs inside it" in view.detail

    @pytest.mark.parametrize(
        ("kind", "words"),
        [("refused", "Nothing listens"), ("dns", "host name"), ("timeout", "5555 is ZMQ"), ("tls", "http:// instead")],
    )
    def test_nothing(self, kind: str, words: str) -> None:
        view = judge(ADDRESS, Findings(errors={"/": TargetError(kind, "why")}))
        assert (view.kind, view.register_as, view.evidence) == ("nothing", None, ["why"])
        assert words in view.detail

    def test_something_else(self) -> None:
        view = judge(ADDRESS, Findings(errors={"/status": MISSING}))
        assert (view.kind, view.suggested_url) == ("other", None)


@pytest.fixture
def odd_port() -> Iterator[int]:
    """Something that answers, but does not speak HTTP."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(10)

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.sendall(b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x00NULL\r\n\r\n")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(5)


class TestProbe:
    def test_a_port_that_does_not_speak_http(self, bench: Bench, odd_port: int) -> None:
        view = bench.fleet.probe(ProbeRequest(url=f"http://127.0.0.1:{odd_port}"))
        assert (view.kind, view.register_as) == ("other", None)
        assert view.evidence

    def test_nothing_listens(self, bench: Bench) -> None:
        with socket.socket() as reserved:
            reserved.bind(("127.0.0.1", 0))
            view = bench.fleet.probe(ProbeRequest(url=f"http://127.0.0.1:{reserved.getsockname()[1]}"))
        assert view.kind == "nothing"

    def test_forbidden_addresses_are_not_asked(self, bench: Bench) -> None:
        with pytest.raises(InvalidInput, match="link-local"):
            bench.fleet.probe(ProbeRequest(url="http://169.254.169.254"))


class TestAdvice:
    """What is told when an address was saved behind which something else answers."""

    def test_an_engine_entered_as_a_server(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bench.fleet, "probe", lambda body: judge(ADDRESS, engine_found()))
        told = bench.fleet.advice("server", ServerCreate(url=ADDRESS.url))
        assert told is not None
        assert "this is no address of a cache server: a vLLM engine" in told
        assert "Add this address as an engine, and forget it here." in told
        assert bench.fleet.advice("engine", EngineCreate(url=ADDRESS.url)) is None

    def test_a_server_entered_as_an_engine(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bench.fleet, "probe", lambda body: judge(ADDRESS, server_found()))
        assert "Add this address as a cache server" in (
            bench.fleet.advice("engine", EngineCreate(url=ADDRESS.url)) or ""
        )
        assert bench.fleet.advice("server", ServerCreate(url=ADDRESS.url)) is None

    def test_something_odd_and_nothing(self, bench: Bench, odd_port: int) -> None:
        told = bench.fleet.advice("server", ServerCreate(url=f"http://127.0.0.1:{odd_port}"))
        assert "something else answers there" in (told or "")
        with socket.socket() as reserved:
            reserved.bind(("127.0.0.1", 0))
            down = ServerCreate(url=f"http://127.0.0.1:{reserved.getsockname()[1]}")
            assert bench.fleet.advice("server", down) is None
