"""`verdict(evidence) -> Verdict` (RULES.md E2–E5). Pure.

A run passes only when everything it claims was shown. What is missing makes it `invalid`, with the reason and the way
out; a wrong answer makes it `fail` whatever else is missing; `error` and `timeout` are our own or the target's
trouble. None of them is ever folded into pass: the last line of `verdict` is reached only without findings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from app.acceptance import fixes, wrong_answers
from app.acceptance.answers import INCOMPLETE
from app.acceptance.arm_findings import arm_findings
from app.acceptance.compare import Comparison
from app.acceptance.control_findings import control_findings
from app.acceptance.controls import ControlSeen
from app.acceptance.discrimination import Discrimination
from app.acceptance.evidence import ArmEvidence, RecordsEvidence, StoredEvidence
from app.acceptance.finding import CACHE_ARMS, SEVERITIES, Finding, Severity, sentences
from app.acceptance.tolerance import BLIND_NATS, Tolerance

VerdictName = Literal["pass", "pass_with_near_ties", "fail", "invalid", "error", "timeout"]
_DECIDES: dict[Severity, VerdictName] = {
    "fail": "fail",
    "timeout": "timeout",
    "error": "error",
    "invalid": "invalid",
    "near_tie": "pass_with_near_ties",
}


#: Arms that not every prompt can be asked in: what it means when none can, and the way out.
_UNFIT: Mapping[str, tuple[str, str]] = {
    "mixed": ("no prompt can be split into a head of whole chunks and a rest", fixes.UNFIT_MIXED),
    "shared_prefix": ("no prompt surely shares a whole chunk with its other question", fixes.UNFIT_SHARED),
}


@dataclass(frozen=True)
class RunEvidence:
    """All that a run saw. `problems` are what stopped it or went wrong outside the comparison."""

    wanted: tuple[str, ...]
    arms: Mapping[str, ArmEvidence] = field(default_factory=dict)
    comparisons: tuple[Comparison, ...] = ()
    tolerance: Tolerance | None = None
    discrimination: Discrimination | None = None
    controls: tuple[ControlSeen, ...] | None = None  # empty: no prompt has a whole chunk to change
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
        return sentences(self.findings)


def verdict(evidence: RunEvidence) -> Verdict:
    """The verdict of one run. Total: any evidence gives one."""
    findings = list(evidence.problems)
    findings += _arms_complete(evidence, stopped=_stopped(evidence))
    of_arms: list[Finding] = []
    for name in evidence.wanted:
        arm = evidence.arms.get(name)
        if arm is not None and arm.complete:
            of_arms += arm_findings(arm, evidence.tolerance)
    # Prompts shorter than a chunk are why nothing came from anywhere: the cause is told before what follows from it.
    findings += sorted(of_arms, key=lambda f: f.code != "nothing_expected")
    findings += _stored(evidence)
    findings += _layout(evidence)
    findings += _records(evidence)
    findings += _tolerance(evidence)
    findings += _discrimination(evidence)
    if evidence.controls is not None or not _stopped(evidence):
        findings += control_findings(evidence.controls)
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
        if arm is None and name in _UNFIT:
            # Nothing stopped the run, so it came to this arm and had no prompt for it.
            found.append(Finding("no_prompt_fits", "invalid", *_UNFIT[name], name))
            continue
        text = "did not run" if arm is None else f"has {arm.answered + arm.refused} answers of {arm.requests}"
        found.append(Finding("arm_incomplete", "invalid", text, fixes.RUN_AGAIN, name))
    return found


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


def _discrimination(evidence: RunEvidence) -> list[Finding]:
    """Equal answers prove something only where different prompts get different ones."""
    seen = evidence.discrimination
    found: list[Finding] = []
    if seen is not None and seen.constant is not None:
        text = (
            f"the log-probabilities of all {seen.tokens} tokens of the cold answers are {seen.constant:g}: they are no "
            "evidence, and without them a small fault would not show"
        )
        found.append(Finding("constant_logprobs", "invalid", text, fixes.CONSTANT, "cold"))
    return _told_apart(seen, stopped=_stopped(evidence)) + found


def _told_apart(seen: Discrimination | None, *, stopped: bool) -> list[Finding]:
    if seen is not None and seen.shown:
        return []
    if stopped and (seen is None or seen.shown is None):
        return []
    if seen is None or seen.shown is None:
        text = "fewer than two prompts were answered, so nothing shows that answers depend on the prompt"
        return [Finding("answers_not_told_apart", "invalid", text, fixes.SAME_ANSWERS, "cold")]
    text = (
        f"the engine answered all {seen.prompts} prompts alike within the tolerance: its answers do not depend on the "
        "prompt, so nothing could have been seen in them"
    )
    return [Finding("answers_constant", "invalid", text, fixes.SAME_ANSWERS, "cold")]


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
    records = evidence.records
    unchanged = records is not None and records.intact and records.checksums and records.files > 0
    way_out = wrong_answers.way_out(comparison, evidence.comparisons, files_unchanged=unchanged)
    found += [
        Finding("answer_differs", "fail", text, way_out, arm) for text in wrong_answers.without_answer(comparison)
    ]
    cut = [p for p in comparison.pairs if p.outcome == "missing" and p.reason.startswith(INCOMPLETE)]
    if cut:
        text = f"{len(cut)} of {len(comparison.pairs)} answers cannot be compared; {cut[0].prompt}: {cut[0].reason}"
        found.append(Finding("answer_incomplete", "invalid", text, fixes.INCOMPLETE, arm))
    missing = comparison.count("missing") - len(cut)
    if missing or not comparison.pairs:
        others = (p.reason for p in comparison.pairs if p.outcome == "missing" and p not in cut)
        first_text = next(others, "nothing to compare")
        text = f"{missing} of {len(comparison.pairs)} prompts could not be compared with {reference}: {first_text}"
        found.append(Finding("pairs_missing", "invalid", text, fixes.RUN_AGAIN, arm))
    mode = tolerance.mode if tolerance else "exact"
    if mode == "score":
        return found + _score_mode(comparison, tolerance, way_out)
    wrong = comparison.count("flip", "drift")
    if wrong:
        first = next(p for p in comparison.pairs if p.outcome in ("flip", "drift"))
        text = f"{wrong} of {len(comparison.pairs)} answers differ from {reference}; {first.prompt}: {first.reason}"
        found.append(Finding("answer_differs", "fail", text, way_out, arm))
    near = comparison.count("near_tie")
    if near:
        text = f"{near} of {len(comparison.pairs)} answers differ from {reference} by a near tie only"
        found.append(Finding("near_ties", "near_tie", text, None, arm))
    if comparison.without_logprobs:
        text = f"{comparison.without_logprobs} answers came without log-probabilities: a small fault would not show"
        found.append(Finding("no_logprobs", "invalid", text, fixes.LOGPROBS, arm))
    elif comparison.pairs and comparison.compared_tokens == 0 and not wrong and not refused and not cut:
        found.append(
            Finding("nothing_compared", "invalid", "no answer token could be compared", fixes.LONGER_ANSWERS, arm)
        )
    return found


def _score_mode(comparison: Comparison, tolerance: Tolerance | None, way_out: str) -> list[Finding]:
    """Equality is not promised: the task score must not drop, and the numbers must not run away altogether."""
    arm, reference, scores = comparison.arm, comparison.reference, comparison.scores
    found: list[Finding] = []
    mean = comparison.mean_abs
    if mean is None:
        found.append(Finding("no_logprobs", "invalid", "no log-probabilities to look at", fixes.LOGPROBS, arm))
    elif mean > BLIND_NATS:
        text = f"log-probabilities are off by {mean:.2g} nat on average against {reference}"
        found.append(Finding("answer_differs", "fail", text, way_out, arm))
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
            found.append(Finding("score_dropped", "fail", text, way_out, arm))
        else:
            found.append(Finding("score_undecided", "invalid", text, fixes.MORE_PROMPTS, arm))
    return found
