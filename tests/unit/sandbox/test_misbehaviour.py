"""Every way to be wrong that the sandbox can be told, seen from the client's side."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from app.sandbox import EngineSpec, Faults, ServerSpec
from tests.unit.sandbox.support import Driver, key_of

COMPONENTS = ["server", "engine"]
PROBE = {"server": "/status", "engine": "/v1/models"}


def url(box: Driver, component: str, path: str | None = None) -> str:
    base = box.sandbox.server_url if component == "server" else box.sandbox.engine_url
    return base + (PROBE[component] if path is None else path)


@pytest.mark.parametrize("component", COMPONENTS)
def test_slow(box: Driver, component: str) -> None:
    box.sandbox.control.misbehave(component, slow_seconds=0.15)
    with pytest.raises(httpx.ReadTimeout):
        box.client.get(url(box, component), timeout=0.05)
    assert box.client.get(url(box, component), timeout=5).status_code == 200
    box.sandbox.control.behave(component)
    assert box.client.get(url(box, component), timeout=5).status_code == 200


@pytest.mark.parametrize("component", COMPONENTS)
def test_hanging(box: Driver, component: str) -> None:
    box.sandbox.control.misbehave(component, hang=True)
    with pytest.raises(httpx.ReadTimeout):
        box.client.get(url(box, component), timeout=0.05)


@pytest.mark.parametrize("component", COMPONENTS)
def test_dead(box: Driver, component: str) -> None:
    box.sandbox.control.kill(component)
    with pytest.raises(httpx.ConnectError):
        box.client.get(url(box, component))


@pytest.mark.parametrize("component", COMPONENTS)
@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
def test_error_statuses(box: Driver, component: str, status: int) -> None:
    box.sandbox.control.misbehave(component, status=status)
    assert box.client.get(url(box, component)).status_code == status


@pytest.mark.parametrize("component", COMPONENTS)
def test_garbage(box: Driver, component: str) -> None:
    box.sandbox.control.misbehave(component, garbage=True)
    answer = box.client.get(url(box, component))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    with pytest.raises(ValueError):
        json.loads(answer.content)


@pytest.mark.parametrize("component", COMPONENTS)
@pytest.mark.parametrize("path", [None, "/metrics"])
def test_truncated(box: Driver, component: str, path: str | None) -> None:
    box.sandbox.control.misbehave(component, truncated=True)
    with pytest.raises(httpx.RemoteProtocolError):
        box.client.get(url(box, component, path))


@pytest.mark.parametrize("component", COMPONENTS)
def test_huge(box: Driver, component: str) -> None:
    box.sandbox.control.misbehave(component, huge_bytes=3_000_000)
    size = 0
    with box.client.stream("GET", url(box, component)) as answer:
        assert "content-length" not in answer.headers
        for piece in answer.iter_bytes():
            size += len(piece)
    assert size == 3_000_000 + len('{"padding":""}')


@pytest.mark.parametrize("component", COMPONENTS)
def test_redirects(box: Driver, component: str) -> None:
    box.sandbox.control.misbehave(component, redirect="http://127.0.0.1:9/elsewhere")
    answer = box.client.get(url(box, component))
    assert (answer.status_code, answer.headers["location"]) == (307, "http://127.0.0.1:9/elsewhere")


def test_only_some_paths(box: Driver) -> None:
    box.sandbox.control.misbehave("server", paths="/metrics,/config", status=500)
    got = {p: box.client.get(url(box, "server", p)).status_code for p in ("/status", "/metrics", "/config/adapters")}
    assert got == {"/status": 200, "/metrics": 500, "/config/adapters": 500}


# --- lies ---


def test_a_reset_that_does_nothing(box: Driver) -> None:
    box.ask(300)
    box.sandbox.control.misbehave("engine", reset_lies=True)
    assert box.reset() is True
    assert box.ask(300).stats == (288, 256, 0)


def test_a_reset_that_refuses(box: Driver) -> None:
    box.ask(300)
    box.sandbox.control.misbehave("engine", reset_refuses=True)
    assert box.reset() is False
    assert box.ask(300).stats == (288, 256, 0)


def test_a_deletion_that_deletes_nothing(box: Driver) -> None:
    box.ask(300)
    box.sandbox.control.misbehave("server", delete_lies=True)
    assert box.delete(box.files(), "l2") == {"deleted": 4, "skipped": 0, "ok": True}
    assert box.delete(box.files(), "l1")["deleted"] == 4
    assert len(box.files()) == 4
    assert box.status()["storage_manager"]["l1_manager"]["total_object_count"] == 4


def test_a_clearing_that_clears_nothing(box: Driver) -> None:
    box.ask(300)
    box.sandbox.control.misbehave("server", clear_lies=True)
    assert box.client.post(url(box, "server", "/cache/clear")).json()["status"] == "ok"
    assert box.status()["storage_manager"]["l1_manager"]["total_object_count"] == 4


def test_healthcheck_well_while_status_is_not(box: Driver) -> None:
    box.sandbox.control.misbehave("server", status_unhealthy=True)
    assert box.client.get(url(box, "server", "/healthcheck")).json() == {"status": "healthy"}
    status = box.status()
    assert status["is_healthy"] is False
    assert status["storage_manager"]["l1_manager"]["is_healthy"] is False


def test_healthcheck_unwell(box: Driver) -> None:
    box.sandbox.control.misbehave("server", healthcheck_unhealthy=True)
    answer = box.client.get(url(box, "server", "/healthcheck"))
    assert answer.status_code == 503
    assert answer.json() == {"status": "unhealthy", "reason": "engine not initialized"}


def test_stores_that_never_complete(box: Driver) -> None:
    box.sandbox.control.misbehave("server", stores_never_complete=True)
    box.ask(300)
    m = box.server_metrics()
    assert m["lmcache_mp_l2_store_submitted_objects_chunks_total"] == 4
    assert "lmcache_mp_l2_store_completed_objects_chunks_total" not in m
    assert box.files() == []
    assert box.status()["storage_manager"]["store_controller"]["pending_keys_count"] == 0


def test_stores_that_pile_up(box: Driver) -> None:
    box.sandbox.control.hold_stores()
    box.ask(300, 1)
    box.ask(300, 2)
    assert box.files() == []
    assert box.status()["storage_manager"]["store_controller"]["pending_keys_count"] == 4
    box.sandbox.control.release_stores()
    assert len(box.files()) == 8


def test_an_engine_with_an_api_key(make: Callable[..., Driver]) -> None:
    box = make(engines=[EngineSpec(api_key="s3cret")])
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic s3cret"}):
        answer = box.client.get(url(box, "engine"), headers=headers)
        assert (answer.status_code, answer.json()) == (401, {"error": "Unauthorized"})
    assert box.client.get(url(box, "engine"), headers={"Authorization": "Bearer s3cret"}).status_code == 200
    for path in ("/health", "/version", "/metrics"):
        assert box.client.get(url(box, "engine", path)).status_code == 200


# --- metrics ---


@pytest.mark.parametrize("component", COMPONENTS)
def test_metrics_missing(box: Driver, component: str) -> None:
    box.sandbox.control.misbehave(component, metrics_missing=True)
    assert box.client.get(url(box, component, "/metrics")).status_code == 404


def test_some_metrics_missing(box: Driver) -> None:
    box.ask(300)
    box.sandbox.control.misbehave("server", metrics_hidden="lmcache_mp_lookup_hit_l1,lmcache_mp_lookup_hit_l2")
    text = box.client.get(url(box, "server", "/metrics")).text
    assert "lookup_hit_l1" not in text
    assert "lmcache_mp_lookup_hit_tokens_total{" in text
    box.sandbox.control.misbehave("engine", metrics_hidden="vllm:")
    assert "vllm:" not in box.client.get(url(box, "engine", "/metrics")).text
    assert "process_start_time_seconds" in box.client.get(url(box, "engine", "/metrics")).text


# --- streams ---

STREAM: dict[str, Any] = {"model": "tiny-llama", "prompt": [9] * 100, "max_tokens": 6, "stream": True}
STREAM |= {"ignore_eos": True, "temperature": 0}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(
    ("fault", "error"), [("stream_stops_after", httpx.ReadTimeout), ("stream_cut_after", httpx.RemoteProtocolError)]
)
def test_streams_that_break_in_the_middle(box: Driver, path: str, fault: str, error: type[Exception]) -> None:
    box.sandbox.control.misbehave("engine", **{fault: 2})
    body = {**STREAM, "messages": [{"role": "user", "content": "hello"}]}
    pieces = b""
    with (
        pytest.raises(error),
        box.client.stream("POST", url(box, "engine", path), json=body, timeout=1.0) as stream,
    ):
        for piece in stream.iter_raw():
            pieces += piece
    events = [json.loads(e.removeprefix(b"data: ")) for e in pieces.split(b"\n\n") if e.strip()]
    texts = [c["text"] if "text" in c else c["delta"].get("content") for e in events for c in e["choices"]]
    assert len([t for t in texts if t]) == 2
    assert all(c["finish_reason"] is None for e in events for c in e["choices"])


def test_a_broken_stream_gives_its_seat_back(box: Driver) -> None:
    box.sandbox.control.misbehave("engine", stream_stops_after=1)
    for _ in range(10):  # more than the engine has sequences
        with (
            pytest.raises(httpx.ReadTimeout),
            box.client.stream("POST", url(box, "engine", "/v1/completions"), json=STREAM, timeout=0.05) as stream,
        ):
            stream.read()
    box.sandbox.control.behave()
    assert box.ask(100).status == 200
    for _ in range(100):  # a client that went away is noticed by the loop, not by us
        if box.engine_metrics()["vllm:num_requests_running"] == 0:
            break
    assert box.reset() is True


# --- the switches themselves ---


def test_unknown_faults_and_wrong_types_are_refused(box: Driver) -> None:
    control = box.sandbox.control
    with pytest.raises(ValueError, match="no fault called 'slo'"):
        control.misbehave("server", slo=1)
    for name, value in (("hang", 1), ("status", "500"), ("slow_seconds", True), ("redirect", None), ("garbage", None)):
        with pytest.raises(ValueError, match="not of the right type"):
            control.misbehave("server", **{name: value})
    with pytest.raises(ValueError, match="there is no component 'server/7'"):
        control.misbehave("server/7", hang=True)
    assert control.faults("server") == Faults()


def test_a_bad_change_changes_nothing(box: Driver) -> None:
    with pytest.raises(ValueError, match="no fault"):
        box.sandbox.control.misbehave("server", hang=True, nonsense=1)
    assert box.sandbox.control.faults("server").hang is False


def test_unknown_settings_are_refused_on_restart(box: Driver) -> None:
    for component, change in (("server", {"chunks": 3}), ("engine", {"colour": "red"})):
        box.sandbox.control.kill(component)
        with pytest.raises(ValueError, match="unexpected keyword"):
            box.sandbox.control.start(component, **change)
        box.sandbox.control.start(component)
        assert box.client.get(url(box, component)).status_code == 200


def test_faults_survive_a_restart_until_taken_back(box: Driver) -> None:
    box.sandbox.control.misbehave("engine", status=500)
    box.sandbox.control.restart("engine")
    assert box.client.get(url(box, "engine")).status_code == 500
    box.sandbox.control.behave()
    assert box.client.get(url(box, "engine")).status_code == 200


def test_calls_are_counted(box: Driver) -> None:
    box.client.get(url(box, "server", "/env"))
    box.status()
    box.status()
    calls = box.sandbox.control.calls("server")
    assert calls["GET /env"] == 1
    assert calls["GET /status"] == 2
    assert box.sandbox.control.calls("engine") == {}


def test_control_over_http(make: Callable[..., Driver]) -> None:
    box = make(servers=[ServerSpec(), ServerSpec()], engines=[EngineSpec(), EngineSpec(server=1)])
    control = box.sandbox.control_url
    assert control is not None
    rows = box.client.get(control).json()
    assert list(rows) == ["server/0", "server/1", "engine/0", "engine/1"]
    assert rows["server/1"]["url"] == box.sandbox.server_urls[1]
    answer = box.client.post(f"{control}/server-1/misbehave", json={"status": 500})
    assert answer.json()["faults"]["status"] == 500
    assert box.client.get(box.sandbox.server_urls[1] + "/status").status_code == 500
    assert box.client.get(box.sandbox.server_urls[0] + "/status").status_code == 200
    box.client.post(f"{control}/server-1/behave", json={})
    assert box.client.get(box.sandbox.server_urls[1] + "/status").status_code == 200
    box.client.post(f"{control}/engine-1/restart", json={"dtype": "float16"})
    metas = box.status(1)["cache_context_meta"].values()
    assert [m["kv_cache_layout"]["kernel_groups"][0]["dtype"] for m in metas] == ["torch.bfloat16", "torch.float16"]
    box.client.post(f"{control}/engine/kill", json={})
    with pytest.raises(httpx.ConnectError):
        box.client.get(box.sandbox.engine_url + "/health")
    box.client.post(f"{control}/engine/start", json={})
    assert box.client.get(box.sandbox.engine_url + "/health").status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("server/misbehave", {"nonsense": 1}, 422),
        ("server/explode", {}, 422),
        ("cellar/misbehave", {}, 422),
        ("server/misbehave", [1], 422),
    ],
)
def test_control_refuses_nonsense(box: Driver, path: str, body: Any, status: int) -> None:
    answer = box.client.post(f"{box.sandbox.control_url}/{path}", json=body)
    assert answer.status_code == status
    assert answer.json()["detail"]


def test_control_wants_json_so_that_no_web_page_can_call_it(box: Driver) -> None:
    answer = box.client.post(f"{box.sandbox.control_url}/server/kill", content=b"{}")
    assert answer.status_code == 415
    assert box.client.get(url(box, "server")).status_code == 200


def test_keys_can_be_deleted_by_name(box: Driver) -> None:
    """`key_of` (used all over these tests) is the inverse of the file name."""
    box.ask(300)
    key = key_of(box.files()[0])
    assert key["model_name"] == "/models/tiny-llama"
    assert key["cache_salt"] == "t-1"
