"""Wrong answers in words: what was seen, where it came from, and the way out that fits that place. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from app.acceptance import fixes
from app.acceptance.answers import NOT_FINITE
from app.acceptance.compare import WRONG, Comparison, Pair

#: What the engine did when it gave an arm's answers.
_WHEN = {
    "warm": "when it read them from its own GPU cache",
    "external_l1": "when it read them from L1",
    "external_l2": "when it read them from L2",
    "restarted_server": "when it read them from L2 after the server's restart",
    "restarted_engine": "when it read them from the cache after its own restart",
    "cross_engine": "when the second engine read the records of the first",
    "without_cache": "without the cache",
}


def without_answer(comparison: Comparison) -> list[str]:
    """One sentence for each way in which prompts answered in the reference got no usable answer in this arm."""
    refused = [p for p in comparison.pairs if p.outcome == "refused"]
    garbled = [p for p in refused if p.reason == NOT_FINITE]
    errors = [p for p in refused if p.reason != NOT_FINITE]
    total, when = len(comparison.pairs), _WHEN.get(comparison.arm, "in this condition")
    found: list[str] = []
    if garbled:
        found.append(f"the engine answered {len(garbled)} of {total} prompts with numbers that are not finite {when}")
    if errors:
        found.append(
            f"the engine refused {len(errors)} of {total} prompts {when}, which it had answered in "
            f"{comparison.reference} ({errors[0].reason})"
        )
    return found


def way_out(comparison: Comparison, comparisons: Iterable[Comparison], *, files_unchanged: bool = False) -> str:
    """The advice for wrong answers of one arm, by which of the other arms were right.

    `files_unchanged`: every record file had the checksum after it was read that it had when it was stored.
    """
    right = {c.arm for c in comparisons if c.pairs and c.count("exact", "near_tie") == len(c.pairs)}
    arm = comparison.arm
    if arm == "external_l2" and "external_l1" in right:
        fix = fixes.WRONG_READ if files_unchanged else fixes.WRONG_L2
    elif arm == "external_l1":
        fix = fixes.WRONG_L1
    elif arm == "warm":
        fix = fixes.WRONG_ENGINE
    elif arm in ("restarted_server", "restarted_engine") and "external_l2" in right:
        fix = fixes.WRONG_RESTART
    else:
        fix = fixes.WRONG
    return f"{fix} {fixes.READ_BOTH}" if any(map(_readable, comparison.pairs)) else fix


def _readable(pair: Pair) -> bool:
    """Whether a wrong pair has two texts to compare."""
    return pair.outcome in WRONG and bool(pair.text_a) and bool(pair.text_b)
