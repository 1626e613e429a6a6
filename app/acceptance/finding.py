"""What is seen in a run, one by one: `Finding`, how severe it is, and which arms the cache must supply."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["fail", "timeout", "error", "invalid", "near_tie", "warning", "note"]
#: Most severe first; the first severity present decides.
SEVERITIES: tuple[Severity, ...] = ("fail", "timeout", "error", "invalid", "near_tie", "warning", "note")
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

    def sentence(self) -> str:
        """``arm: text. Fix.``, one line."""
        head = f"{self.arm}: " if self.arm else ""
        body = f"{head}{self.text} ({self.code})."
        return f"{body} {self.fix}" if self.fix else body

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
