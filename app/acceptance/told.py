"""What a run's verdict rests on in plain words, for its page and its reports. Pure.

What an older run did not note is left out; what was looked for and not found out is said to be unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.acceptance.control_findings import WHERE
from app.acceptance.discrimination import KINDS_KEPT
from app.acceptance.schemas import AcceptanceRunView, ComparisonView, SpreadView

_NOT_MOVED = {"equal": "to the last digit as before", "unshown": "showed nothing", "refused": "refused"}


def evidence_lines(run: AcceptanceRunView) -> list[tuple[str, str]]:
    """(what, sentence) pairs, what a reader asks first at the head."""
    evidence = run.evidence
    lines = [
        *_tolerance(evidence.get("tolerance")),
        *_told_apart(evidence.get("cold_answers")),
        *_controls(evidence.get("controls")),
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


def _told_apart(cold: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    if not cold or not cold["prompts"]:
        return []
    kinds = f"{cold['kinds']}{'' if cold['kinds'] < KINDS_KEPT else ' or more'}"
    return [("cold answers", f"{cold['prompts']} prompts, {kinds} answers that differ by more than the tolerance")]


def _controls(seen: Sequence[Mapping[str, Any]] | None) -> list[tuple[str, str]]:
    """What prompts with other text in one place showed, place by place."""
    lines: list[tuple[str, str]] = []
    for place, where in WHERE.items():
        mine = [s for s in seen or () if s["place"] == place]
        if not mine:
            continue
        moved = [s for s in mine if s["outcome"] == "moved"]
        prompts = f"{len(mine)} prompt{'' if len(mine) == 1 else 's'}"
        by = " by the arm changed_head" if mine[0]["arm"] else ""
        told = f"{prompts} with other text {where}{by}: {len(moved)} answered otherwise"
        nats = [s["moved_nats"] for s in moved if s["moved_nats"] is not None]
        if nats:
            told += f"; where the words stayed, log-probabilities moved by {min(nats):.3g} nat or more"
        others = {s["outcome"]: s for s in mine if s["outcome"] != "moved"}
        for outcome, words in _NOT_MOVED.items():
            if outcome in others:
                first = others[outcome]
                count = sum(s["outcome"] == outcome for s in mine)
                why = f": {first['reason']}" if first["reason"] else ""
                told += f"; {count} {words} ({first['prompt']}{why})"
        lines.append(("negative control", told))
    return lines


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
    new = "between" in load
    during, between = (load.get("during"), load["between"]) if new else (None, load.get("during"))
    parts = [f"before {_requests(load.get('before'))}"]
    if during is not None:
        parts.append(_while_asked(during))
    if between is not None and between["readings"]:
        parts.append(f"at most {_requests(between)} between its own requests ({between['readings']} readings)")
    parts.append(f"after {_requests(load.get('after'))}")
    return [("engine load", "; ".join(parts))]


def _while_asked(during: Mapping[str, Any]) -> str:
    if not during["readings"]:
        return "not known while its own requests ran"
    told = (
        f"{spread(during['running'])} running and {spread(during['waiting'])} waiting while its own requests ran, "
        f"{spread(during['kv_usage'], percent=True)} of the KV cache in use ({during['readings']} readings)"
    )
    others = during["others"]
    if others is None:
        return f"{told}, whether others' were among them is not known"
    return f"{told}, {'none of them' if not others['high'] else spread(others) + ' of them'} others'"


def spread(seen: Mapping[str, Any] | SpreadView | None, *, percent: bool = False) -> str:
    """``1–3 (mean 1.6)``, or the one value that all readings had."""
    if seen is None:
        return "?"
    low, mean, high = (
        (seen.low, seen.mean, seen.high) if isinstance(seen, SpreadView) else (seen["low"], seen["mean"], seen["high"])
    )
    if percent:
        low, mean, high = 100 * low, 100 * mean, 100 * high
        return f"{low:.1f} %" if low == high else f"{low:.1f}–{high:.1f} % (mean {mean:.1f} %)"
    return f"{low:,.0f}" if low == high else f"{low:,.0f}–{high:,.0f} (mean {mean:,.1f})"


@dataclass(frozen=True)
class LoadLine:
    """One arm's load, as texts. `reason` stands for all of them where nothing was read."""

    arm: str
    before: str
    running: str
    waiting: str
    kv_usage: str
    others: str
    foreign: bool
    readings: int
    reason: str | None


def load_lines(run: AcceptanceRunView) -> list[LoadLine]:
    """The engine's load before and during each arm that noted it."""
    return [
        LoadLine(
            arm=arm.name,
            before="?" if load.before is None else _requests(load.before.model_dump()),
            running=spread(load.running),
            waiting=spread(load.waiting),
            kv_usage=spread(load.kv_usage, percent=True),
            others="?" if load.others is None else ("none" if not load.others.high else spread(load.others)),
            foreign=load.others is not None and load.others.high > 0,
            readings=load.readings,
            reason=load.reason,
        )
        for arm in run.arms
        if (load := arm.load) is not None and arm.state != "not_run"
    ]


def _requests(seen: Mapping[str, Any] | None) -> str:
    if seen is None:
        return "unknown"
    return f"{_count(seen['running'])} running and {_count(seen['waiting'])} waiting"


def _count(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}"
