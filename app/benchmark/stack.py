"""Targets of one run: asking, counting, emptying, waiting. The only module that speaks to them while a run goes on.

Trouble with a target is raised as `RunStopped` with the finding that says so; what an engine refuses is a measurement.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from app.acceptance.facts import Facts
from app.benchmark import fixes
from app.benchmark.measures import Measured, gaps
from app.benchmark.ports import Pace
from app.benchmark.prompts import Vocabulary, text_prompt, token_prompt
from app.benchmark.result import Stored
from app.benchmark.shapes import Planned, reachable
from app.benchmark.tokens import EngineDelta, ServerDelta
from app.benchmark.verdict import Finding
from app.errors import TargetError
from app.fleet.targets import EngineTarget, ServerTarget, StoreTarget
from app.lmcache.client import LMCacheClient
from app.lmcache.metrics import ServerMetrics
from app.vllm.client import VLLMClient
from app.vllm.completions import CompletionAnswer, CompletionRequest
from app.vllm.metrics import EngineMetrics


class RunStopped(Exception):
    """The run cannot go on; `finding` says why (severity error or invalid)."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.text)
        self.finding = finding


@dataclass
class Server:
    """One cache server of the run. `identity` is its boot, as far as it tells it."""

    target: ServerTarget
    client: LMCacheClient
    stores: Sequence[StoreTarget]
    chunk_size: int | None = None
    identity: tuple[object, object] | None = None
    salts: bool = True  # False: quotas per salt, so prompts carry a nonce instead


@dataclass
class Engine:
    """One engine of the run and what is known about it."""

    target: EngineTarget
    client: VLLMClient
    facts: Facts
    vocabulary: Vocabulary
    server: Server | None
    start: float | None = None
    in_process: bool = False  # LMCache runs inside the engine: there is no server to ask, and salts are ignored

    @property
    def has_cache(self) -> bool:
        """Whether LMCache stands behind it, as a server or inside."""
        return self.server is not None or self.in_process

    @property
    def salts(self) -> bool:
        """Whether a cache salt keeps prompts apart; else they carry a nonce."""
        return not self.in_process and (self.server is None or self.server.salts)


@dataclass
class Side:
    """A scenario: `engines[0]` makes the first pass, `readers` (else the same) the second.

    `fresh_salts`: the passes have salts of their own, so no cache can help.
    """

    name: str
    title: str
    engines: list[Engine]
    readers: list[Engine] = field(default_factory=list)
    fresh_salts: bool = False

    @property
    def server(self) -> Server | None:
        return self.engines[0].server

    @property
    def all_engines(self) -> list[Engine]:
        return list({e.target.id: e for e in (*self.engines, *self.readers)}.values())

    @property
    def chunk_size(self) -> int | None:
        return self.server.chunk_size if self.server is not None else None


@dataclass(frozen=True)
class Asking:
    """What all requests of a run share."""

    output_tokens: int
    request_timeout: float
    clock: Callable[[], float]
    pace: Pace


async def ask(
    engine: Engine,
    planned: Planned,
    asking: Asking,
    *,
    side: str,
    repeat: int,
    phase: str,
    position: int,
    salt: str,
    began: float,
    offset: float | None = None,
    chunk_size: int | None = None,
) -> Measured:
    """One streamed request. `began` is the phase's start on the monotonic clock, `offset` when it was to be sent.

    A refusal or trouble on the way is in the result's `error`; trouble has no HTTP status.
    """
    request = CompletionRequest(
        model=engine.facts.model,
        prompt=_prompt(engine, planned, salt),
        max_tokens=asking.output_tokens,
        logprobs=None,
        seed=None,
        cache_salt=salt if engine.salts else None,
        ignore_eos=True,
        return_token_ids=False,
        tokens_as_ids=False,
        kv_stats=False,
        deadline_seconds=asking.request_timeout,
    )
    started_at, started = asking.clock(), time.perf_counter()
    answer: CompletionAnswer | None = None
    trouble: str | None = None
    try:
        answer = await engine.client.complete(request)
    except TargetError as error:
        trouble = error.detail
    total = time.perf_counter() - started
    events = answer.event_seconds if answer is not None else ()
    prompt_tokens = answer.prompt_tokens if answer is not None else None
    refused = f"HTTP {answer.error.status}: {answer.error.message}" if answer is not None and answer.error else None
    if answer is not None and refused is None and not events:
        refused = "the answer held no token"
    known = prompt_tokens if prompt_tokens is not None else planned.tokens or None
    return Measured(
        scenario=side,
        repeat=repeat,
        phase=phase,
        position=position,
        key=planned.key,
        engine=engine.target.name,
        salt=salt,
        started_at=started_at,
        offset=started - began,
        total=total,
        planned_offset=offset,
        http_status=None if answer is None else answer.error.status if answer.error else answer.http_status,
        error=trouble or refused,
        ttft=events[0] if events and refused is None else None,
        latency=events[-1] if events and refused is None else None,
        itl=gaps(events) if refused is None else (),
        prompt_tokens=prompt_tokens,
        output_tokens=answer.completion_tokens if answer is not None else None,
        cached_tokens=answer.cached_tokens if answer is not None else None,
        reachable=None if chunk_size is None or known is None else reachable(known, planned.reusable, chunk_size),
    )


def _prompt(engine: Engine, planned: Planned, salt: str) -> str | list[int]:
    nonce = "" if engine.salts else salt
    if planned.text is not None:
        return f"[{nonce}] {planned.text}" if nonce else planned.text
    if engine.vocabulary.exact:
        return token_prompt(planned.pieces, engine.vocabulary, nonce)
    return text_prompt(planned.pieces, engine.vocabulary, nonce)


# counting


async def engine_metrics(engine: Engine) -> EngineMetrics | None:
    """The engine's counters now; None when it has no readable /metrics."""
    try:
        return await engine.client.metrics()
    except TargetError:
        return None


async def server_metrics(server: Server | None) -> ServerMetrics | None:
    """The cache server's counters now; None without one, or when it has no readable /metrics."""
    if server is None:
        return None
    try:
        return await server.client.metrics()
    except TargetError:
        return None


def engine_delta(before: EngineMetrics | None, after: EngineMetrics | None) -> EngineDelta:
    """What an engine counted in between; all None where it cannot be told, or it was restarted."""
    if before is None or after is None or before.process_start_time != after.process_start_time:
        return EngineDelta()
    return EngineDelta(
        prompt_tokens=_moved(before.prompt_tokens, after.prompt_tokens),
        local_hits=_moved(before.prefix_cache_hits, after.prefix_cache_hits),
        external_hits=_moved(before.external_hits, after.external_hits),
        finished=_moved(before.requests_succeeded, after.requests_succeeded),
    )


def add_deltas(parts: Iterable[EngineDelta]) -> EngineDelta:
    """The sum over engines; a number that one of them lacks is unknown."""
    found = list(parts)

    def total(name: str) -> float | None:
        values = [getattr(p, name) for p in found]
        return None if not values or any(v is None for v in values) else sum(values)

    return EngineDelta(total("prompt_tokens"), total("local_hits"), total("external_hits"), total("finished"))


def server_delta(before: ServerMetrics | None, after: ServerMetrics | None, salt: str | None) -> ServerDelta:
    """What the cache server counted for `salt` (None: for everybody) in between."""
    if before is None or after is None or before.instance_id != after.instance_id:
        return ServerDelta()
    if salt is None:
        return ServerDelta(
            requested=_moved(before.lookup_requested_tokens, after.lookup_requested_tokens),
            hit_l1=_moved(before.lookup_hit_l1_tokens, after.lookup_hit_l1_tokens),
            hit_l2=_moved(before.lookup_hit_l2_tokens, after.lookup_hit_l2_tokens),
        )
    own = _moved(_of_salt(before, salt, "lookups") or 0.0, _of_salt(after, salt, "lookups"))
    everybody = _moved(before.lookup_requests, after.lookup_requests)
    return ServerDelta(
        requested=_moved(_of_salt(before, salt, "requested_tokens"), _of_salt(after, salt, "requested_tokens")),
        hit_l1=_moved(_of_salt(before, salt, "hit_l1_tokens"), _of_salt(after, salt, "hit_l1_tokens")),
        hit_l2=_moved(_of_salt(before, salt, "hit_l2_tokens"), _of_salt(after, salt, "hit_l2_tokens")),
        foreign_lookups=None if own is None or everybody is None else max(0.0, everybody - own),
    )


def _of_salt(metrics: ServerMetrics, salt: str, name: str) -> float | None:
    values = [getattr(c, name) for c in metrics.lookups if c.cache_salt == salt]
    known = [v for v in values if v is not None]
    return sum(known) if known else None


def _moved(before: float | None, after: float | None) -> float | None:
    """How far a counter moved; one that appeared meanwhile began at zero. None when it is not there or fell."""
    if after is None:
        return None
    moved = after - (before or 0.0)
    return moved if moved >= 0 else None


# emptying and waiting


async def reset_l0(engines: Sequence[Engine], pace: Pace) -> None:
    """Empties the prefix caches of engines. Raises RunStopped where one refuses, is busy too long, or is gone."""
    for engine in engines:
        name = engine.target.name
        until = time.monotonic() + pace.reset
        while True:
            try:
                answer = await engine.client.reset_prefix_cache()
            except TargetError as error:
                raise RunStopped(gone(engine, error)) from error
            if answer.state in ("done", "unknown"):
                break
            if answer.state == "unavailable":
                text = f"the engine {name} has no /reset_prefix_cache (its dev mode is off)"
                raise RunStopped(Finding("reset_unavailable", "invalid", text, fixes.DEV_MODE))
            if time.monotonic() > until:
                text = f"the engine {name} could not empty its GPU cache for {pace.reset:g} s: blocks are in use"
                raise RunStopped(Finding("reset_busy", "invalid", text, fixes.BUSY))
            await asyncio.sleep(pace.poll)


def gone(engine: Engine, error: TargetError) -> Finding:
    """An engine that stopped answering in the middle of a run."""
    return Finding("engine_gone", "invalid", f"engine {engine.target.name}: {error.detail}", fixes.ENGINE_DOWN)


async def wait_stored(server: Server, salt: str, chunks: int | None, pace: Pace) -> Stored:
    """Waits until the server has nothing in flight and what `salt` submitted to L2 is completed.

    Raises RunStopped when the server is gone. Gives up after `pace.stored` and says so.
    """
    began = time.monotonic()
    quiet_since: float | None = None
    while True:
        try:
            status = await server.client.status()
        except TargetError as error:
            raise RunStopped(server_gone(server, error.detail)) from error
        metrics = await server_metrics(server)
        written = metrics.stores_of(salt) if metrics is not None else None
        submitted = written.l2_submitted_chunks if written is not None else None
        completed = written.l2_completed_chunks if written is not None else None
        behind = submitted is not None and (completed or 0.0) < submitted
        waited = time.monotonic() - began
        if status.store_drained is False or behind:
            quiet_since = None
        elif quiet_since is None:
            quiet_since = time.monotonic()
        in_l2 = None if completed is None else round(completed)
        if quiet_since is not None and time.monotonic() - quiet_since >= pace.settle:
            drained = status.store_drained
            text = "no store was in flight" if drained else "the server does not tell whether stores are in flight"
            return Stored(drained, waited, chunks, in_l2, text)
        if waited > pace.stored:
            left = (status.store_pending or 0) + (status.store_in_flight or 0)
            text = f"the next pass began although {left} stores were still in flight after {waited:.0f} s"
            return Stored(False, waited, chunks, in_l2, text)
        await asyncio.sleep(pace.poll)


def server_gone(server: Server, why: str) -> Finding:
    """A cache server that stopped answering in the middle of a run."""
    text = f"the cache server {server.target.name} stopped answering: {why}"
    return Finding("server_gone", "invalid", text, fixes.SERVER_DOWN)
