"""The whole way over real sockets: a simulated server and engine that restart, hang, lie and come back."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.fleet.probe_schemas import ProbeRequest
from app.fleet.schemas import EngineCreate, EngineView, ServerCreate, ServerView, StoreCreate
from app.sandbox import SandboxThread, ServerSpec
from app.telemetry.poller import Poller
from tests.unit.telemetry.support import Bench


class Stage:
    """A sandbox and a panel that polls it, on one clock."""

    def __init__(self, tmp_path: Path) -> None:
        self.bench = Bench(tmp_path)
        self.bench.clock.now = 1_796_000_000.0
        self.fleet, self.telemetry = self.bench.fleet, self.bench.telemetry
        self.sandbox = SandboxThread(
            tmp_path / "sandbox", clock=self.bench.clock, servers=[ServerSpec(reap_timeout_seconds=20.0)]
        )
        self.poller = Poller(db=self.bench.db, clock=self.bench.clock, settings=self.bench.settings, fleet=self.fleet)

    def register(self) -> None:
        self.server_id = int(self.fleet.create_server(ServerCreate(url=self.sandbox.server_url), actor="t").id)
        self.engine_id = int(self.fleet.create_engine(EngineCreate(url=self.sandbox.engine_url), actor="t").id)

    def tick(self, seconds: float = 10.0) -> None:
        self.bench.clock.now += seconds
        asyncio.run(self.poller.poll_all_once())

    @property
    def server(self) -> ServerView:
        return self.fleet.get_server(self.server_id)

    @property
    def engine(self) -> EngineView:
        return self.fleet.get_engine(self.engine_id)

    def complete(self, prompt: list[int]) -> None:
        body = {"model": "tiny-llama", "prompt": prompt, "max_tokens": 1, "temperature": 0}
        request = urllib.request.Request(
            f"{self.sandbox.engine_url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.status == 200

    def reset(self) -> None:
        request = urllib.request.Request(f"{self.sandbox.engine_url}/reset_prefix_cache", b"", method="POST")
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert json.load(answer) == {"success": True}

    def status(self) -> Any:
        with urllib.request.urlopen(f"{self.sandbox.server_url}/status", timeout=10) as answer:
            return json.load(answer)

    def sources(self) -> dict[str, float]:
        """The engine's prompt tokens by source, since its start."""
        with urllib.request.urlopen(f"{self.sandbox.engine_url}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        found = re.findall(r'^vllm:prompt_tokens_by_source_total{.*source="(\w+)".*} (.*)$', text, re.MULTILINE)
        return {source: float(value) for source, value in found}

    def metrics(self) -> dict[str, float]:
        with urllib.request.urlopen(f"{self.sandbox.server_url}/metrics", timeout=10) as answer:
            lines = [line for line in answer.read().decode().splitlines() if line and not line.startswith("#")]
        totals: dict[str, float] = {}
        for line in lines:
            name, _, value = line.rpartition(" ")
            name = name.partition("{")[0]
            totals[name] = totals.get(name, 0.0) + float(value)
        return totals


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    with made.sandbox:
        made.register()
        yield made
    made.bench.db.dispose()


def test_what_the_panel_says_equals_what_the_server_says(stage: Stage) -> None:
    for _ in range(12):
        stage.tick(30)  # the processes are older than the window now
    assert stage.server.hit_rate.state == "no_traffic"
    before = stage.metrics()
    prompt = [n % 251 for n in range(640)]
    stage.complete(prompt)
    stage.complete(prompt)
    stage.reset()
    stage.complete([*prompt[:320], *([7] * 320)])
    stage.tick()
    view, manager, after = stage.server, stage.status()["storage_manager"]["l1_manager"], stage.metrics()
    assert view.l1.used_bytes == manager["memory_used_bytes"] > 0
    assert view.l1.object_count == manager["total_object_count"] > 0
    assert view.l1.usage_ratio == pytest.approx(manager["memory_used_bytes"] / manager["memory_total_bytes"])
    grown = {name: after[name] - before.get(name, 0.0) for name in after}
    rate = view.hit_rate
    assert rate.requested_tokens == grown["lmcache_mp_lookup_requested_tokens_total"] > 0
    assert rate.hit_tokens == grown["lmcache_mp_lookup_hit_tokens_total"] > 0
    assert rate.value == rate.hit_tokens / rate.requested_tokens
    assert (view.health.state, view.health.engines_registered) == ("healthy", 1)
    engine = stage.engine
    assert (engine.server_id, engine.server_link) == (str(stage.server_id), "guessed")
    assert engine.health.state == "healthy"
    flow = stage.telemetry.token_flow(stage.server_id, 60)
    levels = {level.level: level.tokens or 0 for level in flow.levels}
    told = stage.sources()
    assert levels["l0"] == told["local_cache_hit"] > 0
    assert levels["recomputed"] == told["local_compute"] > 0
    assert levels["l0"] + levels["recomputed"] + (flow.external_tokens or 0) == flow.total_tokens == 3 * 640
    assert flow.external_tokens == told["external_kv_transfer"] >= 320
    l1, l2 = (next(v for v in flow.levels if v.level == name) for name in ("l1", "l2"))
    if l1.state == "value":
        assert (l1.tokens or 0) + (l2.tokens or 0) == flow.external_tokens
    else:
        assert (l1.least_tokens or 0) + (l2.most_tokens or 0) == flow.external_tokens
    chart = stage.telemetry.samples("server", stage.server_id, "hit_rate", start=stage.bench.clock.now - 60, step=1)
    assert chart.points[-1][1] == pytest.approx(rate.value, abs=0)


def test_a_restarted_engine_shows_both_contexts_until_the_old_one_is_reaped(stage: Stage) -> None:
    stage.complete([5] * 70)  # heartbeats begin with the first request; who never pinged is kept for an hour
    stage.tick()
    stage.tick()
    first = stage.server.layouts
    assert [(layout.dtype, layout.kv_cache_dtype, layout.live) for layout in first] == [("bfloat16", "auto", True)]
    stage.sandbox.control.restart("engine/0", dtype="float16")
    stage.tick()
    assert sorted((str(x.dtype), x.live) for x in stage.server.layouts) == [("bfloat16", True), ("float16", True)]
    for _ in range(5):
        stage.tick()
    layouts = {str(x.dtype): x for x in stage.server.layouts}
    assert (layouts["float16"].live, layouts["bfloat16"].live) == (True, False)
    assert layouts["bfloat16"].fingerprint == first[0].fingerprint != layouts["float16"].fingerprint
    rows = stage.telemetry.observations([stage.server_id])
    kinds = [sorted(str(c["dtype"]) for c in row.contexts.values()) for row in rows]
    assert [k for n, k in enumerate(kinds) if n == 0 or k != kinds[n - 1]] == [
        ["bfloat16"],
        ["bfloat16", "float16"],
        ["float16"],
    ]
    assert rows[-1].drained is True
    starts = [row.engine_starts.get(str(stage.engine_id)) for row in rows]
    assert starts[-1] == pytest.approx(1_796_000_020.0, abs=1.0)
    assert all(row.clock_offset is not None for row in rows)


def test_a_restart_inside_the_heartbeat_is_not_hidden_by_green_lights(stage: Stage) -> None:
    for _ in range(3):
        stage.tick()
    assert stage.server.health.engines_registered == 1
    stage.sandbox.control.restart("server/0")
    stage.tick(2)
    stage.tick(2)
    health = stage.server.health
    assert (health.state, health.http_up, health.engine_up, health.engines_registered) == ("degraded", True, True, 0)
    assert "nothing is cached" in health.reason
    assert stage.server.restarted_at == stage.server.started_at


def test_killed_and_back(stage: Stage) -> None:
    stage.complete([5] * 70)
    stage.tick()
    stage.sandbox.control.kill("server/0")
    stage.tick()
    assert (stage.server.health.state, stage.server.health.http_up) == ("healthy", False)
    stage.tick()
    view = stage.server
    assert view.health.state == "unreachable"
    assert "refused" in view.health.reason
    assert (view.l1.capacity_bytes, view.scrape_age_seconds) == (268_435_456, 20.0)
    stage.sandbox.control.start("server/0")
    for _ in range(4):
        stage.tick()
    view = stage.server
    assert (view.health.state, view.health.engines_registered, view.scrape_age_seconds) == ("healthy", 1, 0.0)
    changes = stage.telemetry.health_changes(page_size=50, page_token=None, target_kind="server").items
    assert [change.new_state for change in changes] == ["healthy", "unreachable", "healthy"]


@pytest.mark.parametrize(
    ("fault", "state", "words"),
    [
        ({"status_unhealthy": True}, "unhealthy", "is_healthy: false"),
        ({"healthcheck_unhealthy": True}, "unhealthy", "/healthcheck says"),
        ({"garbage": True, "paths": "/status"}, "degraded", "/status"),
        ({"truncated": True, "paths": "/metrics"}, "degraded", "/metrics"),
        ({"status": 500, "paths": "/status"}, "degraded", "500"),
        ({"redirect": "http://127.0.0.1:1/", "paths": "/status"}, "degraded", "/status"),
        ({"huge_bytes": 40_000_000, "paths": "/status"}, "degraded", "more than"),
        ({"garbage": True}, "degraded", "/healthcheck"),
    ],
)
def test_each_misbehaviour_is_told(stage: Stage, fault: dict[str, object], state: str, words: str) -> None:
    stage.tick()
    stage.sandbox.control.misbehave("server/0", **fault)
    for _ in range(3):
        stage.tick()
    health = stage.server.health
    assert (health.state, health.http_up) == (state, True), health.reason
    assert words in health.reason
    stage.sandbox.control.behave()
    for _ in range(2):
        stage.tick()
    assert stage.server.health.state == "healthy"


def test_missing_series_are_unknown_or_no_traffic_never_zero(stage: Stage) -> None:
    stage.sandbox.control.misbehave("server/0", metrics_missing=True)
    stage.tick()
    view = stage.server
    assert (view.hit_rate.state, view.hit_rate.value) == ("unknown", None)
    assert view.hit_rate.reason
    assert view.l1.capacity_bytes == 268_435_456
    stage.sandbox.control.behave()
    stage.tick()
    assert stage.server.hit_rate.state == "no_traffic"


def test_probes_say_what_is_there_and_what_to_enter(stage: Stage) -> None:
    server = stage.fleet.probe(ProbeRequest(url=stage.sandbox.server_url))
    assert (server.kind, server.register_as, server.suggested_url) == (
        "lmcache_http",
        "server",
        stage.sandbox.server_url,
    )
    assert server.model_names == ["/models/tiny-llama"]
    engine = stage.fleet.probe(ProbeRequest(url=stage.sandbox.engine_url))
    assert (engine.kind, engine.register_as, engine.model_names) == (
        "vllm_with_connector",
        "engine",
        ["/models/tiny-llama"],
    )
    other = stage.fleet.probe(ProbeRequest(url=stage.sandbox.control_url or ""))
    assert (other.kind, other.register_as) == ("other", None)
    assert other.evidence
    stage.sandbox.control.misbehave("server/0", status=404, paths="/status,/healthcheck,/version,/config,/api")
    stage.sandbox.control.refuse("engine/0")
    nothing = stage.fleet.probe(ProbeRequest(url=stage.sandbox.engine_url))
    assert nothing.kind == "nothing"
    assert "refused" in nothing.evidence[0]


def test_a_store_added_right_after_its_server_knows_its_configuration(stage: Stage) -> None:
    body = StoreCreate(path=str(stage.sandbox.store_path), server_id=str(stage.server_id))
    store = stage.fleet.create_store(body, actor="t")
    assert (store.server_path, store.temp_dir) == (str(stage.sandbox.store_path), ".tmp")
    assert stage.server.l2[0].store_id == store.id
    stage.tick()
    assert stage.fleet.get_store(int(store.id)).usable is True
