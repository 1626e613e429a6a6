"""What the last acceptance run of an engine found."""

from __future__ import annotations

from app.alerts.inputs import EngineInput, Moment
from app.alerts.model import Fact


def acceptance_outcome(moment: Moment, engine: EngineInput) -> Fact:
    """Rule: the verdict of the last acceptance run that had one; error, timeout and invalid prove nothing either way
    and leave the last pass or fail in force."""
    own = [t for t in moment.tests if t.engine_id == engine.id]
    deciding = [t for t in own if t.verdict in ("pass", "pass_with_near_ties", "fail")]
    if not deciding:
        return Fact("acceptance_outcome", engine.subject, quiet="no acceptance run has passed or failed here yet")
    last = max(deciding, key=lambda t: (t.finished_at, t.id))
    return Fact(
        "acceptance_outcome",
        engine.subject,
        {
            "failed": float(last.verdict == "fail"),
            "age": max(0.0, moment.now - last.finished_at),
            "run": float(last.id),
        },
        {"verdict": last.verdict, "headline": last.headline},
    )
