"""Two prompts, token by token: where they part, what of the second can be reused, and what to move down. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

#: Comparing what comes after the difference costs the square of its length.
_WINDOW = 4000


@dataclass(frozen=True)
class Segment:
    """Tokens that differ: [start, end) in each prompt, and how many equal tokens follow them."""

    first: tuple[int, int]
    second: tuple[int, int]
    equal_after: int


@dataclass(frozen=True)
class PrefixReport:
    """`common_tokens` are equal from the start; only whole chunks of them count. Shares are of the second prompt.

    `differs_at` is None where one prompt is the beginning of the other. `segments` are the first differences, in
    order; `gain_tokens` what moving the first of them behind everything that is equal would add.
    """

    first_tokens: int
    second_tokens: int
    chunk_size: int
    common_tokens: int
    common_chunks: int
    reusable_tokens: int
    reusable_share: float
    differs_at: int | None
    segments: tuple[Segment, ...]
    gain_tokens: int
    sentence: str


def compare(first: Sequence[int], second: Sequence[int], chunk_size: int) -> PrefixReport:
    """Compare two token lists; `chunk_size` from 1."""
    shorter = min(len(first), len(second))
    common = next((index for index in range(shorter) if first[index] != second[index]), shorter)
    chunks = common // chunk_size
    # the engine computes at least the last token itself
    reusable = min(chunks * chunk_size, max(0, len(second) - 1))
    differs = None if common == shorter else common
    segments = _segments(first, second, common) if differs is not None else ()
    gain = _gain(common, segments, chunk_size, reusable, len(second))
    return PrefixReport(
        first_tokens=len(first),
        second_tokens=len(second),
        chunk_size=chunk_size,
        common_tokens=common,
        common_chunks=chunks,
        reusable_tokens=reusable,
        reusable_share=reusable / len(second) if second else 0.0,
        differs_at=differs,
        segments=segments,
        gain_tokens=gain,
        sentence=_sentence(common, chunks, chunk_size, reusable, len(second), segments, gain),
    )


def _segments(first: Sequence[int], second: Sequence[int], start: int) -> tuple[Segment, ...]:
    """The first differences after `start`, by the longest runs of equal tokens."""
    a, b = list(first[start : start + _WINDOW]), list(second[start : start + _WINDOW])
    matcher = SequenceMatcher(None, a, b, autojunk=False)
    blocks = [block for block in matcher.get_matching_blocks() if block.size >= 8]
    found: list[Segment] = []
    at_first = at_second = 0
    for block in blocks:
        size = block.size
        if block.a + size == len(a) and block.b + size == len(b):
            size += _run(first, second, start + block.a + size, start + block.b + size)
        found.append(Segment((start + at_first, start + block.a), (start + at_second, start + block.b), size))
        at_first, at_second = block.a + block.size, block.b + block.size
        if len(found) == 5:
            break
    if not found:
        found.append(Segment((start, len(first)), (start, len(second)), 0))
    return tuple(found)


def _run(first: Sequence[int], second: Sequence[int], i: int, j: int) -> int:
    """How many tokens are equal from here on."""
    count = 0
    while i + count < len(first) and j + count < len(second) and first[i + count] == second[j + count]:
        count += 1
    return count


def _gain(common: int, segments: tuple[Segment, ...], chunk: int, reusable: int, length: int) -> int:
    """Tokens that become reusable when the first difference is moved behind what is equal after it."""
    if not segments or not segments[0].equal_after:
        return 0
    moved = min((common + segments[0].equal_after) // chunk * chunk, max(0, length - 1))
    return max(0, moved - reusable)


def _sentence(
    common: int, chunks: int, chunk: int, reusable: int, length: int, segments: tuple[Segment, ...], gain: int
) -> str:
    share = reusable / length if length else 0.0
    begin = (
        f"{common:,} tokens are equal from the start, {chunks} whole chunks of {chunk}: {reusable:,} of {length:,} "
        f"tokens ({share:.0%}) of the second prompt can be reused"
    )
    if not segments:
        return begin
    start, end = segments[0].second
    if gain:
        return (
            f"{begin}. Move tokens {start:,} to {end:,} of it behind the {segments[0].equal_after:,} equal tokens that "
            f"follow them (a date, a name, an id at the head?): {gain:,} more tokens could be reused"
        )
    return f"{begin}. They part at token {start:,}"
