"""Quantiles, intervals and exact tests, against numbers computed by hand."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.acceptance.stats import median_interval, quantile, sign_test, summarise

numbers = st.lists(st.floats(0, 1000), min_size=2, max_size=60)


class TestQuantile:
    def test_interpolates_between_order_statistics(self) -> None:
        assert quantile([4, 1, 3, 2], 0.5) == 2.5
        assert quantile([1, 2, 3, 4, 5], 0.9) == pytest.approx(4.6)

    def test_nothing_has_no_quantile(self) -> None:
        assert quantile([], 0.5) is None
        assert summarise([]).median is None
        assert summarise([]).count == 0

    @given(numbers)
    def test_median_agrees_with_the_standard_library(self, values: list[float]) -> None:
        assert quantile(values, 0.5) == pytest.approx(statistics.median(values))

    @given(numbers)
    def test_summary_is_ordered(self, values: list[float]) -> None:
        s = summarise(values)
        assert s.min is not None and s.median is not None and s.p90 is not None
        assert s.p99 is not None and s.max is not None
        assert s.min <= s.median <= s.p90 <= s.p99 <= s.max


class TestMedianInterval:
    def test_one_value_has_no_interval(self) -> None:
        assert median_interval([3.0]) is None

    def test_few_values_say_what_confidence_they_have(self) -> None:
        interval = median_interval([1.0, 2.0, 3.0, 4.0])
        assert interval is not None
        assert (interval.low, interval.high) == (1.0, 4.0)
        assert interval.confidence == pytest.approx(0.875)

    def test_ten_values_take_the_second_and_ninth(self) -> None:
        interval = median_interval([float(i) for i in range(1, 11)])
        assert interval is not None
        assert (interval.low, interval.high) == (2.0, 9.0)
        assert interval.confidence == pytest.approx(0.978515625)

    @given(numbers)
    def test_holds_the_median_and_at_least_the_wanted_confidence(self, values: list[float]) -> None:
        interval = median_interval(values)
        assert interval is not None
        assert interval.low <= interval.median <= interval.high
        assert interval.confidence >= 0.95 or (interval.low, interval.high) == (min(values), max(values))


class TestSignTest:
    def test_published_numbers(self) -> None:
        assert sign_test(6, 0) == pytest.approx(0.03125)
        assert sign_test(5, 0) == pytest.approx(0.0625)
        assert sign_test(3, 3) == 1.0
        assert sign_test(0, 0) is None

    @given(st.integers(0, 400), st.integers(0, 400))
    def test_is_symmetric_and_a_probability(self, a: int, b: int) -> None:
        p = sign_test(a, b)
        assert p == sign_test(b, a)
        assert p is None or 0 <= p <= 1
