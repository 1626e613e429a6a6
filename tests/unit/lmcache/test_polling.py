"""A whole poll: concurrent, never raising, asking again only what a new boot can change."""

from __future__ import annotations

import asyncio
import gc
import json
import warnings
from contextlib import suppress
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.lmcache.client import LMCacheClient, ServerReading, poll_server
from tests.unit.lmcache import old_servers
from tests.unit.lmcache.fake_server import METRICS_TYPE, captured_server
from tests.unit.wire.raw_http import RawServer, Script, capture, reply

ONCE = ["GET /config", "GET /config/adapters", "GET /version"]


async def poll(server: RawServer, previous: ServerReading | None = None, **options: Any) -> ServerReading:
    async with LMCacheClient(server.url, **options) as client:
        return await poll_server(client, previous)


def asked(server: RawServer) -> list[str]:
    paths = sorted(server.paths())
    server.seen.clear()
    return paths


async def test_a_poll_reads_all_and_the_next_one_only_what_changes() -> None:
    async with captured_server() as server:
        first = await poll(server)
        assert asked(server) == sorted([*ONCE, "GET /healthcheck", "GET /status", "GET /metrics"])
        second = await poll(server, first)
        assert asked(server) == ["GET /healthcheck", "GET /metrics", "GET /status"]
    for reading in (first, second):
        assert reading.http_up
        assert dict(reading.error_kinds) == {}
        assert reading.health is not None
        assert reading.health.ok
        assert reading.version == "0.5.6-g3e11e108"
        assert reading.config is not None
        assert reading.config.adapters[0].type == "fs"
        assert reading.instance_id == "b9ac8887-46ff-422e-8924-c6e11f5cb27d"
        assert reading.process_start_time == 1_795_964_196.33
        assert reading.latency_seconds is not None
        assert reading.duration_seconds >= reading.latency_seconds
        (layout,) = reading.layouts().values()
        assert (layout.serde, layout.lmcache_version, layout.checksum) == ("none", "0.5.6-g3e11e108", None)


async def test_a_new_boot_is_asked_for_its_settings_again() -> None:
    async with captured_server() as server:
        first = await poll(server)
        asked(server)
        metrics = capture("server-with-engine/after-traffic.metrics.txt").replace(b"b9ac8887", b"aaaaaaaa")
        server.routes["GET /metrics"] = reply(metrics, content_type=METRICS_TYPE)
        server.routes["GET /version"] = reply('"0.5.7"')
        second = await poll(server, first)
        assert set(ONCE) <= set(asked(server))
    assert second.version == "0.5.7"


async def test_without_an_identity_the_settings_are_asked_each_time() -> None:
    async with captured_server() as server:
        server.routes["GET /metrics"] = reply({"detail": "Not Found"}, 404)
        body = json.loads(capture("server-with-engine/config.json"))
        body["observability"]["otlp_endpoint"] = "http://otel:4317"
        server.routes["GET /config"] = reply(body)
        first = await poll(server)
        asked(server)
        second = await poll(server, first)
        assert set(ONCE) <= set(asked(server))
    assert second.metrics is None
    assert second.metrics_reason == "this server pushes its metrics to http://otel:4317 and has no /metrics"
    assert second.pushes_metrics
    assert second.instance_id == body["mp"]["instance_id"]
    assert second.error_kinds["metrics"] == "http"


async def test_settings_that_failed_are_asked_again() -> None:
    async with captured_server() as server:
        server.routes["GET /config"] = reply({"error": "configs not initialized"}, 503)
        first = await poll(server)
        assert first.config is None
        assert first.config_reason is not None
        assert "configs not initialized" in first.config_reason
        assert first.layouts()[old_servers.CONTEXT].serde is None
        asked(server)
        server.routes["GET /config"] = reply(capture("server-with-engine/config.json"))
        second = await poll(server, first)
    assert second.config is not None


async def test_a_server_of_0_4_2_by_its_old_paths() -> None:
    routes: dict[str, bytes | Script] = {
        "GET /api/healthcheck": reply({"status": "healthy"}),
        "GET /api/status": reply(old_servers.status_042()),
    }
    async with RawServer(routes) as server:
        first = await poll(server)
        asked(server)
        second = await poll(server, first)
        again = asked(server)
    assert first.http_up
    assert first.health is not None
    assert first.health.ok
    assert first.status is not None
    assert first.version is None
    assert first.version_reason is not None
    assert "no version" in first.version_reason
    assert first.metrics is None
    assert "GET /status" not in again
    assert second.status is not None


class TwoPorts:
    """A server without ``/metrics`` on its HTTP port, and what its Prometheus port answers."""

    PORT = 9191

    def __init__(self, beside: bytes, *, otlp: str | None = None) -> None:
        config = json.loads(capture("server-with-engine/config.json"))
        config["observability"] |= {"prometheus_port": self.PORT, "otlp_endpoint": otlp}
        self.answers = {
            "/healthcheck": capture("server-with-engine/healthcheck.json"),
            "/status": capture("server-with-engine/status.json"),
            "/version": capture("server-with-engine/version.txt"),
            "/config": json.dumps(config).encode(),
            "/config/adapters": capture("server-with-engine/config_adapters.json"),
        }
        self.beside = beside
        self.asked: list[str] = []
        self.beside_headers: list[httpx.Headers] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.port == self.PORT:
            assert (request.method, request.url.path) == ("GET", "/metrics")
            self.beside_headers.append(request.headers)
            return httpx.Response(200, headers={"content-type": METRICS_TYPE}, stream=httpx.ByteStream(self.beside))
        self.asked.append(f"{request.method} {request.url.path}")
        body = self.answers.get(request.url.path)
        kind = {"content-type": "application/json"}
        if body is None:
            return httpx.Response(404, headers=kind, stream=httpx.ByteStream(b'{"detail":"Not Found"}'))
        return httpx.Response(200, headers=kind, stream=httpx.ByteStream(body))

    async def poll(self, previous: ServerReading | None = None) -> ServerReading:
        self.asked.clear()
        self.beside_headers.clear()
        transport = httpx.MockTransport(self)
        headers = {"X-Tenant": "red"}
        async with LMCacheClient(
            "https://cache:8443", api_key="s3cret", headers=headers, transport=transport
        ) as client:
            return await poll_server(client, previous)


async def test_metrics_on_another_port_are_read_there_and_nothing_secret_goes_along() -> None:
    server = TwoPorts(capture("server-with-engine/metrics.txt"))
    first = await server.poll()
    (sent,) = server.beside_headers
    assert "authorization" not in sent
    assert "x-tenant" not in sent
    assert first.metrics is not None
    assert first.metrics.any_lmcache_series
    assert first.metrics_reason is None
    assert first.instance_id == first.metrics.instance_id
    second = await server.poll(first)
    assert second.metrics is not None
    assert len(server.beside_headers) == 1
    assert not set(ONCE) & set(server.asked)  # the boot is known by them, as ever


async def test_what_answers_on_the_other_port_must_be_a_cache_server() -> None:
    server = TwoPorts(b"go_goroutines 7\n")
    reading = await server.poll()
    assert reading.metrics is None
    assert reading.metrics_reason is not None
    assert "answered 404" in reading.metrics_reason
    assert "on its Prometheus port 9191 neither" in reading.metrics_reason
    assert "no series of a cache server" in reading.metrics_reason


async def test_where_metrics_are_pushed_no_other_port_is_asked() -> None:
    server = TwoPorts(capture("server-with-engine/metrics.txt"), otlp="http://collector:4317")
    reading = await server.poll()
    assert server.beside_headers == []
    assert reading.pushes_metrics
    assert reading.metrics_reason == "this server pushes its metrics to http://collector:4317 and has no /metrics"


async def test_a_dead_server_is_asked_once_and_explained() -> None:
    async with RawServer({}) as server:
        port = server.port
    async with LMCacheClient(f"http://127.0.0.1:{port}") as client:
        reading = await poll_server(client)
    assert not reading.http_up
    assert dict(reading.error_kinds) == {"health": "refused", "status": "refused", "metrics": "refused"}
    assert reading.config_reason == reading.version_reason == "not asked: the server answered nothing"
    assert reading.latency_seconds is None
    assert reading.layouts() == {}


async def test_one_hanging_call_costs_its_own_value_only() -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(30)

    async with captured_server() as server:
        server.routes["GET /metrics"] = hang
        reading = await poll(server, read_timeout=0.2)
    assert reading.http_up
    assert reading.status is not None
    assert reading.metrics is None
    assert reading.error_kinds == {"metrics": "timeout"}


async def test_an_unhealthy_server_is_up() -> None:
    async with captured_server() as server:
        body = reply({"status": "unhealthy", "reason": "engine not initialized"}, 503)
        server.routes["GET /healthcheck"] = body
        server.routes["GET /status"] = reply({"error": "engine not initialized"}, 503)
        reading = await poll(server)
    assert reading.http_up
    assert reading.health is not None
    assert reading.health.reason == "engine not initialized"
    assert reading.status_reason is not None
    assert "engine not initialized" in reading.status_reason


async def test_serde_and_checksum_belong_to_an_adapter() -> None:
    body = json.loads(capture("server-with-engine/config.json"))
    adapters = body["storage_manager"]["l2_adapter_config"]["adapters"]
    adapters.append({**adapters[0], "base_path": "/b", "serde_config": {"type": "fp8"}, "checksum": "crc32"})
    async with captured_server() as server:
        server.routes["GET /config"] = reply(body)
        reading = await poll(server)
    (of_first,) = reading.layouts("/srv/kv/l2").values()
    (of_second,) = reading.layouts("/b").values()
    (of_all,) = reading.layouts().values()
    assert (of_first.serde, of_first.checksum) == ("none", None)
    assert (of_second.serde, of_second.checksum) == ('{"type":"fp8"}', "crc32")
    assert of_all.serde is None


async def test_an_engine_at_the_servers_address_is_recognisably_none() -> None:
    routes: dict[str, bytes | Script] = {
        "GET /version": reply(capture("engine/plain.version.json")),
        "GET /metrics": reply(capture("engine/plain.metrics.txt"), content_type=METRICS_TYPE),
    }
    async with RawServer(routes) as server:
        reading = await poll(server)
    assert reading.http_up
    assert reading.status is None
    assert reading.metrics is not None
    assert not reading.metrics.any_lmcache_series


bodies = st.one_of(
    st.binary(max_size=80),
    st.sampled_from([b"{}", b"null", b'{"is_healthy":1}', b'"x"', b"lmcache_mp_l2_usage_bytes{", b"<html>"]),
)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(
            bodies, st.sampled_from([200, 204, 301, 404, 500, 503]), st.sampled_from(["text/plain", "text/html", "\0"])
        ),
        min_size=7,
        max_size=7,
    )
)
def test_no_answer_whatever_makes_a_poll_raise(answers: list[tuple[bytes, int, str]]) -> None:
    paths = ("/healthcheck", "/status", "/metrics", "/config", "/config/adapters", "/version", "/lmc_version")
    routes: dict[str, bytes | Script] = {
        f"GET {path}": reply(body, status, kind) for path, (body, status, kind) in zip(paths, answers, strict=True)
    }

    async def run() -> ServerReading:
        async with RawServer(routes) as server:
            return await poll(server, read_timeout=0.2)

    reading = asyncio.run(run())
    assert reading.duration_seconds < 5
    for part, reason in ((reading.status, reading.status_reason), (reading.metrics, reading.metrics_reason)):
        assert (part is None) == (reason is not None)


@pytest.mark.parametrize("text", ["server-engine-driven"])
async def test_an_engine_driven_server(text: str) -> None:
    async with captured_server(text, "") as server:
        reading = await poll(server)
    (layout,) = reading.layouts().values()
    assert layout.serde == "none"
    assert not layout.proves_current


async def test_a_poll_cancelled_before_its_calls_began_leaves_no_coroutine_behind() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        async with captured_server() as server, LMCacheClient(server.url) as client:
            polling = asyncio.create_task(poll_server(client))
            await asyncio.sleep(0)  # its calls are tasks now, none of which had its turn
            polling.cancel()
            with suppress(asyncio.CancelledError):
                await polling
        gc.collect()
    assert [str(w.message) for w in caught if "never awaited" in str(w.message)] == []
    assert server.seen == []
