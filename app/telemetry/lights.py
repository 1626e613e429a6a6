"""Three of a server's four lights, each with its own reason and since when it is so. Pure.

The fourth (data path proven) is fleet's: acceptance runs and canaries tell it. A light shows what the last poll found,
undamped; None is "not known". Its `since` is the poll in which it became so, as far as the panel has watched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.telemetry.health import Judgement, ServerContext, ServerSeen, nobody, some

HTTP, ENGINE, REGISTERED = "http_up", "engine_up", "engines_registered"


@dataclass(frozen=True)
class Light:
    value: bool | None
    reason: str


def lights_of(seen: ServerSeen, judged: Judgement, context: ServerContext) -> dict[str, Light]:
    """The lights that one poll speaks for."""
    if not seen.http_up:
        silent = "not known while the server gives no answer"
        return {HTTP: Light(False, judged.reason), ENGINE: Light(None, silent), REGISTERED: Light(None, silent)}
    return {
        HTTP: Light(True, "the server answers over HTTP"),
        ENGINE: Light(judged.engine_up, _engine(seen)),
        REGISTERED: _registered(seen, context),
    }


def _engine(seen: ServerSeen) -> str:
    if seen.healthcheck_ok is False:
        return f"/healthcheck says: {seen.healthcheck_error or 'unhealthy'}"
    if seen.is_healthy is False or seen.unhealthy_parts:
        parts = f" of {some(seen.unhealthy_parts)}" if seen.unhealthy_parts else ""
        return f"/status says is_healthy: false{parts}"
    if not seen.status_read:
        return f"/status gives no usable answer: {seen.status_error or 'not asked'}"
    if seen.warnings:
        return f"healthy as far as it is told; not known of {some(seen.warnings)}"
    if seen.is_healthy is None:
        return "/status does not tell is_healthy"
    return "is_healthy, and so is every inner part"


def _registered(seen: ServerSeen, context: ServerContext) -> Light:
    count = seen.engines_registered
    if count is None:
        if not seen.status_read:
            return Light(None, f"/status gives no usable answer: {seen.status_error or 'not asked'}")
        return Light(None, "this version does not tell which engines are registered")
    if count == 0:
        return Light(False, nobody(context))
    return Light(True, f"{count} engine{'s' * (count != 1)} registered")


def with_since(found: Mapping[str, Light], before: object, now: float) -> dict[str, Any]:
    """As stored with the snapshot, after `before` (what was stored then): epoch seconds."""
    known = before if isinstance(before, dict) else {}
    return {
        name: {"value": light.value, "reason": light.reason, "since": _since(known.get(name), light.value, now)}
        for name, light in found.items()
    }


def _since(before: object, value: bool | None, now: float) -> float:
    if isinstance(before, dict) and "value" in before and before["value"] is value:
        since = before.get("since")
        if isinstance(since, int | float) and since <= now:
            return float(since)
    return now
