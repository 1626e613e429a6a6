"""What is asked, and when: exact lengths, shared heads that are what they claim to be, Poisson times."""

from __future__ import annotations

import pytest

from app.benchmark.arrival import poisson_offsets
from app.benchmark.prompts import (
    NONCE_TOKENS,
    Piece,
    Vocabulary,
    make_vocabulary,
    text_prompt,
    token_prompt,
    vocabulary_text,
)
from app.benchmark.schemas import SHAPES
from app.benchmark.shapes import MEANINGS, TITLES, Planned, own_prompts, plan, reachable

IDS = Vocabulary(tuple(range(100, 400)), (1,))


def common(a: list[int], b: list[int]) -> int:
    shared = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        shared += 1
    return shared


def test_a_prompt_has_exactly_the_tokens_asked_for() -> None:
    for tokens in (8, 63, 64, 1000):
        assert len(token_prompt((Piece("x", tokens),), IDS)) == tokens
    assert len(token_prompt((Piece("x", 50), Piece("y", 14)), IDS, "n")) == 64


def test_the_same_stream_gives_the_same_tokens_whatever_its_length() -> None:
    long, short = token_prompt((Piece("x", 90),), IDS), token_prompt((Piece("x", 40),), IDS)
    assert long[:40] == short
    assert common(long, token_prompt((Piece("y", 90),), IDS)) < 5


def test_the_tokenizers_lead_and_the_nonce_take_the_place_of_the_first_tokens() -> None:
    plain, with_nonce = token_prompt((Piece("x", 90),), IDS), token_prompt((Piece("x", 90),), IDS, "run-1")
    assert plain[0] == with_nonce[0] == 1
    assert plain[1 + NONCE_TOKENS :] == with_nonce[1 + NONCE_TOKENS :]
    assert common(with_nonce, token_prompt((Piece("x", 90),), IDS, "run-2")) < 5


def test_too_few_token_ids_make_texts() -> None:
    assert not make_vocabulary(None, ()).exact
    assert not make_vocabulary([1, 2, 3], (1,)).exact
    words = text_prompt((Piece("x", 100),), Vocabulary(), "salt-1")
    assert words.startswith("[salt-1] ")
    assert 70 <= len(words.split()) <= 100
    assert words == text_prompt((Piece("x", 100),), Vocabulary(), "salt-1")
    assert len(set(vocabulary_text().split())) > 150


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tokens", [200, 1000])
def test_every_shape_shares_exactly_what_it_says(shape: str, tokens: int) -> None:
    made = plan(shape, contexts=3, tokens=tokens, users=3, turns=4)  # type: ignore[arg-type]
    sent: list[list[int]] = []
    for planned in (*made.first, *made.second):
        ids = token_prompt(planned.pieces, Vocabulary(IDS.ids))
        assert len(ids) == planned.tokens
        best = max((common(ids, earlier) for earlier in sent), default=0)
        assert planned.reusable is not None
        # Two random streams may begin with the same token or two.
        assert planned.reusable <= best <= planned.reusable + 3, (planned.key, best)
        sent.append(ids)
    assert max(p.tokens for p in (*made.first, *made.second)) <= tokens
    # Streams of one token may coincide in their token, never the working set in being more than what was sent.
    assert 0 < made.working_set <= sum(len(ids) for ids in sent)
    assert TITLES[shape]
    assert MEANINGS[shape]


def test_what_can_come_back() -> None:
    assert reachable(8000, 8000, 2144) == 6432
    assert reachable(127, 127, 64) == 64
    assert reachable(63, 63, 64) == 0
    # Of whole chunks the last token is computed all the same.
    assert reachable(128, 128, 64) == 127
    assert reachable(1000, 130, 64) == 128
    assert reachable(1000, 0, 64) == 0
    assert reachable(300, None, 64) == 256


def test_use_once_repeats_nothing_and_repeat_everything() -> None:
    once, twice = plan("use_once", contexts=4, tokens=100), plan("repeat", contexts=4, tokens=100)
    assert not {p.pieces for p in once.first} & {p.pieces for p in once.second}
    assert [p.pieces for p in twice.first] == [p.pieces for p in twice.second]
    assert (once.working_set, twice.working_set) == (800, 400)


def test_prompts_of_ones_own_are_asked_twice_as_they_are() -> None:
    made = own_prompts(["one", "two"])
    assert [p.text for p in made.second] == ["one", "two"]
    assert made.second[0].reusable is None
    assert Planned("x", text="one").tokens == 0


def test_arrivals_are_poisson_and_take_as_long_as_the_rate_says() -> None:
    moments = poisson_offsets(4000, 16.0, seed=7)
    assert moments == sorted(moments)
    assert moments[-1] == pytest.approx(4000 / 16)
    gaps = [b - a for a, b in zip([0.0, *moments], moments, strict=False)]
    # Of an exponential distribution 63.2 % lie below the mean and 5.0 % above three times the mean.
    mean = 1 / 16
    assert sum(g < mean for g in gaps) / 4000 == pytest.approx(0.632, abs=0.025)
    assert sum(g > 3 * mean for g in gaps) / 4000 == pytest.approx(0.0498, abs=0.012)


def test_arrivals_are_the_seeds() -> None:
    assert poisson_offsets(50, 2.0, 1) == poisson_offsets(50, 2.0, 1)
    assert poisson_offsets(50, 2.0, 1) != poisson_offsets(50, 2.0, 2)
    assert poisson_offsets(0, 2.0, 1) == []
    with pytest.raises(ValueError, match="greater than 0"):
        poisson_offsets(5, 0.0, 1)
