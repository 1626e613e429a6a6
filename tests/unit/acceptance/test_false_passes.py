"""Engines that once passed though nothing of theirs was tested."""

from __future__ import annotations

import pytest

from app.acceptance.schemas import AcceptanceRunView
from app.sandbox import EngineSpec, ServerSpec
from tests.unit.acceptance.conftest import PanelMaker

PASSES = ("pass", "pass_with_near_ties")
ARMS = ["cold", "warm", "external_l1", "external_l2"]


def codes(run: AcceptanceRunView) -> set[str]:
    return {f.code for f in run.findings}


class TestAResetThatEmptiesTheCacheForOneRequestOnly:
    """As behind a router: the request after the reset, which proves it, meets an empty replica; the others do not."""

    @pytest.mark.parametrize(
        ("requests", "code", "said"),
        [
            # No arm's request met the empty cache: every counter says so, and so do the numbers then.
            (1, "reset_had_no_effect", "tokens came from the GPU cache although it was emptied before"),
            # One did: its prompt alone was loaded, the others' tokens only look as if they had been.
            (2, "counters_disagree", "the engine counted 192 tokens from outside"),
        ],
    )
    def test_what_was_attributed_is_held_against_what_was_counted(
        self, make_panel: PanelMaker, requests: int, code: str, said: str
    ) -> None:
        panel = make_panel()
        panel.sandbox.control.misbehave("engine", reset_lasts=requests)
        run = panel.run(profile="quick")
        assert run.verdict == "invalid"
        finding = next(f for f in run.findings if f.code == code and f.arm == "external_l1")
        assert said in finding.text
        assert "exactly one engine" in (finding.fix or "")

    @pytest.mark.parametrize("hidden", ["engine", "server", "both", "nobody"])
    @pytest.mark.parametrize(
        "arms", [["external_l1"], ["warm", "external_l1", "external_l2"], ["shared_prefix"], ["mixed"]]
    )
    def test_it_never_passes_whoever_does_not_count(self, make_panel: PanelMaker, hidden: str, arms: list[str]) -> None:
        panel = make_panel()
        panel.sandbox.control.misbehave("engine", reset_lasts=2, metrics_missing=hidden in ("engine", "both"))
        panel.sandbox.control.misbehave("server", metrics_missing=hidden in ("server", "both"))
        assert panel.run(arms=arms, lengths=[150, 210, 260, 330]).verdict not in PASSES

    def test_nor_where_the_server_counts_no_transfers(self, make_panel: PanelMaker) -> None:
        panel = make_panel(servers=[ServerSpec(transfer_mode="engine_driven")])
        assert panel.run().verdict == "pass"
        panel.sandbox.control.misbehave("engine", reset_lasts=1)
        run = panel.run()
        assert run.verdict == "invalid"
        assert codes(run) & {"counters_disagree", "reset_had_no_effect"}

    def test_nor_with_a_nonce_instead_of_a_salt(self, make_panel: PanelMaker) -> None:
        panel = make_panel(servers=[ServerSpec(eviction_policy="IsolatedLRU")])
        panel.sandbox.control.misbehave("engine", reset_lasts=1)
        assert panel.run(allow_clear_l1=True).verdict == "invalid"

    def test_without_usage_or_statistics(self, make_panel: PanelMaker) -> None:
        panel = make_panel(engines=[EngineSpec(prompt_tokens_details=False, cached_token_stats=False)])
        panel.sandbox.control.misbehave("engine", reset_lasts=1)
        assert panel.run(lengths=[150, 210, 260]).verdict not in PASSES


class TestAnEngineThatAnswersEverythingAlike:
    @pytest.mark.parametrize("kind", ["numbers", "noise"])
    @pytest.mark.parametrize("api", ["completions", "chat"])
    def test_equal_arms_prove_nothing(self, make_panel: PanelMaker, kind: str, api: str) -> None:
        panel = make_panel()
        panel.sandbox.control.misbehave("engine", constant_answers=kind)
        run = panel.run(arms=ARMS, api=api)
        assert run.verdict == "invalid"
        assert codes(run) >= {"answers_constant"}
        assert all(arm.exact_matches == arm.requests for arm in run.arms[1:])
        assert "do not depend on the prompt" in run.reasons[0]
        assert run.evidence["cold_answers"] == {"prompts": 2, "kinds": 1}

    def test_one_prompt_is_compared_with_the_warm_up(self, make_panel: PanelMaker) -> None:
        panel = make_panel()
        own = [{"prompt": "tell me about the store " * 40}]
        assert panel.run(prompts=own).verdict == "pass"
        panel.sandbox.control.misbehave("engine", constant_answers="numbers")
        assert "answers_constant" in codes(panel.run(prompts=own))

    def test_one_text_over_numbers_of_its_own_is_told_apart(self, make_panel: PanelMaker) -> None:
        panel = make_panel()
        panel.sandbox.control.misbehave("engine", constant_answers="words")
        run = panel.run()
        assert run.verdict == "pass", run.reasons
        assert run.arms[0].score is not None and run.arms[0].score.value == 0.0


class TestAnEngineThatLooksAtAPartOfThePromptOnly:
    """What it answers is computed from the prompt's end, its length or its two ends: whatever records hold."""

    @pytest.mark.parametrize("part", ["tail", "length", "ends"])
    @pytest.mark.parametrize("api", ["completions", "chat"])
    def test_equal_arms_prove_nothing(self, make_panel: PanelMaker, part: str, api: str) -> None:
        panel = make_panel()
        panel.sandbox.control.misbehave("server", l2_garbage=True)
        panel.sandbox.control.misbehave("engine", answers_from=part)
        run = panel.run(arms=ARMS, api=api, profile="quick")
        assert run.verdict == "invalid", run.reasons
        finding = next(f for f in run.findings if f.severity == "invalid")
        assert finding.code == "prompt_ignored"
        assert finding.fix is not None and "between the panel and the engine" in finding.fix
        assert all(arm.exact_matches == arm.requests for arm in run.arms[1:])

    @pytest.mark.parametrize("part", ["tail", "length", "ends"])
    def test_nor_with_the_arm_that_changes_heads(self, make_panel: PanelMaker, part: str) -> None:
        panel = make_panel()
        panel.sandbox.control.misbehave("engine", answers_from=part)
        run = panel.run(arms=[*ARMS, "changed_head"])
        assert (run.verdict, "prompt_ignored" in codes(run)) == ("invalid", True)

    @pytest.mark.parametrize("own", [["tell me about the store " * 40], ["a b c d e f g " * 30, "x " * 200]])
    @pytest.mark.parametrize("part", ["tail", "length"])
    def test_nor_over_the_operator_s_own_prompts(self, make_panel: PanelMaker, part: str, own: list[str]) -> None:
        panel = make_panel()
        prompts = [{"prompt": p} for p in own]
        assert panel.run(prompts=prompts).verdict == "pass"
        panel.sandbox.control.misbehave("engine", answers_from=part)
        run = panel.run(prompts=prompts)
        assert (run.verdict, "prompt_ignored" in codes(run)) == ("invalid", True)

    def test_nor_with_a_nonce_instead_of_a_salt(self, make_panel: PanelMaker) -> None:
        panel = make_panel(servers=[ServerSpec(eviction_policy="IsolatedLRU")])
        assert panel.run(allow_clear_l1=True).verdict == "pass"
        panel.sandbox.control.misbehave("engine", answers_from="tail")
        assert "prompt_ignored" in codes(panel.run(allow_clear_l1=True))

    @pytest.mark.parametrize("lengths", [[64], [65, 70], [100, 128], [130, 200, 330]])
    def test_however_short_the_prompts(self, make_panel: PanelMaker, lengths: list[int]) -> None:
        panel = make_panel()
        run = panel.run(lengths=lengths)
        assert run.verdict == "pass", run.reasons
        assert {c["outcome"] for c in run.evidence["controls"]} == {"moved"}
        if min(lengths) >= 100:  # else the tail that it looks at reaches into the changed chunk
            panel.sandbox.control.misbehave("engine", answers_from="tail")
            assert "prompt_ignored" in codes(panel.run(lengths=lengths))

    def test_what_the_controls_are(self, make_panel: PanelMaker) -> None:
        panel = make_panel()
        run = panel.run(profile="quick", remove_records=False)
        shown = [(c["prompt"], c["place"], c["outcome"], c["arm"]) for c in run.evidence["controls"]]
        assert shown == [("p02", "middle", "moved", None), ("p03", "first", "moved", None)]
        answers = panel.service.answers(int(run.id), page_size=500, page_token=None).items
        controls = {a.prompt: a for a in answers if a.arm == "control"}
        assert {(k, a.prompt_tokens, a.external_tokens, a.repeat) for k, a in controls.items()} == {
            ("p02m", 416, 0, 1),
            ("p03f", 301, 0, 1),
        }
        cold = {a.prompt: a.prompt_tokens for a in answers if a.arm == "cold" and a.repeat == 0}
        assert (cold["p02"], cold["p03"]) == (416, 301)
        # Records of the controls carry the run's salts, so they are removed with the others.
        assert [p for p in panel.store.glob("*.data") if p.name.endswith(f"@{controls['p02m'].salt}.data")]


class TestThinEvidence:
    def test_streams_that_lose_all_but_their_first_token(self, make_panel: PanelMaker) -> None:
        panel = make_panel()
        panel.sandbox.control.misbehave("engine", stream_loses_after=1)
        run = panel.run(arms=ARMS)
        assert run.verdict == "invalid"
        finding = next(f for f in run.findings if f.code == "answer_incomplete" and f.arm == "external_l2")
        assert "1 of the 16 tokens that the usage counts came" in finding.text
        assert "streams" in (finding.fix or "")
        assert "pairs_missing" not in codes(run)

    def test_a_wrong_token_before_the_loss_is_still_wrong(self, make_panel: PanelMaker) -> None:
        panel = make_panel()
        panel.sandbox.control.misbehave("server", l2_garbage=True)
        panel.sandbox.control.misbehave("engine", stream_loses_after=4)
        assert panel.run(arms=ARMS).verdict == "fail"

    @pytest.mark.parametrize("api", ["completions", "chat"])
    def test_log_probabilities_that_are_one_number(self, make_panel: PanelMaker, api: str) -> None:
        panel = make_panel()
        panel.sandbox.control.misbehave("engine", constant_logprobs=True)
        run = panel.run(arms=ARMS, api=api)
        assert run.verdict == "invalid"
        finding = next(f for f in run.findings if f.severity == "invalid")
        assert finding.code == "constant_logprobs"
        assert "are 0: they are no evidence" in finding.text
        assert "answers_constant" not in codes(run)
