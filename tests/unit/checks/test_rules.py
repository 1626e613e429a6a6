"""Every rule: at least one case where it fails or warns, and one where it is ok."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from app.checks.base import Check, Verdict
from app.checks.evaluate import counts, evaluate
from app.checks.facts import Facts
from app.checks.rules import ALL
from tests.unit.checks.cases import CASES, Case
from tests.unit.checks.support import all_of, engine, facts, of, server, store


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: Case) -> None:
    found = of(case.check_id, case.facts())
    assert [str(item.verdict) for item in found if str(item.verdict) == case.verdict], found
    chosen = next(item for item in found if str(item.verdict) == case.verdict)
    assert case.says in chosen.evidence, chosen.evidence
    assert case.fix in chosen.fix, chosen.fix
    if case.verdict in ("fail", "warn"):
        assert chosen.fix or chosen.check_id == "connector_class"
        assert chosen.why
        assert chosen.source


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_judgement_says_what_is_set_what_is_in_force_and_where_that_was_read(case: Case) -> None:
    for item in evaluate(case.facts()):
        if item.verdict is not Verdict.UNKNOWN:
            assert item.configured, item
            assert item.effective, item
            assert item.origin, item


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.id)
def test_every_rule_has_both_kinds_of_case(rule: Check) -> None:
    seen = {case.verdict for case in CASES if case.check_id == rule.id}
    assert "ok" in seen
    assert seen & {"fail", "warn"}


def test_ids_are_unique_and_texts_are_there() -> None:
    assert len({rule.id for rule in ALL}) == len(ALL) >= 40
    for rule in ALL:
        assert rule.title
        assert rule.looks_at
        assert rule.why
        assert rule.source
        assert rule.__doc__ is not None or rule.__module__


def test_a_working_pair_has_no_fail_and_explains_its_warnings() -> None:
    found = all_of(facts())
    assert [item for item in found if item.verdict == "fail"] == []
    assert [item.check_id for item in found if item.verdict == "warn"] == ["eviction_ratio"]  # 0.99, as it was started


def test_worst_first() -> None:
    found = all_of(facts(server=server(status={"eviction_policy": "noop"}), stores=(store(fs_type="tmpfs"),)))
    order = ["fail", "warn", "unknown", "ok"]
    places = [order.index(str(item.verdict)) for item in found]
    assert places == sorted(places)
    assert places[0] == 0
    assert counts(found)["fail"] == 2


@pytest.mark.parametrize("field", [item.name for item in fields(Facts)])
def test_no_rule_needs_any_fact(field: str) -> None:
    """Facts that are missing are unknown, never a crash."""
    empty: object = () if field in ("stores", "containers", "other_engines", "problems") else None
    for given in (replace(facts(), **{field: empty}), replace(Facts(), **{field: getattr(facts(), field)})):
        for item in evaluate(given):
            assert "could not be made" not in item.title, item


def test_bare_sides_are_no_crash() -> None:
    bare = Facts(
        server=replace(server(), config=None, status=None, metrics=None, version=None),
        engine=replace(engine(), facts=None, metrics=None, models=None, version=None),
        stores=(replace(store(), path=None, fs_type=None, block_size=None, probe=None, record_sizes=()),),
    )
    found = evaluate(bare)
    assert all("could not be made" not in item.title for item in found)
    assert {item.verdict for item in found} & {Verdict.UNKNOWN}


def test_a_rule_that_breaks_takes_no_other_with_it() -> None:
    class Broken(Check):
        id, title, looks_at, why, source = "broken", "t", "l", "w", "s"

        def check(self, facts: Facts) -> list[object]:  # type: ignore[override]
            raise ValueError("odd facts")

    found = evaluate(facts(), [Broken(), *ALL[:2]])  # type: ignore[abstract]
    assert [item.check_id for item in found if item.verdict == "unknown"] == ["broken"]
    assert "odd facts" in found[-1].evidence or "odd facts" in found[0].evidence
