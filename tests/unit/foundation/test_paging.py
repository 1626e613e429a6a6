from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import BadToken, NotFound
from app.paging import decode_cursor, encode_cursor, parse_id

values = st.lists(st.one_of(st.none(), st.integers(-(2**60), 2**60), st.text()), max_size=4)


@given(values)
def test_round_trip(sort_key: list[str | int | None]) -> None:
    assert decode_cursor("records|1", encode_cursor("records|1", sort_key)) == sort_key


@given(st.text(max_size=200))
def test_invented_tokens_are_refused_not_crashes(text: str) -> None:
    with pytest.raises(BadToken):
        decode_cursor("records|1", text)


def test_a_token_of_another_list_is_refused() -> None:
    with pytest.raises(BadToken):
        decode_cursor("records|2", encode_cursor("records|1", [1]))


@given(st.text(max_size=40))
def test_ids_that_name_nothing_are_not_found(text: str) -> None:
    try:
        number = parse_id("store", text)
    except NotFound:
        return
    assert str(number) == text
    assert 0 <= number < 2**63
