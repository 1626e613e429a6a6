"""What one arm must show: tokens from where it says, a reset with an effect, the right tier. Pure."""

from __future__ import annotations

from app.acceptance import fixes
from app.acceptance.agreement import agreement
from app.acceptance.evidence import ArmEvidence, Totals
from app.acceptance.finding import CACHE_ARMS, EXTERNAL_ARMS, Finding
from app.acceptance.tolerance import Tolerance


def arm_findings(arm: ArmEvidence, tolerance: Tolerance | None) -> list[Finding]:
    """What one complete arm fails to show of its condition."""
    totals = arm.totals
    if arm.answered == 0:
        return []  # all refused: the comparison says what that means
    if arm.name == "without_cache":
        return _base_line(arm, totals)
    if totals is None:
        return [
            Finding("no_token_evidence", "invalid", "nothing says how many tokens were cached", fixes.STATS, arm.name)
        ]
    found: list[Finding] = []
    if arm.name == "cold":
        found += _cold(arm, totals)
    elif arm.name == "warm":
        found += _warm(arm, totals)
    elif arm.name == "changed_head":
        found += _nothing_cached(arm, totals, "the first token was changed, so nothing may be reused")
    elif arm.name in CACHE_ARMS:
        found += _external(arm, totals, tolerance)
    found += agreement(arm, totals)
    found += _foreign(arm, totals)
    if totals.too_short > 0:
        found.append(
            Finding(
                "too_short_to_hit",
                "note",
                f"{totals.too_short} of {totals.requests} prompts are shorter than one chunk and can never hit",
                None,
                arm.name,
            )
        )
    return found


def _unknown(arm: ArmEvidence, totals: Totals) -> list[Finding]:
    if totals.unknown == 0 and totals.external_tokens is not None and totals.local_tokens is not None:
        return []
    text = f"for {totals.unknown or totals.requests} of {totals.requests} requests nothing says what was cached"
    return [Finding("no_token_evidence", "invalid", text, fixes.STATS, arm.name)]


def _cold(arm: ArmEvidence, totals: Totals) -> list[Finding]:
    return _nothing_cached(arm, totals, "the prompts were new to everybody, so nothing may be reused")


def _nothing_cached(arm: ArmEvidence, totals: Totals, why: str) -> list[Finding]:
    found = _unknown(arm, totals)
    if totals.external_tokens:
        text = f"{totals.external_tokens} tokens came from the cache although {why}"
        found.append(Finding("not_cold", "invalid", text, fixes.SALT, arm.name))
    if totals.local_tokens:
        text = f"{totals.local_tokens} tokens came from the GPU cache although {why}"
        found.append(Finding("not_cold", "invalid", text, fixes.SALT, arm.name))
    return found


def _base_line(arm: ArmEvidence, totals: Totals | None) -> list[Finding]:
    """The engine without the connector computed everything itself, by its requests or by its own counters."""
    told = [] if totals is None else [totals.external_tokens, totals.local_tokens]
    known = [n for n in told if n is not None]
    cached = sum(known) if known else None
    if not known and arm.alone and arm.engine is not None and arm.engine.local_hits is not None:
        cached = round(arm.engine.local_hits)
    counted = None if arm.engine is None else arm.engine.external_hits
    if counted is not None:
        cached = max(cached or 0, round(counted))
    if cached is None:
        text = "nothing says that this engine computed the answers itself"
        return [Finding("no_token_evidence", "invalid", text, fixes.STATS, arm.name)]
    if cached:
        text = f"{cached} tokens came from a cache, so this engine is no base line"
        return [Finding("base_line_cached", "invalid", text, fixes.BASE_LINE, arm.name)]
    return []


def _warm(arm: ArmEvidence, totals: Totals) -> list[Finding]:
    if totals.local_tokens is None:
        return [
            Finding("no_token_evidence", "invalid", "nothing says what the GPU cache served", fixes.STATS, arm.name)
        ]
    if totals.local_tokens == 0:
        text = "the GPU cache served none of the repeated prompts"
        return [Finding("warm_not_local", "invalid", text, fixes.PREFIX_CACHING, arm.name)]
    return []


def _external(arm: ArmEvidence, totals: Totals, tolerance: Tolerance | None) -> list[Finding]:
    found: list[Finding] = []
    if arm.name in ("external_l1", "external_l2", "restarted_server"):
        found += _reset(arm)
    found += _unknown(arm, totals)
    if arm.name in EXTERNAL_ARMS and totals.local_tokens:
        text = f"{totals.local_tokens} tokens came from the GPU cache although it was emptied before"
        found.append(Finding("reset_had_no_effect", "invalid", text, fixes.RESET_LIES, arm.name))
    if totals.expected_tokens == 0:
        text = "no prompt has a whole chunk left for the cache to supply: nothing was tested"
        found.append(Finding("nothing_expected", "invalid", text, fixes.LONGER, arm.name))
    share = totals.share
    wanted = tolerance.min_external_share if tolerance else 1.0
    where, way_out = _where_lost(arm, totals)
    if totals.external_tokens == 0 and totals.expected_tokens:
        text = f"none of the {totals.expected_tokens} expected tokens came from the cache: it was not used{where}"
        found.append(Finding("cache_not_used", "invalid", text, way_out or fixes.NOT_USED, arm.name))
    elif share is not None and share < wanted:
        text = (
            f"{totals.external_tokens} of {totals.expected_tokens} expected tokens came from the cache; "
            f"{totals.not_full} of {totals.requests} requests got less than their whole chunks{where}"
        )
        found.append(Finding("share_too_low", "invalid", text, way_out or fixes.SHARE, arm.name))
    if arm.name in ("external_l1", "external_l2", "restarted_server"):
        found += _tier(arm, totals)
    if arm.name == "mixed" and totals.local_tokens == 0:
        text = "the GPU cache served none of the prompts' heads, so nothing was mixed"
        found.append(Finding("not_mixed", "invalid", text, fixes.PREFIX_CACHING, arm.name))
    if arm.name == "shared_prefix" and (totals.external_tokens or 0) > (totals.expected_tokens or 0):
        text = (
            f"{totals.external_tokens} tokens came from the cache, but the prompts share only {totals.expected_tokens}"
        )
        found.append(Finding("more_than_shared", "invalid", text, fixes.SALT, arm.name))
    return found


def _where_lost(arm: ArmEvidence, totals: Totals) -> tuple[str, str | None]:
    """(what the server's counters say of the tokens that did not come, the way out); nothing where they do not tell.

    An engine that has not heard from its server within one heartbeat goes on without it for a while: it gives lookups
    up that the server has answered (whose read locks then stay), and makes no new ones.
    """
    server, expected = arm.server, totals.expected_tokens
    if server is None or server.requested is None or server.hit is None or not expected:
        return "", None
    if server.hit >= expected:
        return f". The server found {server.hit:.0f} tokens: the engine did not load what was there", fixes.GAVE_UP
    if server.requested < expected:
        return f". The engine asked the server for {server.requested:.0f} tokens only", fixes.GAVE_UP
    return f". The server found {server.hit:.0f} of {server.requested:.0f} tokens that it was asked for", None


def _reset(arm: ArmEvidence) -> list[Finding]:
    reset = arm.reset
    if reset is None:
        text = "the engine's prefix cache was not emptied before it"
        return [Finding("reset_missing", "invalid", text, fixes.RUN_AGAIN, arm.name)]
    if reset.state == "unavailable":
        text = "the engine has no /reset_prefix_cache, so its GPU cache could not be emptied"
        return [Finding("reset_unavailable", "invalid", text, fixes.DEV_MODE, arm.name)]
    if reset.state == "busy":
        text = f"the engine kept answering that it could not reset its prefix cache ({reset.waited_seconds:.0f} s)"
        return [Finding("reset_busy", "invalid", text, fixes.BUSY, arm.name)]
    if reset.effective is False:
        text = "the engine acknowledged the reset, but afterwards still served a prompt from its GPU cache"
        return [Finding("reset_had_no_effect", "invalid", text, fixes.RESET_LIES, arm.name)]
    if reset.effective is None:
        text = "nothing proves that the reset of the prefix cache had an effect"
        return [Finding("reset_unproven", "invalid", text, fixes.STATS, arm.name)]
    return []


def _tier(arm: ArmEvidence, totals: Totals) -> list[Finding]:
    """The tier an arm names must be the one that supplied the tokens."""
    found: list[Finding] = []
    l1 = None if arm.server is None else arm.server.hit_l1
    l2 = None if arm.server is None else arm.server.hit_l2
    if l1 is None or l2 is None:
        # A server that does not split hits still counts its loads from L2: everybody's, so others' may be among them.
        l1, l2 = None, arm.l2_loads if arm.alone or arm.l2_loads == 0 else None
    unit = "chunks" if l1 is None else "tokens"
    if l2 is None:
        text = "the server's counters do not say whether L1 or L2 supplied the tokens"
        found.append(Finding("tier_unknown", "invalid", text, fixes.COUNTERS, arm.name))
    if arm.name == "external_l1":
        if l2:
            text = f"L1 no longer held the records: {l2:.0f} {unit} came from L2"
            found.append(Finding("l1_did_not_hold", "invalid", text, fixes.L1_SMALL, arm.name))
        return found
    emptied = arm.l1_emptied
    if arm.name == "external_l2" and (emptied is None or not emptied.done):
        detail = "" if emptied is None or not emptied.detail else f": {emptied.detail}"
        text = f"L1 could not be emptied of the run's own records{detail}"
        found.append(Finding("l1_not_emptied", "invalid", text, fixes.EMPTY_L1, arm.name))
    if l1:
        text = f"{l1:.0f} tokens still came from L1 although it had been emptied of them"
        found.append(Finding("l1_still_held", "invalid", text, fixes.EMPTY_L1, arm.name))
    if l2 == 0 and totals.external_tokens:
        text = "the server counted no L2 hits, so the tokens did not come from disk"
        found.append(Finding("l2_not_used", "invalid", text, fixes.EMPTY_L1, arm.name))
    return found


def _foreign(arm: ArmEvidence, totals: Totals) -> list[Finding]:
    """E6: others' traffic is a warning, unless this arm's evidence rests on counters that count everybody."""
    rests_on_counters = "engine_counters" in totals.sources
    foreign = arm.foreign_tokens
    seen = _foreign_requests(arm)
    if foreign is None and rests_on_counters:
        text = "its evidence rests on the engine's counters, and whether others used the engine is not known"
        return [Finding("foreign_traffic_unknown", "invalid", text, fixes.ALONE, arm.name)]
    if not foreign:
        return [] if seen is None else [Finding("foreign_load", "warning", seen, fixes.NEIGHBOURS, arm.name)]
    text = f"others sent {foreign:.0f} prompt tokens to the engine meanwhile"
    if seen is not None:
        text = f"{text}; {seen}"
    if rests_on_counters:
        return [
            Finding(
                "foreign_traffic", "invalid", f"{text}, and the evidence rests on its counters", fixes.ALONE, arm.name
            )
        ]
    return [Finding("foreign_traffic", "warning", text, fixes.NEIGHBOURS, arm.name)]


def _foreign_requests(arm: ArmEvidence) -> str | None:
    """What was seen of others' requests in the engine while the arm's own were in flight; None without any."""
    others = arm.load.others if arm.load is not None else None
    if others is None or others.high == 0:
        return None
    verb = "was" if others.high == 1 else "were"
    readings = f"{others.readings} reading{'' if others.readings == 1 else 's'}"
    return (
        f"up to {others.high:.0f} of the requests in the engine at once {verb} not the run's, {others.mean:.1f} on "
        f"average over {readings}"
    )
