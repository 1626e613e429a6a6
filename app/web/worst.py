"""Of many targets the few that a page has room for: those that are not well first, else in their order. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from app.fleet.schemas import EngineView, ServerView
from app.web.contexts import EngineVerdict
from app.web.overview import canary_line, stale_word

Target = TypeVar("Target", ServerView, EngineView)
_HEALTH = ("unreachable", "unhealthy", "degraded", "unknown", "healthy")
_WORD = ("bad", "warn", "info", "none", "ok")


def worst_first(targets: Sequence[Target], most: int) -> Sequence[Target]:
    """At most so many, the worst first; where all fit they stay as they are."""
    if len(targets) <= most:
        return targets
    return sorted(targets, key=lambda target: _HEALTH.index(target.health.state))[:most]


def worst_verdicts(verdicts: Sequence[EngineVerdict], most: int) -> Sequence[EngineVerdict]:
    """The same by what acceptance and canaries say of an engine."""
    if len(verdicts) <= most:
        return verdicts

    def rank(verdict: EngineVerdict) -> int:
        kinds = [stale_word(verdict.latest).kind]
        if verdict.canaries is not None:
            kinds.append(canary_line(verdict.canaries)[0].kind)
        return min(_WORD.index(kind) for kind in kinds)

    return sorted(verdicts, key=rank)[:most]
