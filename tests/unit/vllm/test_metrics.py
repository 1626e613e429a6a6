"""Engine metrics: the numbers in the captures, in both formats and under older names."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from app.vllm.metrics import EngineMetrics, engine_metrics, parse_metrics
from tests.unit.wire.raw_http import capture


def read(name: str) -> EngineMetrics:
    return engine_metrics(parse_metrics(capture(name), "text/plain; version=1.0.0"))


def test_an_engine_with_a_cache_after_traffic() -> None:
    metrics = read("engine/with-lmcache.metrics.txt")
    assert metrics.process_start_time == 1_795_964_199.83
    assert (metrics.running, metrics.waiting, metrics.preemptions, metrics.kv_cache_usage) == (0, 0, 0, 0)
    assert (metrics.prefix_cache_queries, metrics.prefix_cache_hits) == (6000, 1984)
    assert (metrics.external_queries, metrics.external_hits) == (4016, 1920)
    assert metrics.prompt_tokens_by_source == {
        "local_compute": 2096,
        "local_cache_hit": 1984,
        "external_kv_transfer": 1920,
    }
    assert metrics.external_prompt_tokens == 1920
    assert metrics.cached_tokens_by_source["device"] == 1984
    assert (metrics.prompt_tokens, metrics.generation_tokens) == (6000, 48)
    assert (metrics.ttft_count, metrics.ttft_sum) == (6, pytest.approx(1.5233232975006104))
    assert metrics.requests_by_reason["length"] == metrics.requests_succeeded == 6
    assert (metrics.lookup_seconds_count, metrics.model_names) == (6, ("tiny-llama",))
    assert (metrics.capacity_tokens, metrics.block_size, metrics.cache_dtype) == (16_384, 32, "auto")
    assert metrics.num_gpu_blocks == 512
    assert metrics.cache_configs[0].enable_prefix_caching is True
    assert metrics.cache_configs[0].declared_bytes == 2**30
    assert metrics.in_process == {}
    assert metrics.any_vllm_series


def test_an_engine_without_a_cache_has_no_external_series_of_its_own() -> None:
    metrics = read("engine/plain.metrics.txt")
    assert metrics.prefix_cache_hits is not None
    assert metrics.lookup_seconds_count is None
    assert metrics.external_prompt_tokens in (0, None)


def test_openmetrics_is_read_alike() -> None:
    classic = capture("engine/with-lmcache.metrics.txt").decode()

    class Families:
        def collect(self) -> list[Metric]:
            return list(text_string_to_metric_families(classic))

    registry = CollectorRegistry()
    registry.register(Families())  # type: ignore[arg-type]
    kind = "application/openmetrics-text; version=1.0.0"
    openmetrics = generate_latest(registry).decode()
    assert "vllm_num_requests_running" in openmetrics
    with_underscores = engine_metrics(parse_metrics(openmetrics, kind))
    with_colons = engine_metrics(parse_metrics(openmetrics.replace("vllm_", "vllm:"), kind))
    assert with_underscores == with_colons == engine_metrics(parse_metrics(classic))


def test_older_names() -> None:
    text = (
        "vllm:num_requests_running 1\nvllm:gpu_prefix_cache_queries_total 10\n"
        "vllm:gpu_prefix_cache_hits_total 4\nvllm:gpu_cache_usage_perc 0.25\n"
    )
    metrics = engine_metrics(parse_metrics(text))
    assert (metrics.prefix_cache_queries, metrics.prefix_cache_hits, metrics.kv_cache_usage) == (10, 4, 0.25)
    assert metrics.capacity_tokens is None
    assert metrics.block_size is None


def test_data_parallel_ranks_add_up() -> None:
    text = "".join(
        f'vllm:cache_config_info{{engine="{rank}",block_size="{size}",num_gpu_blocks="100",cache_dtype="fp8"}} 1\n'
        f'vllm:kv_cache_usage_perc{{engine="{rank}"}} 0.{rank}\n'
        for rank, size in ((1, 16), (2, 32))
    )
    metrics = engine_metrics(parse_metrics(text))
    assert metrics.capacity_tokens == 4800
    assert metrics.num_gpu_blocks == 200
    assert metrics.block_size is None
    assert metrics.cache_dtype == "fp8"
    assert metrics.kv_cache_usage == 0.2


def test_unset_facts_are_unknown() -> None:
    text = 'vllm:cache_config_info{block_size="None",num_gpu_blocks="100",cache_dtype="None"} 1\n'
    metrics = engine_metrics(parse_metrics(text))
    assert (metrics.capacity_tokens, metrics.cache_dtype, metrics.num_gpu_blocks) == (None, None, 100)


def test_lmcache_inside_the_engine_is_noticed() -> None:
    text = "vllm:num_requests_running 0\nlmcache:num_hit_tokens_total 5\nlmcache:local_cache_usage 7\n"
    assert engine_metrics(parse_metrics(text)).in_process == {
        "lmcache:num_hit_tokens_total": 5,
        "lmcache:local_cache_usage": 7,
    }


def test_a_cache_servers_scrape_is_no_engines() -> None:
    assert not read("server-with-engine/metrics.txt").any_vllm_series
