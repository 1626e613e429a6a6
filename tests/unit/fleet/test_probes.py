"""What a probe says: judged from captured answers, and over real sockets where nothing or something odd answers."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from app.errors import InvalidInput, TargetError
from app.fleet.addresses import parse_address
from app.fleet.probe_schemas import ProbeRequest
from app.fleet.probes import Findings, judge
from app.fleet.schemas import EngineCreate, ServerCreate
from app.lmcache.metrics import parse_metrics, server_metrics
from app.lmcache.status import parse_status
from app.vllm.facts import EngineFacts
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

    def test_a_coordinator_names_the_cache_servers_to_enter_instead(self) -> None:
        members = (("10.0.0.5", 8080), ("fd00::7", 8081), ("cache-b", 8080), ("10.0.0.5", 8080), ("a b", 1))
        view = judge(ADDRESS, Findings(members=members, errors={"/": MISSING, "/status": MISSING}))
        assert (view.kind, view.register_as) == ("lmcache_coordinator", None)
        assert view.suggested_urls == ["http://10.0.0.5:8080", "http://[fd00::7]:8081", "http://cache-b:8080"]
        assert view.suggested_url == "http://10.0.0.5:8080"
        assert "holds no cache" in view.detail

    def test_a_coordinator_beside_its_servers_or_without_any(self) -> None:
        beside = judge(ADDRESS, Findings(members=(("127.0.0.1", 8080), ("0.0.0.0", 8081))))
        assert beside.suggested_urls == ["http://gpu-1:8080", "http://gpu-1:8081"]
        alone = judge(ADDRESS, Findings(members=()))
        assert (alone.kind, alone.suggested_url, alone.suggested_urls) == ("lmcache_coordinator", None, [])
        assert "by default port 8080" in alone.detail
        assert "None is registered" in alone.detail

    def test_engines(self) -> None:
        attached = judge(ADDRESS, engine_found())
        assert (attached.kind, attached.register_as) == ("vllm_with_connector", "engine")
        assert "Dev mode is off" in attached.detail
        metrics = engine_found().engine_metrics
        assert metrics is not None
        plain = judge(ADDRESS, engine_found(engine_metrics=replace(metrics, lookup_seconds_count=None)))
        assert plain.kind == "vllm"
        assert "No KV connector" in plain.detail

    def test_an_engine_with_lmcache_inside(self) -> None:
        metrics = engine_found().engine_metrics
        assert metrics is not None
        bare = replace(metrics, lookup_seconds_count=None)
        counted = replace(bare, in_process={"lmcache:num_hit_tokens_total": 1.0})
        view = judge(ADDRESS, engine_found(engine_metrics=counted))
        assert (view.kind, view.register_as, view.suggested_url) == ("vllm_in_process", "engine", ADDRESS.url)
        assert "runs inside it" in view.detail
        assert "no server to add" in view.detail
        assert "PROMETHEUS_MULTIPROC_DIR" not in view.detail
        silent = engine_found(engine_metrics=bare, facts=EngineFacts(kv_connector="LMCacheConnectorV1"))
        view = judge(ADDRESS, silent)
        assert view.kind == "vllm_in_process"
        assert "PROMETHEUS_MULTIPROC_DIR is missing" in view.detail

    def test_a_message_port(self) -> None:
        zeromq = TargetError("unreadable", "gpu-1:5555 is a ZeroMQ port (LMCache's message port)")
        address = parse_address("http://gpu-1:5555")
        view = judge(address, Findings(errors={"/": zeromq, "/status": zeromq}))
        assert (view.kind, view.register_as) == ("lmcache_message_port", None)
        assert view.suggested_urls == ["http://gpu-1:8080"]

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
        assert (view.kind, view.register_as) == ("other", None)
        assert view.suggested_urls == ["http://gpu-1:8080", "http://gpu-1:8000"]


def speaking_first(greeting: bytes) -> Iterator[int]:
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
                connection.sendall(greeting)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(5)


@pytest.fixture
def odd_port() -> Iterator[int]:
    yield from speaking_first(b"SSH-2.0-OpenSSH_9.9\r\n")


@pytest.fixture
def message_port() -> Iterator[int]:
    yield from speaking_first(b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x00NULL")


class Coordinator(BaseHTTPRequestHandler):
    """LMCache's coordinator as its sources answer: neither ``/`` nor ``/status``, only a list and its own health."""

    def do_GET(self) -> None:
        known = {
            "/healthz": {"status": "healthy"},
            "/instances": {"instances": [{"instance_id": "mp-1", "ip": "10.0.0.5", "http_port": 8080, "mq_port": 0}]},
        }
        body = json.dumps(known.get(self.path, {"detail": "Not Found"})).encode()
        self.send_response(200 if self.path in known else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def coordinator() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Coordinator)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join(5)


class TestProbe:
    def test_a_coordinator(self, bench: Bench, coordinator: str) -> None:
        view = bench.fleet.probe(ProbeRequest(url=coordinator))
        assert (view.kind, view.suggested_urls) == ("lmcache_coordinator", ["http://10.0.0.5:8080"])
        assert "GET /instances lists 1 cache server" in view.evidence
        told = bench.fleet.advice("server", ServerCreate(url=coordinator)) or ""
        assert "an LMCache coordinator" in told
        assert "Enter http://10.0.0.5:8080 instead." in told

    def test_a_port_that_does_not_speak_http(self, bench: Bench, odd_port: int) -> None:
        view = bench.fleet.probe(ProbeRequest(url=f"http://127.0.0.1:{odd_port}"))
        assert (view.kind, view.register_as) == ("other", None)
        assert view.evidence
        assert view.suggested_urls == ["http://127.0.0.1:8080", "http://127.0.0.1:8000"]

    def test_a_message_port_is_named_and_gets_no_http(self, bench: Bench, message_port: int) -> None:
        view = bench.fleet.probe(ProbeRequest(url=f"http://127.0.0.1:{message_port}"))
        assert (view.kind, view.suggested_url) == ("lmcache_message_port", "http://127.0.0.1:8080")
        told = bench.fleet.advice("server", ServerCreate(url=f"http://127.0.0.1:{message_port}")) or ""
        assert "the message port of an LMCache server" in told
        assert "Enter http://127.0.0.1:8080 instead." in told

    def test_nothing_listens(self, bench: Bench) -> None:
        with socket.socket() as reserved:
            reserved.bind(("127.0.0.1", 0))
            view = bench.fleet.probe(ProbeRequest(url=f"http://127.0.0.1:{reserved.getsockname()[1]}"))
        assert view.kind == "nothing"

    def test_forbidden_addresses_are_not_asked(self, bench: Bench) -> None:
        with pytest.raises(InvalidInput, match="link-local"):
            bench.fleet.probe(ProbeRequest(url="http://169.254.169.254"))


class Listener(BaseHTTPRequestHandler):
    """Notes what came along with each call."""

    heard: ClassVar[list[tuple[str | None, str | None]]] = []

    def do_GET(self) -> None:
        self.heard.append((self.headers.get("Authorization"), self.headers.get("X-Tenant")))
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def listeners() -> Iterator[tuple[str, str]]:
    """Two addresses of something that listens."""
    Listener.heard.clear()
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Listener) for _ in range(2)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    yield (f"http://127.0.0.1:{servers[0].server_port}", f"http://127.0.0.1:{servers[1].server_port}")
    for server in servers:
        server.shutdown()
        server.server_close()


class TestSaved:
    """What is asked from the form of a target that is saved already."""

    def test_its_key_and_headers_go_to_its_own_address_only(self, bench: Bench, listeners: tuple[str, str]) -> None:
        here, elsewhere = listeners
        body = ServerCreate(url=here, api_key="saved", headers={"X-Tenant": "red"})
        saved = ("server", int(bench.fleet.create_server(body, actor="a").id))
        bench.fleet.probe(ProbeRequest(url=here), saved=saved)  # type: ignore[arg-type]
        assert set(Listener.heard) == {("Bearer saved", "red")}
        Listener.heard.clear()
        bench.fleet.probe(ProbeRequest(url=elsewhere), saved=saved)  # type: ignore[arg-type]
        assert set(Listener.heard) == {(None, None)}
        Listener.heard.clear()
        typed = ProbeRequest(url=here, api_key="typed", headers={"X-Tenant": "blue"})
        bench.fleet.probe(typed, saved=saved)  # type: ignore[arg-type]
        assert set(Listener.heard) == {("Bearer typed", "blue")}
        Listener.heard.clear()
        bench.fleet.probe(ProbeRequest(url=here))
        assert set(Listener.heard) == {(None, None)}


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
