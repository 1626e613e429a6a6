"""Where an arm's cached tokens are said to come from, held against what engine and server counted meanwhile. Pure.

A streamed answer tells only how many tokens were cached. That they came from outside is a conclusion ("the GPU cache
was empty"), and an engine can make it wrong: one whose reset empties another replica's cache answers every later prompt
from its own. Counters do not believe anything, so none of them may be outvoted: each that can tell must agree, and a
conclusion that nothing counted confirms proves nothing.
"""

from __future__ import annotations

from app.acceptance import fixes
from app.acceptance.evidence import ArmEvidence, Totals
from app.acceptance.finding import CACHE_ARMS, Finding


def agreement(arm: ArmEvidence, totals: Totals) -> list[Finding]:
    """What the counters of one arm say against its tokens; nothing where they agree, or where nothing is known."""
    said = _contradictions(arm, totals)
    if said:
        text = f"{_attributed(totals)} by its requests, but {'; '.join(said)}"
        return [Finding("counters_disagree", "invalid", text, fixes.COUNTERS_DISAGREE, arm.name)]
    if arm.name in CACHE_ARMS and not _confirmed(arm, totals):
        text = (
            f"its requests tell only that {totals.external_tokens} tokens were cached, and no counter says that they "
            "came from outside the GPU cache"
        )
        if arm.engine is not None and arm.engine.external_hits is not None:
            text += " (the engine's own counts others' requests too)"
        return [Finding("external_unconfirmed", "invalid", text, fixes.UNCONFIRMED, arm.name)]
    return []


def _attributed(totals: Totals) -> str:
    return f"{totals.external_tokens} tokens came from the cache and {totals.local_tokens} from the GPU cache"


def _contradictions(arm: ArmEvidence, totals: Totals) -> list[str]:
    external, local = totals.external_tokens, totals.local_tokens
    said: list[str] = []
    counted = arm.engine.external_hits if arm.engine is not None else None
    if external is not None and counted is not None:
        # Others' requests can only add to a counter.
        too_few = external - totals.rounded > counted
        if too_few or (arm.alone and external < counted):
            said.append(f"the engine counted {counted:.0f} tokens from outside")
    if external is not None and arm.loaded is not None:
        loaded = arm.loaded
        unclaimed = external == 0 and loaded.tokens > 0 and (loaded.own or arm.alone)
        if external > loaded.tokens or unclaimed:
            said.append(f"the cache server moved {loaded.tokens:.0f} tokens into the engine")
    found = arm.server.hit if arm.server is not None else None
    if external is not None and found is not None and external > found:
        said.append(f"the cache server found {found:.0f} tokens")
    held = arm.engine.local_hits if arm.engine is not None else None
    if local is not None and held is not None and (local > held or (arm.alone and local == 0 and held > 0)):
        # More than was served is no contradiction: a lookup that is repeated while its request waits counts again.
        said.append(f"the engine counted {held:.0f} tokens from its GPU cache")
    return said


def _confirmed(arm: ArmEvidence, totals: Totals) -> bool:
    """Whether something that counts transfers, or the requests' own statistics, stands behind the external tokens."""
    if not totals.external_tokens or "request_cached_tokens" not in totals.sources:
        return True
    if arm.loaded is not None and arm.loaded.own:
        return True
    engine = arm.engine
    if engine is None:
        return False
    # Whoever else used the engine: where nobody was served from its GPU cache, the run was not either.
    return engine.local_hits == 0 or (arm.alone and engine.external_hits is not None)
