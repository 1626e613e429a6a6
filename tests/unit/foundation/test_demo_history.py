"""The invented day of the demo looks like a day at work, not like a fault."""

from __future__ import annotations

from itertools import pairwise

import pytest

from app.commands.demo_history import DAY, working_day

MIDNIGHT = 1_764_460_800.0  # 30 Nov 2025, 00:00 UTC


def at_hour(hour: float) -> float:
    return MIDNIGHT + hour * 3600


@pytest.mark.parametrize("start_hour", [0.0, 6.5, 9.0, 12.0, 16.5, 22.0])
def test_shares_add_up_and_nothing_jumps_at_whatever_hour_somebody_starts(start_hour: float) -> None:
    now = at_hour(start_hour) + DAY
    days = [working_day(now - DAY + 60 * i, now, 0.0) for i in range(24 * 60)]
    for day in days:
        assert 0.75 < day.l1 + day.l2 < 0.95
        assert day.l1 > day.l2 > 0
        assert day.local + day.missed < 1
        assert 100 < day.tokens < 1500
    steps = [abs(a.missed - b.missed) for a, b in pairwise(days)]
    assert max(steps) < 0.01


def test_the_morning_brings_new_documents_and_the_night_repeats_itself() -> None:
    now = at_hour(24)
    morning, noon, night = (working_day(at_hour(h), now, 0.0) for h in (9.2, 12.0, 3.0))
    assert morning.missed > 2 * noon.missed
    assert morning.tokens > 1.5 * night.tokens


def test_it_runs_into_what_the_sandbox_does_now() -> None:
    for hour in (3.0, 9.2, 15.0):
        now = at_hour(hour)
        assert working_day(now, now, 0.0).missed == pytest.approx(0.11)
