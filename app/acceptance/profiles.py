"""How much each profile asks, and which arms it runs. Pure; sizes are in the server's chunks, so they fit any model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["codeword", "arithmetic", "continuation"]
ORDER: tuple[str, ...] = (
    "cold",
    "warm",
    "external_l1",
    "external_l2",
    "mixed",
    "shared_prefix",
    "changed_head",
    "cross_engine",
    "without_cache",
    "restarted_server",
    "restarted_engine",
)


@dataclass(frozen=True)
class Sizing:
    """One built-in prompt: what it asks, its length in chunks, where its facts are planted (0 = start, 1 = end)."""

    kind: Kind
    chunks: float
    depth: float


@dataclass(frozen=True)
class ProfileNumbers:
    """The numbers of a profile. `edge_chunks`: around these whole chunk counts, prompts of N−1, N and N+1 tokens."""

    prompts: tuple[Sizing, ...]
    edge_chunks: tuple[int, ...]
    max_tokens: int
    repeated_prompts: int  # how many prompts are asked cold again for the noise floor
    repeats: int
    deadline_seconds: float
    arms: tuple[str, ...]


_BASIC = ("cold", "warm", "external_l1", "external_l2")
_FULL = (*_BASIC, "mixed", "shared_prefix", "changed_head")
_KINDS: tuple[Kind, ...] = ("codeword", "arithmetic", "codeword", "continuation")


def _spread(count: int, low: float, high: float) -> tuple[Sizing, ...]:
    """`count` prompts from `low` to `high` chunks, geometrically spaced, facts planted all over the depth."""
    step = (high / low) ** (1 / max(1, count - 1))
    return tuple(
        Sizing(_KINDS[i % len(_KINDS)], low * step**i, 0.1 + 0.8 * ((i * 7) % count) / count) for i in range(count)
    )


PROFILES: dict[str, ProfileNumbers] = {
    "quick": ProfileNumbers(
        prompts=(
            Sizing("codeword", 3.3, 0.2),
            Sizing("arithmetic", 6.5, 0.6),
            Sizing("codeword", 4.7, 0.8),
            Sizing("continuation", 2.4, 0.5),
        ),
        edge_chunks=(),
        max_tokens=16,
        repeated_prompts=2,
        repeats=1,
        deadline_seconds=600,
        arms=_BASIC,
    ),
    "standard": ProfileNumbers(
        prompts=_spread(12, 1.3, 16.4),
        edge_chunks=(2,),
        max_tokens=24,
        repeated_prompts=4,
        repeats=1,
        deadline_seconds=1800,
        arms=_FULL,
    ),
    "thorough": ProfileNumbers(
        prompts=_spread(30, 1.3, 40.4),
        edge_chunks=(1, 2, 5),
        max_tokens=48,
        repeated_prompts=8,
        repeats=2,
        deadline_seconds=7200,
        arms=_FULL,
    ),
}


def default_arms(
    profile: str,
    *,
    second_engine: Literal["none", "same_server", "without_cache"] = "none",
    restart_hook: bool = False,
    chat: bool = False,
) -> tuple[str, ...]:
    """The arms of a profile, with those that the operator's second engine and restart hook make possible.

    `chat`: a message cannot be cut, so there is no head of it that could be asked alone.
    """
    arms = [a for a in PROFILES[profile].arms if not (chat and a == "mixed")]
    if second_engine == "same_server":
        arms.append("cross_engine")
    elif second_engine == "without_cache":
        arms.append("without_cache")
    if restart_hook:
        arms += ["restarted_server", "restarted_engine"]
    return in_order(arms)


def in_order(arms: Sequence[str]) -> tuple[str, ...]:
    """Arms in the order in which they must run, each once; `cold` always comes first, for it fills the cache."""
    return tuple(a for a in ORDER if a in arms or a == "cold")
