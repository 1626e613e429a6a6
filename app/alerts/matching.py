"""What a silence, a maintenance window or a notifier is about, and whether it is in force. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.alerts.model import SEVERITIES, Severity
from app.scheduling.cron import next_firings


@dataclass(frozen=True)
class Matcher:
    """Conditions that all hold; an empty one means "any". `targets`: (kind, id); `labels`: of the target, all of them.

    A server among `targets` stands for its engines and stores too: who works on it touches them.
    """

    rules: frozenset[str] = frozenset()
    severities: frozenset[str] = frozenset()
    targets: frozenset[tuple[str, int]] = frozenset()
    labels: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Matcher:
        return cls(
            rules=frozenset(stored.get("rules") or ()),
            severities=frozenset(stored.get("severities") or ()),
            targets=frozenset((str(t["kind"]), int(t["id"])) for t in stored.get("targets") or ()),
            labels=dict(stored.get("labels") or {}),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "rules": sorted(self.rules),
            "severities": [s for s in SEVERITIES if s in self.severities],
            "targets": [{"kind": kind, "id": ident} for kind, ident in sorted(self.targets)],
            "labels": dict(self.labels),
        }

    def matches(self, alarm: AlarmFacts) -> bool:
        """Whether the alarm is meant."""
        if self.rules and alarm.rule not in self.rules:
            return False
        if self.severities and alarm.severity not in self.severities:
            return False
        if self.targets and not self.targets & alarm.targets:
            return False
        return all(alarm.labels.get(name) == value for name, value in self.labels.items())


@dataclass(frozen=True)
class AlarmFacts:
    """What matchers look at. `targets` are the alarm's own target and those it stands below (its server)."""

    rule: str
    severity: Severity
    targets: frozenset[tuple[str, int]]
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Quiet:
    """A silence or maintenance window. One-off: `starts_at` to `ends_at`; recurring: `cron` begins `seconds` of it."""

    name: str  # "silence 3", "maintenance window 'nightly'"
    matcher: Matcher
    starts_at: float | None = None
    ends_at: float | None = None
    cron: str | None = None
    timezone: str = "UTC"
    seconds: float = 0.0

    def in_force(self, now: float) -> bool:
        """Whether it is on at `now`."""
        if (self.starts_at is not None and now < self.starts_at) or (self.ends_at is not None and now >= self.ends_at):
            return False
        if self.cron is None:
            return True
        began = next_firings(self.cron, self.timezone, now - self.seconds, 1)
        return bool(began) and began[0] <= now


def silenced_by(alarm: AlarmFacts, quiets: Sequence[Quiet]) -> str | None:
    """The name of the first one in force (the caller chose those) that means the alarm."""
    for quiet in quiets:
        if quiet.matcher.matches(alarm):
            return quiet.name
    return None


def at_least(severity: str, floor: str) -> bool:
    """Whether an alarm is severe enough: critical counts as warning and info too."""
    order: list[str] = list(SEVERITIES)
    return order.index(severity) <= order.index(floor)
