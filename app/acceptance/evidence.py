"""What proves that an arm did what it claims (RULES.md E2): tokens, shares, counter windows, resets. Pure.

Where something was not measured the field is None, never zero; `app.acceptance.verdict` turns every None that matters
into a reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from app.acceptance.counters import (
    EngineCounters,
    LoadedTokens,
    SaltCounters,
    add,
    add_engine,
    add_loaded,
    add_salts,
)
from app.acceptance.load import LoadEvidence

Source = Literal["request_statistics", "request_cached_tokens", "engine_counters", "none"]


def expected_external(prompt_tokens: int, chunk_size: int, local_tokens: int = 0) -> int:
    """Tokens the cache can supply: whole chunks of the prompt minus what the GPU cache served (E2)."""
    return max(0, prompt_tokens // chunk_size * chunk_size - local_tokens)


def is_full_share(prompt_tokens: int, chunk_size: int, external_tokens: int, expected: int) -> bool:
    """Whether all that was expected came. Of a prompt of exactly whole chunks the last token is always recomputed:
    128 tokens in the statistics read 127 in `cached_tokens` and in the engine's counters."""
    return external_tokens >= expected or (prompt_tokens % chunk_size == 0 and external_tokens == expected - 1)


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """What one request and the counters around it said, in tokens. None = nothing said it."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None  # usage.prompt_tokens_details.cached_tokens: local + external
    stats_local: int | None = None  # num_vllm_cached_tokens
    stats_external: int | None = None  # num_lmcache_extra_cached_tokens
    counted_local: int | None = None  # delta of the engine's counters around this request, nobody else in between
    counted_external: int | None = None


@dataclass(frozen=True, slots=True)
class TokenEvidence:
    """One request's tokens by where they came from."""

    prompt_tokens: int | None
    local_tokens: int | None
    external_tokens: int | None
    expected_tokens: int | None
    full: bool | None
    source: Source


def resolve(
    counts: RequestCounts,
    chunk_size: int,
    *,
    local_empty: bool,
    external_none: bool = False,
    local_most: int | None = None,
    reachable: int | None = None,
) -> TokenEvidence:
    """Splits one request's tokens; per-request statistics first, the engine's counters last (E2).

    `external_none`: a counter of this window says that nothing was loaded from outside; then all that was cached is
    local, whatever was believed of the GPU cache. `local_empty`: the GPU cache was shown to hold nothing of this
    prompt's salt before the request (an effective reset, or a salt never sent before); then all that was cached is
    external. `local_most`: the GPU cache holds all that it can of this prompt, and that is so many tokens; what is
    cached beyond them is external. vLLM reports the split only in answers that are not streamed; streamed ones carry
    the sum alone, so the two last are conclusions: `app.acceptance.agreement` holds them against the counters.
    `reachable`: tokens at the head that can be cached, where not the whole prompt.

    Where the engine's counters were read around this very request and say otherwise, nothing is known.
    """
    prompt = counts.prompt_tokens
    local: int | None
    external: int | None
    source: Source
    cached = counts.cached_tokens
    if counts.stats_external is not None and counts.stats_local is not None:
        local, external, source = counts.stats_local, counts.stats_external, "request_statistics"
    elif cached is not None and (external_none or cached == 0):
        local, external, source = cached, 0, "request_cached_tokens"
    elif cached is not None and local_empty:
        local, external, source = 0, cached, "request_cached_tokens"
    elif cached is not None and local_most is not None:
        local = min(cached, local_most)
        external, source = cached - local, "request_cached_tokens"
    elif counts.counted_local is not None and counts.counted_external is not None:
        local, external, source = counts.counted_local, counts.counted_external, "engine_counters"
    else:
        return TokenEvidence(prompt, None, None, None, None, "none")
    if _counted_otherwise(counts, local, external):
        return TokenEvidence(prompt, None, None, None, None, "none")
    if prompt is None:
        return TokenEvidence(None, local, external, None, None, source)
    within = prompt if reachable is None else min(reachable, prompt)
    # The last token of a prompt is always computed: a GPU cache that holds all of it serves one token less.
    expected = 0 if local >= prompt - 1 else expected_external(within, chunk_size, local)
    full = is_full_share(prompt, chunk_size, external, expected)
    return TokenEvidence(prompt, local, external, expected, full, source)


def _counted_otherwise(counts: RequestCounts, local: int, external: int) -> bool:
    """Whether counters read around this one request contradict its split.

    A prompt of exactly whole chunks reads one token less there; a lookup that is repeated counts its local hits again.
    """
    if counts.counted_external is not None and not 0 <= external - counts.counted_external <= 1:
        return True
    if counts.counted_local is None:
        return False
    return local > counts.counted_local or (local == 0 and counts.counted_local > 0)


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over an arm. Each sum is None as soon as one request lacks its number."""

    requests: int = 0
    prompt_tokens: int | None = 0
    local_tokens: int | None = 0
    external_tokens: int | None = 0
    expected_tokens: int | None = 0
    not_full: int = 0  # requests that got less than expected
    unknown: int = 0  # requests without a known split
    too_short: int = 0  # prompts with less than one chunk: they can never hit
    rounded: int = 0  # statistics of prompts of exactly whole chunks: one token more than the engine's counters say
    sources: tuple[str, ...] = ()

    def add(self, item: TokenEvidence, chunk_size: int) -> Totals:
        """The totals with one more request."""
        return Totals(
            requests=self.requests + 1,
            prompt_tokens=_plus(self.prompt_tokens, item.prompt_tokens),
            local_tokens=_plus(self.local_tokens, item.local_tokens),
            external_tokens=_plus(self.external_tokens, item.external_tokens),
            expected_tokens=_plus(self.expected_tokens, item.expected_tokens),
            not_full=self.not_full + (item.full is False),
            unknown=self.unknown + (item.full is None),
            too_short=self.too_short + (item.prompt_tokens is not None and item.prompt_tokens < chunk_size),
            rounded=self.rounded
            + (item.source == "request_statistics" and (item.prompt_tokens or 1) % chunk_size == 0),
            sources=tuple(sorted({*self.sources, item.source})),
        )

    @property
    def share(self) -> float | None:
        """External ÷ expected; exactly 1.0 when every request got its full share; None when nothing was expected."""
        if self.expected_tokens is None or self.external_tokens is None or self.expected_tokens == 0:
            return None
        if self.not_full == 0 and self.unknown == 0:
            return 1.0
        return min(1.0, self.external_tokens / self.expected_tokens)


def total(items: Iterable[TokenEvidence], chunk_size: int) -> Totals:
    """Totals of a list of requests."""
    totals = Totals()
    for item in items:
        totals = totals.add(item, chunk_size)
    return totals


def _plus(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


@dataclass(frozen=True)
class ResetEvidence:
    """One emptying of the engine's prefix cache. `effective` is the proof by a request, None when there is none."""

    state: Literal["done", "busy", "unavailable", "unknown"]
    effective: bool | None = None
    attempts: int = 1
    waited_seconds: float = 0.0
    detail: str = ""


@dataclass(frozen=True)
class L1Emptied:
    """One emptying of the cache server's L1 of the run's own objects."""

    method: Literal["keys", "clear", "none"]
    done: bool
    keys: int = 0
    removed: int = 0
    locked: int = 0
    detail: str = ""


@dataclass(frozen=True)
class StoredEvidence:
    """Whether what the cold arm computed has reached the tiers. Counts are objects (records); None = not known."""

    expected: int | None
    in_l1: int | None = None
    submitted_l2: int | None = None
    completed_l2: int | None = None
    on_disk: int | None = None
    reached_l1: bool | None = None
    reached_l2: bool | None = None
    queue_empty: bool | None = None
    waited_seconds: float = 0.0
    detail: str = ""


@dataclass(frozen=True)
class RecordsEvidence:
    """The run's own record files between two looks, by checksum where they were read."""

    files: int
    bytes: int
    lost: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    checksums: bool = True

    @property
    def intact(self) -> bool:
        return not self.lost and not self.changed

    def merged(self, other: RecordsEvidence) -> RecordsEvidence:
        """This batch's and another's."""
        return RecordsEvidence(
            files=self.files + other.files,
            bytes=self.bytes + other.bytes,
            lost=self.lost + other.lost,
            changed=self.changed + other.changed,
            checksums=self.checksums and other.checksums,
        )


@dataclass(frozen=True)
class ArmEvidence:
    """Everything one arm must show."""

    name: str
    requests: int = 0  # prompts the arm was to ask
    answered: int = 0
    refused: int = 0
    totals: Totals | None = None
    engine: EngineCounters | None = None  # deltas over the arm
    own_prompt_tokens: int | None = None  # what our requests add to the engine's counter
    server: SaltCounters | None = None  # deltas of our salts over the arm
    loaded: LoadedTokens | None = None  # None where the server does not count what it moves (engine_driven)
    l2_loads: float | None = None  # chunks the server loaded from L2 meanwhile, for servers that do not split hits
    reset: ResetEvidence | None = None
    l1_emptied: L1Emptied | None = None
    load: LoadEvidence | None = None  # of the engine while the requests were in flight

    @property
    def complete(self) -> bool:
        return self.requests > 0 and self.answered + self.refused == self.requests

    @property
    def foreign_tokens(self) -> float | None:
        """Prompt tokens of others in the window; None when the counters do not tell."""
        if self.engine is None or self.engine.prompt_tokens is None or self.own_prompt_tokens is None:
            return None
        return max(0.0, self.engine.prompt_tokens - self.own_prompt_tokens)

    @property
    def alone(self) -> bool:
        """Whether the engine's counters over this arm are surely of the run's own requests only."""
        others = self.load.others if self.load is not None else None
        return self.foreign_tokens == 0 and (others is None or others.high == 0)

    def merged(self, other: ArmEvidence) -> ArmEvidence:
        """This arm with another batch's evidence added; what one of them lacks, the sum lacks."""
        return replace(
            self,
            requests=self.requests + other.requests,
            answered=self.answered + other.answered,
            refused=self.refused + other.refused,
            totals=_merge_totals(self.totals, other.totals),
            engine=add_engine(self.engine, other.engine),
            own_prompt_tokens=_plus(self.own_prompt_tokens, other.own_prompt_tokens),
            server=None if self.server is None or other.server is None else add_salts(self.server, other.server),
            loaded=add_loaded(self.loaded, other.loaded),
            l2_loads=add(self.l2_loads, other.l2_loads),
            reset=_worse_reset(self.reset, other.reset),
            l1_emptied=_worse_emptied(self.l1_emptied, other.l1_emptied),
            load=self.load.merged(other.load) if self.load and other.load else self.load or other.load,
        )

    def to_json(self) -> dict[str, Any]:
        """For the run's `evidence` object."""
        return {**asdict(self), "foreign_tokens": self.foreign_tokens}


def _merge_totals(a: Totals | None, b: Totals | None) -> Totals | None:
    if a is None or b is None:
        return None
    return Totals(
        requests=a.requests + b.requests,
        prompt_tokens=_plus(a.prompt_tokens, b.prompt_tokens),
        local_tokens=_plus(a.local_tokens, b.local_tokens),
        external_tokens=_plus(a.external_tokens, b.external_tokens),
        expected_tokens=_plus(a.expected_tokens, b.expected_tokens),
        not_full=a.not_full + b.not_full,
        unknown=a.unknown + b.unknown,
        too_short=a.too_short + b.too_short,
        rounded=a.rounded + b.rounded,
        sources=tuple(sorted({*a.sources, *b.sources})),
    )


_RESET_ORDER = {"done": 0, "unknown": 1, "busy": 2, "unavailable": 3}


def _worse_reset(a: ResetEvidence | None, b: ResetEvidence | None) -> ResetEvidence | None:
    if a is None or b is None:
        return None
    worse = max((a, b), key=lambda r: _RESET_ORDER[r.state])
    effective = False if False in (a.effective, b.effective) else (None if None in (a.effective, b.effective) else True)
    return replace(
        worse,
        effective=effective,
        attempts=a.attempts + b.attempts,
        waited_seconds=a.waited_seconds + b.waited_seconds,
    )


def _worse_emptied(a: L1Emptied | None, b: L1Emptied | None) -> L1Emptied | None:
    if a is None or b is None:
        return None
    worse = a if not a.done else b
    return replace(worse, keys=a.keys + b.keys, removed=a.removed + b.removed, locked=a.locked + b.locked)
