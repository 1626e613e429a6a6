"""LMCache inside an engine: its hit rate, what it holds, vLLM's count beside it, and series that are missing."""

from __future__ import annotations

from app.lmcache.in_process_metrics import in_process_metrics
from app.vllm.metrics import engine_metrics, parse_metrics
from tests.unit.telemetry.support import Bench, FakeTarget, capture, captured_engine

URL = "http://gpu:8000"
OWN = """
lmcache:num_lookup_tokens_total{{worker_id="0"}} {lookup}
lmcache:num_lookup_hits_total{{worker_id="0"}} {hit}
lmcache:num_hit_tokens_total{{worker_id="0"}} {hit}
lmcache:num_requested_tokens_total{{worker_id="0"}} {hit}
lmcache:num_stored_tokens_total{{worker_id="0"}} 2048
lmcache:local_cpu_evict_keys_count_total{{worker_id="0"}} 3
lmcache:local_cache_usage{{worker_id="0"}} 1048576
lmcache:local_cache_usage{{worker_id="1"}} 1048576
lmcache:local_storage_usage{{worker_id="0"}} 5000000
lmcache:lmcache_is_healthy{{worker_id="0"}} 1
"""


def engine(lookup: float = 0, hit: float = 0) -> FakeTarget:
    """The captured engine, its connector another one, with LMCache's own series on its page."""
    fake = captured_engine()
    answer = fake.answers["/metrics"]
    assert not isinstance(answer, Exception)
    status, kind, body = answer
    plain = b"\n".join(line for line in body.splitlines() if b"lmcache_mp_" not in line)
    fake.answers["/metrics"] = (status, kind, plain + OWN.format(lookup=lookup, hit=hit).encode())
    fake.set_metric("/metrics", "process_start_time_seconds", 1_795_900_000)  # long before the panel saw it
    return fake


def test_names_of_the_series_in_both_text_forms() -> None:
    text = "vllm:num_requests_running 0\n" + OWN.format(lookup=1000, hit=640)
    classic = engine_metrics(parse_metrics(text))
    underscores = text.replace("vllm:", "vllm_").replace("lmcache:", "lmcache_") + "lmcache_mp_lookup_x_total 7\n"
    told = in_process_metrics(classic.in_process)
    assert told == in_process_metrics(engine_metrics(parse_metrics(underscores)).in_process)
    assert told is not None
    assert (told.lookup_tokens, told.lookup_hit_tokens, told.stored_tokens, told.evicted_keys) == (1000, 640, 2048, 3)
    assert (told.cpu_bytes, told.disk_bytes, told.remote_bytes, told.healthy) == (2 * 2**20, 5e6, None, True)


def test_no_series_is_none_and_a_counter_that_did_not_count_yet_is_zero() -> None:
    assert in_process_metrics({}) is None
    told = in_process_metrics({"lmcache:local_cache_usage": 0.0})
    assert told is not None
    assert (told.lookup_tokens, told.lookup_hit_tokens, told.healthy) == (0.0, 0.0, None)


async def test_the_hit_rate_is_that_of_look_ups_in_the_window(bench: Bench) -> None:
    ident = bench.add_engine(engine(lookup=10_000, hit=10_000), URL)
    await bench.tick()
    first = bench.fleet.get_engine(ident).in_process
    assert first is not None
    assert (first.state, first.hit_rate) == ("unknown", None)
    assert "two polls" in (first.reason or "")
    assert (first.cpu_bytes, first.disk_bytes, first.stored_tokens, first.healthy) == (2 * 2**20, 5_000_000, 2048, True)
    await bench.tick()
    idle = bench.fleet.get_engine(ident).in_process
    assert idle is not None
    assert (idle.state, idle.hit_rate) == ("no_traffic", None)
    bench.targets[URL] = engine(lookup=11_000, hit=10_250)
    await bench.tick()
    seen = bench.fleet.get_engine(ident).in_process
    assert seen is not None
    assert (seen.state, seen.hit_rate, seen.hit_tokens, seen.lookup_tokens) == ("value", 0.25, 250, 1000)
    assert seen.check == "agree"
    points = bench.telemetry.samples("engine", ident, "in_process_hit_rate", step=1.0).points
    assert [value for _, value in points if value is not None] == [0.25]
    held = bench.telemetry.samples("engine", ident, "in_process_cpu_bytes", step=1.0).points
    assert {value for _, value in held if value is not None} == {2.0 * 2**20}


async def test_hits_that_vllm_never_got_are_said(bench: Bench) -> None:
    ident = bench.add_engine(engine(), URL)
    await bench.tick()
    hits = engine(lookup=20_000, hit=16_000)
    hits.set_metric("/metrics", "vllm:external_prefix_cache_queries_total", 90_000)
    bench.targets[URL] = hits
    await bench.tick()
    seen = bench.fleet.get_engine(ident).in_process
    assert seen is not None
    assert (seen.state, seen.check) == ("value", "disagree")
    assert "hits do not reach vLLM" in (seen.check_reason or "")


async def test_missing_series_are_explained(bench: Bench) -> None:
    fake = captured_engine()
    told = capture("engine/with-lmcache.server_info.config_json.json")
    assert b"LMCacheMPConnector" in told
    fake.answers["/server_info"] = (200, "application/json", told.replace(b"LMCacheMPConnector", b"LMCacheConnectorV1"))
    ident = bench.add_engine(fake, URL)
    await bench.tick()
    view = bench.fleet.get_engine(ident)
    assert view.in_process is not None
    assert view.in_process.state == "unknown"
    assert "PROMETHEUS_MULTIPROC_DIR is missing" in (view.in_process.reason or "")
    assert any("PROMETHEUS_MULTIPROC_DIR is missing" in warning for warning in view.warnings)


async def test_an_engine_of_a_cache_server_has_no_such_view(bench: Bench) -> None:
    ident = bench.add_engine(captured_engine(), URL)
    await bench.tick()
    view = bench.fleet.get_engine(ident)
    assert view.in_process is None
    assert not any("PROMETHEUS_MULTIPROC_DIR" in warning for warning in view.warnings)
