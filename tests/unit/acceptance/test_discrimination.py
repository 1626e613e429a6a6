"""Cold answers that do not depend on their prompts prove nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.acceptance.answers import Answer, Refusal
from app.acceptance.discrimination import Discrimination, told_apart
from app.acceptance.verdict import verdict
from tests.unit.acceptance.factories import answer, good_run, tolerance


def shown(*answers: Answer) -> bool | None:
    return Discrimination().with_answers(answers, tolerance()).shown


def bare(prompt: str, text: str, *, finish: str = "stop") -> Answer:
    """An answer without tokens and log-probabilities."""
    return Answer(prompt, text=text, finish_reason=finish)


class TestShown:
    def test_other_tokens(self) -> None:
        assert shown(answer("p01"), answer("p02", ids=(5, 6, 9, 8))) is True

    def test_the_same_words_with_other_numbers(self) -> None:
        assert shown(answer("p01"), answer("p02", logprobs=[-0.5, -0.9, -0.5, -0.5])) is True

    def test_one_text_with_one_set_of_numbers(self) -> None:
        assert shown(*(answer(f"p{n:02}") for n in range(12))) is False

    def test_numbers_that_move_less_than_the_tolerance(self) -> None:
        assert shown(*(answer(f"p{n:02}", logprobs=[-0.5 - 0.005 * n] * 4) for n in range(12))) is False

    def test_near_ties_are_no_difference(self) -> None:
        a = answer("p01", logprobs=[-0.5, -0.5, -0.5, -0.4], runner_up=[(70, -0.51)] * 4)
        b = answer(
            "p02", ids=(70, 6, 7, 8), logprobs=[-0.5, -0.5, -0.5, -0.4], runner_up=[(5, -0.51), *[(71, -0.51)] * 3]
        )
        assert shown(a, b) is False

    def test_one_odd_prompt_is_enough_to_show_that_they_matter(self) -> None:
        assert shown(*(answer(f"p{n:02}") for n in range(9)), answer("p09", ids=(1, 2, 3, 4))) is True

    def test_a_cut_off_answer_is_no_other_one(self) -> None:
        long, short = answer("p01", ids=(5, 6, 7, 8)), answer("p02", ids=(5, 6))
        assert not told_apart(long, short, tolerance())
        assert told_apart(long, replace(short, finish_reason="stop"), tolerance())

    @pytest.mark.parametrize(
        ("a", "b", "apart"),
        [
            (bare("p01", "yes"), bare("p02", "yes"), False),
            (bare("p01", "yes"), bare("p02", "no"), True),
            (bare("p01", "yes and"), bare("p02", "yes", finish="length"), False),
            (bare("p01", "yes and"), bare("p02", "yes"), True),
        ],
    )
    def test_texts_alone(self, a: Answer, b: Answer, apart: bool) -> None:
        assert told_apart(a, b, tolerance()) is apart

    def test_one_answer_and_refusals_tell_nothing(self) -> None:
        refused = replace(answer("p02"), refusal=Refusal(400, "no"))
        assert shown(answer("p01"), refused, Answer("p03")) is None
        assert shown() is None


class TestOneNumber:
    def test_all_log_probabilities_alike(self) -> None:
        found = Discrimination().with_answers([answer("p01", logprobs=[0.0] * 4)], tolerance())
        assert found.with_answers([answer("p02", logprobs=[0.0] * 4)], tolerance()).constant == 0.0
        assert found.with_answers([answer("p02", logprobs=[0.0, 0.0, -0.1, 0.0])], tolerance()).constant is None
        assert Discrimination().constant is None

    def test_words_still_tell_answers_apart(self) -> None:
        alike = {"logprobs": [0.0] * 4, "runner_up": [(5, 0.0)] * 4}
        assert shown(answer("p01", **alike), answer("p02", ids=(7, 6, 7, 8), **alike)) is True
        assert shown(answer("p01", **alike), answer("p02", **alike)) is False


class TestVerdict:
    def test_one_number_everywhere_is_no_pass(self) -> None:
        zeros = [answer("p01", logprobs=[0.0] * 4), answer("p02", ids=(1, 2, 3, 4), logprobs=[0.0] * 4)]
        seen = Discrimination().with_answers(zeros, tolerance())
        result = verdict(replace(good_run(), discrimination=seen))
        assert (result.name, result.findings[0].code) == ("invalid", "constant_logprobs")
        assert "of all 8 tokens of the cold answers are 0" in result.reasons[0]

    def test_constant_answers_are_no_pass_however_equal_the_arms(self) -> None:
        same = Discrimination().with_answers([answer("p01"), answer("p02")], tolerance())
        result = verdict(replace(good_run(), discrimination=same))
        assert result.name == "invalid"
        assert result.findings[0].code == "answers_constant"
        assert "nothing could have been seen" in result.reasons[0]

    @pytest.mark.parametrize("missing", [None, Discrimination()])
    def test_not_known_is_no_pass(self, missing: Discrimination | None) -> None:
        result = verdict(replace(good_run(), discrimination=missing))
        assert (result.name, result.findings[0].code) == ("invalid", "answers_not_told_apart")
