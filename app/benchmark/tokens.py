"""Where the prompt tokens of a phase came from: L0, L1, L2, or computed again. Pure.

Local and external tokens come from the engine's counters when nobody else's prompts are in them, else from the
requests' own counts where the GPU cache is known to be empty or no cache server is there. L1 and L2 share the external
tokens as the server's lookups of the run's own salt say; where the GPU cache served a part of what the lookups found,
that split is an estimate and says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from app.benchmark.measures import Measured

NOT_TOLD = (
    "the engine tells no cached tokens per request (start it with --enable-prompt-tokens-details), and its counters "
    "hold other prompts too"
)


@dataclass(frozen=True)
class EngineDelta:
    """What one engine (or all of a scenario together) counted during a phase; None where a series is missing."""

    prompt_tokens: float | None = None
    local_hits: float | None = None
    external_hits: float | None = None
    finished: float | None = None


@dataclass(frozen=True)
class ServerDelta:
    """What the cache server counted during a phase, tokens: `requested` and hits of our salts, lookups of others'."""

    requested: float | None = None
    hit_l1: float | None = None
    hit_l2: float | None = None
    foreign_lookups: float | None = None


@dataclass(frozen=True)
class TierTokens:
    """Tokens of a phase by source; None is unknown and `note` says why. `reachable`: what could have come back.

    `share` = (L0 + L1 + L2) ÷ reachable, at most 1; None where nothing could come back.
    """

    prompt: int | None = None
    l0: int | None = None
    l1: int | None = None
    l2: int | None = None
    external: int | None = None
    recomputed: int | None = None
    reachable: int | None = None
    share: float | None = None
    source: str = "none"
    note: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def split(
    requests: Sequence[Measured],
    engine: EngineDelta | None,
    server: ServerDelta | None,
    *,
    l0_empty: bool,
    has_cache: bool,
) -> TierTokens:
    """The tokens of the answered requests of a phase.

    `l0_empty`: the GPU cache held nothing of these prompts (new salts, or a reset before). `has_cache`: the scenario
    has a cache server.
    """
    answered = [r for r in requests if r.ok]
    if any(r.prompt_tokens is None for r in answered) or not answered:
        return TierTokens(note="the engine tells no prompt tokens" if answered else "no request was answered")
    prompt = sum(r.prompt_tokens or 0 for r in answered)
    cached = None if any(r.cached_tokens is None for r in answered) else sum(r.cached_tokens or 0 for r in answered)
    could = sum(r.reachable or 0 for r in answered) if has_cache or any(r.reachable for r in answered) else None
    local, external, source = _two_parts(engine, prompt, cached, l0_empty=l0_empty, has_cache=has_cache)
    if local is None or external is None:
        return TierTokens(prompt=prompt, reachable=could, note=NOT_TOLD)
    l1, l2, note = _tiers(external, local, server)
    came_back = local + external
    return TierTokens(
        prompt=prompt,
        l0=local,
        l1=l1,
        l2=l2,
        external=external,
        recomputed=max(0, prompt - came_back),
        reachable=could,
        share=min(1.0, came_back / could) if could else None,
        source=source,
        note=note,
    )


def _two_parts(
    engine: EngineDelta | None, prompt: int, cached: int | None, *, l0_empty: bool, has_cache: bool
) -> tuple[int | None, int | None, str]:
    if cached == 0:
        return 0, 0, "requests"
    if engine is not None and engine.prompt_tokens == prompt and engine.local_hits is not None:
        external = engine.external_hits if has_cache else 0.0
        if external is not None:
            return round(engine.local_hits), round(external), "engine counters"
    if cached is not None and l0_empty:
        return 0, cached, "requests"
    if cached is not None and not has_cache:
        return cached, 0, "requests"
    return None, None, "none"


def _tiers(external: int, local: int, server: ServerDelta | None) -> tuple[int | None, int | None, str | None]:
    if external == 0:
        return 0, 0, None
    # A series appears with its first event: where one of the two is there, the other one counted nothing.
    from_l1, from_l2 = (0.0, 0.0) if server is None else (server.hit_l1 or 0.0, server.hit_l2 or 0.0)
    if from_l1 + from_l2 <= 0:
        return None, None, "the cache server does not tell L1 from L2 for these prompts"
    l2 = round(external * from_l2 / (from_l1 + from_l2))
    estimated = local > 0 and from_l1 > 0 and from_l2 > 0
    note = (
        "L1 and L2 are estimated from the server's lookups: the GPU cache served a part of them" if estimated else None
    )
    return external - l2, l2, note


def foreign_prompt_tokens(requests: Sequence[Measured], engine: EngineDelta) -> float | None:
    """Prompt tokens that the engine counted and we did not send; None where that cannot be told.

    A request of ours that failed may have been counted or not, so with failures only an excess over all that we
    could have sent is others'.
    """
    if engine.prompt_tokens is None or any(r.ok and r.prompt_tokens is None for r in requests):
        return None
    own = sum(r.prompt_tokens or 0 for r in requests if r.ok)
    if any(not r.ok for r in requests):
        return None
    return max(0.0, engine.prompt_tokens - own)
