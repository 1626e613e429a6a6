"""How many requests a run makes: batches, probes, references of its own, prompts that are too short."""

from __future__ import annotations

from app.acceptance.profiles import ORDER, PROFILES
from app.acceptance.workload import PlannedShape, Workload, workload

QUICK = PROFILES["quick"]  # repeats two prompts once
CHUNK = 100
LONG = PlannedShape(300, 250)


def test_the_basic_conditions() -> None:
    found = workload(("cold", "warm", "external_l1", "external_l2"), [[LONG] * 4], QUICK, CHUNK, probe_tokens=10)
    # A warm-up, two repeated colds and a probe before each condition.
    assert found == Workload(16, 1 + 2 + 4, 16 * 300 + 2 * 300 + 5 * 10)
    assert found.requests == 23


def test_conditions_without_a_probe_and_with_references_of_their_own() -> None:
    cold = workload(("cold",), [[LONG] * 2], QUICK, CHUNK)
    assert cold == Workload(2, 1 + 2 + 1, 4 * 300)
    for arm, compared, besides in (
        ("mixed", 2, 2 + 1),  # a head each, and the probe
        ("shared_prefix", 2, 2 + 1),
        ("changed_head", 2, 2),
        ("cross_engine", 2, 2),
        ("without_cache", 2, 0),
        ("restarted_server", 2, 1),
        ("restarted_engine", 2, 2 + 1),
    ):
        found = workload(("cold", arm), [[LONG] * 2], QUICK, CHUNK)
        assert (found.compared - cold.compared, found.besides - cold.besides) == (compared, besides), arm


def test_prompts_that_a_condition_cannot_use_are_not_asked_in_it() -> None:
    short, unlike = PlannedShape(199, 99), PlannedShape(300, None, has_changed=False)
    assert workload(("mixed",), [[short, LONG]], QUICK, CHUNK).compared == 1
    assert workload(("shared_prefix",), [[short, unlike, LONG]], QUICK, CHUNK).compared == 1
    assert workload(("changed_head",), [[short, unlike]], QUICK, CHUNK).compared == 1
    assert workload(("mixed",), [[PlannedShape(300, None, has_head=False)]], QUICK, CHUNK).compared == 0


def test_each_batch_is_proven_anew_but_restarts_are_made_once() -> None:
    one, two = (workload(("cold", "external_l1"), b, QUICK, CHUNK) for b in ([[LONG] * 4], [[LONG] * 2] * 2))
    assert two.compared == one.compared
    assert two.besides == one.besides + 2
    assert workload(("restarted_server",), [[LONG], [LONG, LONG]], QUICK, CHUNK).compared == 2


def test_every_condition_has_its_rule() -> None:
    for arm in ORDER:
        assert workload((arm,), [[LONG]], QUICK, CHUNK).compared == 1, arm
