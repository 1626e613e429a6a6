"""How fast an engine computes and writes, from its own counters since its start."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.fleet.load_schemas import EngineLoadView
from app.telemetry.load import engine_view
from app.vllm.metrics import EngineMetrics, engine_metrics, parse_metrics
from tests.unit.wire.raw_http import capture


def read() -> EngineMetrics:
    return engine_metrics(parse_metrics(capture("engine/with-lmcache.metrics.txt"), "text/plain; version=1.0.0"))


def shown(metrics: EngineMetrics) -> EngineLoadView:
    return EngineLoadView.shown(engine_view(metrics, {}, None, 0.0, {}))


def test_speeds_of_a_real_engine() -> None:
    metrics, view = read(), shown(read())
    assert metrics.prefill_sum
    assert view.prefill_tokens_per_second == pytest.approx(2096 / metrics.prefill_sum)
    assert metrics.e2e_sum is not None
    assert metrics.ttft_sum is not None
    assert view.decode_tokens_per_second == pytest.approx((48 - 6) / (metrics.e2e_sum - metrics.ttft_sum))


def test_older_engines_tell_what_was_cached_instead() -> None:
    old = replace(read(), prompt_tokens_by_source={})
    assert shown(old).prefill_tokens_per_second == pytest.approx(shown(read()).prefill_tokens_per_second)


def test_an_engine_that_answered_nothing_has_no_speed() -> None:
    idle = replace(
        read(),
        prompt_tokens_by_source={"local_compute": 0.0},
        prefill_sum=0.0,
        finished_requests=0.0,
        finished_generated_tokens=0.0,
        e2e_sum=0.0,
        ttft_sum=0.0,
    )
    assert (shown(idle).prefill_tokens_per_second, shown(idle).decode_tokens_per_second) == (None, None)
    blind = replace(read(), prefill_sum=None, e2e_sum=None)
    assert (shown(blind).prefill_tokens_per_second, shown(blind).decode_tokens_per_second) == (None, None)
