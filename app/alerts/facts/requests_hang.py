"""Requests that an engine holds without getting on."""

from __future__ import annotations

from app.alerts.inputs import EngineInput, Moment
from app.alerts.model import Fact

WINDOW_SECONDS = 60.0
#: Nothing is said of a window that was seen for less than this part.
SEEN_PART = 0.8


def requests_hang(moment: Moment, engine: EngineInput) -> Fact:
    """Rule: requests running or waiting now, and the growth of prompt tokens, generated tokens and finished requests in
    a minute. An engine whose (engine-driven) cache server forgot it hangs like this while `/health` is 200."""
    if not engine.up:
        return Fact("requests_hang", engine.subject, unknown="the engine does not answer")
    if engine.running is None:
        return Fact("requests_hang", engine.subject, unknown="the engine does not tell its running requests")
    window = moment.window(engine, WINDOW_SECONDS)
    moved = [window.grown(name) for name in ("prompt_tokens", "generation_tokens", "requests_succeeded")]
    known = [value for value in moved if value is not None]
    if not known:
        return Fact("requests_hang", engine.subject, unknown=window.reason or "the engine counts no tokens")
    if window.seconds < WINDOW_SECONDS * SEEN_PART:
        return Fact("requests_hang", engine.subject, unknown=f"watched for {window.seconds:.0f} s only")
    held = engine.running + (engine.waiting or 0.0)
    return Fact(
        "requests_hang",
        engine.subject,
        {"held": held, "moved": sum(known), "window": window.seconds},
        quiet="no request is running or waiting" if held == 0 else None,
    )
