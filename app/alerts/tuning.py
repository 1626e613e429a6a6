"""What is in force of a rule: as shipped, as an operator set it, as it is for one target. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.alerts.model import SEVERITIES, Severity, Subject
from app.alerts.rules.base import Rule
from app.errors import InvalidInput


@dataclass(frozen=True)
class Change:
    """What differs from what is below it; None and missing thresholds are as below."""

    enabled: bool | None = None
    severity: str | None = None
    for_seconds: float | None = None
    thresholds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Effective:
    """One rule as it is in force for one subject."""

    enabled: bool
    severity: Severity
    for_seconds: float
    limits: Mapping[str, float]


@dataclass(frozen=True)
class Tuning:
    """All changes: by rule, and by (rule, kind, id)."""

    rules: Mapping[str, Change] = field(default_factory=dict)
    overrides: Mapping[tuple[str, str, int], Change] = field(default_factory=dict)
    _shipped: dict[str, Effective] = field(default_factory=dict, repr=False, compare=False)

    def of(self, rule: Rule, subject: Subject) -> Effective:
        """What holds for a rule about one subject. A stored severity or threshold that this version does not know is
        left out."""
        layers = [self.rules.get(rule.id), self.overrides.get((rule.id, *subject.key))]
        if layers == [None, None]:
            shipped = self._shipped.get(rule.id)
            if shipped is None:
                shipped = Effective(True, rule.severity, rule.for_seconds, rule.defaults)
                self._shipped[rule.id] = shipped
            return shipped
        enabled, severity, wait = True, rule.severity, rule.for_seconds
        limits = rule.defaults
        for change in layers:
            if change is None:
                continue
            enabled = change.enabled if change.enabled is not None else enabled
            severity = next((s for s in SEVERITIES if s == change.severity), severity)
            wait = change.for_seconds if change.for_seconds is not None else wait
            limits |= {name: value for name, value in change.thresholds.items() if name in limits}
        return Effective(enabled, severity, wait, limits)


def check_thresholds(rule: Rule, thresholds: Mapping[str, float | None]) -> None:
    """Raises InvalidInput naming the threshold that the rule does not have, or its range."""
    for name, value in thresholds.items():
        limit = rule.limits.get(name)
        if limit is None:
            known = ", ".join(rule.limits) or "none"
            raise InvalidInput.field(f"thresholds.{name}", f"rule {rule.id} has no such threshold (it has: {known})")
        if value is not None and not limit.lowest <= value <= limit.highest:
            raise InvalidInput.field(
                f"thresholds.{name}", f"{value:g} is not from {limit.lowest:g} to {limit.highest:g} ({limit.unit})"
            )
