"""How the soak (`benchmarks/fleet.py`) judges a run: what was left out, late, or grew."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BEGAN, INTERVAL = 1_796_000_000.0, 10.0
ENDED = BEGAN + 120.0


@pytest.fixture(scope="module")
def fleet() -> ModuleType:
    path = Path(__file__).parents[3] / "benchmarks" / "fleet.py"
    spec = importlib.util.spec_from_file_location("soak_under_test", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def times(*, offset: float = 3.0, slower: float = 0.0) -> list[float]:
    """Asked every interval from before the beginning to the end, each time `slower` seconds later than due."""
    found, at = [], BEGAN - 2 * INTERVAL + offset
    while at <= ENDED:
        found.append(at)
        at += INTERVAL + slower
    return found


def memory(first: float, second: float) -> list[tuple[float, float]]:
    """Rising evenly, with the teeth of a saw: memory that is taken for a moment, and given back."""
    rises = (second - first) / 120
    return [(BEGAN + at, first + rises * at + (5.0 if at % 2 else -5.0)) for at in range(121)]


def judge(fleet: ModuleType, asked: dict[str, list[float]], grown: list[tuple[float, float]] | None = None) -> Any:
    polling = fleet.judged(asked, grown or memory(180.0, 184.0), BEGAN, ENDED, INTERVAL)
    polling["cpu_share_of_a_core"] = 0.7
    return polling, fleet.broken({"targets": 1, "interval": INTERVAL, "polling": polling}, any_machine=True)


def both(**targets: list[float]) -> dict[str, list[float]]:
    return {"s0": times(), "e0": times(offset=1.0), **targets}


def test_a_steady_run_keeps_every_limit(fleet: ModuleType) -> None:
    polling, wrong = judge(fleet, both())
    assert wrong == []
    assert (polling["polls"], polling["targets_asked"], polling["intervals_missed"]) == (24, 2, 0)
    assert polling["late_seconds_max"] == pytest.approx(0.0, abs=1e-6)


def test_the_share_of_a_core_counts_only_where_the_machine_is_its_own(fleet: ModuleType) -> None:
    polling, _ = judge(fleet, both())
    told = fleet.broken({"targets": 200, "interval": INTERVAL, "polling": {**polling, "targets_asked": 400}})
    assert told == ["70% of one core, 60% allowed"]


def test_what_was_left_out_is_counted_at_both_ends_and_between(fleet: ModuleType) -> None:
    whole = times()
    for gone in ([5], [5, 6], [len(whole) - 1], list(range(3))):
        kept = [at for n, at in enumerate(whole) if n not in gone]
        polling, wrong = judge(fleet, both(s0=kept))
        assert polling["intervals_missed"] >= 1, gone
        assert f"{polling['intervals_missed']} polls were left out" in wrong


def test_a_target_that_was_never_asked(fleet: ModuleType) -> None:
    _, wrong = judge(fleet, {"s0": times()})
    assert "1 of 2 targets were asked" in wrong
    _, wrong = judge(fleet, both(s0=[BEGAN - 500.0]))
    assert "1 of 2 targets were asked" in wrong
    _, wrong = judge(fleet, {})
    assert "0 of 2 targets were asked" in wrong
    assert "a poll inf s late, 5 s allowed" in wrong


def test_one_late_poll(fleet: ModuleType) -> None:
    late = [at + (4.0 if n == 6 else 0.0) for n, at in enumerate(times())]
    polling, wrong = judge(fleet, both(s0=late, e0=late))
    assert polling["late_seconds_max"] == pytest.approx(4.0, abs=1e-6)
    assert not [text for text in wrong if "s late" in text]
    strict = fleet.broken({"targets": 1, "interval": INTERVAL, "polling": {**polling, "cpu_share_of_a_core": 0.1}})
    assert "a poll 4.00 s late, 2 s allowed" in strict


def test_lateness_that_grows(fleet: ModuleType) -> None:
    at, found, number = BEGAN - 7.0, [], 0
    while at <= ENDED:
        found.append(at)
        at += INTERVAL + (0.0 if at < BEGAN + 50 else 1.5)
        number += 1
    _, wrong = judge(fleet, {"s0": found, "e0": found})
    assert [text for text in wrong if text.startswith("lateness grew")]
    _, steady = judge(fleet, {"s0": times(slower=1.5), "e0": times(slower=1.5)})
    assert not [text for text in steady if text.startswith("lateness grew")]


@pytest.mark.parametrize(
    ("first", "second", "kept"), [(180, 194, True), (180, 195, False), (400, 415, True), (400, 417, False)]
)
def test_memory_that_grows(fleet: ModuleType, first: float, second: float, kept: bool) -> None:
    _, wrong = judge(fleet, both(), memory(first, second))
    assert [text for text in wrong if text.startswith("memory grew")] == (
        [] if kept else [f"memory grew from {first} to {second} MB, 8% and 16 MB allowed"]
    )


def test_a_line_through_memory(fleet: ModuleType) -> None:
    begin, end = fleet.line([(10.0, 100.0), (20.0, 110.0), (30.0, 120.0)], 0.0, 40.0)
    assert (begin, end) == (pytest.approx(90.0), pytest.approx(130.0))
    assert all(value != value for value in fleet.line([(10.0, 100.0)], 0.0, 40.0))
    _, wrong = judge(fleet, both(), [(BEGAN, 180.0)])  # one sample proves nothing flat
    assert [text for text in wrong if text.startswith("memory grew")]
