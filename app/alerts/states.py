"""What one evaluation changes about one alarm: pending → firing → (acknowledged) → resolved. Pure.

A condition that cannot be judged now neither fires nor resolves anything. An alarm that another one explains is held
back: it waits as pending until its cause is gone, and its own time begins anew then.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

State = Literal["pending", "firing", "acknowledged", "resolved"]
ACTIVE: frozenset[str] = frozenset({"pending", "firing", "acknowledged"})


@dataclass(frozen=True)
class Standing:
    """An alarm as it stands. Times are epoch seconds; `holds_since` begins its wait, `clear_since` its end."""

    state: State
    holds_since: float
    clear_since: float | None = None
    reason: str = ""


def begin(now: float, wait_seconds: float, *, explained: bool) -> Standing:
    """The condition holds and there is no alarm yet."""
    if explained:
        return Standing("pending", now, reason="held back: another alarm explains it")
    if wait_seconds > 0:
        return Standing("pending", now, reason="the condition holds")
    return Standing("firing", now, reason="the condition holds")


def advance(
    standing: Standing,
    holds: bool | None,
    now: float,
    *,
    wait_seconds: float,
    clear_seconds: float,
    explained: bool,
    gap: bool,
) -> Standing:
    """The alarm after one more evaluation. `gap`: too long since the one before to say that the condition held on."""
    if holds is None:
        return standing
    if not holds:
        if standing.state == "pending":
            return replace(standing, state="resolved", reason="it went away before it fired")
        since = standing.clear_since if standing.clear_since is not None else now
        if now - since >= clear_seconds:
            return replace(standing, state="resolved", clear_since=since, reason="the condition is gone")
        return replace(standing, clear_since=since)
    standing = replace(standing, clear_since=None)
    if standing.state != "pending":
        return standing
    if gap or explained:
        return replace(standing, holds_since=now)
    if now - standing.holds_since >= wait_seconds:
        return replace(standing, state="firing", reason="the condition has held long enough")
    return standing
