from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.clock import iso, iso_ns, parse_iso


@given(st.floats(min_value=0, max_value=4e9))
def test_what_is_printed_is_read_back(seconds: float) -> None:
    text = iso(seconds)
    assert text is not None
    assert abs(parse_iso(text) - seconds) < 0.002


@given(st.floats())
def test_no_number_is_too_odd(seconds: float) -> None:
    text = iso(seconds)
    assert text is None or text.endswith("Z")


@given(st.integers())
def test_no_file_time_is_too_odd(nanoseconds: int) -> None:
    assert iso_ns(nanoseconds) is None or str(iso_ns(nanoseconds)).endswith("Z")


@pytest.mark.parametrize("text", ["yesterday", "2026-11-30", "2026-11-30T08:12:02", ""])
def test_a_time_without_an_offset_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"such as|offset"):
        parse_iso(text)
