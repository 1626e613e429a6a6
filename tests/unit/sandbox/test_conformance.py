"""The sandbox answers in the shapes of the real servers: keys, types, error bodies, metric and label names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from app.sandbox import EngineSpec, SandboxConfig, SandboxThread, ServerSpec
from app.sandbox.exposition import families
from tests.unit.sandbox.support import CAPTURES, Clock, Driver, captured, key_of, live, metric_shapes, prompt, shape

SAMPLE_ALL = ServerSpec(metrics_sample_rate=1.0)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, client: httpx.Client) -> Iterator[Driver]:
    """One server and one engine for tests that leave nothing behind."""
    clock = Clock()
    with SandboxThread(tmp_path_factory.mktemp("shared"), clock=clock) as sandbox:
        clock.pass_(30)
        yield Driver(sandbox, clock, client)


def get(box: Driver, path: str) -> Any:
    return box.client.get(box.sandbox.server_url + path)


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory, client: httpx.Client) -> Iterator[Driver]:
    """A server without engines; nothing changes it."""
    clock = Clock()
    with SandboxThread(tmp_path_factory.mktemp("idle"), engines=0, clock=clock) as sandbox:
        clock.pass_(30)
        yield Driver(sandbox, clock, client)


@pytest.fixture
def used(make: Callable[..., Driver]) -> Driver:
    """After the same kind of traffic as in the capture: cold, warm, L1, L2, all without a salt."""
    box = make(config=SandboxConfig(server=SAMPLE_ALL))
    box.clock.pass_(5)
    ask_unsalted(box)
    box.clock.pass_(2)
    ask_unsalted(box)
    box.reset()
    ask_unsalted(box)
    box.clock.pass_(2)
    box.client.post(box.sandbox.server_url + "/cache/clear")
    box.reset()
    ask_unsalted(box)
    return box


def ask_unsalted(box: Driver, length: int = 1000) -> None:
    assert box.ask(length, cache_salt=None).status == 200


@pytest.mark.parametrize(
    ("path", "file"),
    [
        ("/", "root.json"),
        ("/healthcheck", "healthcheck.json"),
        ("/status", "status.json"),
        ("/config", "config.json"),
        ("/config/adapters", "config_adapters.json"),
        ("/lmc_version", "lmc_version.txt"),
        ("/version", "version.txt"),
        ("/cache/objects?tier=l2", "cache_objects_l2.json"),
        ("/quota", "quota.json"),
        ("/periodic-threads", "periodic_threads.json"),
        ("/periodic-threads-health", "periodic_threads_health.json"),
    ],
)
@pytest.mark.parametrize("state", ["server-idle", "server-with-engine"])
def test_server_answers(path: str, file: str, state: str, request: pytest.FixtureRequest) -> None:
    box: Driver = request.getfixturevalue("idle" if state == "server-idle" else "shared")
    answer = get(box, path)
    assert answer.status_code == (503 if path.startswith("/cache/objects") else 200)
    assert shape(answer.json()) == shape(captured(f"{state}/{file}"))


def test_constant_answers_are_equal(idle: Driver) -> None:
    for path, file in (("/", "root.json"), ("/healthcheck", "healthcheck.json"), ("/lmc_version", "lmc_version.txt")):
        assert get(idle, path).json() == captured(f"server-idle/{file}")
    listing = get(idle, "/cache/objects?tier=l2").json()
    assert listing == captured("server-idle/cache_objects_l2.json")


def test_status_after_traffic_and_busy(used: Driver) -> None:
    assert shape(get(used, "/status").json()) == shape(captured("server-with-engine/after-traffic.status.json"))
    assert shape(get(used, "/config").json()) == shape(captured("server-with-engine/after-traffic.config.json"))


def test_status_of_a_busy_server_without_engines(used: Driver) -> None:
    used.ask(500, 9, cache_salt=None)
    used.sandbox.control.server().contexts.clear()
    answer = get(used, "/status").json()
    assert shape(answer) == shape(captured("server-busy/status.json"))
    assert answer["storage_manager"]["l1_manager"]["total_object_count"] > 0


def test_the_layout_in_status_is_the_captured_one(box: Driver) -> None:
    (mine,) = box.status()["cache_context_meta"].values()
    (real,) = captured("server-with-engine/after-traffic.status.json")["cache_context_meta"].values()
    assert mine == real


# --- metrics ---


def server_text(box: Driver) -> str:
    answer = get(box, "/metrics")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    return answer.text


def test_idle_metrics(idle: Driver) -> None:
    real = (CAPTURES / "server-idle/metrics.txt").read_text()
    assert metric_shapes(server_text(idle)) == metric_shapes(real)


def test_metrics_after_traffic(used: Driver) -> None:
    mine = metric_shapes(server_text(used))
    real = metric_shapes((CAPTURES / "server-with-engine/after-traffic.metrics.txt").read_text())
    assert {name: mine.get(name) for name in real} == real
    # sampled families, which that capture happens not to have
    assert set(mine) - set(real) == {"lmcache_mp_real_reuse_gap_seconds", "lmcache_mp_real_reuse_gap_objects"}


def test_metrics_of_the_first_capture_with_an_engine(used: Driver) -> None:
    mine = metric_shapes(server_text(used))
    real = metric_shapes((CAPTURES / "server-with-engine/metrics.txt").read_text())
    assert {name: mine.get(name) for name in real} == real


def test_busy_metrics(used: Driver) -> None:
    mine = metric_shapes(server_text(used))
    real = metric_shapes((CAPTURES / "server-busy/metrics.txt").read_text())
    assert {name: mine.get(name) for name in real} == real


def test_metrics_under_eviction_pressure(make: Callable[..., Driver]) -> None:
    spec = ServerSpec(metrics_sample_rate=1.0, l1_bytes=32 * 32768)
    box = make(servers=[spec], engines=[EngineSpec(l0_blocks=40)])
    for seed in range(6):
        box.ask(1000, seed, cache_salt=None)  # 15 chunks each: the third finds no room
        if seed in (2, 4):
            box.clock.pass_(2)
    box.ask(1000, 0, cache_salt=None)
    box.reset()
    box.ask(1000, 5, cache_salt=None)
    mine = metric_shapes(server_text(box))
    real = metric_shapes((CAPTURES / "server-busy/metrics-after-eviction-pressure.txt").read_text())
    assert {name: mine.get(name) for name in real} == real


def test_metrics_with_salts(make: Callable[..., Driver]) -> None:
    box = make(config=SandboxConfig(server=SAMPLE_ALL), engines=[EngineSpec(l0_blocks=12)])
    box.clock.pass_(3)
    ask_unsalted(box)
    box.ask(300)
    box.ask(40)
    box.only_l2()
    box.chunk_file(2).write_bytes(b"")
    box.ask(300)
    real = live("server_metric_labels_with_salts")
    mine = {n: {"type": t, "labels": sorted(labels)} for n, (t, labels) in metric_shapes(server_text(box)).items()}
    # `delete` by key is an eviction here as there; only the families of the real answer are compared
    assert {name: mine.get(name) for name in real} == real


def test_no_metric_that_the_real_server_does_not_have() -> None:
    known: set[str] = set(live("server_metric_labels_with_salts"))
    for file in CAPTURES.glob("server-*/*metrics*.txt"):
        known |= set(metric_shapes(file.read_text()))
    assert {f.name for f in families("server")} == known


def test_help_texts_are_the_real_ones(used: Driver) -> None:
    real = (CAPTURES / "server-with-engine/after-traffic.metrics.txt").read_text()
    helps = {line for line in real.splitlines() if line.startswith("# HELP")}
    assert helps <= set(server_text(used).splitlines())


@pytest.mark.parametrize(("capture", "server"), [("plain", None), ("with-lmcache", 0)])
def test_engine_metrics(make: Callable[..., Driver], capture: str, server: int | None) -> None:
    box = make(engines=[EngineSpec(server=server)])
    box.ask(300)
    box.reset()
    answer = box.client.get(box.sandbox.engine_url + "/metrics")
    assert answer.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
    real = (CAPTURES / f"engine/{capture}.metrics.txt").read_text()
    assert metric_shapes(answer.text) == metric_shapes(real)


def test_an_unused_engine_has_all_its_series_at_zero(box: Driver) -> None:
    text = box.client.get(box.sandbox.engine_url + "/metrics").text
    assert 'vllm:external_prefix_cache_hits_total{engine="0",model_name="tiny-llama"} 0.0' in text
    source = 'vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny-llama",source="external_kv_transfer"} 0.0'
    assert source in text


# --- calls ---


def test_captured_calls(box: Driver) -> None:
    server = box.sandbox.server_url
    box.ask(1000)
    keys = [key_of(p) for p in box.files()]
    with_bodies: list[tuple[str, str, str, Any]] = [
        ("delete_l1", "DELETE", "/cache/objects", {"keys": keys[:1], "tier": "l1"}),
        ("delete_all", "DELETE", "/cache/objects", {"keys": keys[1:2], "tier": "all", "force": True}),
        ("delete_l2", "DELETE", "/cache/objects", {"keys": keys[2:4], "tier": "l2"}),
        ("delete_badhex", "DELETE", "/cache/objects", {"keys": [{**keys[0], "chunk_hash_hex": "zz"}]}),
        ("cache_clear_l2", "POST", "/cache/clear", {"tier": "l2"}),
        ("cache_clear_nobody", "POST", "/cache/clear", None),
        (
            "prefetch_short",
            "POST",
            "/cache/prefetches",
            {"model_name": "/models/tiny-llama", "world_size": 1, "token_ids": [1, 2, 3]},
        ),
    ]
    for name, method, path, body in with_bodies:
        real = captured(f"calls/{name}.json")
        answer = box.client.request(method, server + path, json=body)
        assert (name, answer.status_code, answer.json()) == (name, real["status"], real["body"])
    quota = box.client.get(server + "/quota/tenantA")
    assert shape(quota.json()) == shape(captured("calls/quota_tenantA.json")["body"])
    assert box.client.post(server + "/metrics/reset").text == "ok"
    reset = box.client.post(box.sandbox.engine_url + "/reset_prefix_cache?reset_external=true")
    assert reset.json() == captured("calls/vllm_reset_external.json")["body"]


def test_prefetch_is_read_once(box: Driver) -> None:
    box.ask(1000)
    box.client.post(box.sandbox.server_url + "/cache/clear")
    body = {"model_name": "/models/tiny-llama", "world_size": 1, "token_ids": prompt(1000), "cache_salt": box.salt}
    submitted = box.client.post(box.sandbox.server_url + "/cache/prefetches", json=body)
    assert submitted.status_code == 202
    assert shape(submitted.json()) == shape(captured("calls/prefetch_submit.json")["body"])
    url = f"{box.sandbox.server_url}/cache/prefetches/{submitted.json()['request_id']}"
    for number, status in enumerate((200, 200, 404)):
        answer = box.client.get(url)
        assert answer.status_code == status
        real = captured(f"calls/prefetch_poll_{number}.json")["body"]
        assert shape(answer.json()) == shape(real)
        if number == 1:
            assert (answer.json()["found_keys"], answer.json()["total_keys"]) == (15, 15)
    assert box.status()["storage_manager"]["l1_manager"]["total_object_count"] == 15


@pytest.mark.parametrize("name", sorted(live("server_answers")))
def test_server_answers_kept_from_the_real_one(shared: Driver, name: str) -> None:
    box = shared
    real = live("server_answers")[name]
    answer = box.client.request(real["method"], box.sandbox.server_url + real["path"], json=real["request"])
    assert answer.status_code == real["status"]
    assert answer.headers["content-type"] == real["content_type"]
    assert answer.json() == json.loads(real["body"])


ENGINE = live("engine_answers")


@pytest.mark.parametrize("name", sorted(n for n in ENGINE if not n.startswith("error_")))
def test_engine_answers_kept_from_the_real_one(shared: Driver, name: str) -> None:
    box = shared
    real = ENGINE[name]
    answer = box.client.request(real["method"], box.sandbox.engine_url + real["path"], json=real["request"])
    assert answer.status_code == real["status"]
    assert answer.headers.get("content-type") == real["content_type"]
    if real["content_type"] is None:
        assert answer.content == b""
    elif "event-stream" in real["content_type"]:
        mine, theirs = events(answer.text), events(real["body"])
        assert len(mine) == len(theirs)
        assert [shape(event) for event in mine] == [shape(event) for event in theirs]
    else:
        assert loosen(shape(answer.json())) == loosen(shape(json.loads(real["body"])))


def loosen(found: dict[str, str]) -> dict[str, str]:
    """Tokens used as keys differ between two vocabularies."""
    out = {}
    for path, kind in found.items():
        for mark in (".top_logprobs[]", ".prompt_logprobs[]"):
            if mark in path:
                head, _, tail = path.partition(mark)
                rest = tail.split(".")
                path = head + mark + ("" if len(rest) < 2 else ".*" + "".join("." + r for r in rest[2:]))
        out[path] = kind
    return out


def events(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line.strip()]
    assert lines[-1] == "[DONE]"
    found = [json.loads(line) for line in lines[:-1]]
    for event in found:
        for choice in event["choices"]:
            if (choice.get("logprobs") or {}).get("top_logprobs"):
                choice["logprobs"]["top_logprobs"] = [{"x": 1.0}]
    return found


@pytest.mark.parametrize("name", sorted(n for n in ENGINE if n.startswith("error_")))
def test_engine_errors_kept_from_the_real_one(shared: Driver, name: str) -> None:
    box = shared
    real = ENGINE[name]
    request = real["request"]
    if request and "prompt_of" in request:
        request = {**request, "prompt": [5] * request.pop("prompt_of")}
    answer = box.client.request(real["method"], box.sandbox.engine_url + real["path"], json=request)
    assert (answer.status_code, answer.json()) == (real["status"], json.loads(real["body"]))


@pytest.mark.parametrize(
    "file",
    ["with-lmcache.completion-A-1_cold.json", "plain.completion.json", "with-lmcache.completion-B-3_after_reset.json"],
)
def test_captured_completions(make: Callable[..., Driver], file: str) -> None:
    plain = file.startswith("plain")
    box = make(engines=[EngineSpec(server=None if plain else 0, prompt_tokens_details=not plain)])
    mine = box.ask(1000, max_tokens=8, return_tokens_as_token_ids=False, kv_transfer_params=None)
    assert loosen(shape(mine.body)) == loosen(shape(captured(f"engine/{file}")))


def test_server_info_has_the_settings_that_matter(box: Driver) -> None:
    answer = box.client.get(box.sandbox.engine_url + "/server_info").json()
    real = captured("engine/with-lmcache.server_info.json")["vllm_config"]
    for setting in ("dtype=torch.bfloat16", "kv_cache_dtype=auto", "max_seq_len=4096", "served_model_name=tiny-llama"):
        assert setting in real
        assert setting in answer["vllm_config"]
    keys = [part.split("=", 1)[0] for part in answer["vllm_config"].split(", ")[:12]]
    assert keys == [part.split("=", 1)[0] for part in real.split(", ")[:12]]
