"""Shapes of derived facts and of hit rates by their parts. Ids are strings, times RFC 3339 UTC, durations seconds."""

from __future__ import annotations

from typing import Literal

from app.alerts.model import SubjectKind
from app.shapes import ApiModel

FactState = Literal["ok", "bad", "quiet", "unknown"]


class RuleVerdictView(ApiModel):
    """What one rule says of a fact now: true, false or null (cannot be said)."""

    rule: str
    holds: bool | None
    sentence: str


class FactView(ApiModel):
    """One derived fact, with the numbers it rests on. state: ok, bad (a rule holds), quiet or unknown (with reason)."""

    fact: str
    target_kind: SubjectKind
    target_id: str | None
    target_name: str
    part: str
    state: FactState
    reason: str | None
    numbers: dict[str, float | None]
    words: dict[str, str]
    verdicts: list[RuleVerdictView]


class FactsView(ApiModel):
    """One page of derived facts, as of the last evaluation."""

    evaluated_at: str | None
    items: list[FactView]
    next_page_token: str | None = None


class PartRateView(ApiModel):
    """The hit rate of one model, salt or engine. `value` is null without requests (or where it is not known)."""

    by: Literal["model", "salt", "engine"]
    name: str
    value: float | None
    requested_tokens: int | None
    hit_tokens: int | None
    l1_tokens: int | None
    l2_tokens: int | None


class HitRatesView(ApiModel):
    """Hit rates of a server over the last quarter of an hour, in whole and in parts. Where a server has one model only
    (or one salt), the whole says it."""

    server_id: str
    window_seconds: float | None
    reason: str | None
    value: float | None
    requested_tokens: int | None
    parts: list[PartRateView]
