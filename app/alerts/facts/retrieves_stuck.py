"""Retrieves that were begun and do not end."""

from __future__ import annotations

from collections.abc import Mapping

from app.alerts.inputs import Moment, ServerInput
from app.alerts.model import Fact

WINDOW_SECONDS = 120.0
#: Nothing is said of a window that was seen for less than this part.
SEEN_PART = 0.8


def _open(values: Mapping[str, float | None]) -> float | None:
    submitted, finished = values.get("retrieves_submitted"), values.get("retrieves_finished")
    return None if submitted is None or finished is None else max(0.0, submitted - finished)


def retrieves_stuck(moment: Moment, server: ServerInput) -> Fact:
    """Rule: (submitted − finished) retrieves now, less the lowest it was before the last two minutes, while none
    finished in these two minutes and an engine of the server holds requests.

    A retrieve that dies with its engine leaves the difference one too high for ever: that offset is what the lowest
    value before takes away, and nobody waits for it.
    """
    last = server.trail.last
    window = moment.window(server, WINDOW_SECONDS)
    if last is None or not window.known:
        return Fact("retrieves_stuck", server.subject, unknown=window.reason)
    now_open = _open(last.raw.values)
    if now_open is None:
        return Fact(
            "retrieves_stuck", server.subject, unknown="no retrieve yet (or engine-driven: this server counts none)"
        )
    if now_open == 0:
        return Fact("retrieves_stuck", server.subject, {"open": 0.0}, quiet="no retrieve is under way")
    if window.seconds < WINDOW_SECONDS * SEEN_PART:
        return Fact("retrieves_stuck", server.subject, unknown=f"watched for {window.seconds:.0f} s only")
    floor = server.trail.lowest(_open, last.at - WINDOW_SECONDS)
    finished = window.grown("retrieves_finished")
    held = [e.running + (e.waiting or 0.0) for e in server.engines if e.up and e.running is not None]
    risen = max(0.0, now_open - (floor if floor is not None else 0.0))
    return Fact(
        "retrieves_stuck",
        server.subject,
        {
            "open": now_open,
            "risen": risen,
            "finished": finished,
            "held": sum(held) if held else None,
            "window": window.seconds,
        },
        quiet="no retrieve is under way" if risen == 0 else None,
    )
