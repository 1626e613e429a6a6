"""Asking the prompts of one arm, collecting its evidence, comparing its answers. Their order is `conduct`'s."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.acceptance.answers import AnswerSet
from app.acceptance.compare import compare
from app.acceptance.counters import EngineCounters, LoadedTokens, SaltCounters
from app.acceptance.evidence import ArmEvidence, L1Emptied, ResetEvidence, TokenEvidence, resolve, total
from app.acceptance.load import LoadEvidence
from app.acceptance.prompts import Prompt
from app.acceptance.results import ArmResult, restricted
from app.acceptance.scoring import score
from app.acceptance.stack import Asked, RunStopped, Stack
from app.acceptance.tolerance import Tolerance
from app.lmcache.metrics import ServerMetrics

_UNKNOWN = TokenEvidence(None, None, None, None, None, "none")


@dataclass(frozen=True)
class Item:
    """One request to make. `reachable`: tokens at the head that the cache can hold, where not the whole prompt."""

    prompt: Prompt
    salt: str
    reachable: int | None = None


@dataclass(frozen=True)
class ArmPlan:
    """How an arm asks, and what is known about its requests before they are sent.

    `local_empty`: the GPU cache holds nothing of these salts; `held`: it holds all that it can of them. `split`: ask
    without streaming, because the split of the cached tokens matters and only then vLLM tells it. `probe`: the request
    that was sent just before, in the same state. `reference`: what the answers are compared with.
    """

    local_empty: bool = False
    held: bool = False
    split: bool = False
    probe: Asked | None = None
    reset: ResetEvidence | None = None
    l1_emptied: L1Emptied | None = None
    reference: AnswerSet | None = None


@dataclass(frozen=True)
class _Window:
    """What the targets counted while an arm ran; None where they do not tell or were not asked."""

    engine: EngineCounters | None = None
    server: SaltCounters | None = None
    loaded: LoadedTokens | None = None
    l2_loads: float | None = None
    load: LoadEvidence | None = None


@dataclass
class Asking:
    """What all arms of a run share: its numbers, its results, and where rows and progress go.

    `block_size`: of the engine's KV cache in tokens, None where it does not tell. `bracket`: the usage tells no
    cached tokens, so each request is bracketed with its counters.
    """

    chunk_size: int
    concurrency: int
    save: Callable[[list[dict[str, Any]]], None]
    advance: Callable[[str, int], None]
    results: dict[str, ArmResult]
    block_size: int | None = None
    bracket: bool = False
    tolerance: Tolerance | None = None
    lengths: dict[str, int] = field(default_factory=dict)  # prompt tokens as the engine counted them, by salt

    def remember(self, asked: Asked) -> None:
        """Notes the length of a salt's prompt; a variant sent under the same salt later does not replace it."""
        if asked.counts.prompt_tokens is not None:
            self.lengths.setdefault(asked.salt, asked.counts.prompt_tokens)

    async def arm(self, name: str, stack: Stack, items: Sequence[Item], plan: ArmPlan) -> AnswerSet:
        """Asks one batch; its evidence, comparison and rows are added to the arm's result.

        When the run has to stop in the middle, what came until then is kept before the exception goes on.
        """
        asked: list[Asked] = []
        salts = [i.salt for i in items]
        engine_before, server_before = await asyncio.gather(
            stack.counters.engine_before(), stack.counters.server_before(salts)
        )
        with stack.load.arm() as load:
            try:
                await self._ask_all(name, stack, items, asked, plan)
            except (RunStopped, asyncio.CancelledError):
                # The counters of a target in trouble are not waited for.
                await self._keep(name, items, asked, plan, _Window(load=load()))
                raise
        own = sum(a.counts.prompt_tokens or 0 for a in asked)
        lookups = sum((a.counts.prompt_tokens or 0) // self.chunk_size * self.chunk_size for a in asked)
        external = sum(_external_told(a, plan) for a in asked)
        engine = await stack.counters.engine_since(
            engine_before,
            own,
            local=sum(_local_told(a, plan) for a in asked),
            external=max(0, external - len(asked)),  # of whole chunks it counts one token less
        )
        # What went into the engine is counted after the look-up that found it: at least what the requests speak of.
        server, loaded = await stack.counters.server_since(server_before, salts, lookups, external)
        window = _Window(engine, server, loaded, await _l2_loads(stack, server_before), load())
        return await self._keep(name, items, asked, plan, window)

    async def _ask_all(self, name: str, stack: Stack, items: Sequence[Item], asked: list[Asked], plan: ArmPlan) -> None:
        evidence = self.results[name].evidence
        done_before = evidence.answered + evidence.refused
        count = self.bracket and self.concurrency == 1

        async def one(item: Item) -> None:
            asked.append(await stack.ask(item.prompt, item.salt, stream=not plan.split, count=count))
            self.remember(asked[-1])
            await asyncio.to_thread(self.advance, name, done_before + len(asked))

        if self.concurrency == 1:
            for item in items:
                await one(item)
        else:
            await _at_once([one(i) for i in items], self.concurrency)

    async def _keep(
        self, name: str, items: Sequence[Item], asked: Sequence[Asked], plan: ArmPlan, window: _Window
    ) -> AnswerSet:
        """Adds what was asked to the result, the comparison and the rows; returns the answers."""
        place = {(i.prompt.key, i.salt): n for n, i in enumerate(items)}
        ordered = sorted(asked, key=lambda a: place[a.prompt.key, a.salt])
        scored = await asyncio.to_thread(_scored, ordered)
        tokens = self._tokens(items, scored, plan, window)
        answered = [t for a, t in zip(scored, tokens, strict=True) if a.answer.refusal is None]
        result = self.results[name]
        result.add(
            ArmEvidence(
                name=name,
                requests=len(items),
                answered=len(answered),
                refused=len(scored) - len(answered),
                totals=total(answered, self.chunk_size) if answered else None,
                engine=window.engine,
                own_prompt_tokens=sum(a.counts.prompt_tokens or 0 for a in scored),
                server=window.server,
                loaded=window.loaded,
                l2_loads=window.l2_loads,
                reset=plan.reset,
                l1_emptied=plan.l1_emptied,
                load=window.load,
            )
        )
        _count(result, scored)
        answers = AnswerSet.of(name, [a.answer for a in scored])
        if plan.reference is not None and self.tolerance is not None:
            result.compare_with(compare(restricted(plan.reference, answers.answers), answers, self.tolerance))
        await asyncio.to_thread(self.save, [row_of(name, a, t) for a, t in zip(scored, tokens, strict=True)])
        return answers

    def _tokens(
        self, items: Sequence[Item], asked: Sequence[Asked], plan: ArmPlan, window: _Window
    ) -> list[TokenEvidence]:
        reachable = {(i.prompt.key, i.salt): i.reachable for i in items}
        external_none = _external_none(window)
        held = plan.held and _held_all(plan.probe)
        return [
            _UNKNOWN
            if a.answer.refusal is not None
            else resolve(
                a.counts,
                self.chunk_size,
                local_empty=plan.local_empty,
                external_none=external_none,
                local_most=self._local_most(a) if held else None,
                reachable=reachable[a.prompt.key, a.salt],
            )
            for a in asked
        ]

    def _local_most(self, asked: Asked) -> int:
        """What the GPU cache can serve of a prompt that it holds: the whole blocks before its last token, which is
        always computed."""
        before_last = max(0, (asked.counts.prompt_tokens or 0) - 1)
        return before_last if self.block_size is None else before_last // self.block_size * self.block_size


def base_key(key: str) -> str:
    """The prompt behind a variant: p01 for p01v and p01h."""
    return key.rstrip("vh")


def _count(result: ArmResult, asked: Sequence[Asked]) -> None:
    for a in asked:
        if a.ttft_seconds is not None and a.answer.refusal is None:
            result.ttft[base_key(a.prompt.key)] = a.ttft_seconds
        if a.prompt.expected is not None:
            result.scored += 1
            result.right += a.answer.score or 0.0
            result.metrics.add(a.prompt.scoring or "contains")


def _external_none(window: _Window) -> bool:
    """Whether a counter says that nothing of the run's came from outside while the arm ran."""
    if window.loaded is not None and window.loaded.tokens == 0:
        return True
    return window.engine is not None and window.engine.external_hits == 0


def _held_all(probe: Asked | None) -> bool:
    """Whether the request sent in the same state was served by the GPU cache, and by nothing else."""
    return probe is not None and probe.counts.stats_external == 0 and bool(probe.counts.stats_local)


def _external_told(asked: Asked, plan: ArmPlan) -> int:
    """Tokens that a request's own numbers make external."""
    counts = asked.counts
    if counts.stats_external is not None:
        return counts.stats_external
    return (counts.cached_tokens or 0) if plan.local_empty else 0


def _local_told(asked: Asked, plan: ArmPlan) -> int:
    """Tokens that a request's own numbers make local."""
    counts = asked.counts
    if counts.stats_local is not None:
        return counts.stats_local
    nothing_loaded = plan.held and counts.stats_external is None and _held_all(plan.probe)
    return min(counts.cached_tokens or 0, counts.prompt_tokens or 0) if nothing_loaded else 0


async def _l2_loads(stack: Stack, before: ServerMetrics | None) -> float | None:
    now = await stack.counters.server()
    if before is None or now is None or now.instance_id != before.instance_id or now.l2_load_completed_chunks is None:
        return None
    return now.l2_load_completed_chunks - (before.l2_load_completed_chunks or 0.0)


def _scored(asked: Sequence[Asked]) -> list[Asked]:
    """Answers with their score; what cannot be scored keeps None, a refusal is wrong."""
    found: list[Asked] = []
    for a in asked:
        if a.prompt.expected is None:
            found.append(a)
            continue
        value = 0.0 if a.answer.refusal else score(a.answer.text, a.prompt.expected, a.prompt.scoring)
        found.append(replace(a, answer=replace(a.answer, score=value)))
    return found


def row_of(arm: str, asked: Asked, tokens: TokenEvidence, *, repeat: int = 0) -> dict[str, Any]:
    """The columns of AcceptanceAnswer for one request, without the run."""
    refusal = asked.answer.refusal
    return {
        "arm": arm,
        "prompt_key": asked.prompt.key,
        "repeat": repeat,
        "probe": asked.prompt.probe,
        "salt": asked.salt,
        "started_at": asked.started_at,
        "http_status": refusal.http_status if refusal else 200,
        "error": refusal.message if refusal else None,
        "ttft_seconds": asked.ttft_seconds,
        "total_seconds": asked.total_seconds,
        "prompt_tokens": asked.counts.prompt_tokens,
        "completion_tokens": asked.completion_tokens,
        "local_tokens": tokens.local_tokens,
        "external_tokens": tokens.external_tokens,
        "expected_external_tokens": tokens.expected_tokens,
        "evidence_source": tokens.source,
        "score": asked.answer.score,
        "text": asked.answer.text,
        "data": asked.answer.to_json(),
    }


async def _at_once(work: Sequence[Coroutine[Any, Any, None]], limit: int) -> None:
    """Runs coroutines, at most `limit` at a time; the first trouble cancels the rest and is raised."""
    gate = asyncio.Semaphore(limit)

    async def gated(coroutine: Coroutine[Any, Any, None]) -> None:
        async with gate:
            await coroutine

    tasks = [asyncio.ensure_future(gated(w)) for w in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for coroutine in work:
            coroutine.close()  # those that never began
