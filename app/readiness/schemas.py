"""Shapes of readiness towards the outside. Ages are seconds, times RFC 3339 UTC."""

from __future__ import annotations

from typing import Literal

from app.shapes import ApiModel

State = Literal["ready", "not_ready", "unknown"]
Scope = Literal["verified", "by_recipe", "unverified", "known_bad", "unknown"]
PartKey = Literal["correctness", "canaries", "soak", "disk", "checks", "scope"]


class PartView(ApiModel):
    """One part of the judgement: what is known of it, when that was found, and what to do about it.

    `at` is null where nothing was ever found. `path` is the page that shows more.
    """

    key: PartKey
    title: str
    state: State
    text: str
    at: str | None
    age_seconds: float | None
    action: str
    path: str


class ReadinessView(ApiModel):
    """One engine with its cache server. `ready` needs every part to be; one that is not ready outweighs unknowns."""

    engine_id: str
    engine_name: str
    server_id: str | None
    server_name: str | None
    state: State
    sentence: str
    scope: Scope
    parts: list[PartView]
    judged_at: str
    report_urls: dict[str, str]
