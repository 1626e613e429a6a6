"""Two arms' answers side by side."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.acceptance.answers import Answer, Refusal
from app.acceptance.compare import WRONG, compare, compare_pair
from tests.unit.acceptance.factories import answer, answers, tolerance

REFUSED = Answer("p01", refusal=Refusal(400, "Out of range float values are not JSON compliant: nan"))


class TestComparePair:
    def test_equal_answers_are_exact_with_no_difference(self) -> None:
        pair = compare_pair("p01", answer(), answer(), tolerance())
        assert (pair.outcome, pair.max_abs, pair.mean_abs, pair.compared_tokens) == ("exact", 0.0, 0.0, 4)
        assert pair.divergence is None

    def test_a_small_shift_of_the_numbers_is_exact_and_measured(self) -> None:
        moved = answer(logprobs=[-0.5, -0.56, -0.5, -0.5])
        pair = compare_pair("p01", answer(), moved, tolerance())
        assert pair.outcome == "exact"
        assert pair.max_abs == pytest.approx(0.06)
        assert pair.mean_abs == pytest.approx(0.015)

    def test_a_large_shift_under_equal_tokens_is_wrong(self) -> None:
        moved = answer(logprobs=[-0.5, -2.1, -0.5, -0.5])
        pair = compare_pair("p01", answer(), moved, tolerance())
        assert pair.outcome == "drift"
        assert pair.outcome in WRONG

    def test_exact_mode_allows_less(self) -> None:
        moved = answer(logprobs=[-0.5, -0.52, -0.5, -0.5])
        assert compare_pair("p01", answer(), moved, tolerance("near_tie")).outcome == "exact"
        assert compare_pair("p01", answer(), moved, tolerance("exact")).outcome == "drift"

    def test_runner_up_within_the_gap_is_a_near_tie(self) -> None:
        a = answer(ids=(5, 6), logprobs=(-0.5, -1.00), runner_up=((900, -2), (7, -1.05)))
        b = answer(ids=(5, 7), logprobs=(-0.5, -1.02), runner_up=((900, -2), (6, -1.04)))
        pair = compare_pair("p01", a, b, tolerance())
        assert pair.outcome == "near_tie"
        assert pair.divergence is not None
        assert pair.divergence.position == 1
        assert pair.divergence.gap_nats == pytest.approx(0.05)
        assert pair.compared_tokens == 1
        assert pair.text_a == "5 6"

    def test_exact_mode_knows_no_near_ties(self) -> None:
        a = answer(ids=(5, 6), logprobs=(-0.5, -1.00), runner_up=((900, -2), (7, -1.0)))
        b = answer(ids=(5, 7), logprobs=(-0.5, -1.00), runner_up=((900, -2), (6, -1.0)))
        assert compare_pair("p01", a, b, tolerance("exact")).outcome == "flip"

    def test_runner_up_with_a_clear_lead_is_a_flip(self) -> None:
        a = answer(ids=(5, 6), logprobs=(-0.5, -0.3), runner_up=((900, -2), (7, -0.9)))
        b = answer(ids=(5, 7), logprobs=(-0.5, -0.3), runner_up=((900, -2), (6, -0.9)))
        pair = compare_pair("p01", a, b, tolerance())
        assert pair.outcome == "flip"
        assert "lead of 0.6" in pair.reason

    def test_a_close_call_on_one_side_only_is_no_near_tie(self) -> None:
        a = answer(ids=(5, 6), logprobs=(-0.5, -1.0), runner_up=((900, -2), (7, -1.01)))
        b = answer(ids=(5, 7), logprobs=(-0.5, -0.1), runner_up=((900, -2), (6, -3.0)))
        assert compare_pair("p01", a, b, tolerance()).outcome == "flip"

    def test_a_tie_whose_both_candidates_moved_far_is_wrong(self) -> None:
        a = answer(ids=(5, 6), logprobs=(-0.5, -1.0), runner_up=((900, -2), (7, -1.0)))
        b = answer(ids=(5, 7), logprobs=(-0.5, -2.0), runner_up=((900, -2), (6, -2.0)))
        assert compare_pair("p01", a, b, tolerance()).outcome == "drift"

    def test_a_choice_outside_the_other_top_list_is_a_flip(self) -> None:
        pair = compare_pair("p01", answer(ids=(5, 6)), answer(ids=(5, 7)), tolerance())
        assert pair.outcome == "flip"
        assert pair.divergence is not None
        assert pair.divergence.gap_nats is None

    def test_one_answer_ending_early_is_a_flip(self) -> None:
        pair = compare_pair("p01", answer(ids=(5, 6, 7)), answer(ids=(5, 6)), tolerance())
        assert pair.outcome == "flip"
        assert pair.divergence is not None
        assert pair.divergence.token_b is None

    def test_a_refusal_in_the_arm_under_test_is_wrong_never_missing(self) -> None:
        pair = compare_pair("p01", answer(), REFUSED, tolerance())
        assert pair.outcome == "refused"
        assert "HTTP 400" in pair.reason

    def test_a_refusal_in_the_reference_or_in_both_proves_nothing(self) -> None:
        assert compare_pair("p01", REFUSED, answer(), tolerance()).outcome == "missing"
        assert compare_pair("p01", REFUSED, REFUSED, tolerance()).outcome == "missing"

    def test_an_answer_that_is_not_there_is_missing(self) -> None:
        assert compare_pair("p01", answer(), None, tolerance()).outcome == "missing"
        assert compare_pair("p01", None, answer(), tolerance()).outcome == "missing"

    def test_numbers_that_are_not_finite_are_a_refusal(self) -> None:
        broken = answer(logprobs=[-0.5, float("nan"), -0.5, -0.5])
        assert compare_pair("p01", answer(), broken, tolerance()).outcome == "refused"

    def test_without_log_probabilities_tokens_are_compared_and_the_lack_is_counted(self) -> None:
        bare = replace(answer(), logprobs=(), top=())
        result = compare(answers("warm", answer()), answers("external_l1", bare), tolerance())
        assert result.pairs[0].outcome == "exact"
        assert result.without_logprobs == 1
        assert result.max_abs is None

    def test_ids_are_never_compared_with_texts(self) -> None:
        texts = replace(answer(), token_ids=(), tokens=("a", "b", "c", "d"))
        ids = replace(answer(), tokens=("a", "b", "c", "d"))
        assert compare_pair("p01", texts, ids, tolerance()).outcome == "exact"

    def test_answers_without_tokens_fall_back_to_the_text(self) -> None:
        a, b = Answer("p01", text="yes"), Answer("p01", text="no")
        assert compare_pair("p01", a, a, tolerance()).outcome == "exact"
        assert compare_pair("p01", a, b, tolerance()).outcome == "flip"
        assert compare_pair("p01", Answer("p01"), Answer("p01"), tolerance()).outcome == "missing"


class TestCompare:
    def test_scores_are_paired(self) -> None:
        a = answers("warm", *(answer(f"p{i}", score=s) for i, s in enumerate((1.0, 1.0, 0.0, 0.0))))
        b = answers("external_l1", *(answer(f"p{i}", score=s) for i, s in enumerate((1.0, 0.0, 1.0, 0.0))))
        scores = compare(a, b, tolerance()).scores
        assert (scores.right_right, scores.right_wrong, scores.wrong_right, scores.wrong_wrong) == (1, 1, 1, 1)
        assert scores.p_value == 1.0

    def test_six_one_way_flips_are_significant_and_five_are_not(self) -> None:
        def flips(n: int) -> float | None:
            a = answers("warm", *(answer(f"p{i}", score=1.0) for i in range(n)))
            b = answers("external_l1", *(answer(f"p{i}", score=0.0) for i in range(n)))
            return compare(a, b, tolerance()).scores.p_value

        assert flips(6) == pytest.approx(0.03125)
        assert flips(5) == pytest.approx(0.0625)

    def test_a_refused_answer_counts_as_wrong_in_the_score(self) -> None:
        scores = compare(answers("warm", answer(score=1.0)), answers("external_l1", REFUSED), tolerance()).scores
        assert scores.right_wrong == 1

    def test_batches_are_put_together(self) -> None:
        one = compare(answers("warm", answer("p1")), answers("external_l1", answer("p1")), tolerance())
        moved = answer("p2", logprobs=[-0.55] * 4)
        two = compare(answers("warm", answer("p2")), answers("external_l1", moved), tolerance())
        both = one.merged(two)
        assert [p.prompt for p in both.pairs] == ["p1", "p2"]
        assert both.max_abs == pytest.approx(0.05)
        assert both.mean_abs == pytest.approx(0.025)
        assert both.reference == "warm"


ids_of_answers = st.lists(st.integers(0, 5), min_size=1, max_size=8)


class TestProperties:
    @given(ids_of_answers, st.sampled_from(("exact", "near_tie", "score")))
    def test_an_answer_equals_itself(self, ids: list[int], mode: str) -> None:
        pair = compare_pair("p", answer("p", ids), answer("p", ids), tolerance(mode))  # type: ignore[arg-type]
        assert pair.outcome == "exact"
        assert pair.max_abs == 0.0

    @given(ids_of_answers, ids_of_answers)
    def test_different_tokens_with_clear_leads_are_never_taken_for_equal(self, a: list[int], b: list[int]) -> None:
        pair = compare_pair("p", answer("p", a), answer("p", b), tolerance())
        assert (pair.outcome == "exact") == (a == b)
        assert pair.outcome in ("exact", "flip")

    @given(st.lists(st.tuples(st.floats(-5, 0), st.floats(-5, 0)), min_size=1, max_size=8))
    def test_what_is_measured_is_the_largest_difference(self, pairs: list[tuple[float, float]]) -> None:
        ids = range(len(pairs))
        a = answer("p", tuple(ids), [x for x, _ in pairs])
        b = answer("p", tuple(ids), [y for _, y in pairs])
        pair = compare_pair("p", a, b, tolerance())
        largest = max(abs(x - y) for x, y in pairs)
        assert pair.max_abs == largest
        assert (pair.outcome == "drift") == (largest > tolerance().max_abs_nats)

    @given(ids_of_answers, st.text(max_size=20))
    def test_answers_survive_storage(self, ids: list[int], text: str) -> None:
        original = answer("p", ids, text=text, score=1.0)
        assert Answer.from_json(original.to_json()) == original
        assert Answer.from_json(REFUSED.to_json()) == REFUSED
