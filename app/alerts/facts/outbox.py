"""Messages that do not get out."""

from __future__ import annotations

from app.alerts.inputs import Moment
from app.alerts.model import PANEL, Fact


def outbox(moment: Moment) -> list[Fact]:
    """Rule: for each notifier, how many messages wait and how old the oldest is."""
    return [
        Fact(
            "outbox",
            PANEL,
            {
                "waiting": float(n.waiting),
                "oldest": max(0.0, moment.now - n.oldest_at) if n.oldest_at is not None else 0.0,
            },
            {"notifier": n.name, "error": n.error or ""},
            part=n.name,
        )
        for n in moment.notifiers
    ]
