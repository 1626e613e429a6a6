"""All rules over one pair's facts, worst first. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from app.checks.base import SEVERITY, Check, Finding, Verdict
from app.checks.facts import Facts
from app.checks.rules import ALL


def evaluate(facts: Facts, rules: Iterable[Check] = ALL) -> list[Finding]:
    """Every finding, fail before warn before unknown before ok, then in the order of the rules.

    A rule that cannot cope with hostile or odd facts must not take the others with it: it becomes an `unknown`.
    """
    found: list[tuple[int, int, Finding]] = []
    for place, rule in enumerate(rules):
        try:
            results = list(rule.check(facts))
        except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
            results = [
                rule.unknown(
                    facts.pair_name,
                    f"this check could not be made ({type(error).__name__}: {str(error)[:200]})",
                    title="This check could not be made",
                    fix="report it: the facts were of a form that nobody expected",
                )
            ]
        found.extend((SEVERITY[item.verdict], place, item) for item in results)
    silent = _silent(facts)
    return [
        item
        for _, _, item in sorted(found, key=lambda entry: entry[:2])
        if not (item.verdict is Verdict.UNKNOWN and item.subject in silent)
    ]


def _silent(facts: Facts) -> set[str]:
    """Subjects of targets that do not answer: that nothing else is known of them goes without saying."""
    sides = (facts.server, facts.engine)
    names = {side.name for side in sides if side is not None and not side.planned and not side.reachable}
    return names | {facts.pair_name} if names else set()


def counts(findings: Iterable[Finding]) -> dict[str, int]:
    """Findings per verdict; every verdict is named."""
    seen = Counter(str(item.verdict) for item in findings)
    return {verdict.value: seen.get(verdict.value, 0) for verdict in Verdict}
