"""Which tier the external tokens came from, as far as lookups tell."""

from __future__ import annotations

import pytest

from app.telemetry.token_flow import TierSlice, l2_bounds, token_flow

ENGINE = {"local_tokens": 2000.0, "external_tokens": 1000.0, "recomputed_tokens": 1000.0, "interval": 60.0}


def levels(l1: float, l2: float, *slices: TierSlice) -> dict[str, tuple[int | None, int | None, int | None]]:
    server = {"hit_tokens": l1 + l2, "l1_hit_tokens": l1, "l2_hit_tokens": l2}
    flow = token_flow(None, 900.0, [ENGINE], [server], registered_engines=1, slices=slices)
    assert sum(v.tokens or 0 for v in flow.levels if v.level in ("l0", "recomputed")) == 3000
    return {v.level: (v.tokens, v.least_tokens, v.most_tokens) for v in flow.levels}


def test_where_every_hit_was_loaded_the_tiers_are_exact() -> None:
    found = levels(700, 300)
    assert (found["l1"], found["l2"]) == ((700, None, None), (300, None, None))


def test_l2_lookups_beyond_the_external_tokens_do_not_make_l1_nothing() -> None:
    found = levels(3000, 1500)
    assert (found["l1"], found["l2"]) == ((None, 0, 1000), (None, 0, 1000))


def test_what_l1_could_not_have_given_came_from_l2() -> None:
    found = levels(400, 900)
    assert (found["l1"], found["l2"]) == ((None, 100, 400), (None, 600, 900))


def test_minutes_decide_what_the_whole_window_does_not() -> None:
    """In one minute all came from L1; in another, where L2 was hit and L1 was not, all came from L2."""
    found = levels(2000, 600, TierSlice(400, 2000, 0), TierSlice(600, 0, 600))
    assert (found["l1"], found["l2"]) == ((400, None, None), (600, None, None))


@pytest.mark.parametrize(("external", "l1", "l2"), [(10, 0, 0), (10, 3, 4), (0, 5, 5), (10, 50, 1)])
def test_bounds_hold_for_counters_that_are_not_read_at_one_instant(external: int, l1: int, l2: int) -> None:
    least, most = l2_bounds([TierSlice(external, l1, l2)])
    assert 0 <= least <= most <= min(external, l2)
