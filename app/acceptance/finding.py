"""What is seen in a run, one by one: `Finding`, how severe it is, and which arms the cache must supply."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

Severity = Literal["fail", "timeout", "error", "invalid", "near_tie", "warning", "note"]
#: Most severe first; the first severity present decides.
SEVERITIES: tuple[Severity, ...] = ("fail", "timeout", "error", "invalid", "near_tie", "warning", "note")
#: What each arm does, in the order in which they run. Pages, commands and reports call an arm by its name here, as the
#: API does, and explain it with these words.
ARM_LABELS: Mapping[str, str] = {
    "cold": "nothing cached: the engine computes everything",
    "warm": "read from the engine's own GPU cache (L0)",
    "external_l1": "L0 emptied: read back from the server's memory",
    "external_l2": "L0 and L1 emptied: read back from disk",
    "mixed": "part from L0, part from the cache server",
    "shared_prefix": "same document, another question",
    "changed_head": "first token changed: nothing may be reused",
    "restarted_server": "read back after the cache server restarted",
    "restarted_engine": "read back after the engine restarted",
    "cross_engine": "stored by one engine, read by another",
    "without_cache": "a second engine without the connector",
}
#: Arms in which the cache must have supplied every whole chunk while the GPU cache supplied nothing.
EXTERNAL_ARMS = frozenset({"external_l1", "external_l2", "restarted_server", "restarted_engine", "cross_engine"})
#: Arms whose answers come (partly) from the cache.
CACHE_ARMS = EXTERNAL_ARMS | {"mixed", "shared_prefix"}
#: Arms whose requests go to the second engine.
ELSEWHERE = frozenset({"cross_engine", "without_cache"})


@dataclass(frozen=True)
class Finding:
    """One thing seen: what, in plain words, and the way out (None where there is nothing to do)."""

    code: str
    severity: Severity
    text: str
    fix: str | None = None
    arm: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Seen(Protocol):
    """What a finding tells, as the room or the API has it."""

    @property
    def code(self) -> str: ...
    @property
    def severity(self) -> Severity: ...
    @property
    def text(self) -> str: ...
    @property
    def fix(self) -> str | None: ...
    @property
    def arm(self) -> str | None: ...


S = TypeVar("S", bound=Seen)
_NUMBER = re.compile(r"\d[\d,.]*")


@dataclass(frozen=True)
class ToldOnce(Generic[S]):
    """Findings that say one thing: the first of them, where else it was seen, and those whose numbers differ."""

    finding: S
    arms: tuple[str, ...]
    count: int
    others: tuple[S, ...]

    def sentence(self) -> str:
        """``cold, warm: text (code, twice). Fix.``, one line."""
        x = self.finding
        head = f"{', '.join(self.arms)}: " if self.arms else ""
        where = f" (in {x.arm})" if self.others and x.arm else ""
        times = f", {self.count} times" if self.count > 1 else ""
        body = f"{head}{x.text}{where} ({x.code}{times})."
        return f"{body} {x.fix}" if x.fix else body


def told_once(findings: Iterable[S]) -> list[ToldOnce[S]]:
    """Equal findings together, in the order of the first of each.

    Warnings and notes are equal also where only their numbers differ: one disturbance reaches several arms. What
    decides a verdict keeps its own numbers, arm by arm.
    """
    kinds: dict[tuple[object, ...], list[S]] = {}
    for finding in findings:
        light = finding.severity in ("warning", "note")
        text = _NUMBER.sub("#", finding.text) if light else finding.text
        kinds.setdefault((finding.severity, finding.code, finding.fix, text), []).append(finding)
    return [_together(kind) for kind in kinds.values()]


def _together(kind: Sequence[S]) -> ToldOnce[S]:
    first = kind[0]
    arms = tuple(dict.fromkeys(finding.arm for finding in kind if finding.arm))
    return ToldOnce(first, arms, len(kind), tuple(f for f in kind[1:] if f.text != first.text))


def sentences(findings: Iterable[Seen]) -> tuple[str, ...]:
    """What a run's findings say for a verdict, one sentence each; notes say nothing for it."""
    return tuple(told.sentence() for told in told_once(f for f in findings if f.severity != "note"))
