"""What the last cleanup run of a policy came to."""

from __future__ import annotations

from app.alerts.inputs import Moment, StoreInput
from app.alerts.model import Fact


def cleanup_outcomes(moment: Moment, store: StoreInput) -> list[Fact]:
    """Rule: the verdict (or the state, where it has none) of the last run that ended, for each policy and for runs by
    hand."""
    return [
        Fact(
            "cleanup_outcome",
            store.subject,
            {"age": max(0.0, moment.now - run.finished_at), "run": float(run.id)},
            {"verdict": run.verdict or run.state, "policy": run.policy or "a run by hand", "note": run.note},
            part=run.policy or "",
        )
        for run in moment.cleanups
        if run.store_id == store.id
    ]
