"""What a rule is and what it says. A rule is pure: facts in, findings out, no clock, no disk, no network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from app.checks.facts import Facts


class Verdict(StrEnum):
    """`ok` and `warn` and `fail` are judgements; `unknown` says what could not be read and how to let us read it."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


#: Worst first.
SEVERITY: dict[str, int] = {Verdict.FAIL: 0, Verdict.WARN: 1, Verdict.UNKNOWN: 2, Verdict.OK: 3}


@dataclass(frozen=True, slots=True)
class Finding:
    """One verdict about one subject.

    `configured` is what somebody set, `effective` what is in force; both are texts that change only when the setting
    does (measured amounts belong into `evidence`), since a change of either is history. `origin` says where they were
    read.
    """

    check_id: str
    verdict: Verdict
    subject: str
    title: str
    evidence: str
    fix: str
    source: str
    why: str
    configured: str | None = None
    effective: str | None = None
    origin: str | None = None


class Check(ABC):
    """One rule, one file. `check` yields nothing where the rule has no meaning for this pair."""

    id: ClassVar[str]
    title: ClassVar[str]
    looks_at: ClassVar[str]
    why: ClassVar[str]
    source: ClassVar[str]

    @abstractmethod
    def check(self, facts: Facts) -> Iterable[Finding]:
        """Findings about `facts`, at most one a subject."""

    def finding(
        self,
        verdict: Verdict,
        subject: str,
        evidence: str,
        *,
        title: str | None = None,
        fix: str = "",
        configured: object = None,
        effective: object = None,
        origin: str | None = None,
        source: str | None = None,
    ) -> Finding:
        """A finding of this rule; `title` says what is so (the rule's own title where it is ok)."""
        return Finding(
            check_id=self.id,
            verdict=verdict,
            subject=subject,
            title=title or self.title,
            evidence=evidence,
            fix=fix,
            source=source or self.source,
            why=self.why,
            configured=_text(configured),
            effective=_text(effective),
            origin=origin,
        )

    def ok(self, subject: str, evidence: str, **more: object) -> Finding:
        return self.finding(Verdict.OK, subject, evidence, **more)  # type: ignore[arg-type]

    def warn(self, subject: str, evidence: str, **more: object) -> Finding:
        return self.finding(Verdict.WARN, subject, evidence, **more)  # type: ignore[arg-type]

    def fail(self, subject: str, evidence: str, **more: object) -> Finding:
        return self.finding(Verdict.FAIL, subject, evidence, **more)  # type: ignore[arg-type]

    def unknown(self, subject: str, evidence: str, **more: object) -> Finding:
        return self.finding(Verdict.UNKNOWN, subject, evidence, **more)  # type: ignore[arg-type]


def _text(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
