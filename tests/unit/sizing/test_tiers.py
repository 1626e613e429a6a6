"""What fits, what a cycle does to an LRU tier, chunk sizes, break-even and histograms."""

from __future__ import annotations

from collections import OrderedDict

import pytest

from app.sizing import speed, tiers
from app.sizing.tiers import WorkingSet

TOKEN = 57_344
GIB = 2**30


def simulate_lru(capacity: int, items: int, rounds: int) -> float:
    """The hit share of an LRU cache of `capacity` items that is asked for `items` in a cycle, after the first round."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for turn in range(rounds):
        for item in range(items):
            if item in cache:
                cache.move_to_end(item)
                hits += turn > 0
            else:
                cache[item] = None
                if len(cache) > capacity:
                    cache.popitem(last=False)
    return hits / (items * (rounds - 1))


class TestFit:
    def test_tokens_and_contexts(self) -> None:
        found = tiers.fit(tiers.l0(10 * GIB), TOKEN, WorkingSet(8, 20_000))
        assert found.tokens == 10 * GIB // TOKEN
        assert found.contexts == 10 * GIB // (20_000 * TOKEN)
        assert (found.state, found.hit_share) == ("fits", 1.0)

    def test_a_cycle_just_over_the_tier_hits_nothing(self) -> None:
        one = 10_000 * TOKEN
        found = tiers.fit(tiers.l0(10 * one), TOKEN, WorkingSet(11, 10_000))
        assert (found.state, found.hit_share) == ("overflows", 0.0)
        assert found.unordered_share == pytest.approx(10 / 11)
        assert "about no hits at all (not 91%)" in found.sentence
        assert simulate_lru(10, 11, 20) == 0.0
        assert simulate_lru(11, 11, 20) == 1.0

    def test_without_an_order_the_share_is_capacity_over_set(self) -> None:
        found = tiers.fit(tiers.l0(10 * 10_000 * TOKEN), TOKEN, WorkingSet(20, 10_000, cyclic=False))
        assert found.hit_share == pytest.approx(0.5)

    def test_an_eviction_ratio_of_almost_one_keeps_almost_nothing(self) -> None:
        tier = tiers.l1(20 * GIB, watermark=0.8, eviction_ratio=0.99)
        assert tier.peak_bytes == int(16 * GIB)
        found = tiers.fit(tier, TOKEN, WorkingSet(10, 20_000))
        assert found.state == "tight"
        assert "next eviction" in found.sentence

    def test_state_of_hybrid_models_counts_per_context(self) -> None:
        found = tiers.fit(tiers.l0(1000), 1, WorkingSet(3, 100), request_bytes=300)
        assert (found.contexts, found.needed_bytes, found.state) == (2, 1200, "overflows")

    def test_layers_with_a_window_keep_no_more_than_it(self) -> None:
        found = tiers.fit(tiers.l0(10_000), 10, WorkingSet(4, 500), windows=[(8, 100)])
        assert found.needed_bytes == 4 * (500 * 2 + 100 * 8)
        assert (found.state, found.contexts) == ("fits", 5)
        short = tiers.fit(tiers.l0(10_000), 10, WorkingSet(4, 50), windows=[(8, 100)])
        assert short.needed_bytes == 4 * 50 * 10

    def test_a_disk_under_a_policy(self) -> None:
        tier = tiers.l2(1000, high=0.85, low=0.7)
        assert (tier.peak_bytes, tier.sure_bytes) == (850, 700)

    def test_without_a_working_set_only_capacity_is_said(self) -> None:
        found = tiers.fit(tiers.l0(GIB), TOKEN, None)
        assert (found.state, found.contexts, found.tokens) == (None, None, GIB // TOKEN)

    def test_needed_capacity_survives_evictions(self) -> None:
        size = tiers.needed_capacity(64 * GIB, watermark=0.8, eviction_ratio=0.2)
        assert tiers.l1(size, watermark=0.8, eviction_ratio=0.2).sure_bytes == pytest.approx(64 * GIB, rel=1e-6)


class TestChunks:
    def test_multiples_of_the_block_only(self) -> None:
        for choice in tiers.chunk_choices(784, 65_536, context_tokens=20_000):
            assert choice.chunk_size % 784 == 0
        assert tiers.chunk_choices(784, 65_536, context_tokens=20_000)[0].records_per_context == 25

    def test_large_records_but_not_larger_than_prefixes_allow(self) -> None:
        choices = tiers.chunk_choices(16, TOKEN, context_tokens=20_000)
        chosen, why = tiers.suggest_chunk(choices, shared_tokens=20_000)
        assert chosen.record_bytes >= 2**20
        assert "multiple of the block size" in why
        short, _ = tiers.suggest_chunk(choices, shared_tokens=800)
        assert short.chunk_size <= 100

    def test_records_that_are_no_whole_blocks_are_told(self) -> None:
        choices = tiers.chunk_choices(16, 100, context_tokens=None)
        _, why = tiers.suggest_chunk(choices, shared_tokens=None)
        assert ("use_odirect" in why) == (not any(choice.whole_blocks for choice in choices))


class TestBreakEven:
    def test_from_which_length_on_loading_pays(self) -> None:
        path = speed.Path("L2", 2e9, 0.01, "as given")
        found = speed.break_even(path, TOKEN, 10_000.0, 20_000)
        assert found.tokens is not None
        load = 0.01 + found.tokens * TOKEN / 2e9
        assert load <= found.tokens / 10_000
        fewer = found.tokens - 1
        assert 0.01 + fewer * TOKEN / 2e9 > fewer / 10_000
        assert found.speed_up == pytest.approx(2.0 / (0.01 + 20_000 * TOKEN / 2e9))

    def test_a_slow_path_never_pays(self) -> None:
        found = speed.break_even(speed.Path("L2", 1e8, 0.0, ""), TOKEN, 10_000.0, None)
        assert found.tokens is None
        assert "never pays" in found.sentence

    def test_lines(self) -> None:
        assert speed.LINES["10 GbE"] == pytest.approx(1.125e9)
        assert speed.LINES["100 GbE"] == pytest.approx(11.25e9)


class TestHistogram:
    BUCKETS = ((1.0, 2.0), (5.0, 6.0), (15.0, 6.0), (float("inf"), 8.0))

    @pytest.mark.parametrize(("share", "value"), [(0.25, 1.0), (0.5, 3.0), (0.75, 5.0), (0.9, None)])
    def test_quantiles(self, share: float, value: float | None) -> None:
        assert speed.quantile(self.BUCKETS, share) == value

    def test_nothing_counted(self) -> None:
        assert speed.quantile([], 0.5) is None
        assert speed.quantile([(1.0, 0.0)], 0.5) is None

    def test_l1_is_what_is_written_within_the_gap(self) -> None:
        assert speed.l1_for_reuse(self.BUCKETS, 1000.0, 0.75) == 5000
        assert speed.l1_for_reuse(self.BUCKETS, 1000.0, 0.9) is None
