"""The curve over a logarithmic axis: places of points, gaps, and when there is nothing to draw."""

from __future__ import annotations

from app.web.curve import log_curve
from tests.unit.web.preview import templates


def test_decades_are_equally_far_apart_and_zero_is_at_the_bottom() -> None:
    drawn = log_curve([(1000, 2.0), (10_000, 4.0), (100_000, 4.0), (1_000_000, 8.0)])
    assert drawn is not None
    assert [round(point.x, 2) for point in drawn.points] == [0.0, 33.33, 66.67, 100.0]
    assert [point.y for point in drawn.points] == [75.0, 50.0, 50.0, 0.0]
    assert drawn.up[0] == (0.0, 100.0)
    assert drawn.up[-1] == (8.0, 0.0)
    assert len(drawn.segments) == 3


def test_an_unknown_value_is_a_gap_and_no_zero() -> None:
    drawn = log_curve([(10, 1.0), (100, None), (1000, 1.0), (10_000, 1.0)])
    assert drawn is not None
    assert [point.at for point in drawn.points] == [10, 1000, 10_000]
    assert [(a.at, b.at) for a, b in drawn.segments] == [(1000, 10_000)]


def test_order_does_not_matter() -> None:
    assert log_curve([(100, 2.0), (10, 1.0)]) == log_curve([(10, 1.0), (100, 2.0)])


def test_one_point_is_no_curve() -> None:
    assert log_curve([]) is None
    assert log_curve([(1000, 2.0)]) is None
    assert log_curve([(1000, 2.0), (1000, 3.0)]) is None
    assert log_curve([(1000, None), (10_000, 3.0)]) is None


def test_all_zero_is_drawn_at_the_bottom() -> None:
    drawn = log_curve([(10, 0.0), (100, 0.0)])
    assert drawn is not None
    assert {point.y for point in drawn.points} == {100.0}


def test_the_picture_says_in_words_what_it_shows() -> None:
    source = """{% import "macros/charts.html" as charts %}{{ charts.log_curve(pairs, "ms", "records", "Lookups") }}"""
    template = templates()[0].env.from_string(source)
    shown = template.render(pairs=[(1000, 0.5), (10_000, None), (100_000, 2.0)])
    assert 'aria-label="Lookups: 2 points"' in shown
    assert shown.count("<circle") == 2
    assert "curve-line" not in shown  # no line over what nobody knows
    assert "<title>100,000: 2 ms</title>" in shown
    assert "10,000" in shown
    assert template.render(pairs=[(1000, 0.5)]).strip() == ""
