"""One engine and its cache server during a run: asking, counting, emptying. The only module of the room that speaks
to targets while a run goes on.

Trouble with a target ends the run: it is raised as `RunStopped` with the finding that says so. What an engine itself
refuses is an answer.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from app.acceptance import fixes, own_records
from app.acceptance.answers import Answer, to_answer
from app.acceptance.counters import EngineCounters
from app.acceptance.counting import moved, stores_of, whole
from app.acceptance.evidence import L1Emptied, RequestCounts, ResetEvidence, StoredEvidence
from app.acceptance.finding import Finding
from app.acceptance.ledger import ServerLedger
from app.acceptance.load_watch import Flight, LoadWatch
from app.acceptance.prompts import SALT_PREFIX, Prompt
from app.acceptance.readings import Patience, Readings
from app.errors import TargetError
from app.fleet.targets import EngineTarget, ServerTarget, StoreTarget
from app.lmcache.client import LMCacheClient
from app.lmcache.metrics import ServerMetrics
from app.lmcache.object_keys import ObjectKey
from app.vllm.client import VLLMClient
from app.vllm.completions import CompletionAnswer, CompletionRequest

TOP_K = 5


class RunStopped(Exception):
    """The run cannot go on; `finding` says why (severity error, timeout or invalid)."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.text)
        self.finding = finding


@dataclass(frozen=True)
class Pace:
    """How often and how long things are waited for, seconds."""

    poll: float = 0.1
    reset: float = 30.0
    stored: float = 60.0
    counters: float = 3.0
    lag: float = 10.0
    still: float = 1.0
    emptied: float = 20.0
    registered: float = 180.0
    load: float = 0.5


@dataclass(frozen=True)
class Asked:
    """One request and all it said. `started_at` in epoch seconds."""

    prompt: Prompt
    salt: str
    answer: Answer
    counts: RequestCounts
    started_at: float
    ttft_seconds: float | None
    total_seconds: float
    completion_tokens: int | None
    prompt_token_ids: tuple[int, ...] = ()


@dataclass
class Stack:
    """Clients of the targets and the numbers of the run. Opened and closed by `app.acceptance.run`."""

    engine: EngineTarget
    server: ServerTarget
    stores: Sequence[StoreTarget]
    vllm: VLLMClient
    lmcache: LMCacheClient
    model: str
    run_key: str
    request_timeout: float
    clock: Callable[[], float]
    pace: Pace = field(default_factory=Pace)
    use_salt: bool = True
    chunk_size: int = 1
    #: Whether what the engine is asked is looked up at the cache server, whose counts all its engines share.
    connected: bool = True
    ledger: ServerLedger = field(default_factory=ServerLedger)
    #: Told of every request that was answered; it may write rows, so it is called in a thread.
    on_request: Callable[[], None] = lambda: None
    #: Set when the run ends early: threads that walk directories or sum files then give up.
    stopping: threading.Event = field(default_factory=threading.Event)
    load: LoadWatch = field(init=False)
    counters: Readings = field(init=False)
    _next_look: float = 0.0
    _last_look: tuple[int | None, str] = (None, "")

    def __post_init__(self) -> None:
        self.load = LoadWatch(self.vllm.load, self.pace.load)
        pace = self.pace
        self.counters = Readings(
            self.vllm,
            self.lmcache,
            Patience(pace.poll, pace.lag, min(pace.counters, pace.lag), pace.still),
            lambda load: self.load.between.note(load),
            self.use_salt,
            self.chunk_size,
            self.connected,
            self.ledger,
        )

    # asking

    async def ask(self, prompt: Prompt, salt: str, *, stream: bool, count: bool = False) -> Asked:
        """One request. `count` brackets it with the engine's counters (only sensible one at a time).

        Without `stream` vLLM tells the split of cached tokens but no time to first token. A refusal that may pass
        (429, 503) is tried once more.
        """
        before = await self.counters.engine_before() if count else None
        request = CompletionRequest(
            model=self.model,
            prompt=list(prompt.token_ids) if prompt.token_ids is not None else prompt.text,
            messages=prompt.messages,
            max_tokens=prompt.max_tokens,
            logprobs=TOP_K,
            cache_salt=salt if self.use_salt else None,
            ignore_eos=prompt.ignore_eos,
            stream=stream,
            deadline_seconds=self.request_timeout,
        )
        started = self.clock()
        async with self.load.request(streamed=stream) as flight:
            raw = await self._complete(request, flight)
            if raw.error is not None and raw.error.status in (429, 503):
                await asyncio.sleep(10 * self.pace.poll)
                started = self.clock()
                raw = await self._complete(request, flight)
        counts = RequestCounts(
            prompt_tokens=raw.prompt_tokens,
            cached_tokens=raw.cached_tokens,
            stats_local=raw.kv_stats.num_vllm_cached_tokens if raw.kv_stats else None,
            stats_external=raw.kv_stats.num_lmcache_extra_cached_tokens if raw.kv_stats else None,
        )
        if raw.error is None:
            self.counters.asked(salt, counts.prompt_tokens, counts.stats_external)
        if before is not None:
            counts = await self._counted(counts, before)
        await asyncio.to_thread(self.on_request)
        return Asked(
            prompt=prompt,
            salt=salt,
            answer=to_answer(prompt.key, raw, most=prompt.max_tokens, chat=prompt.messages is not None),
            counts=counts,
            started_at=started,
            ttft_seconds=raw.ttft_seconds,
            total_seconds=raw.total_seconds,
            completion_tokens=raw.completion_tokens,
            prompt_token_ids=raw.prompt_token_ids,
        )

    async def _complete(self, request: CompletionRequest, flight: Flight) -> CompletionAnswer:
        try:
            return await self.vllm.complete(request, on_first_token=flight.first_token)
        except TargetError as error:
            raise RunStopped(self.engine_trouble(error)) from error

    def engine_trouble(self, error: TargetError) -> Finding:
        """What a call that the engine did not answer means. Silence is a deadline, whichever call met it: a machine
        under load, or an engine that hangs, lets any of them wait."""
        if error.kind == "timeout":
            text = f"the engine {self.engine.name} stopped answering: {error.detail}"
            return Finding("engine_stopped_answering", "timeout", text, fixes.ENGINE_HANGS)
        return Finding("engine_trouble", "error", f"engine {self.engine.name}: {error.detail}", fixes.ENGINE_DOWN)

    def server_trouble(self, error: TargetError) -> Finding:
        """As `engine_trouble`, of the cache server."""
        name = self.server.name
        if error.kind == "timeout":
            text = f"the cache server {name} stopped answering: {error.detail}"
            return Finding("server_stopped_answering", "timeout", text, fixes.SERVER_HANGS)
        return Finding("server_trouble", "error", f"cache server {name}: {error.detail}", fixes.SERVER_DOWN)

    async def _counted(self, counts: RequestCounts, before: EngineCounters) -> RequestCounts:
        own = counts.prompt_tokens or 0
        after = await self.counters.engine_since(before, own)
        if after.prompt_tokens is None or after.prompt_tokens != own:
            return counts  # others' requests are in the numbers, or the counters lag: they prove nothing
        return RequestCounts(
            counts.prompt_tokens,
            counts.cached_tokens,
            counts.stats_local,
            counts.stats_external,
            whole(after.local_hits),
            whole(after.external_hits),
        )

    # emptying L0

    async def reset(self) -> ResetEvidence:
        """Asks the engine to empty its prefix cache until it says that it has, or the deadline. Effect not proven."""
        began = time.monotonic()
        attempts = 0
        while True:
            attempts += 1
            try:
                answer = await self.vllm.reset_prefix_cache()
            except TargetError as error:
                raise RunStopped(self.engine_trouble(error)) from error
            waited = time.monotonic() - began
            if answer.state != "busy" or waited > self.pace.reset:
                return ResetEvidence(answer.state, None, attempts, waited, answer.detail)
            await asyncio.sleep(self.pace.poll)

    def prove_reset(self, reset: ResetEvidence, probe: Asked) -> ResetEvidence:
        """The reset with its effect, as the first request after it shows it. Its prompt was in the GPU cache before."""
        counts = probe.counts
        served = [n for n in (counts.stats_local, counts.counted_local) if n is not None]
        effective: bool | None = None
        if served:
            effective = not any(served)  # each of them that can tell must say so
        elif counts.cached_tokens == 0:
            effective = True
        return ResetEvidence(reset.state, effective, reset.attempts, reset.waited_seconds, reset.detail)

    # emptying L1

    async def empty_l1(self, salts: Sequence[str], *, allow_clear: bool) -> L1Emptied:
        """Drops the run's own objects from L1, by the keys that its record names give; the records on disk stay.

        Where the names cannot be known, the whole L1 is cleared only if the operator allowed it (E6).
        """
        if self.use_salt:
            looked, why = await asyncio.to_thread(
                own_records.try_find, self.stores, self.salt_prefix, self.stopping.is_set
            )
        else:
            looked, why = None, "prompts carry a nonce instead of a salt, so their records have no name of ours"
        keys = looked.keys(salts) if looked is not None else []
        if keys:
            by_keys = await self.drop_keys(keys)
            if by_keys.done or not allow_clear:
                return by_keys
        elif not allow_clear:
            why = why or "no record of the run is on disk"
            return L1Emptied("none", False, detail=f"{why}; clearing everybody's L1 was not allowed")
        try:
            answer = await self.lmcache.clear_l1()
        except TargetError as error:
            return L1Emptied("clear", False, len(keys), detail=error.detail)
        return L1Emptied("clear", answer.ok, len(keys), detail="the whole L1 was cleared")

    async def drop_keys(self, keys: Sequence[ObjectKey]) -> L1Emptied:
        """Drops these objects from L1, asking again while transfers lock some of them."""
        deadline = time.monotonic() + self.pace.emptied
        removed = 0
        while True:
            try:
                answer = await self.lmcache.delete_l1(keys)
            except TargetError as error:
                return L1Emptied("keys", False, len(keys), removed, detail=error.detail)
            removed += answer.deleted
            if answer.ok and answer.skipped == 0:
                return L1Emptied("keys", True, len(keys), removed)
            if time.monotonic() > deadline:
                detail = answer.error or (
                    f"{answer.skipped} objects stayed locked: by transfers, or by a lookup that an engine gave up (the "
                    "server lets go of those after --l1-read-ttl-seconds, 300 s)"
                )
                return L1Emptied("keys", False, len(keys), removed, answer.skipped, detail)
            await asyncio.sleep(self.pace.poll)

    @property
    def salt_prefix(self) -> str:
        return f"{SALT_PREFIX}{self.run_key}-"

    # waiting for stores

    async def wait_stored(
        self, chunks: Mapping[str, int], before: ServerMetrics | None, *, need_l2: bool
    ) -> StoredEvidence:
        """Waits until what was computed has reached the tiers. `chunks`: whole chunks expected of each salt.

        L2 is proven by the run's own names on disk where there is a directory, else by the server's counters; L1 by
        either or by the chunks it counted as written. `before`: the counters from before the first request.
        """
        began = time.monotonic()
        expected = sum(chunks.values())
        self._next_look = 0.0
        while True:
            found = await self._stored_now(chunks, before, expected, time.monotonic() - began)
            complete = found.queue_empty is not False and (
                found.reached_l2 if need_l2 or self.stores else found.reached_l1
            )
            if complete or found.waited_seconds > self.pace.stored:
                return found
            if not need_l2 and found.reached_l1 and found.queue_empty and found.waited_seconds > self.pace.counters:
                return found
            await asyncio.sleep(self.pace.poll)

    async def _stored_now(
        self, chunks: Mapping[str, int], before: ServerMetrics | None, expected: int, waited: float
    ) -> StoredEvidence:
        try:
            status = await self.lmcache.status()
        except TargetError as error:
            raise RunStopped(self.server_trouble(error)) from error
        now = await self.counters.server()
        on_disk, why = await self._on_disk(chunks)
        if self.use_salt:
            in_l1, submitted, completed = stores_of(now, chunks)
        else:
            in_l1 = moved(now, before, "l1_write_chunks")
            submitted = moved(now, before, "l2_store_submitted_chunks")
            completed = moved(now, before, "l2_store_completed_chunks")
        reached_l2: bool | None
        if on_disk is not None:
            reached_l2 = on_disk >= expected
        elif completed is not None and submitted is not None:
            reached_l2 = completed >= expected and completed >= submitted
        else:
            reached_l2 = None
        reached_l1 = True if reached_l2 else (None if in_l1 is None else in_l1 >= expected)
        return StoredEvidence(
            expected=expected,
            in_l1=in_l1,
            submitted_l2=submitted,
            completed_l2=completed,
            on_disk=on_disk,
            reached_l1=reached_l1,
            reached_l2=reached_l2,
            queue_empty=status.store_drained,
            waited_seconds=waited,
            detail=why,
        )

    async def _on_disk(self, chunks: Mapping[str, int]) -> tuple[int | None, str]:
        """(expected chunks found on disk, "") or (None, why nobody can look). A large directory is not walked at every
        poll: a look waits for four times what the last one took."""
        if not self.use_salt:
            return None, "prompts carry a nonce instead of a salt, so their records have no name of ours"
        began = time.monotonic()
        if began < self._next_look:
            return self._last_look
        looked, why = await asyncio.to_thread(own_records.try_find, self.stores, self.salt_prefix, self.stopping.is_set)
        found = None if looked is None else sum(min(n, looked.chunks_of(s)) for s, n in chunks.items())
        took = time.monotonic() - began
        self._next_look = began + 5 * took if took > self.pace.poll else 0.0
        self._last_look = (found, why)
        return self._last_look
