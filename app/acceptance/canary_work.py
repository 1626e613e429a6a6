"""The work kind ``canary``: keeping new canaries, and reading them back from their old records (RULES.md E7)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from app.acceptance import fixes, own_records
from app.acceptance.answers import Answer
from app.acceptance.canary_verdict import CanaryOutcome, CanaryVerdict, Reading, judge, what_became, worst
from app.acceptance.compare import WRONG, compare_pair
from app.acceptance.evidence import resolve
from app.acceptance.facts import Facts, cannot_begin, default_mode, read_facts
from app.acceptance.finding import Finding
from app.acceptance.own_records import OwnRecord, OwnRecords
from app.acceptance.prompts import SALT_PREFIX, Prompt, salt
from app.acceptance.run import Openers
from app.acceptance.stack import Asked, Pace, RunStopped, Stack
from app.acceptance.tolerance import Tolerance, fix_tolerance, noise_floor
from app.clock import Clock
from app.fleet.targets import EngineTarget, ServerTarget, StoreTarget
from app.lmcache.object_keys import ObjectKey, parse_name
from app.lmcache.polling import poll_server
from app.vllm.polling import poll_engine


@dataclass(frozen=True)
class Kept:
    """One canary as stored. `records`: [{store_id, name, size, sha256}]."""

    id: int
    name: str
    salt: str
    prompt: Prompt
    answer: Answer
    records: tuple[Mapping[str, Any], ...]
    tolerance: Tolerance
    layout: str | None


@dataclass(frozen=True)
class Candidate:
    """A prompt of a passed run that is to be kept, with the answer it got there."""

    prompt: Prompt
    answer: Answer


@dataclass(frozen=True)
class CanaryInput:
    """What one piece of canary work needs."""

    run_key: str
    engine: EngineTarget
    server: ServerTarget
    stores: tuple[StoreTarget, ...]
    request_timeout: float
    keep: tuple[Candidate, ...] = ()
    check: tuple[Kept, ...] = ()


@dataclass
class CanaryResult:
    """What came of it. `made`: columns of Canary; `checks`: (canary id, verdict, reading)."""

    outcome: CanaryOutcome = "error"
    findings: list[Finding] = field(default_factory=list)
    made: list[dict[str, Any]] = field(default_factory=list)
    checks: list[tuple[int, CanaryVerdict, Reading]] = field(default_factory=list)


class CanaryWork:
    """One execution. `main` never raises for what targets do."""

    def __init__(self, given: CanaryInput, clock: Clock, *, pace: Pace, openers: Openers) -> None:
        self._in = given
        self._clock = clock
        self._pace = pace
        self._open = openers
        self.result = CanaryResult()

    async def main(self) -> None:
        """Keeps or checks; `result` holds what came of it."""
        try:
            async with AsyncExitStack() as clients:
                await self._go(clients)
        except RunStopped as stop:
            self.result.findings.append(stop.finding)
            self.result.outcome = "invalid" if stop.finding.severity == "invalid" else "error"

    async def _go(self, clients: AsyncExitStack) -> None:
        vllm = await clients.enter_async_context(self._open.vllm(self._in.engine))
        lmcache = await clients.enter_async_context(self._open.lmcache(self._in.server))
        engine, server = await asyncio.gather(poll_engine(vllm), poll_server(lmcache))
        base_path = self._in.stores[0].server_path if self._in.stores else None
        facts = read_facts(engine, server, base_path=base_path)
        problems = cannot_begin(facts, engine, server, (), (self._in.engine, self._in.server))
        if problems:
            raise RunStopped(problems[0])
        if not self._in.stores:
            text = "canaries are known by their record files, and no store with a directory is registered"
            raise RunStopped(Finding("no_store", "invalid", text, fixes.EMPTY_L1))
        stack = Stack(
            engine=self._in.engine,
            server=self._in.server,
            stores=self._in.stores,
            vllm=vllm,
            lmcache=lmcache,
            model=facts.model,
            run_key=self._in.run_key,
            request_timeout=self._in.request_timeout,
            clock=self._clock,
            pace=self._pace,
            chunk_size=facts.chunk_size or 1,
        )
        await stack.counters.begin()
        if self._in.keep:
            await self._keep(stack, facts)
        else:
            await self._check(stack, facts)

    # keeping

    async def _keep(self, stack: Stack, facts: Facts) -> None:
        """Asks the prompts cold under new salts, waits until they are on disk, and checks them against the run."""
        assert facts.chunk_size is not None
        mode = default_mode(facts)
        tolerance = fix_tolerance("near_tie" if mode == "score" else mode, noise_floor([], 0))
        counters = await stack.counters.server()
        asked: list[tuple[Candidate, Asked]] = []
        for candidate in self._in.keep:
            one = await stack.ask(candidate.prompt, salt(self._in.run_key, candidate.prompt.key), stream=True)
            pair = compare_pair(candidate.prompt.key, candidate.answer, one.answer, tolerance)
            if pair.outcome in WRONG or pair.outcome == "missing":
                text = f"the engine does not answer {candidate.prompt.key} as in the passed run: {pair.reason}"
                raise RunStopped(Finding("canary_not_repeatable", "invalid", text, fixes.CANARY_DRIFT))
            asked.append((candidate, one))
        chunks = {a.salt: (a.counts.prompt_tokens or 0) // facts.chunk_size for _, a in asked}
        stored = await stack.wait_stored(chunks, counters, need_l2=True)
        if stored.reached_l2 is not True:
            text = f"their records did not reach the store within {stored.waited_seconds:.0f} s"
            raise RunStopped(Finding("never_reached_l2", "invalid", text, fixes.NEVER_L2))
        looked = await asyncio.to_thread(own_records.find, self._in.stores, stack.salt_prefix)
        looked = await asyncio.to_thread(own_records.with_checksums, self._in.stores, looked)
        for candidate, one in asked:
            mine = [r for r in looked.records if r.key.cache_salt == one.salt]
            self.result.made.append(self._row(candidate.prompt, one, mine, facts, tolerance))
        self.result.outcome = "ok"

    def _row(
        self, prompt: Prompt, asked: Asked, records: Sequence[OwnRecord], facts: Facts, tolerance: Tolerance
    ) -> dict[str, Any]:
        return {
            "name": f"{self._in.engine.name} {prompt.key} ({asked.counts.prompt_tokens} tokens)",
            "salt": asked.salt,
            "layout_fingerprint": facts.layout.fingerprint if facts.layout is not None else None,
            "content": prompt.content | {"ignore_eos": prompt.ignore_eos},
            "max_tokens": prompt.max_tokens,
            "answer": asked.answer.to_json(),
            "records": [{"store_id": r.store_id, "name": r.name, "size": r.size, "sha256": r.sha256} for r in records],
            "frozen": facts.frozen(),
            "tolerance": {
                "mode": tolerance.mode,
                "max_abs_nats": tolerance.max_abs_nats,
                "near_tie_gap_nats": tolerance.near_tie_gap_nats,
            },
            "store_id": records[0].store_id if records else None,
        }

    # checking

    async def _check(self, stack: Stack, facts: Facts) -> None:
        """Empties L0 and L1 of the canaries, reads them back, and compares them with a cold of today."""
        assert facts.chunk_size is not None
        now = await asyncio.to_thread(self._look)
        layout = facts.layout.fingerprint if facts.layout is not None else None
        readings: list[tuple[Kept, Reading]] = []
        for kept in self._in.check:
            missing, changed = what_became(kept.records, now)
            reading = Reading(
                kept.name,
                kept.answer,
                len(kept.records),
                tuple(missing),
                tuple(changed),
                layout_kept=kept.layout,
                layout_now=layout,
            )
            readings.append((kept, reading))
        # A canary that lost a record is not asked: the request would store it anew, and hide the loss.
        whole = [(k, r) for k, r in readings if not r.missing]
        if whole:
            await stack.reset()  # where it cannot be done, the numbers of each request show it
            await self._drop_from_l1(stack, [k for k, _ in whole])
        for kept, reading in readings:
            if not reading.missing:
                reading = await self._read_back(stack, facts.chunk_size, kept, reading)
            verdict = judge(reading, kept.tolerance)
            self.result.checks.append((kept.id, verdict, reading))
            if verdict.outcome != "ok":
                self.result.findings.append(verdict.finding(kept.name))
        self.result.outcome = worst([v.outcome for _, v, _ in self.result.checks])

    def _look(self) -> dict[tuple[int, str], OwnRecord]:
        """The canaries' records as they are now, with checksums where their contents were kept."""
        found: list[OwnRecord] = []
        for prefix in sorted({_run_prefix(k.salt) for k in self._in.check}):
            looked = own_records.find(self._in.stores, prefix)
            found += own_records.with_checksums(self._in.stores, OwnRecords(looked.records)).records
        return {(r.store_id, r.name): r for r in found}

    async def _drop_from_l1(self, stack: Stack, canaries: Sequence[Kept]) -> None:
        keys: list[ObjectKey] = []
        for kept in canaries:
            parsed = (parse_name(str(r["name"])) for r in kept.records)
            keys += [p.key for p in parsed if p is not None]
        emptied = await stack.drop_keys(keys)
        if not emptied.done:
            text = f"L1 could not be emptied of the canaries' records: {emptied.detail}"
            raise RunStopped(Finding("l1_not_emptied", "invalid", text, fixes.EMPTY_L1))

    async def _read_back(self, stack: Stack, chunk_size: int, kept: Kept, reading: Reading) -> Reading:
        cold = await stack.ask(kept.prompt, salt(self._in.run_key, kept.prompt.key), stream=False)
        # Without streaming: only then vLLM tells what its own cache served.
        read = await stack.ask(kept.prompt, kept.salt, stream=False, count=True)
        tokens = resolve(read.counts, chunk_size, local_empty=False)
        return replace(reading, cold=cold.answer, read=read.answer, tokens=tokens)


def _run_prefix(canary_salt: str) -> str:
    """``tk-<run>-`` of a canary's salt: one look finds all canaries kept together."""
    return canary_salt[: canary_salt.index("-", len(SALT_PREFIX)) + 1]


def prompt_of(name: str, content: Mapping[str, Any], max_tokens: int) -> Prompt:
    """The prompt behind a stored content."""
    return Prompt(
        key=name,
        kind="canary",
        max_tokens=max_tokens,
        text=content.get("text"),
        token_ids=tuple(content["token_ids"]) if content.get("token_ids") else None,
        messages=tuple(content["messages"]) if content.get("messages") else None,
        ignore_eos=bool(content.get("ignore_eos")),
    )
