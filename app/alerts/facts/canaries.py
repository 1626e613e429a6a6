"""Kept prompts whose old records are read back now and then."""

from __future__ import annotations

from app.alerts.inputs import EngineInput, Moment
from app.alerts.model import Fact, some


def canaries(moment: Moment, engine: EngineInput) -> Fact:
    """Rule: canaries of the engine whose last reading-back found their records gone (lost), another answer than the
    engine computes today (wrong), or an engine that itself answers otherwise than when they were kept (drift)."""
    own = [c for c in moment.canaries if c.engine_id == engine.id]
    read = [c for c in own if c.outcome in ("ok", "lost", "drift", "wrong")]
    if not read:
        quiet = "this engine has no canaries" if not own else "its canaries have not been read back yet"
        return Fact("canaries", engine.subject, quiet=quiet)
    lost = [c.name for c in read if c.outcome == "lost"]
    wrong = [c.name for c in read if c.outcome == "wrong"]
    drift = [c.name for c in read if c.outcome == "drift"]
    return Fact(
        "canaries",
        engine.subject,
        {
            "canaries": float(len(read)),
            "lost": float(len(lost)),
            "wrong": float(len(wrong)),
            "drift": float(len(drift)),
        },
        {"lost": some(lost), "wrong": some(wrong), "drift": some(drift)},
    )
