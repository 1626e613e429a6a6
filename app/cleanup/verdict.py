"""The verdict of a run from what happened. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.sizes import disk_size


@dataclass(frozen=True)
class Ended:
    """How a run ended. Bytes; `freed` counts deletions, rounded up to blocks; `waiting` are ways out of R4."""

    planned: int
    removed: int
    deleted_bytes: int
    failed: int
    skipped: Mapping[str, int]
    limited: str | None
    goal: Mapping[str, Any] | None
    waiting: Sequence[str] = ()
    closed_episodes: int = 0
    left: Sequence[str] = ()  # what was not this run's to take, but has to be known


def verdict_of(ended: Ended) -> tuple[str, list[str]]:
    """(verdict, sentences: why, and the way out)."""
    notes = [*ended.waiting, *ended.left]
    missed = _missed_goal(ended)
    if ended.failed:
        notes.append(f"{ended.failed} files could not be removed; the list says why. The rest went on without them.")
    if undecided := ended.skipped.get("reclassified"):
        notes.append(
            f"{undecided} planned records were left alone: their class was another one by then (the list says which). "
            "Where it is unverified because a server did not answer its polls, run it again when all do."
        )
    if missed:
        notes.append(missed)
    if ended.limited:
        notes.append(
            f"limits.{ended.limited} stopped it: more records match than went. Run it again for the next part."
        )
    if ended.failed and not ended.removed and ended.failed >= ended.planned - sum(ended.skipped.values()):
        return "failed", notes
    if ended.waiting or (ended.failed and not ended.limited):
        return "insufficient", notes
    if ended.limited:
        return "stopped_at_limit", notes
    if missed:
        return "insufficient", notes
    if not ended.removed and not ended.closed_episodes:
        if ended.skipped:
            notes.append("Nothing of what was planned was still there to be removed.")
        return "nothing_to_do", notes
    if ended.closed_episodes:
        notes.append("The caches that had been waiting are clean now.")
    return "succeeded", notes


def _missed_goal(ended: Ended) -> str | None:
    if not ended.goal or not ended.goal["needed_bytes"]:
        return None
    must, planned = int(ended.goal.get("must_bytes", 0)), int(ended.goal["planned_bytes"])
    shortfall = int(ended.goal["shortfall_bytes"])
    if shortfall:
        why = "; ".join(ended.goal.get("in_the_way", ())) or "see the plan's warnings"
        return (
            f"The goal was not reached: {disk_size(shortfall)} more would have to go, but nothing else may: {why}. "
            "Purge quarantine, loosen protect, or add space."
        )
    # Deletions are rounded up to blocks in the plan only: what was skipped is what can be missing.
    if ended.deleted_bytes < min(must, planned):
        return (
            f"The goal was not reached: {disk_size(ended.deleted_bytes)} went, {disk_size(must)} had to; "
            f"skipped: {', '.join(f'{n} {why}' for why, n in sorted(ended.skipped.items())) or 'none'}. Run it again."
        )
    return None
