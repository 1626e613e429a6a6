"""What a canary's reading-back means (RULES.md E7): loss, drift and wrongness are three different alarms. Pure.

The old records are right when what the engine answers from them equals what it computes anew today; the answer that was
kept when the canary was made tells only whether the engine itself still computes the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from app.acceptance import fixes
from app.acceptance.answers import Answer
from app.acceptance.compare import WRONG, Pair, compare_pair
from app.acceptance.evidence import TokenEvidence
from app.acceptance.finding import Finding, Severity
from app.acceptance.tolerance import Tolerance

CanaryOutcome = Literal["ok", "lost", "drift", "wrong", "invalid", "error", "never"]
#: Worst first.
OUTCOMES: tuple[CanaryOutcome, ...] = ("wrong", "lost", "drift", "error", "invalid", "ok")
#: Outcomes that found something, and those that prove nothing either way.
FOUND_WRONG: tuple[CanaryOutcome, ...] = ("wrong", "lost", "drift")
UNDECIDED: tuple[CanaryOutcome, ...] = ("error", "invalid")
_SEVERITY: Mapping[CanaryOutcome, Severity] = {
    "wrong": "fail",
    "lost": "fail",
    "drift": "warning",
    "error": "error",
    "invalid": "invalid",
    "ok": "note",
}


@dataclass(frozen=True)
class Reading:
    """One canary's reading-back. `missing` and `changed` are record names; None answers were not asked for."""

    name: str
    kept: Answer
    records: int
    missing: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    cold: Answer | None = None
    read: Answer | None = None
    tokens: TokenEvidence | None = None
    layout_kept: str | None = None
    layout_now: str | None = None


@dataclass(frozen=True)
class CanaryVerdict:
    """The outcome of one canary with the sentence that says why."""

    outcome: CanaryOutcome
    code: str
    reason: str
    against_cold: Pair | None = None
    against_kept: Pair | None = None

    def finding(self, canary: str) -> Finding:
        """As reports and pages show it."""
        return Finding(self.code, _SEVERITY[self.outcome], f"{canary}: {self.reason}", _FIX.get(self.code))


_FIX = {
    "canary_lost": fixes.CANARY_LOST,
    "canary_overwritten": fixes.RECORDS_CHANGED,
    "canary_layout_changed": fixes.CANARY_LAYOUT,
    "canary_wrong": fixes.WRONG,
    "canary_drift": fixes.CANARY_DRIFT,
    "canary_reset": fixes.DEV_MODE,
    "canary_unproven": fixes.STATS,
}


def judge(reading: Reading, tolerance: Tolerance) -> CanaryVerdict:
    """The verdict of one reading-back."""
    if reading.missing:
        text = f"{len(reading.missing)} of {reading.records} records are gone from the store"
        return CanaryVerdict("lost", "canary_lost", text)
    if reading.read is None or reading.cold is None or reading.tokens is None:
        return CanaryVerdict("invalid", "canary_not_asked", "it was not read back")
    against_cold = compare_pair(reading.name, reading.cold, reading.read, tolerance)
    against_kept = compare_pair(reading.name, reading.kept, reading.read, tolerance)
    pairs = {"against_cold": against_cold, "against_kept": against_kept}
    other_layout = (
        reading.layout_kept is not None and reading.layout_now is not None and reading.layout_kept != reading.layout_now
    )
    if against_cold.outcome in WRONG:
        if reading.changed:
            text = f"{len(reading.changed)} of {reading.records} records were overwritten since it was kept"
            return CanaryVerdict("wrong", "canary_overwritten", f"{text}, and its answer is wrong", **pairs)
        if other_layout:
            text = (
                f"the KV layout changed ({reading.layout_kept} → {reading.layout_now}), and records of the old one are "
                f"served as if they were of the new: {against_cold.reason}"
            )
            return CanaryVerdict("wrong", "canary_layout_changed", text, **pairs)
        text = f"its records give another answer than the engine computes: {against_cold.reason}"
        return CanaryVerdict("wrong", "canary_wrong", text, **pairs)
    if reading.changed:
        text = f"{len(reading.changed)} of {reading.records} records were overwritten since it was kept"
        return CanaryVerdict("wrong", "canary_overwritten", f"{text}, though its answer does not show it", **pairs)
    unproven = _not_from_records(reading.tokens)
    if unproven is not None:
        outcome, code, text = unproven
        return CanaryVerdict(outcome, code, text, **pairs)
    if against_cold.outcome == "missing":
        return CanaryVerdict("error", "canary_not_answered", against_cold.reason, **pairs)
    if against_kept.outcome in WRONG:
        text = "its records are right for this engine, but the engine computes something else than when it was kept: "
        return CanaryVerdict("drift", "canary_drift", text + against_kept.reason, **pairs)
    return CanaryVerdict("ok", "canary_ok", "read back from its old records, and right", **pairs)


def _not_from_records(tokens: TokenEvidence) -> tuple[CanaryOutcome, str, str] | None:
    """Why the answer does not prove the records, if it does not."""
    if tokens.external_tokens is None or tokens.expected_tokens is None:
        return "invalid", "canary_unproven", "nothing says whether its answer came from its records"
    if tokens.local_tokens:
        text = f"{tokens.local_tokens} tokens came from the engine's GPU cache, which could not be emptied"
        return "invalid", "canary_reset", text
    if not tokens.full:
        came = f"{tokens.external_tokens} of {tokens.expected_tokens}"
        text = f"its records are in the store, but only {came} tokens came back"
        return "lost", "canary_lost", text
    return None


def worst(outcomes: Sequence[CanaryOutcome]) -> CanaryOutcome:
    """The outcome of a whole run: its worst check; of none, invalid."""
    return min(outcomes, key=OUTCOMES.index) if outcomes else "invalid"


def what_became(kept: Sequence[Mapping[str, Any]], now: Mapping[tuple[int, str], Any]) -> tuple[list[str], list[str]]:
    """(missing, changed) names of a canary's records; `now` maps (store id, name) to a record with size and sha256."""
    missing: list[str] = []
    changed: list[str] = []
    for record in kept:
        later = now.get((record["store_id"], record["name"]))
        if later is None:
            missing.append(record["name"])
        elif later.size != record["size"] or (
            record.get("sha256") and later.sha256 and later.sha256 != record["sha256"]
        ):
            changed.append(record["name"])
    return missing, changed
