"""The state of a table prints itself as an address and reads itself back."""

from __future__ import annotations

from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.web.table_state import TableState

NAMES = ("class", "model", "q")
ORDERS = ("name", "size_bytes")


def parse(query: dict[str, str]) -> TableState:
    return TableState.parse(query, names=NAMES, orders=ORDERS, default_order="-size_bytes")


def test_nothing_said_is_an_empty_address() -> None:
    assert str(parse({})) == ""
    assert not parse({"class": "  "}).filtered


def test_unknown_parameters_orders_and_sizes_are_dropped() -> None:
    state = parse({"x": "1", "order": "; drop", "page_size": "many", "class": "corrupt"})
    assert str(state) == "?class=corrupt"
    assert parse({"page_size": "100000"}).page_size == 500


def test_sorting_turns_round() -> None:
    state = parse({"page_token": "t"})
    assert state.direction("size_bytes") == "descending"
    up = state.sorted_by("size_bytes", descending_first=True)
    assert (up.order, up.page_token) == ("size_bytes", "")
    assert state.sorted_by("name").order == "name"
    assert state.sorted_by("name").sorted_by("name").order == "-name"
    assert state.direction("name") is None


def test_a_change_of_filter_goes_back_to_the_first_page() -> None:
    state = parse({"class": "corrupt", "page_token": "t", "order": "name"})
    assert str(state.with_filter("class", "")) == "?order=name"
    assert str(state.with_filter("q", "a&b=c")) == "?class=corrupt&q=a%26b%3Dc&order=name"
    assert str(state.without()) == "?order=name"
    assert str(state.at_page("u")) == "?class=corrupt&order=name&page_token=u"
    assert state.fields() == (("order", "name"),)
    with pytest.raises(KeyError):
        state.with_filter("nothing", "x")


@given(st.dictionaries(st.sampled_from(NAMES), st.text(), max_size=3), st.text(max_size=20))
def test_an_address_reads_back(filters: dict[str, str], token: str) -> None:
    state = parse(filters | {"page_token": token, "order": "name", "page_size": "50"})
    assert parse(dict(parse_qsl(str(state).removeprefix("?"), keep_blank_values=True))) == state
