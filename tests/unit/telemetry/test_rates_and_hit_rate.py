"""Counters to increments, the window, the hit rate, the cross-check."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.telemetry.hit_rate import HitRate, cross_check, hit_rate
from app.telemetry.rates import CounterPoint, base_for, increments, is_gap, same_process
from app.telemetry.window import Slice, covered_seconds, expire, from_json, push, to_json, total


def point(at: float, value: float | None, process: tuple[str | None, float | None] = ("a", 1.0)) -> CounterPoint:
    return CounterPoint(at, process, {"c": value})


class TestIncrements:
    def test_within_a_process(self) -> None:
        assert increments(point(10, 5.0), point(20, 8.0)) == {"c": 3.0}

    def test_after_a_restart_the_new_value_counts(self) -> None:
        assert increments(point(10, 5.0), point(20, 3.0, ("b", 15.0))) == {"c": 3.0}
        # Even where it has already grown past the old one.
        assert increments(point(10, 5.0), point(20, 9.0, ("b", 15.0))) == {"c": 9.0}

    def test_after_a_reset_without_a_restart(self) -> None:
        assert increments(point(10, 5.0), point(20, 2.0)) == {"c": 2.0}

    def test_a_series_that_appears_counts_from_zero(self) -> None:
        assert increments(point(10, None), point(20, 7.0)) == {"c": 7.0}

    def test_a_series_that_vanishes(self) -> None:
        assert increments(point(10, 5.0), point(20, None)) == {"c": None}
        assert increments(point(10, 5.0), point(20, None, ("b", 15.0))) == {"c": 0.0}
        assert increments(point(10, None), point(20, None)) == {"c": None}

    def test_processes_are_told_apart_by_what_both_sides_know(self) -> None:
        assert same_process(point(1, 0, ("a", None)), point(2, 0, ("a", 5.0))) is True
        assert same_process(point(1, 0, ("a", 5.0)), point(2, 0, ("a", 6.0))) is False
        assert same_process(point(1, 0, ("a", None)), point(2, 0, (None, 5.0))) is None

    def test_gaps(self) -> None:
        assert not is_gap(point(0, 0), point(30, 0), 10.0)
        assert is_gap(point(0, 0), point(60, 0), 10.0)
        assert is_gap(point(50, 0), point(40, 0), 10.0)
        assert not is_gap(point(0, 0), point(4, 0), 1.0)

    def test_a_young_process_is_counted_from_its_boot(self) -> None:
        after = point(100, 7.0, ("a", 40.0))
        base = base_for(None, after, 10.0, 300.0)
        assert base is not None
        assert (base.at, increments(base, after)) == (40.0, {"c": 7.0})
        assert base_for(None, point(1000, 7.0, ("a", 40.0)), 10.0, 300.0) is None
        assert base_for(None, point(100, 7.0, ("a", None)), 10.0, 300.0) is None

    def test_after_a_gap_only_a_process_started_in_it_is_counted(self) -> None:
        before = point(50, 3.0, ("a", 40.0))
        assert base_for(before, point(200, 7.0, ("a", 40.0)), 10.0, 300.0) is None
        restarted = base_for(before, point(200, 7.0, ("b", 120.0)), 10.0, 300.0)
        assert restarted is not None
        assert restarted.at == 120.0

    @given(st.lists(st.tuples(st.booleans(), st.integers(min_value=0, max_value=1000)), min_size=1, max_size=40))
    def test_increments_add_up_to_all_that_happened(self, story: list[tuple[bool, int]]) -> None:
        """Whatever the restarts, the sum is what was counted at the polls: nothing twice, nothing negative."""
        value, boot, happened, seen = 0.0, 0, 0.0, 0.0
        before = point(0, 0.0, ("0", None))
        for number, (restart, grown) in enumerate(story, start=1):
            if restart:
                boot, value = boot + 1, 0.0
            value += grown
            happened += grown
            after = point(number * 10, value, (str(boot), None))
            step = increments(before, after)["c"]
            assert step is not None
            assert step >= 0
            seen += step
            before = after
        assert seen == happened


def lookups(
    start: float, end: float, requested: float, hit: float, l1: float | None = None, l2: float | None = None
) -> Slice:
    return Slice(start, end, {"requested": requested, "hit": hit, "l1": l1, "l2": l2})


class TestWindow:
    def test_slides_and_stays_short_whatever_the_interval(self) -> None:
        window: tuple[Slice, ...] = ()
        for second in range(2000):
            window = push(window, lookups(second, second + 1, 10, 5, 3, 2))
        assert len(window) <= 32
        assert 300 <= covered_seconds(window) <= 311
        assert total(window, "requested") == 10 * covered_seconds(window)

    def test_gaps_do_not_count_as_covered(self) -> None:
        window = push(push((), lookups(0, 10, 1, 1)), lookups(100, 110, 1, 1))
        assert covered_seconds(window) == 20

    def test_overlapping_slices_are_not_counted_twice(self) -> None:
        window = push(push((), lookups(0, 100, 50, 1)), lookups(40, 110, 5, 1))
        assert total(window, "requested") == 5

    def test_survives_being_stored(self) -> None:
        window = push((), lookups(0, 10, 1, 1, None, 2))
        assert from_json(to_json(window)) == window
        for broken in (None, {}, [1], [[1, 2]], "x"):
            assert from_json(broken) == ()

    def test_old_slices_expire(self) -> None:
        window = (lookups(0, 10, 1, 1), lookups(200, 210, 1, 1))
        assert expire(window, 400.0) == (window[1],)


class TestHitRate:
    def test_value_with_split(self) -> None:
        rate = hit_rate([lookups(0, 10, 1000, 500, 400, 100), lookups(10, 20, 0, 0, 0, 0)], "none")
        assert (rate.state, rate.value, rate.l1_share, rate.l2_share) == ("value", 0.5, 0.4, 0.1)
        assert (rate.hit_tokens, rate.requested_tokens, rate.covered_seconds) == (500, 1000, 20)

    def test_no_traffic_is_neither_zero_nor_unknown(self) -> None:
        rate = hit_rate([lookups(0, 10, 0, 0, 0, 0)], "none")
        assert (rate.state, rate.value, rate.requested_tokens, rate.reason) == ("no_traffic", None, 0, None)

    def test_zero_hits_are_a_value(self) -> None:
        assert hit_rate([lookups(0, 10, 64, 0, 0, 0)], "none").value == 0.0

    def test_unknown_says_why(self) -> None:
        assert hit_rate([], "one reading so far") == HitRate("unknown", reason="one reading so far")
        broken = Slice(0, 10, {"requested": 1.0, "hit": None})
        assert hit_rate([broken], "why").state == "unknown"

    def test_an_absent_split_is_null_not_zero(self) -> None:
        rate = hit_rate([lookups(0, 10, 100, 50), lookups(10, 20, 100, 50, 50, 0)], "none")
        assert (rate.value, rate.l1_share, rate.l2_share) == (0.5, None, None)

    def test_counters_read_at_different_instants_never_exceed_one(self) -> None:
        assert hit_rate([lookups(0, 10, 100, 128, 128, 0)], "none").value == 1.0


class TestCrossCheck:
    RATE = HitRate("value", value=0.5, hit_tokens=100_000, requested_tokens=200_000)

    @pytest.mark.parametrize(
        ("external", "queries", "state"),
        [
            (95_000.0, 190_000.0, "agree"),
            (0.0, 0.0, "agree"),  # served by the GPU cache: nothing was asked
            (0.0, 190_000.0, "disagree"),
            (300_000.0, 400_000.0, "disagree"),
            (None, None, "unknown"),
        ],
    )
    def test_cases(self, external: float | None, queries: float | None, state: str) -> None:
        assert cross_check(self.RATE, external, queries).state == state

    def test_agreement_says_why_fewer_loaded_than_found_is_no_quarrel(self) -> None:
        fewer, more = cross_check(self.RATE, 41_083.0, 60_000.0), cross_check(self.RATE, 101_000.0, 120_000.0)
        assert fewer.reason == (
            "the engines loaded 41,083 tokens, lookups found 100,000; that fits: what L0 still has is found, not loaded"
        )
        assert (more.state, (more.reason or "").endswith("not read at the same instant")) == ("agree", True)

    def test_small_numbers_prove_nothing(self) -> None:
        assert cross_check(HitRate("no_traffic", hit_tokens=0), 1920.0, 4000.0).state == "agree"

    def test_unknown_on_the_server_side(self) -> None:
        check = cross_check(HitRate("unknown", reason="no /metrics"), 5.0, 5.0)
        assert (check.state, check.external_tokens) == ("unknown", 5)
        assert not math.isnan(check.external_tokens or 0)
