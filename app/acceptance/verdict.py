"""`verdict(evidence) -> Verdict` (RULES.md E2–E5). Pure.

A run passes only when everything it claims was shown. What is missing makes it `invalid`, with the reason and the way
out; a wrong answer makes it `fail` whatever else is missing; `error` and `timeout` are our own or the target's
trouble. None of them is ever folded into pass: the last line of `verdict` is reached only without findings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from app.acceptance import fixes
from app.acceptance.compare import Comparison
from app.acceptance.evidence import ArmEvidence, RecordsEvidence, StoredEvidence, Totals
from app.acceptance.tolerance import BLIND_NATS, Tolerance

VerdictName = Literal["pass", "pass_with_near_ties", "fail", "invalid", "error", "timeout"]
Severity = Literal["fail", "timeout", "error", "invalid", "near_tie", "warning", "note"]
#: Most severe first; the first severity present decides.
SEVERITIES: tuple[Severity, ...] = ("fail", "timeout", "error", "invalid", "near_tie", "warning", "note")
_DECIDES: dict[Severity, VerdictName] = {
    "fail": "fail",
    "timeout": "timeout",
    "error": "error",
    "invalid": "invalid",
    "near_tie": "pass_with_near_ties",
}
#: Arms in which the cache must have supplied every whole chunk while the GPU cache supplied nothing.
EXTERNAL_ARMS = frozenset({"external_l1", "external_l2", "restarted_server", "restarted_engine", "cross_engine"})
#: Arms whose answers come (partly) from the cache.
CACHE_ARMS = EXTERNAL_ARMS | {"mixed", "shared_prefix"}


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


@dataclass(frozen=True)
class RunEvidence:
    """All that a run saw. `problems` are what stopped it or went wrong outside the comparison."""

    wanted: tuple[str, ...]
    arms: Mapping[str, ArmEvidence] = field(default_factory=dict)
    comparisons: tuple[Comparison, ...] = ()
    tolerance: Tolerance | None = None
    stored: StoredEvidence | None = None
    records: RecordsEvidence | None = None  # None: the records could not be looked at (no directory)
    layout_before: str | None = None
    layout_after: str | None = None
    problems: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """The outcome and everything behind it, most severe first."""

    name: VerdictName
    findings: tuple[Finding, ...]

    @property
    def deciding(self) -> tuple[Finding, ...]:
        """The findings of the severity that decided; for a pass, none."""
        return tuple(f for f in self.findings if _DECIDES.get(f.severity) == self.name)

    @property
    def reasons(self) -> tuple[str, ...]:
        """One sentence each: what decided, then what else would have kept it from passing, then the warnings."""
        return tuple(f.sentence() for f in self.findings if f.severity != "note")


def verdict(evidence: RunEvidence) -> Verdict:
    """The verdict of one run. Total: any evidence gives one."""
    findings = list(evidence.problems)
    findings += _arms_complete(evidence, stopped=_stopped(evidence))
    for name in evidence.wanted:
        arm = evidence.arms.get(name)
        if arm is not None and arm.complete:
            findings += _arm(arm, evidence)
    findings += _stored(evidence)
    findings += _layout(evidence)
    findings += _records(evidence)
    findings += _tolerance(evidence)
    findings += _comparisons(evidence)
    findings.sort(key=lambda f: SEVERITIES.index(f.severity))
    worst = _worst(findings)
    return Verdict("pass" if worst is None else _DECIDES[worst], tuple(dict.fromkeys(findings)))


def _worst(findings: list[Finding]) -> Severity | None:
    present = {f.severity for f in findings}
    return next((s for s in SEVERITIES if s in present and s in _DECIDES), None)


def _stopped(evidence: RunEvidence) -> bool:
    """Whether a problem already keeps this run from passing, so that what it left undone needs no second reason."""
    return any(p.severity in ("fail", "timeout", "error", "invalid") for p in evidence.problems)


def _arms_complete(evidence: RunEvidence, *, stopped: bool) -> list[Finding]:
    found: list[Finding] = []
    if not evidence.wanted:
        found.append(Finding("no_arms", "invalid", "no arm was asked for", fixes.ARMS))
    for name in evidence.wanted:
        arm = evidence.arms.get(name)
        if arm is not None and arm.complete:
            continue
        if stopped:
            continue  # a problem already says why, and it is no pass
        text = "did not run" if arm is None else f"has {arm.answered + arm.refused} answers of {arm.requests}"
        found.append(Finding("arm_incomplete", "invalid", text, fixes.RUN_AGAIN, name))
    return found


def _arm(arm: ArmEvidence, evidence: RunEvidence) -> list[Finding]:
    totals = arm.totals
    if arm.name == "without_cache":
        return []  # an engine without the connector: there is nothing to be shown but its answers
    if arm.answered == 0:
        return []  # all refused: the comparison says what that means
    if totals is None:
        return [
            Finding("no_token_evidence", "invalid", "nothing says how many tokens were cached", fixes.STATS, arm.name)
        ]
    found: list[Finding] = []
    if arm.name == "cold":
        found += _cold(arm, totals)
    elif arm.name == "warm":
        found += _warm(arm, totals)
    elif arm.name == "changed_head":
        found += _nothing_cached(arm, totals, "the first token was changed, so nothing may be reused")
    elif arm.name in CACHE_ARMS:
        found += _external(arm, totals, evidence)
    found += _foreign(arm, totals)
    if totals.too_short > 0:
        found.append(
            Finding(
                "too_short_to_hit",
                "note",
                f"{totals.too_short} of {totals.requests} prompts are shorter than one chunk and can never hit",
                None,
                arm.name,
            )
        )
    return found


def _unknown(arm: ArmEvidence, totals: Totals) -> list[Finding]:
    if totals.unknown == 0 and totals.external_tokens is not None and totals.local_tokens is not None:
        return []
    text = f"for {totals.unknown or totals.requests} of {totals.requests} requests nothing says what was cached"
    return [Finding("no_token_evidence", "invalid", text, fixes.STATS, arm.name)]


def _cold(arm: ArmEvidence, totals: Totals) -> list[Finding]:
    return _nothing_cached(arm, totals, "the prompts were new to everybody, so nothing may be reused")


def _nothing_cached(arm: ArmEvidence, totals: Totals, why: str) -> list[Finding]:
    found = _unknown(arm, totals)
    if totals.external_tokens:
        text = f"{totals.external_tokens} tokens came from the cache although {why}"
        found.append(Finding("not_cold", "invalid", text, fixes.SALT, arm.name))
    if totals.local_tokens:
        text = f"{totals.local_tokens} tokens came from the GPU cache although {why}"
        found.append(Finding("not_cold", "invalid", text, fixes.SALT, arm.name))
    return found


def _warm(arm: ArmEvidence, totals: Totals) -> list[Finding]:
    if totals.local_tokens is None:
        return [
            Finding("no_token_evidence", "invalid", "nothing says what the GPU cache served", fixes.STATS, arm.name)
        ]
    if totals.local_tokens == 0:
        text = "the GPU cache served none of the repeated prompts"
        return [Finding("warm_not_local", "invalid", text, fixes.PREFIX_CACHING, arm.name)]
    return []


def _external(arm: ArmEvidence, totals: Totals, evidence: RunEvidence) -> list[Finding]:
    found: list[Finding] = []
    if arm.name in ("external_l1", "external_l2", "restarted_server"):
        found += _reset(arm)
    found += _unknown(arm, totals)
    if arm.name in EXTERNAL_ARMS and totals.local_tokens:
        text = f"{totals.local_tokens} tokens came from the GPU cache although it was emptied before"
        found.append(Finding("reset_had_no_effect", "invalid", text, fixes.RESET_LIES, arm.name))
    if totals.expected_tokens == 0:
        text = "no prompt has a whole chunk left for the cache to supply: nothing was tested"
        found.append(Finding("nothing_expected", "invalid", text, fixes.LONGER, arm.name))
    share = totals.share
    wanted = evidence.tolerance.min_external_share if evidence.tolerance else 1.0
    if totals.external_tokens == 0 and totals.expected_tokens:
        text = f"none of the {totals.expected_tokens} expected tokens came from the cache: it was not used"
        found.append(Finding("cache_not_used", "invalid", text, fixes.NOT_USED, arm.name))
    elif share is not None and share < wanted:
        text = f"{totals.external_tokens} of {totals.expected_tokens} expected tokens came from the cache"
        found.append(Finding("share_too_low", "invalid", text, fixes.SHARE, arm.name))
    if arm.name in ("external_l1", "external_l2", "restarted_server"):
        found += _tier(arm, totals)
    if arm.name == "mixed" and totals.local_tokens == 0:
        text = "the GPU cache served none of the prompts' heads, so nothing was mixed"
        found.append(Finding("not_mixed", "invalid", text, fixes.PREFIX_CACHING, arm.name))
    if arm.name == "shared_prefix" and (totals.external_tokens or 0) > (totals.expected_tokens or 0):
        text = (
            f"{totals.external_tokens} tokens came from the cache, but the prompts share only {totals.expected_tokens}"
        )
        found.append(Finding("more_than_shared", "invalid", text, fixes.SALT, arm.name))
    return found


def _reset(arm: ArmEvidence) -> list[Finding]:
    reset = arm.reset
    if reset is None:
        text = "the engine's prefix cache was not emptied before it"
        return [Finding("reset_missing", "invalid", text, fixes.RUN_AGAIN, arm.name)]
    if reset.state == "unavailable":
        text = "the engine has no /reset_prefix_cache, so its GPU cache could not be emptied"
        return [Finding("reset_unavailable", "invalid", text, fixes.DEV_MODE, arm.name)]
    if reset.state == "busy":
        text = f"the engine kept answering that it could not reset its prefix cache ({reset.waited_seconds:.0f} s)"
        return [Finding("reset_busy", "invalid", text, fixes.BUSY, arm.name)]
    if reset.effective is False:
        text = "the engine acknowledged the reset, but afterwards still served a prompt from its GPU cache"
        return [Finding("reset_had_no_effect", "invalid", text, fixes.RESET_LIES, arm.name)]
    if reset.effective is None:
        text = "nothing proves that the reset of the prefix cache had an effect"
        return [Finding("reset_unproven", "invalid", text, fixes.STATS, arm.name)]
    return []


def _tier(arm: ArmEvidence, totals: Totals) -> list[Finding]:
    """The tier an arm names must be the one that supplied the tokens."""
    found: list[Finding] = []
    l1 = None if arm.server is None else arm.server.hit_l1
    l2 = None if arm.server is None else arm.server.hit_l2
    if l1 is None or l2 is None:
        # A server that does not split hits still counts its loads from L2.
        l1, l2 = None, arm.l2_loads
    unit = "chunks" if l1 is None else "tokens"
    if l2 is None:
        text = "the server's counters do not say whether L1 or L2 supplied the tokens"
        found.append(Finding("tier_unknown", "invalid", text, fixes.COUNTERS, arm.name))
    if arm.name == "external_l1":
        if l2:
            text = f"L1 no longer held the records: {l2:.0f} {unit} came from L2"
            found.append(Finding("l1_did_not_hold", "invalid", text, fixes.L1_SMALL, arm.name))
        return found
    emptied = arm.l1_emptied
    if arm.name == "external_l2" and (emptied is None or not emptied.done):
        detail = "" if emptied is None or not emptied.detail else f": {emptied.detail}"
        text = f"L1 could not be emptied of the run's own records{detail}"
        found.append(Finding("l1_not_emptied", "invalid", text, fixes.EMPTY_L1, arm.name))
    if l1:
        text = f"{l1:.0f} tokens still came from L1 although it had been emptied of them"
        found.append(Finding("l1_still_held", "invalid", text, fixes.EMPTY_L1, arm.name))
    if l2 == 0 and totals.external_tokens:
        text = "the server counted no L2 hits, so the tokens did not come from disk"
        found.append(Finding("l2_not_used", "invalid", text, fixes.EMPTY_L1, arm.name))
    return found


def _foreign(arm: ArmEvidence, totals: Totals) -> list[Finding]:
    """E6: others' traffic is a warning, unless this arm's evidence rests on counters that count everybody."""
    rests_on_counters = "engine_counters" in totals.sources
    foreign = arm.foreign_tokens
    if foreign is None:
        if rests_on_counters:
            text = "its evidence rests on the engine's counters, and whether others used the engine is not known"
            return [Finding("foreign_traffic_unknown", "invalid", text, fixes.ALONE, arm.name)]
        return []
    if foreign <= 0:
        return []
    text = f"others sent {foreign:.0f} prompt tokens to the engine meanwhile"
    if rests_on_counters:
        return [
            Finding(
                "foreign_traffic", "invalid", f"{text}, and the evidence rests on its counters", fixes.ALONE, arm.name
            )
        ]
    return [Finding("foreign_traffic", "warning", text, None, arm.name)]


def _stored(evidence: RunEvidence) -> list[Finding]:
    wanted = [a for a in evidence.wanted if a in CACHE_ARMS]
    if not wanted or (_stopped(evidence) and evidence.stored is None):
        return []
    stored = evidence.stored
    if stored is None:
        return [Finding("store_unproven", "invalid", "nothing shows that the records were stored", fixes.RUN_AGAIN)]
    if stored.reached_l1 is False and stored.reached_l2 is not True:
        detail = f" ({stored.detail})" if stored.detail else ""
        text = f"what the cold arm computed never reached the cache server{detail}"
        return [Finding("nothing_stored", "invalid", text, fixes.NOT_STORED)]
    needs_l2 = [a for a in wanted if a in ("external_l2", "restarted_server")]
    if needs_l2 and stored.reached_l2 is not True:
        counted = f"{stored.completed_l2 if stored.on_disk is None else stored.on_disk} of {stored.expected} records"
        text = f"the records never reached L2 within {stored.waited_seconds:.0f} s ({counted})"
        return [Finding("never_reached_l2", "invalid", text, fixes.NEVER_L2, needs_l2[0])]
    if stored.queue_empty is False:
        text = "the server's store queue was not empty when the cache arms began"
        return [Finding("store_queue_busy", "invalid", text, fixes.RUN_AGAIN)]
    return []


def _layout(evidence: RunEvidence) -> list[Finding]:
    before, after = evidence.layout_before, evidence.layout_after
    if _stopped(evidence) and (before is None or after is None):
        return []
    if before is None or after is None:
        text = "the KV layout in force is not known" if before is None else "the KV layout at the end is not known"
        return [Finding("layout_unknown", "invalid", text, fixes.LAYOUT)]
    if before != after:
        text = f"the engine's KV layout changed during the run ({before} → {after})"
        return [Finding("layout_changed", "invalid", text, fixes.LAYOUT_CHANGED)]
    return []


def _records(evidence: RunEvidence) -> list[Finding]:
    records = evidence.records
    if records is None or records.intact:
        return []
    found: list[Finding] = []
    if records.changed:
        text = f"the bytes of {len(records.changed)} of {records.files} record files changed on disk between the arms"
        found.append(Finding("records_changed", "fail", text, fixes.RECORDS_CHANGED))
    if records.lost:
        text = f"{len(records.lost)} of {records.files} record files disappeared between the arms"
        found.append(Finding("records_lost", "invalid", text, fixes.RECORDS_LOST))
    return found


def _tolerance(evidence: RunEvidence) -> list[Finding]:
    tolerance = evidence.tolerance
    if tolerance is None:
        if _stopped(evidence):
            return []
        return [Finding("no_tolerance", "invalid", "the tolerance was never fixed", fixes.RUN_AGAIN)]
    if tolerance.blind:
        floor = tolerance.floor
        if floor.diverged:
            text = f"{floor.diverged} of {floor.repeats} cold prompts asked twice gave different answers by themselves"
        else:
            text = f"the tolerance of {tolerance.max_abs_nats:.2g} nat is so wide that wrong records would pass"
        return [Finding("too_noisy", "invalid", text, fixes.NOISY)]
    return []


def _comparisons(evidence: RunEvidence) -> list[Finding]:
    found: list[Finding] = []
    tolerance = evidence.tolerance
    compared = {c.arm for c in evidence.comparisons}
    for name in evidence.wanted:
        arm = evidence.arms.get(name)
        if name == "cold" or arm is None or not arm.complete or name in compared:
            continue
        found.append(Finding("not_compared", "invalid", "its answers were compared with nothing", fixes.COMPARE, name))
    if len(evidence.wanted) == 1 and evidence.wanted[0] == "cold":
        found.append(Finding("not_compared", "invalid", "one cold arm alone proves nothing", fixes.COMPARE, "cold"))
    for comparison in evidence.comparisons:
        found += _comparison(comparison, evidence, tolerance)
    return found


def _comparison(comparison: Comparison, evidence: RunEvidence, tolerance: Tolerance | None) -> list[Finding]:
    found: list[Finding] = []
    arm, reference = comparison.arm, comparison.reference
    refused = comparison.count("refused")
    if refused:
        first = next(p for p in comparison.pairs if p.outcome == "refused")
        text = f"{refused} of {len(comparison.pairs)} prompts answered in {reference} were refused: {first.reason}"
        found.append(Finding("answer_differs", "fail", text, fixes.WRONG, arm))
    missing = comparison.count("missing")
    if missing or not comparison.pairs:
        first_text = next((p.reason for p in comparison.pairs if p.outcome == "missing"), "nothing to compare")
        text = f"{missing} of {len(comparison.pairs)} prompts could not be compared with {reference}: {first_text}"
        found.append(Finding("pairs_missing", "invalid", text, fixes.RUN_AGAIN, arm))
    mode = tolerance.mode if tolerance else "exact"
    if mode == "score":
        return found + _score_mode(comparison, tolerance)
    wrong = comparison.count("flip", "drift")
    if wrong:
        first = next(p for p in comparison.pairs if p.outcome in ("flip", "drift"))
        text = f"{wrong} of {len(comparison.pairs)} answers differ from {reference}; {first.prompt}: {first.reason}"
        found.append(Finding("answer_differs", "fail", text, fixes.WRONG, arm))
    near = comparison.count("near_tie")
    if near:
        text = f"{near} of {len(comparison.pairs)} answers differ from {reference} by a near tie only"
        found.append(Finding("near_ties", "near_tie", text, None, arm))
    if comparison.without_logprobs:
        text = f"{comparison.without_logprobs} answers came without log-probabilities: a small fault would not show"
        found.append(Finding("no_logprobs", "invalid", text, fixes.LOGPROBS, arm))
    elif comparison.pairs and comparison.compared_tokens == 0 and not wrong and not refused:
        found.append(
            Finding("nothing_compared", "invalid", "no answer token could be compared", fixes.LONGER_ANSWERS, arm)
        )
    return found


def _score_mode(comparison: Comparison, tolerance: Tolerance | None) -> list[Finding]:
    """Equality is not promised: the task score must not drop, and the numbers must not run away altogether."""
    arm, reference, scores = comparison.arm, comparison.reference, comparison.scores
    found: list[Finding] = []
    mean = comparison.mean_abs
    if mean is None:
        found.append(Finding("no_logprobs", "invalid", "no log-probabilities to look at", fixes.LOGPROBS, arm))
    elif mean > BLIND_NATS:
        text = f"log-probabilities are off by {mean:.2g} nat on average against {reference}"
        found.append(Finding("answer_differs", "fail", text, fixes.WRONG, arm))
    if scores.scored == 0 or scores.right_a == 0:
        why = "no prompt has an expected answer" if scores.scored == 0 else f"{reference} got none of them right"
        found.append(Finding("score_without_power", "invalid", f"a loss could not show: {why}", fixes.SCORED, arm))
        return found
    drop = (scores.right_wrong - scores.wrong_right) / scores.scored
    allowed = tolerance.max_score_drop if tolerance else 0.0
    if drop > allowed:
        p_value = scores.p_value
        text = (
            f"the score dropped by {drop:.1%} against {reference}: {scores.right_wrong} answers right → wrong, "
            f"{scores.wrong_right} wrong → right (p = {p_value:.2g})"
        )
        if p_value is not None and p_value <= 0.05:
            found.append(Finding("score_dropped", "fail", text, fixes.WRONG, arm))
        else:
            found.append(Finding("score_undecided", "invalid", text, fixes.MORE_PROMPTS, arm))
    return found
