"""Server metrics: the numbers in the captures, per salt too; no series is never zero."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import TargetError
from app.lmcache.metrics import LookupCounters, ServerMetrics, parse_metrics, server_metrics
from tests.unit.wire.raw_http import capture

MODEL = "/models/tiny-llama"


def read(name: str) -> ServerMetrics:
    return server_metrics(parse_metrics(capture(name), "text/plain; charset=utf-8"))


def test_a_server_after_traffic() -> None:
    metrics = read("server-with-engine/after-traffic.metrics.txt")
    assert metrics.instance_id == "b9ac8887-46ff-422e-8924-c6e11f5cb27d"
    assert metrics.process_start_time == 1_795_964_196.33
    assert (metrics.resident_bytes, metrics.cpu_seconds) == (685_670_400, 3.64)
    assert (metrics.lookup_requested_tokens, metrics.lookup_hit_tokens) == (5760, 3840)
    assert (metrics.lookup_hit_l1_tokens, metrics.lookup_hit_l2_tokens) == (2880, 960)
    assert (metrics.l1_write_chunks, metrics.l1_read_chunks, metrics.l1_evicted_chunks) == (45, 90, 45)
    assert (metrics.l2_store_submitted_chunks, metrics.l2_store_completed_chunks) == (30, 30)
    assert (metrics.submitted_retrieves, metrics.finished_retrieves, metrics.chunks_loaded) == (2, 2, 30)
    assert metrics.l2_usage_bytes == {"fs": 983_040}
    assert metrics.l1_usage_bytes == 0
    assert metrics.l0_l1_load_gbps_count == 2
    assert metrics.l2_load_gbps_sum == pytest.approx(0.13317728049612404)
    assert metrics.engine_ids == metrics.worker_ids == ("3920467449677063747",)
    assert metrics.lookups == (LookupCounters(MODEL, "", 5760, 3840, 2880, 960, 6, 30),)
    assert metrics.stores == ()
    assert metrics.any_lmcache_series


def test_no_series_is_not_zero() -> None:
    idle = read("server-idle/metrics.txt")
    assert idle.lookup_requested_tokens is None
    assert idle.l2_store_submitted_chunks is None
    assert idle.l1_allocation_failures is None
    assert idle.l1_usage_bytes == 0
    assert idle.lookups == ()
    assert idle.engine_ids == ()
    assert idle.any_lmcache_series
    assert not server_metrics(parse_metrics("process_start_time_seconds 5\n")).any_lmcache_series


def test_eviction_pressure() -> None:
    metrics = read("server-busy/metrics-after-eviction-pressure.txt")
    assert metrics.l1_eviction_triggered == 2
    assert metrics.l1_allocation_failures == 15
    assert metrics.l1_allocation_failures_by == {"l1_store": 15}
    assert metrics.engine_ids == ()


def test_an_engine_driven_server_counts_no_transfers() -> None:
    metrics = read("server-engine-driven/metrics.txt")
    assert metrics.lookup_hit_tokens == 3840
    assert metrics.finished_retrieves is None
    assert metrics.chunks_loaded is None
    assert metrics.engine_ids == ()
    assert metrics.lookups[0].chunks_loaded is None


def test_a_salt_has_its_own_counters() -> None:
    metrics = read("server-busy/metrics-with-salts.txt")
    salts = sorted(item.cache_salt for item in metrics.lookups)
    assert "" in salts
    (salt,) = (salt for salt in salts if salt.startswith("tk-capture"))
    own = metrics.lookups_of(salt)
    assert own is not None
    assert own.model_name == MODEL
    assert (own.hit_tokens, own.hit_l1_tokens, own.hit_l2_tokens) == (768, 768, 0)
    assert own.chunks_loaded == 6  # two retrieves of three chunks: what really went to the engine
    stored = metrics.stores_of(salt)
    assert stored is not None
    assert (stored.l1_write_chunks, stored.l2_submitted_chunks, stored.l2_completed_chunks) == (3, 3, 3)
    assert metrics.lookups_of("never used") is metrics.stores_of("never used") is None
    assert metrics.lookups_of(salt, "other model") is None
    assert metrics.l2_store_completed_chunks == sum(
        value
        for _, value in parse_metrics(capture("server-busy/metrics-with-salts.txt")).each(
            "lmcache_mp_l2_store_completed_objects_chunks_total"
        )
    )


def test_a_restarted_engine_shows_as_another_id_beside_the_old_one() -> None:
    metrics = read("server-with-engine/restarted-float16.metrics.txt")
    assert len(metrics.engine_ids) == 2


def test_chunks_of_several_workers_are_parts_of_the_same_chunks() -> None:
    text = (
        'lmcache_mp_lookup_requested_tokens_total{cache_salt="s",model_name="m"} 64\n'
        'lmcache_mp_num_chunks_loaded_total{cache_salt="s",model_name="m",worker_id="1"} 4\n'
        'lmcache_mp_num_chunks_loaded_total{cache_salt="s",model_name="m",worker_id="2"} 5\n'
        'lmcache_mp_num_chunks_loaded_total{cache_salt="unknown",model_name="m",worker_id="2"} 5\n'
    )
    metrics = server_metrics(parse_metrics(text))
    assert metrics.lookups == (LookupCounters("m", "s", 64, None, None, None, None, 5),)
    assert metrics.chunks_loaded == 14
    assert metrics.worker_ids == ("1", "2")


def test_names_of_0_4_2() -> None:
    metrics = server_metrics(parse_metrics("lmcache_mp:l1_read_keys_total 5\nlmcache_mp:l1_evicted_keys_total 2\n"))
    assert (metrics.l1_read_chunks, metrics.l1_evicted_chunks, metrics.l1_write_chunks) == (5, 2, None)


def test_ratios_are_not_added_up() -> None:
    text = 'lmcache_mp_l1_usage_ratio{l1_tag="a"} 0.5\nlmcache_mp_l1_usage_ratio{l1_tag="b"} 0.75\n'
    assert server_metrics(parse_metrics(text)).l1_usage_ratio == 0.75


names = st.sampled_from(
    [
        "lmcache_mp_lookup_hit_tokens_total",
        "lmcache_mp_num_chunks_loaded_total",
        "lmcache_mp_l2_usage_bytes",
        "target_info",
        "lmcache_mp_l2_store_completed_objects_chunks_total",
    ]
)
labels = st.dictionaries(
    st.sampled_from(["cache_salt", "model_name", "service_instance_id", "l2_name"]), st.text(max_size=5)
)


@settings(max_examples=200)
@given(st.lists(st.tuples(names, labels | st.text(max_size=8), st.floats() | st.text(max_size=4)), max_size=8))
def test_any_samples_are_read_or_refused(rows: list[tuple[str, dict[str, str] | str, object]]) -> None:
    lines = []
    for name, found, value in rows:
        inside = found if isinstance(found, str) else ",".join(f'{key}="{text}"' for key, text in found.items())
        lines.append(f"{name}{{{inside}}} {value}")
    try:
        server_metrics(parse_metrics("\n".join(lines)))
    except TargetError as error:
        assert error.kind == "unreadable"
