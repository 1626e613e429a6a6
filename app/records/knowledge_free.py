"""What can be judged where no server is known; apart from `knowledge`, so that a command needs no database for it."""

from __future__ import annotations

from app.records.classify import Context
from app.records.store_dir import UNMEASURED_ALLOWANCE
from app.records.timeline import NS, build_timeline


def without_servers(now: float, poll_seconds: float) -> Context:
    """The context of a directory no server is known for: names, ages and empty files can be told, layouts cannot."""
    timeline = build_timeline({}, now=now, poll_seconds=poll_seconds)
    return Context(
        now=round(now * NS),
        margin=round((poll_seconds + UNMEASURED_ALLOWANCE) * NS),
        timeline=timeline,
        fresh=False,
    )
