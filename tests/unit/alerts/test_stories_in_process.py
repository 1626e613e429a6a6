"""LMCache inside an engine: its own series on vLLM's page, polled over a real socket."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.alerts.facts.in_process import in_process_hit_rate
from app.alerts.inputs import EngineInput, Moment
from app.alerts.schemas import RulePatch
from app.lmcache.in_process_metrics import MULTIPROC_MISSING
from app.sandbox import EngineSpec
from app.sandbox.exposition import Family, MetricSet
from tests.unit.alerts.support import Stage, staged

LOOKED_UP, FOUND = "lmcache:num_lookup_tokens_total", "lmcache:num_lookup_hits_total"
HEALTHY, HELD = "lmcache:lmcache_is_healthy", "lmcache:local_cache_usage"
COUNTERS, GAUGES = (LOOKED_UP, FOUND), (HEALTHY, HELD)


@contextmanager
def inside(folder: Path) -> Iterator[tuple[Stage, MetricSet]]:
    """An engine without a cache server whose page has the series of LMCache inside it; and that page's numbers."""
    with staged(folder, servers=0, engines=[EngineSpec(server=None)], store=False) as stage:
        metrics = stage.control.engine().metrics
        for kind, names in (("counter", COUNTERS), ("gauge", GAUGES)):
            metrics._families.update({name: Family(name, kind, "as LMCache 0.5.6 prints it") for name in names})
        for name in COUNTERS:
            metrics.touch(name, worker_id="0")
        metrics.set(HEALTHY, 1, worker_id="0")
        metrics.set(HELD, 2**30, worker_id="0")
        body = RulePatch(thresholds={"requested_tokens": 2000}, for_seconds=120)
        stage.alerts.rules.patch_rule("in_process_hit_rate_low", body, actor="t")
        yield stage, metrics


def looked_up(metrics: MetricSet, tokens: float, found: float) -> None:
    metrics.inc(LOOKED_UP, tokens, worker_id="0")
    metrics.inc(FOUND, found, worker_id="0")


def test_a_low_hit_rate_inside_an_engine_counts_only_with_traffic(tmp_path: Path) -> None:
    with inside(tmp_path) as (stage, metrics):
        stage.run(600, 30, each=lambda: looked_up(metrics, 640, 512))
        fact = stage.fact("in_process_hit_rate", "engine")
        assert fact.state == "ok"
        assert fact.numbers["rate"] == 0.8
        assert stage.firing() == {}
        stage.run(1080, 30, each=lambda: looked_up(metrics, 640, 64))
        alarm = stage.firing()["in_process_hit_rate_low"]
        assert (alarm.target_kind, alarm.target_name, alarm.value, alarm.limit) == ("engine", "gpu-0", 0.1, 0.3)
        assert "10.0 % of 19,200 tokens that LMCache inside gpu-0 looked up in 15 m 00 s were found" in alarm.sentence
        stage.run(1080, 30)  # nothing is looked up: there is no rate to be low
        assert stage.firing() == {}
        assert stage.fact("in_process_hit_rate", "engine").reason == "no look-ups in the window"


def test_a_little_traffic_inside_an_engine_raises_nothing(tmp_path: Path) -> None:
    with inside(tmp_path) as (stage, metrics):
        stage.run(900, 30, each=lambda: looked_up(metrics, 64, 0))
        assert stage.fact("in_process_hit_rate", "engine").numbers["rate"] == 0.0
        assert stage.firing() == {}


def test_lmcache_inside_an_engine_that_says_it_is_unwell(tmp_path: Path) -> None:
    with inside(tmp_path) as (stage, metrics):
        stage.run(120, 30)
        assert stage.fact("in_process_health", "engine").state == "ok"
        metrics.set(HEALTHY, 0, worker_id="0")
        stage.run(600, 30, each=lambda: looked_up(metrics, 640, 0))
        assert set(stage.firing()) == {"in_process_unhealthy"}  # the hit rate is explained by it
        assert stage.pending()["in_process_hit_rate_low"].explained_by == stage.firing()["in_process_unhealthy"].id
        assert stage.fleet.get_engine(stage.engine_ids[0]).health.state == "healthy"
        metrics.set(HEALTHY, 1, worker_id="0")
        stage.run(1080, 30, each=lambda: looked_up(metrics, 640, 512))
        assert stage.firing() == {}


def test_an_engine_of_a_cache_server_has_no_lmcache_inside(tmp_path: Path) -> None:
    with staged(tmp_path, store=False) as stage:
        stage.run(120, 30, each=stage.ask)
        for name in ("in_process_hit_rate", "in_process_health"):
            fact = stage.fact(name, "engine")
            assert (fact.state, fact.reason) == ("quiet", "LMCache does not run inside this engine")


def test_series_that_are_missing_are_unknown_and_say_why() -> None:
    engine = EngineInput(id=1, name="gpu-0", url="u", in_process={"state": "unknown", "reason": MULTIPROC_MISSING})
    fact = in_process_hit_rate(Moment(now=1e9, interval=10.0, engines={1: engine}), engine)
    assert (fact.unknown, fact.quiet) == (MULTIPROC_MISSING, None)
