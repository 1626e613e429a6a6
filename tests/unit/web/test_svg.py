"""Geometry of the pictures: nothing leaves its box, nothing overlaps, gaps stay gaps."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.web import svg

SHARES = st.tuples(*[st.floats(min_value=0, max_value=1)] * 4).map(lambda t: tuple(v / max(sum(t), 1.0) for v in t))


@given(SHARES)
def test_ribbons_stay_inside_and_never_overlap(shares: tuple[float, ...]) -> None:
    flow = svg.flow(dict(zip(svg.TIERS, shares, strict=True)))
    previous = -1.0
    for ribbon in flow.ribbons:
        assert ribbon.end_y >= previous - 1.6  # a hair's breadth: the least thickness that can be seen
        previous = ribbon.end_y + ribbon.end_height
        assert ribbon.end_y >= -0.01
        assert previous <= flow.height + 1.6
        assert [float(n) for n in re.findall(r"-?\d+\.\d+", ribbon.path)]
    assert {r.tier for r in flow.ribbons} == {t for t, s in zip(svg.TIERS, shares, strict=True) if s > 0}


def test_a_ribbon_is_as_thick_as_its_share() -> None:
    flow = svg.flow({"l0": 0.25, "l1": 0.5, "l2": 0.25, "rc": 0.0})
    l0, l1, l2 = flow.ribbons
    assert l1.end_height == pytest.approx(2 * l0.end_height, rel=0.01)
    assert l0.end_height == l2.end_height
    # Each ends in the middle of its own lane.
    assert l1.end_y + l1.end_height / 2 == pytest.approx(flow.height * 3 / 8, abs=0.5)


@given(st.lists(st.floats(min_value=0, max_value=1e15), max_size=7), st.floats(min_value=0.001, max_value=1e16))
def test_parts_of_a_bar_follow_each_other_and_fit(values: list[float], whole: float) -> None:
    segments = svg.stack([(str(i), v) for i, v in enumerate(values)], whole)
    end = 0.0
    for segment in segments:
        assert segment.x == pytest.approx(end, abs=0.02)
        end = segment.x + segment.width
    assert end <= 100.1


def test_a_small_part_can_be_seen_and_nothing_is_nothing() -> None:
    big, small = svg.stack([("a", 1e12), ("b", 1.0)], 1e12)
    assert small.width > 0.5
    assert big.width + small.width <= 100.01
    assert svg.stack([("a", 0)], 10) == ()
    assert svg.stack([("a", 5)], 0) == ()


def test_gaps_of_a_line_stay_gaps() -> None:
    line = svg.sparkline([0.1, 0.2, None, 0.4, None, 0.6, 0.7])
    assert len(line.lines) == 3
    assert line.last_x == 100.0
    assert svg.sparkline([0.1, None]).last_x is None
    assert svg.sparkline([None, None]).lines == ()
    assert svg.sparkline([math.nan, math.inf]).lines == ()


def test_a_line_of_zeros_lies_on_the_ground() -> None:
    assert svg.sparkline([0.0, 0.0, 0.0], height=40, low=0).lines == ("M0 40L50 40L100 40",)
    assert svg.sparkline([5.0, 5.0], height=40).lines == ("M0 20L100 20",)


@given(st.lists(st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True)), max_size=40))
def test_any_series_gives_finite_numbers(points: list[float | None]) -> None:
    line = svg.sparkline(points)
    for path in line.lines + line.areas:
        assert "nan" not in path
        assert "inf" not in path


def test_layers_lie_on_top_of_each_other_and_share_their_gaps() -> None:
    paths = svg.stacked([("l1", [0.25, 0.25, None, 0.5]), ("l2", [0.25, 0.25, 0.25, 0.25])], height=100)
    assert [key for key, _ in paths] == ["l1", "l1", "l2", "l2"]
    assert paths[0][1] == "M0.00 75.00L33.33 75.00L33.33 100.00L0.00 100.00Z"
    assert paths[2][1] == "M0.00 50.00L33.33 50.00L33.33 75.00L0.00 75.00Z"
    assert svg.stacked([]) == ()


def test_a_distribution_starts_at_zero_and_marks_medians() -> None:
    found = svg.distribution([("cold", [1280.0, 1270.0, 1290.0]), ("warm", []), ("L1", [650.0, 700.0])])
    assert found is not None
    assert [row.label for row in found.rows] == ["cold", "L1"]
    assert (found.minimum, found.maximum) == (0.0, 1500.0)
    assert found.rows[0].median == pytest.approx(1280 / 15, abs=0.01)
    assert found.rows[1].median == pytest.approx(675 / 15, abs=0.01)
    assert svg.distribution([("x", [])]) is None


@pytest.mark.parametrize(("maximum", "step"), [(0.9, 0.2), (10, 2), (1290, 500), (7, 2), (0, 1.0), (4.9, 1)])
def test_steps_are_round(maximum: float, step: float) -> None:
    assert svg.nice_step(maximum, 5) == pytest.approx(step)


def test_ratio_of_nothing_is_not_known() -> None:
    assert svg.ratio(1, 2) == 0.5
    assert svg.ratio(None, 2) is None
    assert svg.ratio(1, 0) is None
    assert svg.position(5, 5, 5) == 0.0


def test_beats_are_as_high_as_the_difference_and_full_where_none_was_measured() -> None:
    history = [
        SimpleNamespace(at="2026-11-30T08:00:00Z", outcome=outcome, max_abs_difference=value)
        for outcome, value in (("ok", 0.0), ("ok", 0.01), ("wrong", 2.0), ("lost", None))
    ]
    drawn = svg.beats(history)
    assert drawn.maximum == 2.0
    heights = [bar.height for bar in drawn.bars]
    assert heights == sorted(heights)
    assert heights[0] == svg.LOWEST_BAR
    assert heights[2:] == [100.0, 100.0]
    assert [bar.x for bar in drawn.bars] == [0.0, 5.0, 10.0, 15.0]


def test_noise_does_not_look_like_a_fault() -> None:
    quiet = [SimpleNamespace(at="2026-11-30T08:00:00Z", outcome="ok", max_abs_difference=0.004)]
    assert svg.beats(quiet).bars[0].height < 25
    assert svg.beats([]).bars == ()
