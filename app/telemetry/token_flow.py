"""Where prompt tokens came from: L0, L1, L2, or computed again. Pure.

Rule: L0 (``local_cache_hit``), external (``external_kv_transfer``) and recomputed (``local_compute``) are what the
engines count themselves. Which tier the external tokens came from is told only by the server's lookups, and those
count a hit also when the engine then serves the tokens from its GPU cache. So of E external tokens, with H1 and H2
looked-up tokens found in L1 and L2, at least E - H1 and at most H2 came from L2. Summed over minutes these two bounds
mostly meet; where they do not, L1 and L2 are unknown and the bounds are told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from app.telemetry.metrics import INTERVAL
from app.telemetry.schemas import FlowLevel, FlowLevelView, TokenFlowView

ENGINE_SERIES = ("local_tokens", "external_tokens", "recomputed_tokens")
SERVER_SERIES = ("hit_tokens", "l1_hit_tokens", "l2_hit_tokens")  # all hits, and those of each tier
#: Bounds that are nearer than this share of all tokens are one value: counters are not read at one instant.
DECIDED = 0.02


class TierSlice(NamedTuple):
    """One server and its engines in one minute: external tokens, and looked-up tokens found in L1 and L2."""

    external: float
    l1_hits: float
    l2_hits: float


def token_flow(
    server_id: str | None,
    window_seconds: float,
    engines: Sequence[Mapping[str, float]],
    servers: Sequence[Mapping[str, float]],
    *,
    registered_engines: int,
    slices: Sequence[TierSlice] = (),
) -> TokenFlowView:
    """The flow from the sums of increments of each engine and server that was polled in the window.

    `slices`: the same by server and minute; without them the whole window is one.

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
    levels += _external(external, total, seconds, servers, slices)
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
    external: float,
    total: float,
    seconds: float,
    servers: Sequence[Mapping[str, float]],
    slices: Sequence[TierSlice],
) -> list[FlowLevelView]:
    if external == 0:
        return [_level("l1", 0.0, total, seconds), _level("l2", 0.0, total, seconds)]
    if not servers:
        reason = "the cache server told no lookups in this window, so the share of its tiers is not known"
        return [_nothing("l1", reason), _nothing("l2", reason)]
    if any(name not in server for server in servers for name in SERVER_SERIES[1:]):
        reason = "this server does not report L1 and L2 hits apart (LMCache before 0.5.5)"
        return [_nothing("l1", reason), _nothing("l2", reason)]
    hits = [sum(server[name] for server in servers) for name in ("l1_hit_tokens", "l2_hit_tokens")]
    whole = l2_bounds([TierSlice(external, *hits)])
    least, most = l2_bounds(slices) if slices else whole
    # Slices may miss what fell on a border: the window's own bounds hold too.
    least, most = min(max(least, whole[0]), whole[1]), max(min(most, whole[1]), whole[0])
    if most - least <= DECIDED * total:
        from_l2 = (least + most) / 2
        return [_level("l1", external - from_l2, total, seconds), _level("l2", from_l2, total, seconds)]
    reason = (
        f"of {round(external):,} tokens from the cache server, {round(least):,} to {round(most):,} came from L2: its "
        "lookups count hits also for tokens that the engine then served from its GPU cache"
    )
    return [
        _between("l1", external - most, external - least, reason),
        _between("l2", least, most, reason),
    ]


def l2_bounds(slices: Sequence[TierSlice]) -> tuple[float, float]:
    """How many of the external tokens came from L2: (at least, at most)."""
    least = most = 0.0
    for external, l1_hits, l2_hits in slices:  # of a fleet thousands
        most += external if external < l2_hits else l2_hits
        if external > l1_hits:
            beyond = external - l1_hits
            least += beyond if beyond < l2_hits else l2_hits
    return least, max(least, most)


def _between(level: FlowLevel, least: float, most: float, reason: str) -> FlowLevelView:
    return FlowLevelView(
        level=level, state="unknown", least_tokens=round(least), most_tokens=round(most), reason=reason
    )


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
