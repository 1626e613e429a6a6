"""What a run's verdict rests on in plain words, for its page and its reports. Pure.

What an older run did not note is left out; what was looked for and not found out is said to be unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.acceptance.schemas import AcceptanceRunView, ComparisonView


def evidence_lines(run: AcceptanceRunView) -> list[tuple[str, str]]:
    """(what, sentence) pairs, what a reader asks first at the head."""
    evidence = run.evidence
    lines = [
        *_tolerance(evidence.get("tolerance")),
        *_records(evidence),
        *_stored(evidence.get("stored")),
        *_load(evidence.get("load")),
    ]
    return [(what, text) for what, text in lines if text]


def score_pairs(comparison: ComparisonView) -> str | None:
    """``12 scored: 11 right in both, 1 right → wrong, 0 wrong → right; exact test p = 1``; None without scores."""
    pairs = comparison.score_pairs
    if pairs is None:
        return None
    scored = pairs.right_right + pairs.right_wrong + pairs.wrong_right + pairs.wrong_wrong
    p_value = "" if pairs.p_value is None else f"; exact test p = {pairs.p_value:.2g}"
    return (
        f"{scored} scored: {pairs.right_right} right in both, {pairs.right_wrong} right → wrong, "
        f"{pairs.wrong_right} wrong → right, {pairs.wrong_wrong} wrong in both{p_value}"
    )


def _tolerance(tolerance: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    if not tolerance:
        return []
    floor = tolerance["floor"]
    repeats = f"{floor['repeats']} prompts asked cold once more"
    if floor["max_abs_nats"] is None:
        noise = "not known: nothing was asked cold twice with log-probabilities"
    else:
        noise = f"{floor['max_abs_nats']:.3g} nat over {repeats}; {floor['diverged']} of them answered otherwise"
    allowed = (
        f"log-probabilities may move by {tolerance['max_abs_nats']:.3g} nat, a near tie is a lead of at most "
        f"{tolerance['near_tie_gap_nats']:.3g} nat, and {tolerance['min_external_share']:.0%} of what can come from "
        "the cache must"
    )
    if tolerance["mode"] == "score":
        allowed += f"; the score may drop by {tolerance['max_score_drop']:.0%}"
    return [("noise floor", noise), ("tolerance", allowed), ("smallest fault", tolerance["smallest_fault"])]


def _records(evidence: Mapping[str, Any]) -> list[tuple[str, str]]:
    if "records" not in evidence:
        return []
    records = evidence["records"]
    if records is None:
        return [("record files", "not compared between the arms: no directory, or external_l2 was not reached")]
    how = "by SHA-256" if records["checksums"] else "by size and time"
    lost, changed = len(records["lost"]), len(records["changed"])
    state = "none changed" if not lost and not changed else f"{changed} changed, {lost} gone"
    return [("record files", f"{records['files']} files compared {how} when stored and after being read: {state}")]


def _stored(stored: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    if not stored:
        return []
    parts = [
        f"{_count(stored[key])} {where}"
        for key, where in (("in_l1", "written to L1"), ("on_disk", "seen on disk"), ("completed_l2", "counted in L2"))
        if stored[key] is not None
    ]
    told = ", ".join(parts) or "nothing tells where they are"
    return [
        ("stored", f"{_count(stored['expected'])} records expected: {told}, after {stored['waited_seconds']:.1f} s")
    ]


def _load(load: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    if not load:
        return []
    during = load.get("during")
    parts = [f"before {_requests(load.get('before'))}"]
    if during is not None and during["readings"]:
        parts.append(f"at most {_requests(during)} between its own requests ({during['readings']} readings)")
    parts.append(f"after {_requests(load.get('after'))}")
    return [("engine load", "; ".join(parts))]


def _requests(seen: Mapping[str, Any] | None) -> str:
    if seen is None:
        return "unknown"
    return f"{_count(seen['running'])} running and {_count(seen['waiting'])} waiting"


def _count(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}"
