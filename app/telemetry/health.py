"""What a poll says about a target's health, and damping against flapping. Pure.

Server: ``unreachable`` nothing answered · ``unhealthy`` ``/healthcheck`` or the top ``is_healthy`` says so ·
``degraded`` an inner part is unhealthy, no engine is registered, or an answer cannot be read · else ``healthy``. A part
that answers with ``extra_warning`` is of unknown health: the light `engine_up` is then unknown, the state stays.
Engine: ``unreachable`` · ``unhealthy`` ``/health`` is an error · ``degraded`` an answer cannot be read · ``healthy``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["healthy", "degraded", "unhealthy", "unreachable", "unknown"]

#: Polls in a row that must differ from the state in force before it changes.
POLLS_TO_CHANGE = 2
#: A target that is only slow is given one poll more than one that refuses.
POLLS_TO_CHANGE_SLOW = 3


@dataclass(frozen=True)
class ServerSeen:
    """What one poll of a cache server found, reduced to what health depends on.

    `*_error`: why that call gave no usable answer, None where it did. `slow`: everything that failed failed by timeout.
    """

    http_up: bool
    slow: bool
    healthcheck_ok: bool | None
    healthcheck_error: str | None
    status_read: bool
    status_error: str | None
    is_healthy: bool | None
    unhealthy_parts: tuple[str, ...]
    warnings: tuple[str, ...]
    engines_registered: int | None
    metrics_error: str | None  # None also where the server is known to push its metrics
    config_error: str | None


@dataclass(frozen=True)
class ServerContext:
    """What is known besides this poll. `restarted_seconds_ago` is set while the restart is recent enough to matter."""

    engines_before: int | None = None
    restarted_seconds_ago: float | None = None
    engines_up: int = 0  # engines of this server that answer, by their own last poll


@dataclass(frozen=True)
class Judgement:
    """State and reason, and the lights behind them (None: not known)."""

    state: State
    reason: str
    slow: bool = False
    http_up: bool | None = None
    engine_up: bool | None = None
    engines_registered: int | None = None


@dataclass(frozen=True)
class Damped:
    """The state in force and the candidate that is not believed yet."""

    state: State
    candidate: State | None
    count: int
    changed: bool


def judge_server(seen: ServerSeen, context: ServerContext | None = None) -> Judgement:
    """The state one poll of a cache server speaks for."""
    context = context or ServerContext()
    if not seen.http_up:
        reason = seen.healthcheck_error or seen.status_error or "no answer"
        return Judgement("unreachable", reason, slow=seen.slow, http_up=False)
    state, reason = _server_state(seen, context)
    return Judgement(
        state,
        reason,
        slow=seen.slow and not seen.status_read,
        http_up=True,
        engine_up=_engine_up(seen),
        engines_registered=seen.engines_registered,
    )


def _server_state(seen: ServerSeen, context: ServerContext) -> tuple[State, str]:
    if seen.healthcheck_ok is False:
        return "unhealthy", f"/healthcheck says: {seen.healthcheck_error or 'unhealthy'}"
    if seen.is_healthy is False:
        parts = f" ({some(seen.unhealthy_parts)})" if seen.unhealthy_parts else ""
        return "unhealthy", f"/status says is_healthy: false{parts}"
    if seen.unhealthy_parts:
        return "degraded", f"an inner part is unhealthy: {some(seen.unhealthy_parts)}"
    if seen.healthcheck_ok is None:
        return "degraded", f"/healthcheck gives no usable answer: {seen.healthcheck_error or 'not asked'}"
    if not seen.status_read:
        return "degraded", f"/status gives no usable answer: {seen.status_error or 'not asked'}"
    if seen.engines_registered == 0:
        return "degraded", nobody(context)
    for what, error in (("/metrics", seen.metrics_error), ("/config", seen.config_error)):
        if error:
            return "degraded", f"{what} gives no usable answer: {error}"
    count = seen.engines_registered
    engines = "engines not told by this version" if count is None else f"{count} engine{'s' * (count != 1)} registered"
    if seen.warnings:
        return "healthy", f"answers, {engines}; health unknown of {some(seen.warnings)}"
    return "healthy", f"answers, all parts healthy, {engines}"


def nobody(context: ServerContext) -> str:
    """Why no engine is registered, as far as can be told."""
    if context.restarted_seconds_ago is not None and context.engines_up:
        return (
            f"restarted {duration(context.restarted_seconds_ago)} ago and no engine is registered, though "
            f"{context.engines_up} of its engines run: nothing is cached until they register again "
            "(a restart within the heartbeat goes unnoticed by them: restart them if this lasts)"
        )
    if context.restarted_seconds_ago is not None and context.engines_before:
        return f"restarted {duration(context.restarted_seconds_ago)} ago, engine not back yet"
    return "no engine is registered: nothing uses this cache"


def _engine_up(seen: ServerSeen) -> bool | None:
    """``is_healthy`` all the way down; a part of unknown health makes the whole unknown."""
    if seen.healthcheck_ok is False or seen.is_healthy is False or seen.unhealthy_parts:
        return False
    if not seen.status_read or seen.warnings or seen.is_healthy is None:
        return None
    return True


@dataclass(frozen=True)
class EngineSeen:
    """What one poll of an engine found, reduced to what health depends on."""

    http_up: bool
    slow: bool
    health_ok: bool | None
    health_error: str | None
    metrics_error: str | None
    models_error: str | None


def judge_engine(seen: EngineSeen) -> Judgement:
    """The state one poll of an engine speaks for."""
    if not seen.http_up:
        return Judgement("unreachable", seen.health_error or "no answer", slow=seen.slow, http_up=False)
    up: bool | None = seen.health_ok
    if seen.health_ok is False:
        return Judgement("unhealthy", f"/health says: {seen.health_error or 'an error'}", http_up=True, engine_up=False)
    problems = (("/health", seen.health_error), ("/metrics", seen.metrics_error), ("/v1/models", seen.models_error))
    for what, error in problems:
        if error:
            return Judgement(
                "degraded", f"{what} gives no usable answer: {error}", slow=seen.slow, http_up=True, engine_up=up
            )
    return Judgement("healthy", "answers", http_up=True, engine_up=up)


def damp(current: State, judged: State, candidate: State | None, count: int, *, needed: int) -> Damped:
    """The state in force after one more poll.

    `current` is the state in force, `judged` what this poll says, `candidate` and `count` what the polls before left.
    The first poll sets the state. After that it changes with the `needed`-th poll in a row that differs from it (to
    what the last of them said): a target that is never twice the same must not look healthy for ever.
    """
    if current == "unknown":
        return Damped(judged, None, 0, changed=judged != "unknown")
    if judged == current:
        return Damped(current, None, 0, changed=False)
    count += 1
    if count >= needed:
        return Damped(judged, None, 0, changed=True)
    return Damped(current, judged, count, changed=False)


def polls_needed(judgement: Judgement) -> int:
    """How many polls in a row it takes to believe this one."""
    return POLLS_TO_CHANGE_SLOW if judgement.slow else POLLS_TO_CHANGE


def duration(seconds: float) -> str:
    """``2 m 07 s``: for sentences, whole seconds."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} m"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def some(names: tuple[str, ...]) -> str:
    """The first three of these."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
