"""The counters kept for derived facts, from captured scrapes."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.lmcache.metrics import ServerMetrics, parse_metrics, server_metrics
from app.telemetry.event_counters import MOST_KEYS, OWN_SALTS, engine_events, server_events
from app.vllm.metrics import engine_metrics
from tests.unit.telemetry.support import Bench, capture, captured_engine, captured_server

TEXT = "text/plain; version=0.0.4; charset=utf-8"


def scrape(name: str) -> ServerMetrics:
    return server_metrics(parse_metrics(capture(name), TEXT))


def scraped(text: str) -> ServerMetrics:
    return server_metrics(parse_metrics(text.encode(), TEXT))


def test_an_idle_server_has_counted_nothing_and_its_retrieves_are_not_known() -> None:
    found = server_events(scrape("server-idle/metrics.txt"))
    assert found["l1_eviction_ticks"] == 27.0
    zero = ("lookups", "early_exits_no_context", "l2_store_submitted", "l2_store_completed", "l1_allocation_failures")
    assert {name: found[name] for name in zero} == dict.fromkeys(zero, 0.0)
    assert (found["retrieves_submitted"], found["retrieves_finished"]) == (None, None)


def test_after_traffic_every_counter_is_the_servers_own() -> None:
    found = server_events(scrape("server-with-engine/after-traffic.metrics.txt"))
    assert {name: found[name] for name in ("lookups", "l2_looked_up", "l2_load_completed")} == {
        "lookups": 6.0,
        "l2_looked_up": 90.0,
        "l2_load_completed": 15.0,
    }
    assert (found["l2_store_submitted"], found["l2_store_completed"]) == (30.0, 30.0)
    assert (found["retrieves_submitted"], found["retrieves_finished"]) == (2.0, 2.0)
    assert not [name for name in found if name.startswith("hits|")]  # one model, one salt: the totals say it all


def test_stores_that_never_complete_leave_no_series_but_count_as_none() -> None:
    text = "lmcache_mp_l1_usage_ratio 0.1\nlmcache_mp_l2_store_submitted_objects_chunks_total 40\n"
    found = server_events(scraped(text))
    assert (found["l2_store_submitted"], found["l2_store_completed"]) == (40.0, 0.0)


def test_a_scrape_without_lmcache_knows_nothing() -> None:
    found = server_events(scraped("process_cpu_seconds_total 1\n"))
    assert set(found.values()) == {None}


def test_engine_driven_servers_do_not_count_retrieves() -> None:
    found = server_events(scrape("server-engine-driven/metrics.txt"))
    assert (found["retrieves_submitted"], found["retrieves_finished"]) == (None, None)


def test_models_and_salts_are_told_apart_up_to_a_bound() -> None:
    def line(model: str, salt: str, value: int) -> str:
        return f'lmcache_mp_lookup_requested_tokens_total{{cache_salt="{salt}",model_name="{model}"}} {value}\n'

    found = server_events(scraped(line("/m/a", "", 64) + line("/m/b", "x", 128) + line("/m/b", "tk-1-2", 10)))
    assert found["hits|model|/m/a|requested"] == 64.0
    assert found["hits|model|/m/b|requested"] == 138.0
    assert found["hits|salt|x|requested"] == 128.0
    assert found[f"hits|salt|{OWN_SALTS}|requested"] == 10.0
    assert found["hits|model|/m/a|hit"] is None
    many = "".join(line("/m/a", f"s{n}", 1) for n in range(MOST_KEYS + 1))
    assert not [name for name in server_events(scraped(many)) if name.startswith("hits|salt")]


def test_an_engine_tells_what_it_answered() -> None:
    found = engine_events(engine_metrics(parse_metrics(capture("engine/with-lmcache.metrics.txt"), TEXT)))
    assert all(value is not None and value > 0 for value in found.values()), found


@pytest.mark.asyncio
async def test_they_are_kept_with_the_last_poll(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    server_id = bench.add_server(captured_server())
    engine_id = bench.add_engine(captured_engine())
    await bench.tick()
    server = bench.telemetry.snapshots("server", [server_id, 99])
    assert list(server) == [server_id]
    assert server[server_id].memory["counters"]["values"]["l2_store_completed"] == 30.0
    assert server[server_id].values["store_queue"] == {"pending": 0, "in_flight": 0}
    assert server[server_id].values["hash_algorithm"] == "blake3"
    engine = bench.telemetry.snapshots("engine", [engine_id])[engine_id]
    assert engine.memory["counters"]["values"]["generation_tokens"] > 0
    bench.db.dispose()
