"""The prefix checker: where two prompts part and what moving the difference down would give."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.sizing.prefix import compare

COMMON = list(range(1000, 2000))


def test_equal_prompts_reuse_all_but_the_last_token() -> None:
    found = compare(COMMON[:512], COMMON[:512], 64)
    assert (found.common_tokens, found.common_chunks, found.reusable_tokens) == (512, 8, 511)
    assert found.differs_at is None
    assert found.segments == ()


def test_only_whole_chunks_count() -> None:
    found = compare([*COMMON[:100], 1], [*COMMON[:100], 2, 3], 64)
    assert (found.differs_at, found.common_chunks, found.reusable_tokens) == (100, 1, 64)
    assert found.reusable_share == 64 / 102


def test_a_date_at_the_head_costs_everything_and_is_named() -> None:
    first = [1, 2, 7, 7, 7, *COMMON[:640]]
    second = [1, 2, 8, 8, 8, *COMMON[:640], 99]
    found = compare(first, second, 64)
    assert (found.differs_at, found.reusable_tokens) == (2, 0)
    segment = found.segments[0]
    assert (segment.first, segment.second, segment.equal_after) == ((2, 5), (2, 5), 640)
    assert found.gain_tokens == 640
    assert "Move tokens 2 to 5" in found.sentence


def test_a_long_tail_after_the_window_is_counted_to_its_end() -> None:
    body = [n % 997 for n in range(20_000)]
    found = compare([1, *body], [2, *body], 256)
    assert found.segments[0].equal_after == 20_000
    assert found.gain_tokens == 19_968


def test_nothing_in_common() -> None:
    found = compare([1] * 100, [2] * 100, 16)
    assert (found.reusable_tokens, found.gain_tokens) == (0, 0)
    assert "part at token 0" in found.sentence


@given(st.lists(st.integers(0, 3), max_size=80), st.lists(st.integers(0, 3), max_size=80), st.integers(1, 20))
def test_properties(first: list[int], second: list[int], chunk: int) -> None:
    found = compare(first, second, chunk)
    assert first[: found.common_tokens] == second[: found.common_tokens]
    assert found.common_chunks * chunk <= found.common_tokens
    assert 0 <= found.reusable_tokens <= max(0, len(second) - 1)
    assert found.reusable_tokens + found.gain_tokens <= max(0, len(second) - 1)
    if found.differs_at is not None:
        assert first[found.differs_at] != second[found.differs_at]
    for segment in found.segments:
        assert segment.first[0] <= segment.first[1] <= len(first)
        assert segment.second[0] <= segment.second[1] <= len(second)
