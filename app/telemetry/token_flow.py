"""Where prompt tokens came from: L0, L1, L2, or computed again. Pure.

Rule: L0 (``local_cache_hit``), external (``external_kv_transfer``) and recomputed (``local_compute``) are what the
engines count themselves. Of the external tokens, L2 is what the server's lookups found in L2 (each such hit is loaded
from there), at most all of them; the rest came from L1. The server's own L1 hits are not used: it counts a lookup hit
also when the engine then serves the tokens from its GPU cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.telemetry.metrics import INTERVAL
from app.telemetry.schemas import FlowLevel, FlowLevelView, TokenFlowView

ENGINE_SERIES = ("local_tokens", "external_tokens", "recomputed_tokens")
SERVER_SERIES = ("hit_tokens", "l2_hit_tokens")


def token_flow(
    server_id: str | None,
    window_seconds: float,
    engines: Sequence[Mapping[str, float]],
    servers: Sequence[Mapping[str, float]],
    *,
    registered_engines: int,
) -> TokenFlowView:
    """The flow from the sums of increments of each engine and server that was polled in the window.

    `engines` and `servers` hold only those with samples; `registered_engines` counts all that belong here.
    """
    if registered_engines == 0:
        who = "this server" if server_id is not None else "the fleet"
        return _unknown(server_id, window_seconds, 0, f"no engine of {who} is registered in the panel")
    told = [engine for engine in engines if all(name in engine for name in ENGINE_SERIES)]
    if not told:
        reason = "no engine has told its prompt tokens by source in this window (two polls are needed)"
        return _unknown(server_id, window_seconds, registered_engines, reason)
    local, external, computed = (sum(engine[name] for engine in told) for name in ENGINE_SERIES)
    seconds = max(engine.get(INTERVAL, 0.0) for engine in told)
    total = local + external + computed
    missing = registered_engines - len(told)
    note = f"{missing} of {registered_engines} engines told nothing in this window" if missing > 0 else None
    levels = [_level("l0", local, total, seconds)]
    levels += _external(external, total, seconds, servers)
    levels.append(_level("recomputed", computed, total, seconds))
    return TokenFlowView(
        server_id=server_id,
        window_seconds=window_seconds,
        covered_seconds=seconds,
        state="value" if total > 0 else "no_traffic",
        total_tokens=round(total),
        external_tokens=round(external),
        levels=levels,
        engines=registered_engines,
        reason=note,
    )


def _external(
    external: float, total: float, seconds: float, servers: Sequence[Mapping[str, float]]
) -> list[FlowLevelView]:
    if external == 0:
        return [_level("l1", 0.0, total, seconds), _level("l2", 0.0, total, seconds)]
    if not servers:
        reason = "the cache server told no lookups in this window, so the share of its tiers is not known"
        return [_nothing("l1", reason), _nothing("l2", reason)]
    if any("l2_hit_tokens" not in server for server in servers):
        reason = "this server does not report L1 and L2 hits apart (LMCache before 0.5.5)"
        return [_nothing("l1", reason), _nothing("l2", reason)]
    from_l2 = min(external, sum(server["l2_hit_tokens"] for server in servers))
    return [_level("l1", external - from_l2, total, seconds), _level("l2", from_l2, total, seconds)]


def _level(level: FlowLevel, tokens: float, total: float, seconds: float) -> FlowLevelView:
    return FlowLevelView(
        level=level,
        state="value",
        tokens=round(tokens),
        share=tokens / total if total > 0 else None,
        tokens_per_second=tokens / seconds if seconds > 0 else None,
    )


def _nothing(level: FlowLevel, reason: str) -> FlowLevelView:
    return FlowLevelView(level=level, state="unknown", reason=reason)


def _unknown(server_id: str | None, window_seconds: float, engines: int, reason: str) -> TokenFlowView:
    levels: list[FlowLevel] = ["l0", "l1", "l2", "recomputed"]
    return TokenFlowView(
        server_id=server_id,
        window_seconds=window_seconds,
        covered_seconds=None,
        state="unknown",
        total_tokens=None,
        external_tokens=None,
        levels=[_nothing(level, reason) for level in levels],
        engines=engines,
        reason=reason,
    )
