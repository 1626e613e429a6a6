"""The calls to a cache server: what is sent, what old servers are asked, what every error becomes."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from app.errors import TargetError
from app.lmcache.client import ALLOWED, LMCacheClient
from tests.unit.lmcache.fake_server import METRICS_TYPE, captured_server
from tests.unit.wire.raw_http import RawServer, capture, reply

NOT_FOUND = reply({"detail": "Not Found"}, 404)


@dataclass(frozen=True)
class Key:
    chunk_hash: str = "ab" * 32
    group: int | None = None

    def to_wire(self) -> dict[str, str | int]:
        return {
            "chunk_hash_hex": self.chunk_hash,
            "model_name": "/models/tiny-llama",
            "kv_rank": 16_777_472,
            "object_group_id": self.group or 0,
            "cache_salt": "",
        }


async def test_all_readings_of_a_captured_server() -> None:
    async with captured_server() as server, LMCacheClient(server.url) as client:
        health = await client.healthcheck()
        assert health.ok
        assert health.seconds > 0
        assert (await client.status("v")).chunk_size == 64
        assert (await client.config()).chunk_size == 64
        assert await client.version() == "0.5.6-g3e11e108"
        assert (await client.metrics()).lookup_hit_tokens == 3840
        assert [entry.type_name for entry in await client.adapters()] == ["fs"]
        assert await client.greeting() == "LMCache HTTP API"
    assert set(server.paths()) == {
        f"GET {path}"
        for path in ("/healthcheck", "/status", "/config", "/version", "/metrics", "/config/adapters", "/")
    }


def test_nothing_dangerous_is_in_the_list_of_calls() -> None:
    sent = {f"{method} {path}" for method, paths in ALLOWED.values() for path in paths}
    assert not any(word in call for call in sent for word in ("env", "script", "loglevel", "reset", "quota", "evict"))
    assert {call for call in sent if not call.startswith("GET")} == {
        "DELETE /cache/objects",
        "POST /cache/clear",
        "POST /clear-cache",
        "POST /api/clear-cache",
    }


async def test_old_paths_are_tried_after_404_and_remembered() -> None:
    routes = {
        "GET /api/healthcheck": reply({"status": "healthy"}),
        "GET /api/status": reply(capture("server-with-engine/status.json")),
        "GET /conf": reply(capture("server-with-engine/config.json")),
    }
    async with RawServer(routes) as server, LMCacheClient(server.url) as client:
        for _ in range(2):
            assert (await client.healthcheck()).ok
            assert (await client.status()).is_healthy
            assert (await client.config()).chunk_size == 64
            assert await client.version() is None
            assert await client.adapters() == ()
        assert client.paths == {"healthcheck": "/api/healthcheck", "status": "/api/status", "config": "/conf"}
        asked = server.paths()
        assert asked.count("GET /status") == 1
        assert asked.count("GET /api/status") == 2
        # the server was upgraded: the remembered path is gone, the new one is found in the same call
        server.routes = {"GET /status": reply(capture("server-with-engine/status.json"))}
        assert (await client.status()).is_healthy
        assert client.paths["status"] == "/status"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"status": "unhealthy", "reason": "engine not initialized"}, "engine not initialized"),
        ({"error": "engine not initialized"}, "engine not initialized"),
        ({"detail": "busy"}, "busy"),
    ],
)
async def test_503_is_unhealthy_with_its_reason(body: object, reason: str) -> None:
    async with RawServer({"GET /healthcheck": reply(body, 503)}) as server, LMCacheClient(server.url) as client:
        health = await client.healthcheck()
    assert (health.ok, health.reason) == (False, reason)


async def test_a_health_check_that_says_otherwise_with_200() -> None:
    async with (
        RawServer({"GET /healthcheck": reply({"status": "draining"})}) as server,
        LMCacheClient(server.url) as client,
    ):
        health = await client.healthcheck()
    assert not health.ok
    assert health.reason == "it says 'draining'"


@pytest.mark.parametrize(
    ("call", "path", "answer", "kind", "status"),
    [
        ("healthcheck", "/healthcheck", reply("<html>", 502, "text/html"), "http", 502),
        ("healthcheck", "/healthcheck", reply("<html>", content_type="text/html"), "unreadable", 200),
        ("status", "/status", reply({"error": "engine not initialized"}, 503), "http", 503),
        ("status", "/status", reply({"status": "ok"}), "unreadable", 200),
        ("status", "/status", reply("{"), "unreadable", 200),
        ("config", "/config", reply([]), "unreadable", 200),
        ("version", "/version", reply({"nothing": 1}), "unreadable", 200),
        ("metrics", "/metrics", reply({"detail": "Not Found"}, 404), "http", 404),
        ("metrics", "/metrics", reply("lmcache_mp_x{", content_type=METRICS_TYPE), "unreadable", 200),
        ("adapters", "/config/adapters", reply({"adapters": 1}), "unreadable", 200),
    ],
)
async def test_each_bad_answer_is_one_target_error(call: str, path: str, answer: bytes, kind: str, status: int) -> None:
    async with RawServer({f"GET {path}": answer}) as server, LMCacheClient(server.url) as client:
        with pytest.raises(TargetError) as caught:
            await getattr(client, call)()
    assert (caught.value.kind, caught.value.http_status) == (kind, status)


async def test_deleting_from_l1_sends_what_the_real_server_took() -> None:
    recorded = json.loads(capture("calls/delete_l1.json"))
    routes = {"DELETE /cache/objects": reply(recorded["body"], recorded["status"])}
    async with RawServer(routes) as server, LMCacheClient(server.url) as client:
        answer = await client.delete_l1(recorded["request"]["keys"])
    assert (answer.deleted, answer.skipped, answer.ok, answer.error) == (1, 0, True, None)
    sent = json.loads(server.seen[0][2])
    assert sent == {**recorded["request"], "force": False}


async def test_deletions_go_in_batches_and_only_ever_to_l1() -> None:
    routes = {"DELETE /cache/objects": reply({"deleted": 4, "skipped": 1, "ok": True})}
    async with RawServer(routes) as server, LMCacheClient(server.url) as client:
        answer = await client.delete_l1((Key() for _ in range(20_001)), force=True)
    assert (answer.deleted, answer.skipped, answer.ok) == (12, 3, True)
    bodies = [json.loads(body) for _, _, body in server.seen]
    assert [len(body["keys"]) for body in bodies] == [10_000, 10_000, 1]
    assert {body["tier"] for body in bodies} == {"l1"}
    assert all(body["force"] is True for body in bodies)
    assert bodies[2]["keys"] == [Key().to_wire()]


async def test_no_keys_no_call() -> None:
    async with RawServer({}) as server, LMCacheClient(server.url) as client:
        assert (await client.delete_l1([])).ok
    assert server.seen == []


@pytest.mark.parametrize(
    ("answer", "kind", "status", "says"),
    [
        (reply({"detail": "Not Found"}, 404), "http", 404, "Not Found"),
        (reply({"detail": "tier 'l1' not supported; only 'l2'"}, 400), "http", 400, "not supported"),
        (reply(json.loads(capture("calls/delete_badhex.json"))["body"], 400), "http", 400, "non-hexadecimal"),
        (reply({"ok": True}), "unreadable", 200, "how many"),
    ],
)
async def test_a_server_that_cannot_delete_from_l1(answer: bytes, kind: str, status: int, says: str) -> None:
    async with RawServer({"DELETE /cache/objects": answer}) as server, LMCacheClient(server.url) as client:
        with pytest.raises(TargetError, match=says) as caught:
            await client.delete_l1([Key()])
    assert caught.value.kind == kind
    assert caught.value.http_status in (status, None)


async def test_a_failed_deletion_is_said() -> None:
    routes = {"DELETE /cache/objects": reply({"deleted": 0, "skipped": 0, "ok": False, "error": "boom"})}
    async with RawServer(routes) as server, LMCacheClient(server.url) as client:
        answer = await client.delete_l1([Key()])
    assert (answer.ok, answer.error) == (False, "boom")


async def test_clearing_l1_never_forces_where_the_server_can_choose() -> None:
    recorded = json.loads(capture("calls/cache_clear_nobody.json"))
    routes = {"POST /cache/clear": reply(recorded["body"])}
    async with RawServer(routes) as server, LMCacheClient(server.url) as client:
        answer = await client.clear_l1()
    assert (answer.ok, answer.forced) == (True, False)
    assert json.loads(server.seen[0][2]) == {"tier": "l1", "force": False}


@pytest.mark.parametrize("path", ["/clear-cache", "/api/clear-cache"])
async def test_older_servers_clear_locked_objects_too(path: str) -> None:
    async with RawServer({f"POST {path}": reply({"status": "ok"})}) as server, LMCacheClient(server.url) as client:
        assert (await client.clear_l1()).forced
    assert server.paths()[0] == "POST /cache/clear"


async def test_a_404_of_the_call_itself_is_not_taken_for_a_missing_path() -> None:
    routes = {
        "GET /config/adapters": reply({"detail": "no adapter matches"}, 404),
        "GET /l2/adapters": reply({"adapters": []}),
    }
    async with RawServer(routes) as server, LMCacheClient(server.url) as client:
        assert await client.adapters() == ()
    assert server.paths() == ["GET /config/adapters"]
