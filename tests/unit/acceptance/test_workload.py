"""How many requests a run makes: batches, probes, references of its own, prompts that are too short."""

from __future__ import annotations

from dataclasses import replace

from app.acceptance.profiles import ORDER, PROFILES
from app.acceptance.workload import PlannedShape, Workload, controls_for, workload

QUICK = PROFILES["quick"]  # repeats two prompts once
CHUNK = 100
LONG = PlannedShape(300, 250)


def test_the_basic_conditions() -> None:
    found = workload(("cold", "warm", "external_l1", "external_l2"), [[LONG] * 4], QUICK, CHUNK, probe_tokens=10)
    # A warm-up, two repeated colds, two controls and a probe before each condition.
    assert found == Workload(16, 1 + 2 + 2 + 4, 16 * 300 + (2 + 2) * 300 + 5 * 10, (4 + 2 + 2) * 300)
    assert found.requests == 25


def test_conditions_without_a_probe_and_with_references_of_their_own() -> None:
    cold = workload(("cold",), [[LONG] * 2], QUICK, CHUNK)
    assert cold == Workload(2, 1 + 2 + 2 + 1, 6 * 300, 6 * 300)
    for arm, compared, besides in (
        ("mixed", 2, 2 + 1),  # a head each, and the probe
        ("shared_prefix", 2, 2 + 1),
        ("changed_head", 2, 2 - 1),  # which has the controls of heads, too
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


def test_what_is_new_to_the_cache() -> None:
    cold = workload(("cold",), [[LONG] * 2], QUICK, CHUNK).stored_tokens
    for arm, tokens in (
        ("warm", 0),
        ("external_l1", 0),
        ("external_l2", 0),
        ("mixed", 0),
        ("without_cache", 0),
        ("restarted_server", 0),
        ("cross_engine", 2 * 300),  # its own cold
        ("restarted_engine", 2 * 300),
        ("changed_head", (2 * 2 - 1) * 300),  # a cold of its own, then under the prompt's salt; one control less
        ("shared_prefix", 2 * 300 + 2 * (300 - 200)),  # a cold of its own, then behind two stored chunks
    ):
        assert workload(("cold", arm), [[LONG] * 2], QUICK, CHUNK).stored_tokens - cold == tokens, arm
    # The answer completes the third chunk of 290 tokens; a prompt shorter than a chunk stores nothing.
    once = replace(QUICK, repeats=0)
    assert workload(("cold",), [[PlannedShape(290, None)]], once, CHUNK).stored_tokens == (1 + 2) * 300
    assert workload(("cold",), [[PlannedShape(80, None)]], once, CHUNK).stored_tokens == 0
    assert workload(("cold",), [[LONG]], once, CHUNK, probe_tokens=100).stored_tokens == (1 + 2) * 300 + 2 * 100


def test_every_condition_has_its_rule() -> None:
    for arm in ORDER:
        assert workload((arm,), [[LONG]], QUICK, CHUNK).compared == 1, arm


def test_controls_are_asked_once_however_many_batches() -> None:
    one, two = (workload(("cold",), b, QUICK, CHUNK).besides for b in ([[LONG] * 4], [[LONG] * 2] * 2))
    assert two == one + 1  # a probe
    text = replace(LONG, exact_changed=False)
    assert len(controls_for(("changed_head",), [LONG, LONG], CHUNK)) == 1
    assert len(controls_for(("changed_head",), [text, text], CHUNK)) == 2
