"""What a rule is. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from app.alerts.model import Fact, Limit, Severity, Subject, SubjectKind, Verdict

#: Where the cause of an alarm may be found, seen from its subject.
Relation = Literal["same", "panel", "server", "engines", "stores", "servers"]
Limits = Mapping[str, float]
Judge = Callable[[Fact, Limits], Verdict]

_PAGES: Mapping[SubjectKind, str] = {
    "panel": "/alarms",
    "server": "/servers/{id}",
    "engine": "/engines/{id}",
    "store": "/stores/{id}",
    "schedule": "/schedules",
}


@dataclass(frozen=True)
class Cause:
    """An alarm of `rule` about the subject's `relation` explains this one: it is then held back."""

    rule: str
    relation: Relation = "same"


@dataclass(frozen=True)
class Rule:
    """One alarm rule. `judge` is asked only about facts that are neither unknown nor quiet.

    for_seconds: how long the condition must hold before it fires; clear_seconds: how long it must be gone before the
    alarm is resolved. `exact`: its number is a count that stands still between scans, so that a change is told at once
    and no other page says another. `page` is where to look, with ``{id}`` for the subject's id; empty: the subject's
    own page.
    """

    id: str
    title: str
    fact: str
    subject: SubjectKind
    severity: Severity
    for_seconds: float
    judge: Judge = field(repr=False)
    means: str
    action: str
    page: str = ""
    limits: Mapping[str, Limit] = field(default_factory=dict)
    causes: tuple[Cause, ...] = ()
    clear_seconds: float = 60.0
    exact: bool = False

    @property
    def docs(self) -> str:
        """The anchor in the page of the manual."""
        return f"ALARMS.md#{self.id.replace('_', '-')}"

    @property
    def defaults(self) -> dict[str, float]:
        return {name: limit.default for name, limit in self.limits.items()}

    def page_of(self, subject: Subject) -> str:
        """Where to look, as an address of the panel."""
        return (self.page or _PAGES[subject.kind]).format(id=subject.id)

    def verdict(self, fact: Fact, limits: Limits) -> Verdict:
        """What this rule says of a fact. `limits` has a value for each of the rule's limits."""
        if fact.unknown is not None:
            return Verdict(None, f"not known: {fact.unknown}")
        if fact.quiet is not None:
            return Verdict(False, fact.quiet)
        return self.judge(fact, limits)


SERVER_GONE = (Cause("server_unreachable"), Cause("server_unhealthy"), Cause("panel_blind", "panel"))
ENGINE_GONE = (Cause("engine_unreachable"), Cause("engine_unhealthy"), Cause("panel_blind", "panel"))
#: What rests on the server's own counters is worth nothing while they miss events.
COUNTERS_WRONG = (*SERVER_GONE, Cause("event_bus_dropping"))
NOT_REGISTERED = (Cause("restart_unnoticed"), Cause("engine_not_registered"), Cause("engine_silent"))
STORE_GONE = (Cause("store_unusable"),)
