"""JSON of strangers: wrong types are unknown, hostile text is made sound, nothing crashes."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import TargetError
from app.wire import fields

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(json_values)
def test_accessors_never_raise_and_never_invent(value: object) -> None:
    text = fields.text(value)
    assert text is None or (isinstance(value, str) and text.encode("utf-8") and "\0" not in text) or text == ""
    integer = fields.integer(value)
    assert integer is None or (integer == value and -(2**63) <= integer < 2**63 and not isinstance(value, bool))
    number = fields.number(value)
    assert number is None or (math.isfinite(number) and not isinstance(value, (bool, str)))
    assert fields.boolean(value) in (None, value)
    assert fields.count(value) is None or fields.count(value) == integer
    assert isinstance(fields.mapping(value), dict)
    assert isinstance(fields.sequence(value), list)


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [(3.0, 3), (2**63, None), (-(2**63), -(2**63)), (True, None), ("3", None), (1.5, None), (math.nan, None)],
)
def test_integers_stay_within_a_database_column(raw: object, wanted: int | None) -> None:
    assert fields.integer(raw) == wanted


def test_texts_are_sound_unicode_and_never_cut() -> None:
    assert fields.text("a\ud83d\ude00b") == "a😀b"
    assert fields.text("\ud800x") == "\ufffdx"
    assert fields.text("a\0b") == "a\ufffdb"
    assert fields.text("x" * 5000) is None
    assert fields.text("x" * 5000, limit=5000) == "x" * 5000


@pytest.mark.parametrize("raw", ["512", "-1", "0"])
def test_whole_numbers_in_label_texts(raw: str) -> None:
    assert fields.whole_number_text(raw) == int(raw)


@pytest.mark.parametrize("raw", [None, "", "None", "1.5", "٣", "9" * 30, "--1", "1_000"])
def test_other_label_texts_are_no_numbers(raw: str | None) -> None:
    assert fields.whole_number_text(raw) is None


@given(json_values)
def test_json_is_read_back(value: object) -> None:
    assert repr(fields.loads(json.dumps(value), "x")) == repr(value)


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"{", b"\xff\xfe\xfa", b"[" * 100_000, b"9" * 5000, b'{"a":1}x', b"[" * 70 + b"]" * 70],
    ids=["empty", "html", "cut", "bytes", "deep-open", "long-number", "trailing", "deep"],
)
def test_what_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(TargetError) as caught:
        fields.loads(body, "the answer")
    assert caught.value.kind == "unreadable"
    assert "the answer" in caught.value.detail


def test_depth_is_what_counts_not_the_number_of_brackets() -> None:
    wide = json.dumps([{"a": [1]} for _ in range(500)]).encode()
    assert isinstance(fields.loads(wide, "x"), list)
