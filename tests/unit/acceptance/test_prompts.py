"""Prompts of exact lengths with planted facts, and what keeps runs apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.acceptance.profiles import PROFILES, Sizing, default_arms, in_order
from app.acceptance.prompts import (
    Lexicon,
    Prompt,
    as_text,
    assemble,
    batches,
    common_prefix,
    own_prompt,
    plan_probe,
    plan_prompts,
    run_of_salt,
    salt,
    texts_of,
    with_nonce,
    words_for,
    write_text,
)

CHUNK = 64


def lexicon(*texts: str, lead: tuple[int, ...] = ()) -> Lexicon:
    """A tokenizer of one token a character: crude, reversible."""
    return Lexicon({t: tuple(map(ord, t)) for t in texts}, lead)


def build(kind: str, tokens: int, *, depth: float = 0.5, lead: tuple[int, ...] = ()) -> Prompt:
    parts = write_text(kind, 1, words_for(tokens))  # type: ignore[arg-type]
    sizing = Sizing(kind, tokens / CHUNK, depth)  # type: ignore[arg-type]
    return assemble("p01", parts, sizing, tokens, lexicon(*texts_of(parts), lead=lead), 16)


def text(prompt: Prompt) -> str:
    return "".join(map(chr, prompt.token_ids or ()))


class TestAssemble:
    @given(st.sampled_from(("codeword", "arithmetic", "continuation")), st.integers(2, 2000), st.floats(0, 1))
    def test_has_exactly_the_planned_length(self, kind: str, tokens: int, depth: float) -> None:
        prompt = build(kind, tokens, depth=depth)
        assert prompt.token_ids is not None
        assert len(prompt.token_ids) == prompt.tokens == tokens

    def test_a_codeword_is_planted_at_its_depth_and_asked_for(self) -> None:
        prompt = build("codeword", 1000, depth=0.25)
        assert prompt.expected is not None
        place = text(prompt).index(prompt.expected)
        assert 150 < place < 350
        assert text(prompt).endswith("is")
        assert prompt.scoring == "contains"

    def test_arithmetic_expects_the_sum_of_the_planted_numbers(self) -> None:
        prompt = build("arithmetic", 1000)
        import re

        planted = [int(n) for n in re.findall(r"holds (\d+) crates", text(prompt))]
        assert prompt.expected == str(sum(planted))

    def test_too_short_for_its_facts_is_a_continuation_without_a_score(self) -> None:
        prompt = build("codeword", 20)
        assert (prompt.kind, prompt.expected, prompt.ignore_eos) == ("continuation", None, True)

    def test_the_other_question_shares_the_document(self) -> None:
        prompt = build("codeword", 1000)
        assert prompt.other is not None and prompt.other.token_ids is not None and prompt.token_ids is not None
        assert prompt.shared_tokens == common_prefix(prompt.token_ids, prompt.other.token_ids)
        assert 800 < prompt.shared_tokens < 1000
        assert prompt.other.expected != prompt.expected

    @given(st.sampled_from(("codeword", "arithmetic", "continuation")), st.integers(2, 800))
    def test_variants_differ_where_they_should(self, kind: str, tokens: int) -> None:
        prompt = build(kind, tokens)
        assert prompt.token_ids is not None and prompt.other is not None and prompt.changed is not None
        assert prompt.other.token_ids != prompt.token_ids
        assert prompt.shared_tokens is not None and prompt.shared_tokens < len(prompt.other.token_ids or ())
        assert prompt.changed.token_ids is not None
        assert prompt.changed.token_ids[0] != prompt.token_ids[0]
        assert prompt.changed.token_ids[1:] == prompt.token_ids[1:]

    def test_a_begin_token_stands_once_at_the_head(self) -> None:
        prompt = build("codeword", 500, lead=(1,))
        assert prompt.token_ids is not None and prompt.changed is not None and prompt.changed.token_ids is not None
        assert prompt.token_ids[0] == 1
        assert prompt.token_ids.count(1) == 1
        assert len(prompt.token_ids) == 500
        assert prompt.changed.token_ids[0] == 1
        assert prompt.changed.token_ids[1] != prompt.token_ids[1]

    def test_the_same_inputs_give_the_same_prompt(self) -> None:
        assert build("codeword", 300).digest == build("codeword", 300).digest
        assert build("codeword", 300).digest != build("codeword", 301).digest


class TestPlan:
    @pytest.mark.parametrize("profile", PROFILES)
    def test_every_profile_fits_a_small_engine(self, profile: str) -> None:
        planned = plan_prompts(PROFILES[profile], CHUNK, longest=1000)
        assert planned
        assert all(2 <= p.tokens <= 1000 for p in planned)
        assert len({p.key for p in planned}) == len(planned)

    def test_edges_around_whole_chunks(self) -> None:
        lengths = [p.tokens for p in plan_prompts(PROFILES["standard"], CHUNK, longest=None)]
        assert {127, 128, 129} <= set(lengths)

    def test_quick_prompts_all_hold_a_whole_chunk(self) -> None:
        assert all(p.tokens >= CHUNK for p in plan_prompts(PROFILES["quick"], CHUNK, longest=None))

    def test_own_lengths_replace_the_profile(self) -> None:
        planned = plan_prompts(PROFILES["quick"], CHUNK, longest=None, lengths=[63, 64, 65])
        assert [p.tokens for p in planned] == [63, 64, 65]
        assert [p.tokens for p in plan_prompts(PROFILES["quick"], CHUNK, longest=50, lengths=[63])] == [63]

    def test_the_probe_has_two_whole_chunks(self) -> None:
        assert plan_probe(CHUNK, 0, None).tokens // CHUNK == 2


class TestBatches:
    @given(st.lists(st.integers(1, 500), min_size=1, max_size=40), st.integers(1, 1000))
    def test_nothing_is_lost_and_groups_fit_where_they_can(self, sizes: list[int], limit: int) -> None:
        prompts = [Prompt(f"p{i}", "own", 10, text="x", tokens=n) for i, n in enumerate(sizes)]
        groups = batches(prompts, tokens_per_batch=limit)
        assert [p for g in groups for p in g] == prompts
        assert all(len(g) == 1 or sum((p.tokens or 0) + 10 for p in g) <= limit for g in groups)

    def test_without_a_limit_there_is_one_group(self) -> None:
        assert len(batches([Prompt(f"p{i}", "own", 10, text="x") for i in range(9)], tokens_per_batch=None)) == 1


class TestSalt:
    @given(st.from_regex(r"[a-z0-9]{8,12}", fullmatch=True), st.from_regex(r"p[0-9]{2}v?", fullmatch=True))
    def test_is_safe_in_a_record_name_and_can_be_read_back(self, run_key: str, key: str) -> None:
        made = salt(run_key, key)
        assert made.replace("-", "").isalnum() and len(made) <= 128
        assert run_of_salt(made) == (run_key, key)
        assert salt(run_key, key, 1) != made

    def test_others_salts_are_not_ours(self) -> None:
        assert run_of_salt("tenantA") is None
        assert run_of_salt("tk-") is None
        assert run_of_salt("tk-x") is None


class TestText:
    def test_as_text_keeps_the_planted_fact(self) -> None:
        parts = write_text("codeword", 3, words_for(400))
        prompt = as_text("p01", parts, Sizing("codeword", 6, 0.3), 400, 16, chat=False)
        assert prompt.text is not None and prompt.expected is not None
        assert prompt.expected in prompt.text

    def test_chat_is_one_user_message(self) -> None:
        parts = write_text("arithmetic", 3, words_for(400))
        prompt = as_text("p01", parts, Sizing("arithmetic", 6, 0.3), 400, 16, chat=True)
        assert prompt.messages is not None
        assert prompt.messages[0]["role"] == "user"
        assert prompt.content["messages"][0]["content"] == prompt.messages[0]["content"]

    def test_a_nonce_goes_to_the_head_of_every_form(self) -> None:
        ids = with_nonce(build("codeword", 300), "abc", (7, 8))
        assert ids.token_ids is not None and ids.token_ids[:2] == (7, 8)
        own = own_prompt("p01", "Hello", expected=None, scoring=None, max_tokens=4, chat=False)
        assert (with_nonce(own, "abc", ()).text or "").startswith("[abc] Hello")
        chat = own_prompt("p01", "Hello", expected=None, scoring=None, max_tokens=4, chat=True)
        nonced = with_nonce(chat, "abc", ()).messages
        assert nonced is not None and nonced[0]["content"] == "[abc] Hello"


class TestArms:
    def test_cold_always_comes_first(self) -> None:
        assert in_order(["external_l2", "warm"]) == ("cold", "warm", "external_l2")

    def test_profiles_take_what_the_targets_offer(self) -> None:
        assert default_arms("quick") == ("cold", "warm", "external_l1", "external_l2")
        assert "cross_engine" in default_arms("quick", second_engine="same_server")
        assert "without_cache" in default_arms("quick", second_engine="without_cache")
        assert default_arms("standard", restart_hook=True)[-1] == "restarted_engine"
