"""A whole plan over records in memory, for small ones and for tests. Pure; `plan` streams what does not fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from app.cleanup.plan import Group, Planner, StoreFacts, Summary
from app.cleanup.policy import PolicySpec
from app.cleanup.ports import ATIME, MTIME, NAME, Batch, Selection


@dataclass(frozen=True, slots=True)
class PlanResult:
    """What goes, in order, and the totals."""

    groups: list[Group]
    summary: Summary


def make_plan(
    batches: Iterable[Batch],
    policy: PolicySpec,
    facts: StoreFacts,
    now: float,
    held: Mapping[bytes, str] | None = None,
) -> PlanResult:
    """Plan over records in memory (each phase goes over all of them in the order it asks for)."""
    everything = list(batches)

    def source(selection: Selection) -> Iterable[Batch]:
        if not selection.least_recent_first:
            return everything
        single = [(row, batch) for batch in everything for row in batch.rows]
        if selection.by_age:
            single.sort(key=lambda pair: (pair[0][MTIME], pair[0][NAME]))
        else:
            single.sort(key=lambda pair: (max(pair[0][ATIME], pair[0][MTIME]), pair[0][NAME]))
        return [batch._replace(rows=[row]) for row, batch in single]

    planner = Planner(policy, facts, now, held)
    return PlanResult(list(planner.groups(source)), planner.summary())
