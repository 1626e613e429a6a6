"""What a request asks an engine for and what it gets: tokens, log-probabilities, and where the prompt came from."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from app.sandbox import tokenizer

_NOISE = 0.0005


@dataclass(frozen=True)
class Sampling:
    """What a request asks for. Without `top_logprobs` no log-probabilities; `prompt_logprobs` skips every cache."""

    max_tokens: int = 16
    temperature: float = 0.0
    top_logprobs: int | None = None
    ignore_eos: bool = False
    min_tokens: int = 0
    seed: int | None = None
    salt: str = ""
    prompt_logprobs: int | None = None

    @property
    def skip_caches(self) -> bool:
        return self.prompt_logprobs is not None


@dataclass(frozen=True)
class Step:
    """One generated token: its log-probability (NaN possible) and the alternatives, best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass
class Generation:
    """An answer and how it came about. Token counts: `local` + `external` + `computed` = prompt.

    `lmcache_cached` is what LMCache holds of the prompt, `lmcache_extra` what it really supplied; on a prompt of
    exactly whole chunks `external` is one less than that. `prompt_logprobs` has for every prompt token but the first
    the token itself and the best ones, as (token, log-probability, rank).
    """

    prompt: Sequence[int]
    steps: list[Step] = field(default_factory=list)
    finish_reason: str = "length"
    local: int = 0
    external: int = 0
    computed: int = 0
    lmcache_cached: int = 0
    lmcache_extra: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    prompt_logprobs: list[list[tuple[int, float, int]]] | None = None

    @property
    def cached(self) -> int:
        return self.local + self.external

    @property
    def tokens(self) -> list[int]:
        return [step.token for step in self.steps]


def pick(logprobs: Sequence[float], temperature: float, rng: random.Random) -> int:
    """The best token (the lowest id of equals), or a sampled one; token 0 where all is NaN, as the real one gives."""
    if logprobs[0] != logprobs[0]:
        return tokenizer.UNKNOWN
    if temperature <= 0:
        return max(range(len(logprobs)), key=lambda i: (logprobs[i], -i))
    weights = [2.718281828459045 ** (value / temperature) for value in logprobs]
    return rng.choices(range(len(weights)), weights)[0]


def best(logprobs: Sequence[float], chosen: int, count: int | None) -> tuple[tuple[int, float], ...]:
    """The `count` best tokens, and the chosen one if it is not among them."""
    if count is None:
        return ()
    if logprobs[0] != logprobs[0]:
        return ((chosen, logprobs[chosen]),)
    best = sorted(range(len(logprobs)), key=lambda i: (-logprobs[i], i))[:count]
    if chosen not in best:
        best.insert(0, chosen)
    return tuple((i, logprobs[i]) for i in best)


def constant_steps(result: Generation, kind: str, count: int, rng: random.Random) -> None:
    """One answer whatever was asked (the fault `constant_answers`), of `count` tokens."""
    steps: list[Step] = []
    for index in range(count):
        token = 10 + index % 3
        own = result.steps[index].logprob if kind == "words" and index < len(result.steps) else -0.25
        logprob = own + (rng.uniform(-_NOISE, _NOISE) if kind == "noise" else 0.0)
        steps.append(Step(token, logprob, ((token, logprob), *((30 + n, logprob - 1.0 - n) for n in range(4)))))
    result.steps, result.finish_reason = steps, "length"
