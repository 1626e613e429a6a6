"""Comma-separated options: a part that is missing is refused, with the option, the value and how it is written."""

from __future__ import annotations

import pytest

from app.commands.accept import AcceptOptions, request_body
from app.commands.bench import lookup_of
from app.commands.lists import numbers_of, parts_of
from app.errors import InvalidInput


def test_parts_and_numbers() -> None:
    assert parts_of("--arms", " warm, external_l1 ", "warm") == ["warm", "external_l1"]
    assert numbers_of("--lengths", "63, 64,65", "63,64") == [63, 64, 65]


@pytest.mark.parametrize(("text", "place"), [("1,,2", "place 2 of 3"), (",1", "place 1 of 2"), ("1, ", "place 2 of 2")])
def test_a_part_that_is_missing(text: str, place: str) -> None:
    with pytest.raises(InvalidInput) as error:
        numbers_of("--lengths", text, "63,64,65")
    assert repr(text) in error.value.detail
    assert place in error.value.detail
    assert "write --lengths 63,64,65" in error.value.detail


@pytest.mark.parametrize("text", ["", " ", ",", " , "])
def test_nothing_at_all(text: str) -> None:
    with pytest.raises(InvalidInput, match="names nothing; write --lengths 63,64,65, or leave --lengths out"):
        numbers_of("--lengths", text, "63,64,65")


@pytest.mark.parametrize("text", ["a", "1.5", "-3", "1_000", "\u0663", "1e3"])
def test_no_whole_number(text: str) -> None:
    with pytest.raises(InvalidInput, match="is no whole number"):
        numbers_of("--lengths", f"64,{text}", "63,64,65")


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"lengths": "1,,2"}, "--lengths"),
        ({"arms": "warm,,external_l1"}, "--arms"),
        ({"arms": ""}, "--arms"),
        ({"tolerance": "max_abs_nats=0.2,"}, "--tolerance"),
        ({"tolerance": "max_abs_nats=0.2,max_abs_nats=0.3"}, "--tolerance"),
    ],
)
def test_every_list_of_accept(given: dict[str, str], option: str) -> None:
    with pytest.raises(InvalidInput) as error:
        request_body(AcceptOptions(engine="x", **given))  # type: ignore[arg-type]
    assert error.value.errors[0].field == option


def test_the_list_of_bench() -> None:
    with pytest.raises(InvalidInput, match="place 2 of 3"):
        lookup_of("10,,20", allow_fill=False)
