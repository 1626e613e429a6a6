"""What facts, rules and alarms are made of. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

SubjectKind = Literal["panel", "server", "engine", "store", "schedule"]
Severity = Literal["critical", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "info")


@dataclass(frozen=True, order=True, slots=True)
class Subject:
    """What a fact is about. The panel itself has the id 0. Two subjects are the same by kind and id."""

    kind: SubjectKind
    id: int
    name: str = field(compare=False)

    @property
    def key(self) -> tuple[str, int]:
        return self.kind, self.id


PANEL = Subject("panel", 0, "this panel")


@dataclass(frozen=True, slots=True)
class Fact:
    """One derived fact: numbers with names, words for sentences, and why nothing can be said.

    `unknown` set: the numbers that decide are not known now. `quiet` set: they are known and mean nothing now (there
    was no traffic to judge). `part` tells apart several facts of one kind about one subject (a model, a directory).
    """

    key: str
    subject: Subject
    numbers: Mapping[str, float | None] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    part: str = ""
    unknown: str | None = None
    quiet: str | None = None

    def number(self, name: str) -> float:
        """A number that a fact which is neither unknown nor quiet always has. Raises KeyError for any other."""
        value = self.numbers[name]
        if value is None:
            raise KeyError(name)
        return value


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a rule's condition holds now (None: cannot be said), in a sentence, with the number that decided.

    `wait_seconds`: how long it must hold before it counts, where the fact itself knows better than the rule.
    """

    holds: bool | None
    sentence: str
    value: float | None = None
    limit: float | None = None
    wait_seconds: float | None = None


@dataclass(frozen=True)
class Limit:
    """One threshold of a rule. `unit` is for people: ratio, seconds, bytes, tokens, chunks, files, …"""

    default: float
    unit: str
    means: str
    lowest: float = 0.0
    highest: float = 1e18


def said(value: float, digits: int = 1) -> str:
    """A number for sentences: whole where it is whole, thousands apart by a thin comma."""
    return f"{value:,.0f}" if value == round(value) else f"{value:,.{digits}f}"


def percent(ratio: float) -> str:
    """``12.5 %``; what is neither nothing nor all never reads 0 % or 100 %."""
    shown = ratio * 100
    if 0 < shown < 0.1:
        return "under 0.1 %"
    if 99.9 < shown < 100:
        return "over 99.9 %"
    return f"{shown:.1f} %"


def span(seconds: float) -> str:
    """``2 m 07 s``, ``3 h 10 m``, ``4 d 2 h``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} m"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def some(names: list[str], most: int = 3) -> str:
    """A few names, and how many more there are."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
