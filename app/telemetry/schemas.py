"""Shapes of telemetry towards the outside: samples, health changes, the token flow. Times are RFC 3339 UTC."""

from __future__ import annotations

from typing import Literal

from app.shapes import ApiModel

FlowLevel = Literal["l0", "l1", "l2", "recomputed"]


class OlderView(ApiModel):
    """What a configured Prometheus gave for the time before `until`, where the panel's own history begins.

    `state`: value, nothing (Prometheus knows no such series then) or unknown (with `reason`); `query` is the PromQL.
    """

    source: Literal["prometheus"] = "prometheus"
    state: Literal["value", "nothing", "unknown"]
    until: str
    reason: str | None = None
    query: str | None = None


class SamplesView(ApiModel):
    """One metric of one target over time. A point is ``[time, value]``; value is null where nothing was known.

    `unit` is bytes, ratio, tokens_per_second, chunks_per_second, bytes_per_second, requests or bool; `step_seconds` is
    the width of a point's bucket, which starts at the point's time; `source` names the table it was read from.
    `lowest` and `highest` are those of each bucket of a gauge or a rate, so that a spike survives its mean (of a rate:
    what was surely reached); null of what has none. `older` says what came from a configured Prometheus: points before
    the panel's own history.
    """

    metric: str
    unit: str
    step_seconds: float
    source: Literal["raw", "5m", "1h"]
    points: list[tuple[str, float | None]]
    lowest: list[float | None] | None = None
    highest: list[float | None] | None = None
    older: OlderView | None = None

    def rows(self) -> list[tuple[tuple[str, float | None], float | None, float | None]]:
        """Each point with the lowest and highest of its bucket, None where they are not told."""
        none = [None] * len(self.points)
        return list(zip(self.points, self.lowest or none, self.highest or none, strict=False))


class HealthChangeView(ApiModel):
    """One change of one target's health state."""

    id: str
    target_kind: Literal["server", "engine"]
    target_id: str
    target_name: str | None
    old_state: str | None
    new_state: str
    reason: str
    at: str
    by: str


class FlowLevelView(ApiModel):
    """One level of the token flow: ``value`` with tokens (maybe 0) and share, or ``unknown`` with the reason; then
    `least_tokens` and `most_tokens` are the bounds, where there are any."""

    level: FlowLevel
    state: Literal["value", "unknown"]
    tokens: int | None = None
    share: float | None = None
    tokens_per_second: float | None = None
    least_tokens: int | None = None
    most_tokens: int | None = None
    reason: str | None = None


class TokenFlowView(ApiModel):
    """Where prompt tokens came from in a window: the GPU (L0), CPU memory (L1), disk (L2), or computed again.

    Rule: L0, external and recomputed are the engines' own counters (`prompt_tokens_by_source`); of the external tokens
    at least what exceeds the lookups' L1 hits and at most their L2 hits came from L2. Where the two differ, L1 and L2
    are unknown between bounds: lookups count hits also when the GPU cache then serves the tokens.
    """

    server_id: str | None
    window_seconds: float
    covered_seconds: float | None
    state: Literal["value", "no_traffic", "unknown"]
    total_tokens: int | None
    external_tokens: int | None
    levels: list[FlowLevelView]
    engines: int
    reason: str | None = None
