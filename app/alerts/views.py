"""Rows and facts as the API shows them."""

from __future__ import annotations

from collections.abc import Sequence

from app.alerts.catalogue import RULES
from app.alerts.fact_schemas import FactState, FactView, RuleVerdictView
from app.alerts.model import Fact, Subject
from app.alerts.plan import Condition
from app.alerts.runbooks import runbook_of
from app.alerts.schemas import (
    AlertChangeView,
    AlertView,
)
from app.alerts.tables import Alert, AlertChange
from app.clock import iso

_GONE = "This panel has no such rule any more."


def alert_view(row: Alert) -> AlertView:
    """One alarm. A rule of another version of the panel is shown by its id."""
    rule = RULES.get(row.rule)
    subject = Subject(row.subject_kind, row.subject_id, row.subject_name)  # type: ignore[arg-type]
    units = {limit.unit for limit in rule.limits.values()} if rule is not None else set()
    return AlertView(
        id=str(row.id),
        rule=row.rule,
        title=rule.title if rule is not None else row.rule,
        severity=row.severity,
        state=row.state,
        target_kind=subject.kind,
        target_id=str(subject.id) if subject.id else None,
        target_name=row.subject_name,
        part=row.part,
        sentence=row.sentence,
        value=row.value,
        limit=row.limit_value,
        unit=units.pop() if len(units) == 1 else "",
        evidence=dict(row.evidence),
        since=iso(row.started_at) or "",
        fired_at=iso(row.fired_at),
        acknowledged_at=iso(row.acknowledged_at),
        acknowledged_by=row.acknowledged_by,
        note=row.note,
        resolved_at=iso(row.resolved_at),
        checked_at=iso(row.checked_at) or "",
        explained_by=None if row.explained_by is None else str(row.explained_by),
        silenced_by=row.silenced_by,
        means=rule.means if rule is not None else _GONE,
        action=rule.action if rule is not None else _GONE,
        page=rule.page_of(subject) if rule is not None else "/alarms",
        docs=rule.docs if rule is not None else "ALARMS.md",
        runbook=runbook_of(row.rule),
    )


def change_view(row: AlertChange) -> AlertChangeView:
    return AlertChangeView(
        old_state=row.old_state, new_state=row.new_state, reason=row.reason, at=iso(row.at) or "", by=row.by
    )


def fact_state(fact: Fact, conditions: Sequence[Condition]) -> FactState:
    """bad: a rule holds; unknown: nothing can be said; quiet: known, and without a meaning now; else ok."""
    if fact.unknown is not None:
        return "unknown"
    if fact.quiet is not None:
        return "quiet"
    if any(condition.verdict.holds for condition in conditions):
        return "bad"
    undecided = bool(conditions) and all(condition.verdict.holds is None for condition in conditions)
    return "unknown" if undecided else "ok"


def fact_view(fact: Fact, conditions: Sequence[Condition]) -> FactView:
    """One fact with what its rules say of it."""
    return FactView(
        fact=fact.key,
        target_kind=fact.subject.kind,
        target_id=str(fact.subject.id) if fact.subject.id else None,
        target_name=fact.subject.name,
        part=fact.part,
        state=fact_state(fact, conditions),
        reason=fact.unknown or fact.quiet,
        numbers=dict(fact.numbers),
        words=dict(fact.words),
        verdicts=[
            RuleVerdictView(rule=c.rule.id, holds=c.verdict.holds, sentence=c.verdict.sentence) for c in conditions
        ],
    )
