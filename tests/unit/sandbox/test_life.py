"""Processes that come, go and change their settings; what the others see of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from app.sandbox import EngineSpec, Latency, Sandbox, SandboxConfig, SandboxThread, ServerSpec
from tests.unit.sandbox.support import START, Clock, Driver


def contexts(box: Driver) -> list[str]:
    return list(box.status()["cache_context_meta"])


def dtypes(box: Driver) -> list[str]:
    rows = box.status()["cache_context_meta"].values()
    return [row["kv_cache_layout"]["kernel_groups"][0]["dtype"] for row in rows]


def test_an_engine_restart_leaves_the_old_context_until_it_is_reaped(box: Driver) -> None:
    box.ask()
    (old,) = contexts(box)
    box.sandbox.control.restart("engine", dtype="float16")
    assert len(contexts(box)) == 2
    assert dtypes(box) == ["torch.bfloat16", "torch.float16"]
    box.ask()
    box.clock.pass_(100)
    assert old in contexts(box)
    box.clock.pass_(30)
    (new,) = contexts(box)
    assert new != old
    assert dtypes(box) == ["torch.float16"]
    text = box.client.get(box.sandbox.server_url + "/metrics").text
    assert f'engine_id="{old}"' in text  # series outlive their context


def test_an_engine_that_never_pinged_is_kept_for_an_hour(box: Driver) -> None:
    (old,) = contexts(box)  # no request yet: no heartbeat
    box.sandbox.control.restart("engine")
    box.ask()
    box.clock.pass_(1800)
    assert old in contexts(box)
    box.clock.pass_(1801)
    assert old not in contexts(box)
    assert len(contexts(box)) == 1


def test_reap_timeout_is_configurable(make: Callable[..., Driver]) -> None:
    box = make(servers=[ServerSpec(reap_timeout_seconds=5)])
    box.ask()
    box.sandbox.control.kill("engine")
    box.clock.pass_(6)
    assert contexts(box) == []
    assert box.status()["worker_liveness"]["tracked_instances"] == 0


def test_a_live_engine_is_not_reaped_however_long_nobody_asked(box: Driver) -> None:
    box.ask()
    before = contexts(box)
    box.clock.pass_(7 * 86_400)
    assert contexts(box) == before


def test_an_engine_restart_zeroes_its_counters_and_its_gpu_cache(box: Driver) -> None:
    box.ask()
    box.clock.pass_(50)
    box.sandbox.control.restart("engine")
    m = box.engine_metrics()
    assert m["vllm:prompt_tokens_total"] == 0
    assert m["process_start_time_seconds"] == START + 50
    assert box.ask().stats == (0, 256, 256)


def test_a_server_restart_zeroes_everything_but_the_files(box: Driver) -> None:
    box.ask()
    first = box.client.get(box.sandbox.server_url + "/config").json()["mp"]["instance_id"]
    box.clock.pass_(40)
    box.sandbox.control.restart("server")
    second = box.client.get(box.sandbox.server_url + "/config").json()["mp"]["instance_id"]
    assert first != second
    m = box.server_metrics()
    assert m["process_start_time_seconds"] == START + 40
    assert "lmcache_mp_lookups_requests_total" not in m
    assert f'service_instance_id="{second}"' in box.client.get(box.sandbox.server_url + "/metrics").text
    assert box.status()["storage_manager"]["l1_manager"]["total_object_count"] == 0
    assert len(box.files()) == 4


def test_an_engine_started_without_its_server_registers_later(box: Driver) -> None:
    box.sandbox.control.kill("server")
    box.sandbox.control.restart("engine")
    assert box.ask().stats == (0, 0, 0)
    box.sandbox.control.start("server")
    assert contexts(box) == []
    box.clock.pass_(10)
    assert len(contexts(box)) == 1


def test_a_server_can_come_back_with_another_chunk_size(box: Driver) -> None:
    box.ask()
    box.sandbox.control.kill("server")
    box.clock.pass_(20)
    box.sandbox.control.start("server", chunk_size=128)
    box.clock.pass_(10)
    assert box.ask().stats == (288, 0, 0)
    assert sorted({p.stat().st_size for p in box.files()}) == [32768, 65536]


def test_dead_means_refused_and_the_port_stays(box: Driver) -> None:
    url = box.sandbox.server_url
    box.sandbox.control.kill("server")
    with pytest.raises(httpx.ConnectError):
        box.client.get(url + "/healthcheck")
    box.sandbox.control.start("server")
    assert box.sandbox.server_url == url
    assert box.client.get(url + "/healthcheck").status_code == 200


def test_refusing_connections_is_not_dying(box: Driver) -> None:
    box.ask()
    box.sandbox.control.refuse("server")
    with pytest.raises(httpx.ConnectError):
        box.client.get(box.sandbox.server_url + "/healthcheck")
    box.reset()
    assert box.ask().stats == (0, 256, 256)  # engines talk to it another way
    box.sandbox.control.accept("server")
    assert len(contexts(box)) == 1


def test_time_stands_still_unless_told(box: Driver) -> None:
    first = box.server_metrics()
    second = box.server_metrics()
    assert first == second
    box.clock.pass_(7)
    assert box.server_metrics()["lmcache_mp_l1_eviction_loop_ticks_total"] == 7


def test_started_at_may_lie_in_the_past(make: Callable[..., Driver]) -> None:
    day = 86_400
    box = make(servers=[ServerSpec(started_at=START - 9 * day)], engines=[EngineSpec(started_at=START - 9 * day + 60)])
    assert box.server_metrics()["process_start_time_seconds"] == START - 9 * day
    assert box.engine_metrics()["process_start_time_seconds"] == START - 9 * day + 60
    assert box.server_metrics()["lmcache_mp_l1_eviction_loop_ticks_total"] == 9 * day
    box.sandbox.control.restart("engine")
    assert box.engine_metrics()["process_start_time_seconds"] == START


def test_reset_is_refused_while_a_request_runs(make: Callable[..., Driver]) -> None:
    box = make(config=SandboxConfig(latency=Latency(decode_per_token=0.05)))
    body = {"model": "tiny-llama", "prompt": [9] * 100, "max_tokens": 5, "stream": True, "ignore_eos": True}
    with box.client.stream("POST", box.sandbox.engine_url + "/v1/completions", json=body) as stream:
        lines = stream.iter_lines()
        next(lines)
        assert box.reset() is False
        assert box.engine_metrics()["vllm:num_requests_running"] == 1
        assert box.engine_metrics()["vllm:kv_cache_usage_perc"] > 0
        assert box.client.get(box.sandbox.engine_url + "/load").json() == {"server_load": 1}
        assert sum(1 for _ in lines) > 4
    assert box.reset() is True
    assert box.engine_metrics()["vllm:num_requests_running"] == 0


def test_dev_mode_off(make: Callable[..., Driver]) -> None:
    box = make(engines=[EngineSpec(dev_mode=False)])
    for method, path in (("POST", "/reset_prefix_cache"), ("GET", "/server_info")):
        answer = box.client.request(method, box.sandbox.engine_url + path)
        assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"})
    assert 'cache_dtype="auto"' in box.client.get(box.sandbox.engine_url + "/metrics").text


def test_an_older_engine_answers_a_reset_with_nothing(make: Callable[..., Driver]) -> None:
    box = make(engines=[EngineSpec(reset_answers="empty")])
    answer = box.client.post(box.sandbox.engine_url + "/reset_prefix_cache")
    assert (answer.status_code, answer.content) == (200, b"")


def test_latency_tells_the_tiers_apart(make: Callable[..., Driver]) -> None:
    spec = Latency(base=0.0, compute_per_token=1e-4, l1_per_token=1e-6, l2_per_token=1e-5)
    box = make(config=SandboxConfig(latency=spec))
    seconds = []
    total = "vllm:time_to_first_token_seconds_sum"
    for prepare in (lambda: None, lambda: None, box.reset, box.only_l2):
        prepare()
        before = box.engine_metrics()[total]
        box.ask(1000)
        seconds.append(round(box.engine_metrics()[total] - before, 6))
    cold, warm, l1, l2 = seconds
    assert cold == pytest.approx(0.1)
    assert warm < l1 < l2 < cold
    assert Latency.realistic().prefill(10_000, 0, 0) == 3.0


def test_sampling_is_repeatable_with_a_seed(box: Driver) -> None:
    a = box.ask(temperature=1.0, seed=3, max_tokens=12, ignore_eos=True)
    b = box.ask(temperature=1.0, seed=3, max_tokens=12, ignore_eos=True)
    greedy = box.ask(max_tokens=12, ignore_eos=True)
    assert a.tokens == b.tokens != greedy.tokens


def test_an_answer_ends_at_the_end_mark(box: Driver) -> None:
    reasons: dict[str, list[int]] = {}
    for seed in range(60):
        choice = box.ask(40, seed, max_tokens=30, temperature=1.0, seed=seed).body["choices"][0]
        reasons[choice["finish_reason"]] = choice["token_ids"]
        if len(reasons) == 2:
            break
    assert reasons["stop"][-1] == 2
    assert len(reasons["length"]) == 30


async def test_inside_a_running_event_loop(tmp_path: Path) -> None:
    clock = Clock()
    async with Sandbox(tmp_path, clock=clock) as sandbox, httpx.AsyncClient(trust_env=False) as client:
        body = {"model": "tiny-llama", "prompt": "hello cache", "max_tokens": 1}
        assert (await client.post(sandbox.engine_url + "/v1/completions", json=body)).status_code == 200
        await sandbox.control.arun("restart", "engine", dtype="float16")
        answer = await client.get(sandbox.server_url + "/status")
        assert len(answer.json()["cache_context_meta"]) == 2
        with pytest.raises(BlockingIOError, match="arun"):
            sandbox.control.kill("engine")
        assert (await client.get(sandbox.engine_url + "/health")).status_code == 200
        with pytest.raises(ValueError, match="unknown action"):
            await sandbox.control.arun("explode", "engine")
    async with httpx.AsyncClient(trust_env=False) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(sandbox.server_url)


def test_a_sandbox_that_does_not_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="not running"):
        Sandbox(tmp_path).control.kill("engine")
    thread = SandboxThread(tmp_path)
    with pytest.raises(RuntimeError, match="not running"):
        thread.traffic()
    thread.stop()


def test_stores_go_on_while_nobody_asks(tmp_path: Path) -> None:
    """The pump, with the real clock: the one test here that lets real time pass."""
    import time

    config = SandboxConfig(server=ServerSpec(l2_store_delay_seconds=0.05), pump_seconds=0.02)
    with SandboxThread(tmp_path, config=config) as sandbox, httpx.Client(trust_env=False) as client:
        body = {"model": "tiny-llama", "prompt": [9] * 200, "max_tokens": 1}
        client.post(sandbox.engine_url + "/v1/completions", json=body)
        deadline = time.monotonic() + 5
        while len(list(sandbox.store_path.glob("*.data"))) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_record_times_follow_the_clock(box: Driver) -> None:
    box.clock.pass_(1234)
    box.ask()
    assert {p.stat().st_mtime for p in box.files()} == {START + 1234}


def test_l2_can_be_switched_off_on_restart(box: Driver) -> None:
    box.sandbox.control.kill("server")
    box.clock.pass_(30)
    box.sandbox.control.start("server", l2_enabled=False)
    box.ask()
    assert box.files() == []
    assert box.client.get(box.sandbox.server_url + "/config/adapters").json() == {"adapters": []}


def test_stopping_does_not_wait_for_hanging_requests(tmp_path: Path) -> None:
    import socket
    import time

    sandbox = SandboxThread(tmp_path)
    sandbox.start()
    sandbox.control.misbehave("server", hang=True)
    port = int(sandbox.server_url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n")
        began = time.monotonic()
        while sandbox.control.calls("server")["GET /status"] == 0:
            assert time.monotonic() - began < 5
        began = time.monotonic()
        sandbox.stop()
        assert time.monotonic() - began < 2
        assert connection.recv(10) == b""
