"""Negative controls: which are asked, what is changed in them, and what their answers show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.acceptance.answers import Answer, Refusal
from app.acceptance.control_findings import control_findings
from app.acceptance.controls import Chosen, ControlSeen, choose, judge, other_tokens, other_words
from app.acceptance.verdict import verdict
from tests.unit.acceptance.factories import answer, good_run

CHUNK = 64


def seen(cold: Answer, control: Answer, **more: Any) -> ControlSeen:
    return judge("first", cold, control, **{"floor": 0.0, "lengths": (300, 300), **more})


class TestChoose:
    def test_the_middle_of_the_longest_and_the_head_of_another(self) -> None:
        assert choose([150, 416, 301, 211], CHUNK) == (Chosen(1, "middle", 192, 256), Chosen(2, "first", 1, 64))

    def test_one_prompt_alone_is_changed_in_both_places(self) -> None:
        assert choose([300], CHUNK) == (Chosen(0, "middle", 128, 192), Chosen(0, "first", 1, 64))

    def test_another_length_comes_before_another_prompt(self) -> None:
        assert choose([300, 300, 200], CHUNK)[1].index == 2
        assert choose([300, 300], CHUNK)[1].index == 1

    def test_heads_that_an_arm_changes_are_left_to_it(self) -> None:
        assert [c.place for c in choose([300, 200], CHUNK, without_first=True)] == ["middle"]

    def test_behind_a_nonce_two_heads(self) -> None:
        found = choose([300, 200], CHUNK, without_middle=True)
        assert [(c.index, c.place) for c in found] == [(0, "first"), (1, "first")]
        assert len(choose([300], CHUNK, without_middle=True)) == 1

    def test_nothing_can_be_read_back_of_prompts_without_a_whole_chunk(self) -> None:
        assert choose([63, 10], CHUNK) == choose([], CHUNK) == ()

    @given(st.lists(st.integers(1, 2000), max_size=8), st.integers(8, 300))
    def test_the_end_and_the_beginning_stay(self, lengths: list[int], chunk: int) -> None:
        for c in choose(lengths, chunk):
            assert lengths[c.index] >= chunk
            assert 1 <= c.start < c.stop <= lengths[c.index] - lengths[c.index] // 4
            assert c.place == "first" or c.start >= chunk // 2


class TestOtherText:
    @given(st.lists(st.integers(0, 500), min_size=4, max_size=80), st.data())
    def test_every_token_of_the_place_is_another_one(self, ids: list[int], data: st.DataObject) -> None:
        start = data.draw(st.integers(1, len(ids) - 2))
        stop = data.draw(st.integers(start + 1, len(ids) - 1))
        found = other_tokens(ids, start, stop)
        assert len(found) == len(ids)
        assert (*found[:start], *found[stop:]) == (*ids[:start], *ids[stop:])
        assert all(a != b for a, b in zip(ids[start:stop], found[start:stop], strict=True))
        if len(set(ids[1:])) > 1:
            assert set(found[start:stop]) <= set(ids)

    def test_words_in_another_order(self) -> None:
        text = "one two three four five six seven eight"
        assert other_words(text, 0.0, 0.5) == "one three four two five six seven eight"
        assert other_words(text, 0.0, 0.5, turn=1) == "one four two three five six seven eight"
        assert sorted(other_words(text, 0.25, 0.75).split()) == sorted(text.split())

    @pytest.mark.parametrize("text", ["x " * 40, "ab" * 200, "word"])
    def test_where_order_changes_nothing(self, text: str) -> None:
        found = other_words(text, 0.0, 0.9)
        assert len(found) == len(text)
        assert found != text or len(set(text)) < 3 or len(text) < 5


class TestJudge:
    def test_to_the_last_digit(self) -> None:
        assert seen(answer("p01"), answer("p01f")).outcome == "equal"

    def test_any_change_of_a_number_is_a_dependence(self) -> None:
        moved = seen(answer("p01"), answer("p01f", logprobs=[-0.5, -0.5, -0.5, -0.5000001]))
        assert (moved.outcome, moved.prompt) == ("moved", "p01")
        assert moved.moved_nats == pytest.approx(1e-7)

    def test_so_is_one_of_a_candidate(self) -> None:
        assert seen(answer("p01"), answer("p01f", runner_up=[(900, -2.0)] * 4)).outcome == "moved"

    def test_so_is_another_word(self) -> None:
        other = seen(answer("p01"), answer("p01f", ids=(5, 6, 9, 8)))
        assert (other.outcome, other.moved_nats) == ("moved", None)

    @pytest.mark.parametrize(
        ("floor", "by", "outcome"),
        [(0.001, 0.0019, "equal"), (0.001, 0.003, "moved"), (0.05, 0.04, "unshown"), (0.05, 0.06, "moved")],
    )
    def test_noise_is_no_dependence(self, floor: float, by: float, outcome: str) -> None:
        assert seen(answer("p01"), answer("p01f", logprobs=[-0.5 - by] * 4), floor=floor).outcome == outcome

    def test_words_alone(self) -> None:
        cold = replace(answer("p01"), logprobs=(), top=())
        assert seen(cold, replace(cold, prompt="p01f")).outcome == "unshown"
        assert seen(cold, replace(cold, prompt="p01f", token_ids=(1, 2), text="1 2")).outcome == "moved"

    def test_one_number_everywhere_is_no_number(self) -> None:
        cold = answer("p01", logprobs=[0.0] * 4, runner_up=[(9, 0.0)] * 4)
        assert seen(cold, replace(cold, prompt="p01f")).outcome == "unshown"

    def test_another_length_may_be_all_that_it_depends_on(self) -> None:
        other = answer("p01f", ids=(5, 6, 9, 8))
        assert seen(answer("p01"), other, lengths=(300, 301)).outcome == "unshown"
        assert seen(answer("p01"), answer("p01f"), lengths=(300, 301)).outcome == "equal"

    def test_a_refusal(self) -> None:
        refused = seen(answer("p01"), replace(answer("p01f"), refusal=Refusal(400, "no")))
        assert (refused.outcome, refused.reason) == ("refused", "HTTP 400: no")


def told(*outcomes: str, place: str = "middle") -> list[tuple[str, str]]:
    controls = [ControlSeen(f"p{i:02}", place, o, reason="why") for i, o in enumerate(outcomes)]  # type: ignore[arg-type]
    return [(f.code, f.severity) for f in control_findings(controls)]


class TestFindings:
    def test_nothing_to_say_where_answers_depend_on_it(self) -> None:
        assert told("moved") == told("moved", "unshown") == told() == []

    def test_no_dependence_is_no_pass(self) -> None:
        assert told("equal") == told("equal", "unshown") == [("prompt_ignored", "invalid")]

    def test_one_place_does_not_stand_for_the_other(self) -> None:
        run = replace(
            good_run(), controls=(ControlSeen("p01", "first", "moved"), ControlSeen("p02", "middle", "equal"))
        )
        result = verdict(run)
        assert (result.name, result.findings[0].code) == ("invalid", "prompt_ignored")
        assert "p02 the same answer, to the last digit, when it had other text in its middle" in result.reasons[0]

    def test_one_prompt_of_several_is_a_warning(self) -> None:
        assert told("moved", "equal") == [("prompt_partly_ignored", "warning")]

    def test_not_shown_is_a_note(self) -> None:
        assert told("unshown") == [("dependence_not_shown", "note")]

    def test_refused_is_no_pass(self) -> None:
        assert told("refused") == [("control_refused", "invalid")]
        assert told("refused", "moved") == []

    def test_nobody_asked_is_no_pass(self) -> None:
        assert verdict(replace(good_run(), controls=None)).name == "invalid"
        assert verdict(replace(good_run(), controls=())).name == "pass"
