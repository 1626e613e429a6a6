"""Order statistics, held to the published run medians and to numpy's definitions worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.benchmark.numbers import across, noise_floor, paired_speed_up, reduction, speed_up, spread

POSITIVE = st.lists(st.floats(min_value=0.01, max_value=1e6), min_size=2, max_size=20)


def test_a_spread_is_what_numpy_gives() -> None:
    # As numpy: mean 3.5, median 3.0, percentile(99) 7.8, std √(29.5 ÷ 6).
    found = spread([1.0, 2.0, 4.0, 3.0, 8.0, 3.0])
    assert found.count == 6
    assert found.mean == pytest.approx(3.5)
    assert found.median == pytest.approx(3.0)
    assert found.p99 == pytest.approx(7.8)
    assert found.std == pytest.approx(2.217355782608345)
    assert (found.min, found.max) == (1.0, 8.0)


def test_nothing_is_unknown_and_not_zero() -> None:
    assert spread([]).to_json() == dict.fromkeys(("mean", "median", "p99", "std", "min", "max")) | {"count": 0}
    assert across([]) is None
    assert noise_floor([5.0], []) is None
    assert reduction(None, 1.0) is None
    assert reduction(0.0, 1.0) is None


def test_the_published_medians_give_the_published_speed_up() -> None:
    found = speed_up([1276.0, 1279.1, 1289.0], [653.0, 655.2, 656.0])
    assert found is not None
    assert found.value == pytest.approx(1.952, abs=0.001)
    assert found.low == pytest.approx(1276 / 656)
    assert found.high == pytest.approx(1289 / 653)
    # Three runs each: both ranges hold their medians with 0.75 × 0.75.
    assert found.confidence == pytest.approx(0.5625)


def test_one_run_has_no_interval() -> None:
    found = speed_up([10.0], [5.0, 6.0])
    assert found is not None
    assert (found.low, found.high, found.confidence) == (None, None, None)


@given(POSITIVE, POSITIVE)
def test_the_interval_holds_the_value(a: list[float], b: list[float]) -> None:
    found = speed_up(a, b)
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low * (1 - 1e-12) <= found.value <= found.high * (1 + 1e-12)


def test_pairs_are_of_the_same_prompt_only() -> None:
    found = paired_speed_up({1: 10.0, 2: 20.0, 3: 30.0, 4: 1.0}, {1: 5.0, 2: 10.0, 3: 15.0, 9: 1.0})
    assert found is not None
    assert (found.median, found.low, found.high) == (2.0, 2.0, 2.0)
    assert found.confidence == pytest.approx(0.75)


def test_the_noise_floor_is_the_largest_distance_from_the_median_of_the_runs() -> None:
    found = noise_floor([100.0, 101.0, 102.0], [107.0])
    assert found is not None
    assert found.absolute == pytest.approx(6.0)
    assert found.relative == pytest.approx(6 / 101)
    assert (found.runs, found.repeated) == (3, 1)


def test_the_published_reductions() -> None:
    assert reduction(62.06, 32.65) == pytest.approx(0.474, abs=0.0005)
    assert reduction(63.79, 39.40) == pytest.approx(0.382, abs=0.0005)
    assert reduction(67.79, 50.34) == pytest.approx(0.257, abs=0.0005)
    assert reduction(61.55, 59.70) == pytest.approx(0.030, abs=0.0005)
    assert reduction(10.0, 12.0) == pytest.approx(-0.2)
