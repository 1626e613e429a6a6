"""Packed numbers are the same numbers, and small."""

from __future__ import annotations

import sys
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.alerts.trail import Trail
from app.telemetry.packed import Packed, pack
from app.telemetry.rates import CounterPoint

NUMBERS = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True))


@given(st.dictionaries(st.text(max_size=5), NUMBERS, max_size=8), st.dictionaries(st.text(max_size=5), NUMBERS))
def test_nothing_is_lost(values: dict[str, float | None], before: dict[str, float | None]) -> None:
    packed = pack(values, pack(before, None))
    assert list(packed) == list(values)
    for name, value in values.items():
        found = packed[name]
        assert found == value or (value != value and found != found)
    if isinstance(packed, Packed):
        assert packed.unpacked() == values
    assert packed.get("not a name there") is None


def test_names_are_held_once_where_they_are_the_same_in_the_same_order() -> None:
    first = pack({"a": 1.0, "b": None}, None)
    assert isinstance(first, Packed)
    again, other = pack({"a": 2.0, "b": 3.0}, first), pack({"b": 2.0, "a": 3.0}, first)
    assert isinstance(again, Packed)
    assert isinstance(other, Packed)
    assert again.names is first.names
    assert other.names is not first.names
    assert dict(other) == {"b": 2.0, "a": 3.0}


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(KeyError):
        pack({"a": 1.0}, None)["b"]


def test_an_hour_of_a_target_is_small() -> None:
    """As polled every ten seconds: eighty counters, each scrape with strings and floats of its own."""
    trail = Trail()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(360):
            values = {f"counter_{n}_total": float(number * n) + 0.5 for n in range(80)}
            trail.add(CounterPoint(1e9 + 10.0 * number, ("boot", 1.0), values), 10.0)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    window = trail.window(600.0, 1e9 + 3590.0, 10.0)
    assert window.grown("counter_7_total") == pytest.approx(7 * 60, rel=0.05)
    assert grown < 150_000, f"{grown:,} bytes, {sys.version}"
