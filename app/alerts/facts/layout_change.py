"""A KV layout that changed, and whether anything has proven the cache right since."""

from __future__ import annotations

from app.alerts.inputs import Moment, ServerInput
from app.alerts.model import Fact


def layout_change(moment: Moment, server: ServerInput) -> Fact:
    """Rule: the time of the last change of the live fingerprints of a (model, world size) on this server, and whether
    an acceptance run passed (or a canary was read back right) after it."""
    change = server.last_change
    if change is None:
        return Fact("layout_change", server.subject, quiet="no change of a layout has been seen here")
    proven = server.data_path_proven_at
    return Fact(
        "layout_change",
        server.subject,
        {
            "age": max(0.0, moment.now - change.at),
            "at": change.at,
            "proven_since": float(proven is not None and proven > change.at),
            "proven_at": proven,
        },
        {"model": change.model_name, "fields": ", ".join(change.fields) or "its fingerprint"},
    )
