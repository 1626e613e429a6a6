"""Expected tokens and shares, with the numbers measured on the real stack (chunk 64, block 32)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.acceptance.counters import EngineCounters, SaltCounters, sum_counters
from app.acceptance.evidence import (
    ArmEvidence,
    RequestCounts,
    ResetEvidence,
    TokenEvidence,
    expected_external,
    is_full_share,
    resolve,
    total,
)
from tests.unit.acceptance.factories import arm

CHUNK = 64


class TestExpected:
    @pytest.mark.parametrize(("prompt", "expected"), [(63, 0), (64, 64), (127, 64), (128, 128), (300, 256)])
    def test_measured_at_chunk_64(self, prompt: int, expected: int) -> None:
        assert expected_external(prompt, CHUNK) == expected

    def test_what_the_gpu_cache_served_is_not_expected_again(self) -> None:
        assert expected_external(300, CHUNK, 160) == 96
        assert expected_external(300, CHUNK, 288) == 0

    @given(st.integers(0, 10_000), st.integers(1, 1024), st.integers(0, 10_000))
    def test_is_never_negative_nor_more_than_the_prompt(self, prompt: int, chunk: int, local: int) -> None:
        assert 0 <= expected_external(prompt, chunk, local) <= prompt

    def test_whole_chunks_read_one_less_in_the_counters(self) -> None:
        assert is_full_share(128, CHUNK, 128, 128)
        assert is_full_share(128, CHUNK, 127, 128)
        assert not is_full_share(128, CHUNK, 126, 128)
        assert not is_full_share(300, CHUNK, 255, 256)


class TestResolve:
    def test_statistics_of_the_request_win(self) -> None:
        counts = RequestCounts(300, 256, 0, 256)
        assert resolve(counts, CHUNK, local_empty=False) == TokenEvidence(300, 0, 256, 256, True, "request_statistics")

    @pytest.mark.parametrize(
        ("local", "external", "agrees"),
        [(0, 256, True), (0, 255, True), (0, 0, False), (64, 256, False), (0, 320, False)],
    )
    def test_but_not_against_counters_read_around_it(self, local: int, external: int, agrees: bool) -> None:
        counts = RequestCounts(300, 256, 0, 256, counted_local=local, counted_external=external)
        found = resolve(counts, CHUNK, local_empty=True)
        assert (found.external_tokens, found.source) == ((256, "request_statistics") if agrees else (None, "none"))

    def test_a_lookup_that_was_repeated_counts_its_local_hits_again(self) -> None:
        counts = RequestCounts(300, 288, 288, 0, counted_local=864, counted_external=0)
        assert resolve(counts, CHUNK, local_empty=False).local_tokens == 288

    def test_a_counter_outvotes_the_belief_that_the_gpu_cache_was_empty(self) -> None:
        found = resolve(RequestCounts(300, 256), CHUNK, local_empty=True, external_none=True)
        assert (found.local_tokens, found.external_tokens) == (256, 0)

    def test_a_full_gpu_cache_serves_whole_blocks_before_the_last_token(self) -> None:
        found = resolve(RequestCounts(128, 127), CHUNK, local_empty=False, local_most=96)
        assert (found.local_tokens, found.external_tokens, found.full) == (96, 31, True)

    def test_a_sum_counts_only_where_the_gpu_cache_was_empty(self) -> None:
        counts = RequestCounts(300, 256)
        assert resolve(counts, CHUNK, local_empty=True).external_tokens == 256
        unknown = resolve(counts, CHUNK, local_empty=False)
        assert (unknown.external_tokens, unknown.full, unknown.source) == (None, None, "none")

    def test_a_sum_of_zero_needs_no_proof(self) -> None:
        found = resolve(RequestCounts(300, 0), CHUNK, local_empty=False)
        assert (found.local_tokens, found.external_tokens, found.full) == (0, 0, False)

    def test_counters_are_the_last_resort(self) -> None:
        counts = RequestCounts(300, None, counted_local=160, counted_external=96)
        found = resolve(counts, CHUNK, local_empty=False)
        assert (found.expected_tokens, found.full, found.source) == (96, True, "engine_counters")

    def test_nothing_known_is_unknown_not_zero(self) -> None:
        found = resolve(RequestCounts(300), CHUNK, local_empty=True)
        assert found.external_tokens is None
        assert found.source == "none"

    def test_without_a_prompt_length_nothing_is_expected(self) -> None:
        found = resolve(RequestCounts(None, None, 0, 256), CHUNK, local_empty=True)
        assert found.expected_tokens is None
        assert found.full is None


class TestTotals:
    def test_share_is_exactly_one_when_each_request_got_its_share(self) -> None:
        items = [TokenEvidence(128, 0, 127, 128, True, "request_cached_tokens")] * 3
        assert total(items, CHUNK).share == 1.0

    def test_one_unknown_request_makes_the_sum_unknown(self) -> None:
        items = [
            TokenEvidence(300, 0, 256, 256, True, "request_statistics"),
            TokenEvidence(300, None, None, None, None, "none"),
        ]
        found = total(items, CHUNK)
        assert found.external_tokens is None
        assert found.share is None
        assert found.unknown == 1

    def test_nothing_expected_has_no_share(self) -> None:
        found = total([TokenEvidence(63, 0, 0, 0, True, "request_statistics")], CHUNK)
        assert found.share is None
        assert found.too_short == 1

    def test_a_lost_chunk_shows(self) -> None:
        items = [TokenEvidence(300, 0, e, 256, e == 256, "request_statistics") for e in (256, 192)]
        assert total(items, CHUNK).share == pytest.approx(448 / 512)


class TestCounters:
    def test_a_restart_makes_deltas_unknown(self) -> None:
        before = EngineCounters(100.0, 1.0, 1.0, process_start=1.0)
        assert EngineCounters(5.0, 0.0, 0.0, process_start=2.0).since(before).prompt_tokens is None

    def test_a_series_appears_with_its_first_event(self) -> None:
        before = EngineCounters(100.0, None, None, process_start=1.0)
        after = EngineCounters(400.0, None, 256.0, process_start=1.0).since(before)
        assert (after.prompt_tokens, after.external_hits, after.local_hits) == (300.0, 256.0, None)

    def test_salts_are_summed_and_what_no_salt_has_stays_unknown(self) -> None:
        both = sum_counters([SaltCounters(64.0, 64.0, 64.0, None), SaltCounters(128.0, 0.0, 0.0, None), SaltCounters()])
        assert both == SaltCounters(192.0, 64.0, 64.0, None)
        assert sum_counters([]) == SaltCounters()


class TestArmEvidence:
    def test_foreign_tokens_are_what_the_engine_counted_beyond_ours(self) -> None:
        assert arm("cold").foreign_tokens == 0
        assert ArmEvidence("cold", engine=EngineCounters(1000.0), own_prompt_tokens=900).foreign_tokens == 100
        assert ArmEvidence("cold", engine=EngineCounters(), own_prompt_tokens=900).foreign_tokens is None

    def test_batches_add_up_and_the_worst_reset_counts(self) -> None:
        one, two = arm("external_l1"), arm("external_l1")
        both = one.merged(two)
        assert both.requests == 6
        assert both.complete
        assert both.totals is not None and both.totals.external_tokens == 6 * 256
        assert both.reset == ResetEvidence("done", True, 2, 0.0)
        lied = ArmEvidence("external_l1", reset=ResetEvidence("done", False))
        merged = one.merged(lied)
        assert merged.reset is not None and merged.reset.effective is False
        assert merged.totals is None
