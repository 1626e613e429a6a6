"""Every shipped rule, in the order in which lists show them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from app.alerts.rules import health, in_process, layouts, load, panel, registration, stores, tiers
from app.alerts.rules.base import Rule

RULES: Mapping[str, Rule] = {
    rule.id: rule
    for family in (health, registration, tiers, in_process, load, layouts, stores, panel)
    for rule in family.RULES
}


def rules_by_fact() -> dict[str, list[Rule]]:
    """{fact key: the rules that judge it}."""
    found: dict[str, list[Rule]] = defaultdict(list)
    for rule in RULES.values():
        found[rule.fact].append(rule)
    return dict(found)
