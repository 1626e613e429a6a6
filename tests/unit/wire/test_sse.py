"""Event streams cut anywhere give the same events."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import TargetError
from app.wire.sse import EventParser

lines = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r\n"), max_size=20)


def feed_all(chunks: list[bytes]) -> list[bytes]:
    parser = EventParser()
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    return events + parser.finish()


@given(
    st.lists(st.lists(lines, min_size=1, max_size=3), max_size=6),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.lists(st.integers(0, 400), max_size=12),
    st.booleans(),
)
def test_any_cut_gives_the_same_events(events: list[list[str]], end: str, cuts: list[int], space: bool) -> None:
    gap = " " if space else ""
    text = "".join(
        f": keep-alive{end}event: x{end}"
        + "".join(f"data:{gap or (' ' if line[:1] == ' ' else '')}{line}{end}" for line in event)
        + end
        for event in events
    )
    body = text.encode()
    places = sorted({min(cut, len(body)) for cut in cuts} | {0, len(body)})
    pieces = [body[start:stop] for start, stop in itertools.pairwise(places)]
    wanted = ["\n".join(event).encode() for event in events]
    assert feed_all(pieces) == wanted
    assert feed_all([body[index : index + 1] for index in range(len(body))]) == wanted


@given(st.lists(st.binary(max_size=40), max_size=10))
def test_arbitrary_bytes_never_raise(chunks: list[bytes]) -> None:
    feed_all(chunks)


def test_the_last_event_may_lack_its_blank_line() -> None:
    assert feed_all([b"data: [DONE]"]) == [b"[DONE]"]
    assert feed_all([b"data: a\n"]) == [b"a"]
    assert feed_all([b": only a comment\n\n"]) == []


@pytest.mark.parametrize("piece", [b"x" * 1000, b"data: " + b"x" * 90 + b"\n"])
def test_an_endless_event_is_refused(piece: bytes) -> None:
    parser = EventParser(max_event=500)
    with pytest.raises(TargetError) as caught:
        for _ in range(10):
            parser.feed(piece)
    assert caught.value.kind == "too_large"
