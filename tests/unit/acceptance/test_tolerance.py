"""The noise floor and what it hides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.acceptance.tolerance import PRESET_NATS, fix_tolerance, noise_floor


class TestFloor:
    def test_is_the_largest_known_difference(self) -> None:
        floor = noise_floor([0.01, None, 0.06], 0)
        assert (floor.repeats, floor.max_abs_nats) == (3, 0.06)

    def test_nothing_repeated_is_unknown(self) -> None:
        assert noise_floor([], 0).max_abs_nats is None


class TestFixTolerance:
    def test_preset_holds_on_a_quiet_engine(self) -> None:
        assert fix_tolerance("near_tie", noise_floor([0.0], 0)).max_abs_nats == PRESET_NATS["near_tie"]
        assert fix_tolerance("exact", noise_floor([0.0], 0)).max_abs_nats == PRESET_NATS["exact"]

    def test_three_floors_hold_on_a_noisy_one(self) -> None:
        assert fix_tolerance("near_tie", noise_floor([0.06], 0)).max_abs_nats == pytest.approx(0.18)

    def test_a_floor_that_hides_wrong_records_is_blind(self) -> None:
        assert fix_tolerance("near_tie", noise_floor([0.2], 0)).blind
        assert fix_tolerance("near_tie", noise_floor([0.0], 1)).blind
        assert not fix_tolerance("near_tie", noise_floor([0.1], 0)).blind
        assert not fix_tolerance("score", noise_floor([0.2], 1)).blind

    def test_an_operator_cannot_make_it_blind_unseen(self) -> None:
        assert fix_tolerance("near_tie", noise_floor([0.0], 0), max_abs_nats=2.0).blind

    def test_says_what_slips_through(self) -> None:
        nats, text = fix_tolerance("near_tie", noise_floor([0.0], 0)).smallest_fault()
        assert nats == PRESET_NATS["near_tie"]
        assert "lowest bit" in text and "checksum" in text

    @given(st.floats(0, 2), st.floats(0, 2), st.sampled_from(["exact", "near_tie", "score"]))
    def test_is_never_under_the_preset_nor_under_three_floors(self, floor: float, preset: float, mode: str) -> None:
        found = fix_tolerance(mode, noise_floor([floor], 0), max_abs_nats=preset)  # type: ignore[arg-type]
        assert found.max_abs_nats >= preset
        assert found.max_abs_nats >= 3 * floor
