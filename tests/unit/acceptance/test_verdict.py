"""The verdict: what is missing is never a pass, what is wrong is always a fail."""

from __future__ import annotations

import dataclasses
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.acceptance import fixes
from app.acceptance.answers import NOT_FINITE, Answer, Refusal
from app.acceptance.compare import Comparison, compare
from app.acceptance.counters import EngineCounters, SaltCounters
from app.acceptance.evidence import (
    L1Emptied,
    RecordsEvidence,
    ResetEvidence,
    StoredEvidence,
)
from app.acceptance.finding import Finding, Severity
from app.acceptance.tolerance import fix_tolerance, noise_floor
from app.acceptance.verdict import RunEvidence, verdict
from tests.unit.acceptance.factories import ARMS, answer, answers, good_run, same, tolerance, totals

ALL_ARMS = (*ARMS, "mixed", "shared_prefix", "changed_head", "restarted_server", "restarted_engine", "cross_engine")
PASSES = {"pass", "pass_with_near_ties"}


def with_arm(run: RunEvidence, name: str, **changes: Any) -> RunEvidence:
    return replace(run, arms={**run.arms, name: replace(run.arms[name], **changes)})


def with_comparison(run: RunEvidence, comparison: Comparison) -> RunEvidence:
    others = tuple(c for c in run.comparisons if c.arm != comparison.arm)
    return replace(run, comparisons=(*others, comparison))


def codes(run: RunEvidence) -> dict[str, str]:
    return {f.code: f.severity for f in verdict(run).findings}


class TestPass:
    def test_a_good_run_passes_without_a_word(self) -> None:
        result = verdict(good_run())
        assert (result.name, result.findings) == ("pass", ())

    def test_all_arms_pass(self) -> None:
        assert verdict(good_run(ALL_ARMS)).name == "pass"

    def test_near_ties_are_named(self) -> None:
        a = answer(ids=(5, 6), logprobs=(-0.5, -1.00), runner_up=((900, -2), (7, -1.05)))
        b = answer(ids=(5, 7), logprobs=(-0.5, -1.02), runner_up=((900, -2), (6, -1.04)))
        near = compare(answers("warm", a), answers("external_l1", b), tolerance())
        result = verdict(with_comparison(good_run(), near))
        assert result.name == "pass_with_near_ties"
        assert "near tie" in result.reasons[0]

    def test_foreign_traffic_is_a_warning_with_statistics_per_request(self) -> None:
        run = with_arm(good_run(), "external_l1", engine=EngineCounters(5000.0, 900.0, 900.0))
        result = verdict(run)
        assert result.name == "pass"
        assert result.findings[0].code == "foreign_traffic"


class TestFail:
    def test_different_answers(self) -> None:
        other = compare(answers("warm", answer()), answers("external_l2", answer(ids=(9, 9, 9, 9))), tolerance())
        result = verdict(with_comparison(good_run(), other))
        assert result.name == "fail"
        assert result.deciding[0].code == "answer_differs"
        assert "Do not roll out" in result.reasons[0]

    def test_drifted_numbers_under_equal_tokens(self) -> None:
        other = compare(answers("warm", answer()), answers("external_l2", answer(logprobs=[-1.6] * 4)), tolerance())
        assert verdict(with_comparison(good_run(), other)).name == "fail"

    def test_a_refusal_in_a_cache_arm_is_a_fail_never_an_error(self) -> None:
        refused = Answer("p01", refusal=Refusal(400, "Out of range float values"))
        other = compare(answers("warm", answer()), answers("external_l2", refused), tolerance())
        run = with_arm(with_comparison(good_run(), other), "external_l2", answered=2, refused=1)
        assert verdict(run).name == "fail"

    def test_numbers_that_are_not_finite_are_told_with_the_tier_they_came_from(self) -> None:
        items = [answer(f"p{i:02}") for i in range(1, 5)]
        garbled = [Answer(a.prompt, refusal=Refusal(200, NOT_FINITE)) for a in items]
        other = compare(answers("warm", *items), answers("external_l2", *garbled), tolerance())
        finding = verdict(with_comparison(good_run(), other)).deciding[0]
        assert finding.text == (
            "the engine answered 4 of 4 prompts with numbers that are not finite when it read them from L2"
        )
        assert finding.fix is not None
        assert "right from L1 and wrong from the disk (L2)" in finding.fix
        assert fixes.READ_BOTH not in finding.fix, "there is no second answer to read"

    def test_a_refused_prompt_is_told_with_what_the_engine_said(self) -> None:
        refused = Answer("p01", refusal=Refusal(400, "too long"))
        other = compare(answers("warm", answer()), answers("external_l1", refused), tolerance())
        assert verdict(with_comparison(good_run(), other)).deciding[0].text == (
            "the engine refused 1 of 1 prompts when it read them from L1, which it had answered in warm "
            "(HTTP 400: too long)"
        )

    @pytest.mark.parametrize(
        ("wrong", "fix"),
        [
            (("external_l2",), fixes.WRONG_READ),
            (("external_l1", "external_l2"), fixes.WRONG),
            (("restarted_server",), fixes.WRONG_RESTART),
            (("warm",), fixes.WRONG_ENGINE),
        ],
    )
    def test_the_way_out_fits_the_tier_that_is_wrong(self, wrong: tuple[str, ...], fix: str) -> None:
        run = good_run((*ARMS, "restarted_server"))
        for name in wrong:
            other = compare(answers("warm", answer()), answers(name, answer(ids=(9, 9, 9, 9))), tolerance())
            run = with_comparison(run, other)
        found = next(f for f in verdict(run).deciding if f.arm == wrong[-1])
        assert found.fix == f"{fix} {fixes.READ_BOTH}"

    @pytest.mark.parametrize(
        ("records", "fix"),
        [
            (RecordsEvidence(12, 1), fixes.WRONG_READ),
            (RecordsEvidence(12, 1, checksums=False), fixes.WRONG_L2),
            (RecordsEvidence(12, 1, changed=("a.data",)), fixes.WRONG_L2),
            (None, fixes.WRONG_L2),
        ],
    )
    def test_the_disk_is_blamed_for_other_bytes_only_where_they_may_have_changed(
        self, records: RecordsEvidence | None, fix: str
    ) -> None:
        other = compare(answers("warm", answer()), answers("external_l2", answer(ids=(9, 9, 9, 9))), tolerance())
        run = replace(with_comparison(good_run(), other), records=records)
        found = next(f for f in verdict(run).deciding if f.code == "answer_differs")
        assert found.fix == f"{fix} {fixes.READ_BOTH}"

    def test_a_wrong_answer_outweighs_missing_evidence_and_a_timeout(self) -> None:
        other = compare(answers("warm", answer()), answers("external_l1", answer(ids=(9, 9, 9, 9))), tolerance())
        run = with_comparison(good_run(), other)
        run = replace(run, problems=(Finding("deadline", "timeout", "too late"),), stored=None)
        assert verdict(run).name == "fail"

    def test_records_changed_on_disk(self) -> None:
        run = replace(good_run(), records=RecordsEvidence(12, 1, changed=("a.data",)))
        assert verdict(run).name == "fail"


class TestInvalid:
    @pytest.mark.parametrize(
        ("name", "changes", "code"),
        [
            ("cold", {"totals": totals(64)}, "not_cold"),
            ("cold", {"totals": totals(0, local=32)}, "not_cold"),
            ("cold", {"totals": totals(None)}, "no_token_evidence"),
            ("cold", {"totals": None}, "no_token_evidence"),
            ("warm", {"totals": totals(256, 256, 0)}, "warm_not_local"),
            ("external_l1", {"totals": totals(256, local=32)}, "reset_had_no_effect"),
            ("external_l1", {"totals": totals(None)}, "no_token_evidence"),
            ("external_l1", {"totals": totals(0)}, "cache_not_used"),
            ("external_l1", {"totals": totals(192)}, "share_too_low"),
            ("external_l1", {"totals": totals(0, expected=0)}, "nothing_expected"),
            ("external_l1", {"reset": None}, "reset_missing"),
            ("external_l1", {"reset": ResetEvidence("unavailable")}, "reset_unavailable"),
            ("external_l1", {"reset": ResetEvidence("busy")}, "reset_busy"),
            ("external_l1", {"reset": ResetEvidence("done", False)}, "reset_had_no_effect"),
            ("external_l1", {"reset": ResetEvidence("unknown", None)}, "reset_unproven"),
            ("external_l1", {"server": SaltCounters(768.0, 768.0, 512.0, 256.0)}, "l1_did_not_hold"),
            ("external_l1", {"server": None}, "tier_unknown"),
            ("external_l2", {"l1_emptied": None}, "l1_not_emptied"),
            ("external_l2", {"l1_emptied": L1Emptied("keys", False, 12, 10, 2)}, "l1_not_emptied"),
            ("external_l2", {"server": SaltCounters(768.0, 768.0, 768.0, 0.0)}, "l1_still_held"),
            ("external_l2", {"server": SaltCounters(768.0, 0.0, 0.0, 0.0)}, "l2_not_used"),
            ("external_l2", {"server": None}, "tier_unknown"),
            ("external_l2", {"answered": 2}, "arm_incomplete"),
        ],
    )
    def test_what_an_arm_lacks(self, name: str, changes: dict[str, Any], code: str) -> None:
        run = with_arm(good_run(), name, **changes)
        assert verdict(run).name == "invalid"
        assert codes(run)[code] == "invalid"

    def test_prompts_without_a_whole_chunk_are_told_before_what_follows_from_them(self) -> None:
        run = with_arm(good_run(), "warm", totals=totals(0, local=0, expected=0))
        run = with_arm(run, "external_l1", totals=totals(0, expected=0))
        found = verdict(run)
        assert {"warm_not_local", "nothing_expected"} <= {f.code for f in found.findings}
        assert found.deciding[0].code == "nothing_expected"
        assert "longer prompts" in found.reasons[0]

    @pytest.mark.parametrize(
        ("counted", "says"),
        [
            (SaltCounters(768.0, 768.0, 768.0, 0.0), "the engine did not load what was there"),
            (SaltCounters(576.0, 576.0, 576.0, 0.0), "The engine asked the server for 576 tokens only"),
            (SaltCounters(768.0, 576.0, 576.0, 0.0), "The server found 576 of 768 tokens"),
        ],
    )
    def test_tokens_that_did_not_come_are_told_by_where_they_were_lost(self, counted: SaltCounters, says: str) -> None:
        """Never a fail: answers were right. An engine that missed a heartbeat computes for itself meanwhile."""
        run = with_arm(good_run(), "external_l1", totals=totals(192), server=counted)
        found = verdict(run)
        assert found.name == "invalid"
        text = next(f.text for f in found.findings if f.code == "share_too_low")
        assert says in text
        assert "3 of 3 requests got less" in text

    def test_evidence_from_global_counters_does_not_stand_foreign_traffic(self) -> None:
        counted = replace(totals(256), sources=("engine_counters",))
        run = with_arm(good_run(), "external_l1", totals=counted)
        assert verdict(run).name == "pass"
        busy = with_arm(run, "external_l1", engine=EngineCounters(5000.0, 0.0, 900.0))
        assert codes(busy)["foreign_traffic"] == "invalid"
        assert verdict(busy).name == "invalid"
        blind = with_arm(run, "external_l1", engine=None)
        assert verdict(blind).name == "invalid"

    def test_dev_mode_off_says_how_to_enable_it(self) -> None:
        run = with_arm(good_run(), "external_l1", reset=ResetEvidence("unavailable"))
        assert "VLLM_SERVER_DEV_MODE=1" in verdict(run).reasons[0]

    def test_a_store_that_never_reaches_l2(self) -> None:
        stored = StoredEvidence(12, 12, 12, 0, 0, True, False, True, 30.0)
        run = replace(good_run(), stored=stored)
        assert codes(run)["never_reached_l2"] == "invalid"
        without_l2 = replace(good_run(("cold", "warm", "external_l1")), stored=stored)
        assert verdict(without_l2).name == "pass"

    def test_nothing_stored_at_all(self) -> None:
        run = replace(good_run(), stored=StoredEvidence(12, 0, 0, 0, 0, False, False, True))
        assert codes(run)["nothing_stored"] == "invalid"

    def test_a_changed_layout(self) -> None:
        assert codes(replace(good_run(), layout_after="ffff"))["layout_changed"] == "invalid"
        assert codes(replace(good_run(), layout_before=None))["layout_unknown"] == "invalid"

    def test_lost_records(self) -> None:
        assert codes(replace(good_run(), records=RecordsEvidence(12, 1, lost=("a.data",))))["records_lost"] == "invalid"

    def test_an_engine_that_disagrees_with_itself(self) -> None:
        blind = fix_tolerance("near_tie", noise_floor([0.5], 0))
        assert codes(replace(good_run(), tolerance=blind))["too_noisy"] == "invalid"
        flipping = fix_tolerance("near_tie", noise_floor([0.0], 1))
        assert codes(replace(good_run(), tolerance=flipping))["too_noisy"] == "invalid"

    def test_answers_without_log_probabilities(self) -> None:
        bare = replace(answer(), logprobs=(), top=())
        run = with_comparison(good_run(), compare(answers("warm", bare), answers("external_l1", bare), tolerance()))
        assert codes(run)["no_logprobs"] == "invalid"

    def test_one_cold_arm_alone_proves_nothing(self) -> None:
        assert verdict(good_run(("cold",))).name == "invalid"
        assert verdict(good_run(())).name == "invalid"

    def test_missing_answers(self) -> None:
        run = with_comparison(good_run(), compare(answers("warm", answer()), answers("external_l1"), tolerance()))
        assert codes(run)["pairs_missing"] == "invalid"


class TestScoreMode:
    def scored(self, before: list[float], after: list[float]) -> RunEvidence:
        lenient = tolerance("score")
        a = answers("warm", *(answer(f"p{i}", score=s) for i, s in enumerate(before)))
        # Other tokens everywhere: in this mode equality is not promised.
        b = answers("external_l1", *(answer(f"p{i}", ids=(5, 6, 7, 9), score=s) for i, s in enumerate(after)))
        run = replace(good_run(("cold", "warm", "external_l1")), tolerance=lenient)
        same_score = same("warm", "cold")
        scored_warm = compare(answers("cold", answer(score=1.0)), answers("warm", answer(score=1.0)), lenient)
        assert same_score.pairs
        return with_comparison(with_comparison(run, scored_warm), compare(a, b, lenient))

    def test_other_words_with_equal_scores_pass(self) -> None:
        assert verdict(self.scored([1.0] * 8, [1.0] * 8)).name == "pass"

    def test_a_significant_loss_fails(self) -> None:
        assert verdict(self.scored([1.0] * 8, [0.0] * 6 + [1.0] * 2)).name == "fail"

    def test_a_loss_that_could_be_chance_is_undecided(self) -> None:
        run = self.scored([1.0] * 8, [0.0] * 2 + [1.0] * 6)
        assert verdict(run).name == "invalid"
        assert "score_undecided" in codes(run)

    def test_prompts_the_model_never_gets_right_cannot_show_a_loss(self) -> None:
        assert "score_without_power" in codes(self.scored([0.0] * 4, [0.0] * 4))


class TestPrecedence:
    @pytest.mark.parametrize(
        ("severities", "name"),
        [
            (("invalid", "error"), "error"),
            (("error", "timeout"), "timeout"),
            (("timeout", "fail"), "fail"),
            (("warning", "note"), "pass"),
        ],
    )
    def test_the_worst_decides(self, severities: tuple[Severity, ...], name: str) -> None:
        problems = tuple(Finding(f"x_{s}", s, "…") for s in severities)
        assert verdict(replace(good_run(), problems=problems)).name == name


def _optional_fields(value: Any) -> list[str]:
    return [f.name for f in fields(value) if getattr(value, f.name) is not None]


# Fields that are not evidence of a pass: bookkeeping, and what is allowed to be absent by itself.
_NOT_REQUIRED = {
    ("run", "records"),  # no directory: the counters carry the proof
    ("arm", "engine"),  # only counts others' traffic when the split comes from the requests themselves
    ("arm", "own_prompt_tokens"),
}
_ARM_FIELDS = ("totals", "reset", "server", "l1_emptied")


class TestMissingIsNeverPass:
    @pytest.mark.parametrize("wanted", [ARMS, ALL_ARMS])
    def test_each_part_of_the_run(self, wanted: tuple[str, ...]) -> None:
        run = good_run(wanted)
        for name in ("tolerance", "stored", "layout_before", "layout_after"):
            assert verdict(replace(run, **{name: None})).name == "invalid", name
        for arm_name in wanted:
            arms = {k: v for k, v in run.arms.items() if k != arm_name}
            assert verdict(replace(run, arms=arms)).name == "invalid", arm_name
            left = tuple(c for c in run.comparisons if c.arm != arm_name)
            if arm_name != "cold":
                assert verdict(replace(run, comparisons=left)).name == "invalid", arm_name

    @pytest.mark.parametrize("name", ["external_l1", "external_l2", "restarted_server"])
    @pytest.mark.parametrize("field", _ARM_FIELDS)
    def test_each_part_of_a_tier_arm(self, name: str, field: str) -> None:
        run = good_run(ALL_ARMS)
        if getattr(run.arms[name], field) is None or (name, field) == ("restarted_server", "l1_emptied"):
            return  # this arm does not need it: a restarted server's L1 is empty
        assert verdict(with_arm(run, name, **{field: None})).name == "invalid"

    @given(st.data())
    def test_whatever_is_taken_away(self, data: st.DataObject) -> None:
        """Any part of any arm's totals or counters set to unknown, any pair removed: never a pass."""
        wanted = data.draw(st.sampled_from([ARMS, ALL_ARMS]))
        run = good_run(wanted)
        name = data.draw(st.sampled_from(wanted))
        part = data.draw(st.sampled_from(["external_tokens", "local_tokens", "answered", "pairs", "problem"]))
        if part in ("external_tokens", "local_tokens"):
            if name == "warm" and part == "external_tokens":
                return  # what the cache adds to a GPU hit is not what that arm claims
            known = run.arms[name].totals
            assert known is not None
            run = with_arm(run, name, totals=replace(known, **{part: None}))
        elif part == "answered":
            run = with_arm(run, name, answered=data.draw(st.integers(0, 2)))
        elif part == "pairs":
            if name == "cold":
                return
            run = with_comparison(run, Comparison(name, "warm"))
        else:
            severity = data.draw(st.sampled_from(["fail", "timeout", "error", "invalid"]))
            run = replace(run, problems=(Finding("x", severity, "…"),))
        assert verdict(run).name not in PASSES

    @given(
        st.lists(st.sampled_from(ALL_ARMS), unique=True),
        st.lists(st.sampled_from(ALL_ARMS), unique=True),
        st.booleans(),
        st.booleans(),
    )
    def test_any_evidence_gives_a_verdict(
        self, wanted: list[str], present: list[str], compared: bool, stopped: bool
    ) -> None:
        run = good_run(present)
        run = replace(
            run,
            wanted=tuple(wanted),
            comparisons=run.comparisons if compared else (),
            problems=(Finding("near", "near_tie", "…"),) if stopped else (),
        )
        result = verdict(run)
        if not set(wanted) <= set(present) or not wanted:
            assert result.name not in PASSES

    def test_the_evidence_classes_are_frozen(self) -> None:
        with pytest.raises(dataclasses.FrozenInstanceError):
            good_run().wanted = ()  # type: ignore[misc]
        assert _optional_fields(good_run())
        assert _NOT_REQUIRED
