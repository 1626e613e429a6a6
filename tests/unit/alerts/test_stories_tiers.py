"""What the counters of L1, L2 and the lookups give away."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.alerts.schemas import RulePatch
from app.fleet.schemas import EnginePatch
from app.sandbox import EngineSpec, ServerSpec
from tests.unit.alerts.support import Stage, staged

KIB = 1024


def limits(stage: Stage, rule: str, **thresholds: float) -> None:
    """Thresholds small enough for a test's traffic."""
    stage.alerts.rules.patch_rule(rule, RulePatch(thresholds=dict(thresholds)), actor="t")


def test_a_dropping_event_bus_holds_back_what_rests_on_the_counters(tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        stage.run(60, 30, each=stage.ask)
        assert stage.fact("event_bus").numbers["dropped"] == 0
        counters = stage.control.server().counters.metrics
        counters.inc("lmcache_mp_event_bus_dropped_events_total", 17)
        stage.control.misbehave("server/0", stores_never_complete=True)  # as far as the counters tell
        stage.run(240, 30, each=stage.ask)
        assert set(stage.firing()) == {"event_bus_dropping"}
        assert "dropped 17 events" in stage.firing()["event_bus_dropping"].sentence
        assert stage.pending()["stores_failing"].explained_by == stage.firing()["event_bus_dropping"].id
        stage.run(360, 30, each=stage.ask)
        # Nothing was dropped for five minutes: the other alarm has its own time now.
        assert set(stage.firing()) == {"stores_failing"}


def test_a_low_hit_rate_counts_only_with_traffic(tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        body = RulePatch(thresholds={"requested_tokens": 2000}, for_seconds=120)
        stage.alerts.rules.patch_rule("hit_rate_low", body, actor="t")
        stage.run(120, 30, each=lambda: stage.ask(which=1))
        assert stage.fact("hit_rate").state == "ok"
        stage.run(480, 30, each=stage.ask)
        alarm = stage.firing()["hit_rate_low"]
        assert alarm.value is not None
        assert alarm.value < 0.3
        assert alarm.limit == 0.3
        # Traffic ends: there is no rate to be low, and the alarm ends with its reason.
        stage.run(1080, 30)
        assert stage.firing() == {}
        assert stage.fact("hit_rate").reason == "no lookups in the window"


def test_engines_that_load_more_than_the_server_found(tmp_path: Path) -> None:
    """An engine that the operator linked to the wrong one of two servers."""
    engines = [EngineSpec(server=0), EngineSpec(server=1)]
    with staged(tmp_path, servers=2, engines=engines, store=False) as stage:
        limits(stage, "hit_rate_disagrees", tokens=500)
        for alarm in ("cache_bypassed", "engine_not_registered", "nobody_registered", "shared_directory"):
            stage.alerts.rules.patch_rule(alarm, RulePatch(enabled=False), actor="t")

        def traffic() -> None:
            for engine in (0, 1):
                stage.reset(engine)
                stage.ask(which=3, engine=engine)

        stage.run(420, 30, each=traffic)
        assert stage.firing() == {}
        body = EnginePatch(server_id=str(stage.server_ids[0]))
        stage.fleet.patch_engine(stage.engine_ids[1], body, actor="t")
        stage.run(660, 30, each=traffic)
        alarm = stage.firing()["hit_rate_disagrees"]
        assert alarm.target_name == "cache-0"
        assert "an engine uses another server too" in alarm.sentence


def test_hits_that_do_not_reach_the_engines(tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        limits(stage, "hit_rate_disagrees", tokens=500)

        def traffic() -> None:
            stage.reset()
            stage.ask(which=3)

        stage.run(120, 30, each=traffic)
        metrics = stage.control.engine().metrics
        real = metrics.inc

        def lossy(name: str, value: float = 1.0, /, **labels: str) -> None:
            real(name, 0.0 if name == "vllm:external_prefix_cache_hits_total" else value, **labels)

        metrics.inc = lossy  # type: ignore[method-assign]
        stage.run(720, 30, each=traffic)
        assert set(stage.firing()) == {"hit_rate_disagrees"}
        assert "hits do not reach the engines" in stage.firing()["hit_rate_disagrees"].sentence


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (ServerSpec(l1_bytes=2048 * KIB, trigger_watermark=0.5, eviction_ratio=0.01), "had to evict in"),
        (ServerSpec(l1_bytes=256 * KIB, trigger_watermark=0.9), "found no room in L1"),
    ],
    ids=["evicts all the time", "too small for one prompt"],
)
def test_an_l1_that_is_too_small(tmp_path: Path, spec: ServerSpec, words: str) -> None:
    with staged(tmp_path, servers=[spec]) as stage:

        def heavy() -> None:
            for _ in range(2):
                stage.ask()

        stage.run(390, 30, each=heavy)
        assert set(stage.firing()) == {"l1_thrash"}
        assert words in stage.firing()["l1_thrash"].sentence


def test_an_l1_that_evicts_now_and_then_is_well(tmp_path: Path) -> None:
    spec = ServerSpec(l1_bytes=2048 * KIB, trigger_watermark=0.5, eviction_ratio=0.5)
    with staged(tmp_path, servers=[spec]) as stage:
        stage.run(600, 30, each=stage.ask)
        assert stage.control.server().metrics.value("lmcache_mp_l1_eviction_loop_triggered_total") > 0
        assert stage.firing() == {}


@pytest.mark.parametrize("fault", ["stores_never_complete", "stores_stuck"])
def test_stores_that_fail(tmp_path: Path, fault: str) -> None:
    with staged(tmp_path) as stage:
        stage.run(60, 30, each=stage.ask)
        stage.control.misbehave("server/0", **{fault: True})
        stage.run(420, 30, each=stage.ask)
        assert set(stage.firing()) == {"stores_failing"}
        assert "not one" in stage.firing()["stores_failing"].sentence
        assert stage.fleet.get_server(stage.server_ids[0]).health.state == "healthy"  # nothing else moves
        stage.control.behave()
        stage.run(480, 30, each=stage.ask)
        assert stage.firing() == {}


def test_stores_that_are_only_slow(tmp_path: Path) -> None:
    with staged(tmp_path, servers=[ServerSpec(l2_store_delay_seconds=100)]) as stage:
        stage.run(210, 30, each=stage.ask)
        fact = stage.fact("stores_failing")
        assert fact.numbers["share"] is not None
        assert fact.numbers["share"] > 0.05
        assert "slow, not failing" in fact.verdicts[0].sentence
        stage.run(300, 30, each=stage.ask)
        assert stage.firing() == {}


def test_l2_that_cannot_hit(tmp_path: Path) -> None:
    with staged(tmp_path) as stage:

        def again() -> None:
            stage.clear_l1()
            stage.reset()
            stage.ask(which=3)

        stage.ask(which=3)
        stage.run(60, 30, each=again)
        fact = stage.fact("l2_impossible")
        assert fact.numbers["loaded"] == fact.numbers["loads"] != 0
        for path in stage.sandbox.store_path.glob("*.data"):
            path.write_bytes(path.read_bytes()[:100])  # cut off, as after a full disk: it never heals
        stage.run(1080, 60, each=again)
        assert set(stage.firing()) == {"l2_impossible"}
        assert "not one loaded" in stage.firing()["l2_impossible"].sentence


def test_l2_that_is_written_and_never_read(tmp_path: Path) -> None:
    spec = ServerSpec(l1_bytes=2048 * KIB, trigger_watermark=0.5, eviction_ratio=0.5)
    with staged(tmp_path, servers=[spec]) as stage:
        limits(stage, "writes_never_read", chunks=100, uptime_seconds=600)
        stage.run(1500, 60, each=lambda: [stage.ask(), stage.ask()])  # type: ignore[func-returns-value]
        assert set(stage.firing()) == {"writes_never_read"}
        stage.reset()
        stage.run(180, 60, each=lambda: stage.ask(which=1001))  # the first prompt comes back: from L2
        assert stage.firing() == {}
        assert stage.fact("writes_never_read").numbers["read"] == 30


def test_retrieves_that_do_not_end(tmp_path: Path) -> None:
    with staged(tmp_path) as stage:

        def hits() -> None:
            stage.reset()
            stage.ask(which=3)

        stage.run(150, 30, each=hits)
        assert stage.fact("retrieves_stuck").state in ("ok", "quiet")
        stage.control.server().metrics.inc("lmcache_mp_num_submitted_retrieves_total", device="cpu")
        stage.control.engine().running = 1  # its request waits for it
        stage.run(240, 30)
        assert set(stage.firing()) - {"requests_hang"} == {"retrieves_stuck"}
        stage.control.engine().running = 0  # its engine died: the difference stays, and nobody waits
        stage.run(120, 30)
        assert stage.firing() == {}
        stage.run(1860, 60, each=hits)
        stage.control.engine().running = 1
        stage.run(150, 30, each=stage.ask)  # misses only, under an old offset: nothing is stuck
        assert stage.firing() == {}


def test_hit_rates_by_model_salt_and_engine(tmp_path: Path) -> None:
    engines = [EngineSpec(), EngineSpec(model_path="/models/other", served_model_name="other")]
    with staged(tmp_path, engines=engines) as stage:
        for engine in (0, 1):
            stage.ask(which=1, engine=engine)
        stage.tick()
        before = stage.alerts.hit_rates(stage.server_ids[0])
        assert before.value == 0.0
        for _ in range(3):
            stage.reset(0)
            stage.ask(which=1, engine=0)
        stage.ask(which=2, engine=1)
        stage.tick()
        rates = stage.alerts.hit_rates(stage.server_ids[0])
        parts = {(p.by, p.name): p for p in rates.parts}
        assert rates.requested_tokens == 6 * 640
        first, second = parts["model", "/models/tiny-llama"], parts["model", "/models/other"]
        assert (first.requested_tokens, first.hit_tokens, first.value) == (4 * 640, 3 * 640, 0.75)
        assert (second.requested_tokens, second.hit_tokens, second.value) == (2 * 640, 0, 0.0)
        assert (parts["engine", "gpu-0"].hit_tokens, parts["engine", "gpu-1"].hit_tokens) == (3 * 639, 0)
