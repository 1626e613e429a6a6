"""One acceptance run from its row to its verdict: targets, facts, prompts, arms, evidence, verdict, rows.

Runs in a worker thread with an event loop of its own. Cancelling is seen within half a second; the deadline and every
trouble with a target end in a verdict, only a cancel ends in none.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from typing import Any

import structlog

from app.acceptance import fixes
from app.acceptance.arms import Asking
from app.acceptance.conduct import Conduct
from app.acceptance.evidence import ArmEvidence
from app.acceptance.facts import Facts, cannot_begin, default_mode, read_facts, same_layout
from app.acceptance.finding import ARM_LABELS, CACHE_ARMS, ELSEWHERE, Finding
from app.acceptance.hooks import HookTarget
from app.acceptance.ledger import ServerLedger
from app.acceptance.load import LoadEvidence, LoadSeen
from app.acceptance.preparation import Prepared, RunInput, prepare
from app.acceptance.prompts import Prompt
from app.acceptance.recorder import Recorder, Step
from app.acceptance.restarts import Restarts
from app.acceptance.results import ArmResult, shown_tokens
from app.acceptance.stack import Pace, RunStopped, Stack
from app.acceptance.verdict import RunEvidence, Verdict, verdict
from app.acceptance.workload import BuiltShape, workload
from app.clock import Clock
from app.errors import TargetError, TierkeeperError
from app.fleet.clients import engine_client, server_client
from app.fleet.targets import EngineTarget, ServerTarget
from app.lmcache.client import LMCacheClient
from app.lmcache.polling import ServerReading, poll_server
from app.vllm.client import VLLMClient
from app.vllm.completions import token_id_of
from app.vllm.polling import EngineReading, poll_engine

log = structlog.get_logger()
#: Their references are the same prompts cold once more, which only another salt can make.
_NEEDS_SALT = ("shared_prefix", "changed_head", "cross_engine", "restarted_engine")
_TOKENS_READ = 200
#: Three lost packets of a connection's beginning (sent again after 1, 3 and 7 s).
_CONNECT_SECONDS = 10.0
_SILENCE_SECONDS = 30.0
_NEEDS_RESET = ("external_l1", "external_l2", "mixed", "shared_prefix", "restarted_server")


@dataclass
class Outcome:
    """What a run gave; the service writes it into the row."""

    verdict: Verdict | None = None
    results: dict[str, ArmResult] = field(default_factory=dict)
    evidence: dict[str, Any] = field(default_factory=dict)
    frozen: dict[str, Any] = field(default_factory=dict)
    run: RunEvidence | None = None
    token_texts: dict[str, str] = field(default_factory=dict)


def patient_engine_client(target: EngineTarget) -> VLLMClient:
    """A run lasts for minutes and asks for each thing once: it must not end because a machine under load (the target's
    or this one) took more than a poll's two seconds to make a connection, as has been seen."""
    return engine_client(target, connect_timeout=_CONNECT_SECONDS, read_timeout=_SILENCE_SECONDS)


def patient_server_client(target: ServerTarget) -> LMCacheClient:
    """As `patient_engine_client`."""
    return server_client(target, connect_timeout=_CONNECT_SECONDS, read_timeout=_SILENCE_SECONDS)


@dataclass(frozen=True)
class Openers:
    """How clients are made; tests replace them."""

    vllm: Callable[[EngineTarget], VLLMClient] = patient_engine_client
    lmcache: Callable[[ServerTarget], LMCacheClient] = patient_server_client


class Run:
    """One execution. `main` never raises for what targets do; it raises CancelledError when it is cancelled."""

    def __init__(
        self,
        given: RunInput,
        recorder: Recorder,
        clock: Clock,
        progress: Callable[[int, int], None],
        *,
        pace: Pace | None = None,
        openers: Openers | None = None,
    ) -> None:
        self._in = given
        self._recorder = recorder
        self._clock = clock
        self._progress = progress
        self._pace = pace or Pace()
        self._open = openers or Openers()
        self._done: dict[str, int] = {}
        self._total = 0
        self._sent = 0
        self._counting = threading.Lock()  # requests of one condition may be answered at once
        self._last_progress = 0.0
        self._before: Facts | None = None
        self._after: Facts | None = None
        self._problems: list[Finding] = []
        self._conduct: Conduct | None = None
        self._ledger = ServerLedger()
        self._load: LoadSeen | None = None
        self._prompts: list[Prompt] = []
        self._token_texts: dict[str, str] = {}
        self.outcome = Outcome()

    async def main(self) -> None:
        """The whole run. Whatever ends it, `outcome` holds what was seen."""
        await asyncio.to_thread(self._recorder.plan, self._steps())
        try:
            async with asyncio.timeout(self._in.deadline):
                await self._go()
        except TimeoutError:
            text = f"the run did not end within its deadline of {self._in.deadline:g} s"
            self._problems.append(Finding("deadline", "timeout", text, fixes.DEADLINE))
        except RunStopped as stop:
            self._problems.append(stop.finding)
        except TierkeeperError as error:
            silent = isinstance(error, TargetError) and error.kind == "timeout"
            self._problems.append(Finding("trouble", "timeout" if silent else "error", error.detail, fixes.RUN_AGAIN))
        finally:
            self._conclude()

    # the steps

    def _steps(self) -> list[tuple[str, str]]:
        arms = self._in.plan.arms
        steps = [("preflight", "Look at engine and cache server"), ("prompts", "Prepare prompts")]
        filled = "warm" if "warm" in arms else "cold"
        for arm in arms:
            steps.append((f"arm:{arm}", f"{arm}: {ARM_LABELS[arm]}"))
            if arm == filled and any(a in CACHE_ARMS for a in arms):
                steps.append(("stored", "Wait until the records are stored"))
        steps.append(("conclude", "Look again, compare and judge"))
        return steps

    async def _go(self) -> None:
        async with AsyncExitStack() as clients:
            vllm = await clients.enter_async_context(self._open.vllm(self._in.engine))
            lmcache = await clients.enter_async_context(self._open.lmcache(self._in.server))
            async with self._step("preflight"):
                facts, engine, server = await self._look(vllm, lmcache)
                self._before = facts
                problems = cannot_begin(facts, engine, server, self._in.plan.arms, (self._in.engine, self._in.server))
                if problems:
                    self._problems += problems[1:]
                    raise RunStopped(problems[0])
                stack = await self._stack(self._in.engine, vllm, lmcache, facts)
                self._load = stack.load.between
                await self._reset_once(stack)
                second = await self._second_stack(clients, lmcache, facts)
            plan = replace(self._in.plan, mode=self._in.plan.mode or default_mode(facts))
            async with self._step("prompts"):
                ready = await prepare(self._in, stack, facts)
                self._prompts = [p for group in ready.groups for p in group]
                shapes = [[BuiltShape(p) for p in group] for group in ready.groups]
                self._total = workload(plan.arms, shapes, plan.numbers, facts.chunk_size or 1).requests
                await asyncio.to_thread(self._recorder.prompts, self._stored_prompts(ready))
            assert facts.chunk_size is not None
            asking = Asking(
                chunk_size=facts.chunk_size,
                concurrency=plan.concurrency,
                save=self._recorder.answers,
                advance=self._advance,
                results=self._results(second),
                block_size=facts.block_size,
            )
            restarts = None
            if self._in.hook is not None:
                restarts = Restarts(self._in.hook, self._ask_operator, facts.model_root)
            conduct = self._conduct = Conduct(
                plan, stack, facts, asking, self, second=second, restarts=restarts, controls=ready.controls
            )
            await conduct.warm_up(ready.warm_up)
            for index, (group, probe) in enumerate(zip(ready.groups, ready.probes, strict=True)):
                await conduct.batch(group, probe, first=index == 0, last=index == len(ready.groups) - 1)
            self._total = self._sent  # an engine that was restarted meanwhile was asked more
            self._progress(self._sent, self._total)
            async with self._step("conclude"):
                self._after, _, _ = await self._look(vllm, lmcache)
                await self._read_tokens(stack)

    async def _look(self, vllm: VLLMClient, lmcache: LMCacheClient) -> tuple[Facts, EngineReading, ServerReading]:
        engine, server = await asyncio.gather(poll_engine(vllm), poll_server(lmcache))
        base_path = self._in.stores[0].server_path if self._in.stores else None
        return read_facts(engine, server, base_path=base_path), engine, server

    async def _stack(self, engine: EngineTarget, vllm: VLLMClient, lmcache: LMCacheClient, facts: Facts) -> Stack:
        # Under quotas an unknown salt may store nothing (E1): such servers get a nonce in the prompts instead.
        use_salt = "isolated" not in (facts.eviction_policy or "").lower()
        needs = [a for a in _NEEDS_SALT if a in self._in.plan.arms]
        if not use_salt and needs:
            text = f"this server gives every cache salt a quota, so {', '.join(needs)} cannot tell its own records"
            raise RunStopped(Finding("no_salts", "invalid", text, fixes.NO_SALTS, needs[0]))
        stack = Stack(
            engine=engine,
            server=self._in.server,
            stores=self._in.stores,
            vllm=vllm,
            lmcache=lmcache,
            model=facts.model,
            run_key=self._in.plan.run_key,
            request_timeout=self._in.request_timeout,
            clock=self._clock,
            pace=self._pace,
            use_salt=use_salt,
            on_request=self._answered,
            chunk_size=facts.chunk_size or 1,
            connected=engine.server_id == self._in.server.id,
            ledger=self._ledger,
        )
        await stack.counters.begin()
        return stack

    async def _reset_once(self, stack: Stack) -> None:
        """Whether the engine can empty its cache at all, before minutes are spent on cold arms."""
        wanting = next((a for a in self._in.plan.arms if a in _NEEDS_RESET), None)
        if wanting is None:
            return
        reset = await stack.reset()
        if reset.state == "unavailable":
            text = "the engine has no /reset_prefix_cache (its dev mode is off), so its GPU cache cannot be emptied"
            raise RunStopped(Finding("reset_unavailable", "invalid", text, fixes.DEV_MODE, wanting))

    async def _second_stack(self, clients: AsyncExitStack, lmcache: LMCacheClient, facts: Facts) -> Stack | None:
        target = self._in.second
        if target is None:
            return None
        vllm = await clients.enter_async_context(self._open.vllm(target))
        reading = await poll_engine(vllm)
        if not reading.http_up:
            text = f"the second engine {target.name} does not answer: {reading.health_reason}"
            raise RunStopped(Finding("engine_unreachable", "error", text, fixes.ENGINE_DOWN))
        theirs = read_facts(reading, None)
        if theirs.model_root != facts.model_root:
            text = f"{target.name} serves {theirs.model_root!r}, {self._in.engine.name} serves {facts.model_root!r}"
            raise RunStopped(Finding("other_model", "invalid", text, fixes.SAME_MODEL))
        return await self._stack(target, vllm, lmcache, replace(facts, model=theirs.model))

    # steps and progress

    def _stored_prompts(self, ready: Prepared) -> list[Prompt]:
        variants = any(a in self._in.plan.arms for a in ("shared_prefix", "changed_head"))
        prompts = self._prompts if variants else [replace(p, other=None, changed=None) for p in self._prompts]
        return [*prompts, *(c.prompt for c in ready.controls), *ready.probes]

    def _results(self, second: Stack | None) -> dict[str, ArmResult]:
        elsewhere = second.engine.name if second is not None else self._in.engine.name
        return {
            arm: ArmResult(
                arm,
                elsewhere if arm in ELSEWHERE else self._in.engine.name,
                ArmEvidence(arm),
            )
            for arm in self._in.plan.arms
        }

    def _step(self, name: str) -> Step:
        return Step(self._recorder, name)

    async def begin(self, name: str) -> None:
        """A step of the list runs now (StepLog)."""
        total = len(self._prompts) if name.startswith("arm:") else None
        await asyncio.to_thread(self._recorder.begin, name, total)

    async def end(self, name: str, detail: str | None) -> None:
        """A step of the list is done (StepLog)."""
        count = self._done.get(name.removeprefix("arm:"))
        await asyncio.to_thread(self._recorder.end, name, "done", detail, count)

    async def _ask_operator(self, target: HookTarget) -> None:
        """Waits until a person said on the page, or through the API, that the target was restarted."""
        what = f"Restart the {target.kind} {target.name} ({target.url}), then say that you did."
        await asyncio.to_thread(self._recorder.wait_for, what)
        try:
            while True:
                if await asyncio.to_thread(self._recorder.continued):
                    return
                await asyncio.sleep(5 * self._pace.poll)
        finally:
            await asyncio.to_thread(self._recorder.wait_for, None)

    def _advance(self, arm: str, done: int) -> None:
        self._done[arm] = done
        self._recorder.advance(f"arm:{arm}", done)

    def _answered(self) -> None:
        """One more request was answered, whatever it was for."""
        with self._counting:
            self._sent += 1
            self._progress(self._sent, max(self._total, self._sent))

    async def _read_tokens(self, stack: Stack) -> None:
        """What the tokens of the shown divergences read like: answers are compared by ids, people read texts."""
        assert self._conduct is not None
        results = self._conduct.asking.results.values()
        for key in shown_tokens(r.comparison for r in results if r.comparison is not None)[:_TOKENS_READ]:
            token_id = token_id_of(key)
            if token_id is None:
                continue
            try:
                self._token_texts[key] = await stack.vllm.detokenize([token_id], model=stack.model)
            except TargetError:
                return  # this engine does not offer it; ids will do

    # the end

    def _conclude(self) -> None:
        """Puts together what was seen. Pure but for the outcome it fills."""
        conduct = self._conduct
        if conduct is not None:
            conduct.give_up()
        results = conduct.asking.results if conduct is not None else self._results(None)
        seen = conduct.seen if conduct is not None else None
        before, after = self._before, self._after
        marker = before.layout_marker if before is not None else None
        later = after.layout_marker if after is not None else None
        if before is not None and after is not None and same_layout(before, after):
            later = marker
        run = RunEvidence(
            wanted=self._in.plan.arms,
            arms={name: r.evidence for name, r in results.items() if r.evidence.requests},
            comparisons=tuple(r.comparison for r in results.values() if r.comparison is not None),
            tolerance=seen.tolerance if seen is not None else None,
            discrimination=seen.discrimination if seen is not None else None,
            controls=tuple(seen.controls) if seen is not None else None,
            stored=seen.stored if seen is not None else None,
            records=seen.records if seen is not None else None,
            layout_before=marker,
            layout_after=later,
            problems=(*self._problems, *(seen.problems if seen is not None else ())),
        )
        self.outcome = Outcome(
            verdict=verdict(run),
            results=results,
            evidence=self._evidence(run, seen),
            frozen=self._frozen(),
            run=run,
            token_texts=self._token_texts,
        )

    def _evidence(self, run: RunEvidence, seen: Any) -> dict[str, Any]:
        return {
            "arms": {name: arm.to_json() for name, arm in run.arms.items()},
            "stored": asdict(run.stored) if run.stored is not None else None,
            "records": asdict(run.records) if run.records is not None else None,
            "probes": seen.probes if seen is not None else [],
            "cold_answers": None
            if run.discrimination is None
            else {"prompts": run.discrimination.prompts, "kinds": len(run.discrimination.kinds)},
            "controls": None if run.controls is None else [c.to_json() for c in run.controls],
            "tolerance": run.tolerance.to_json() if run.tolerance is not None else None,
            "layout_before": run.layout_before,
            "layout_after": run.layout_after,
            "load": self._load_seen(run),
            "salted": self._conduct.salted if self._conduct is not None else None,
        }

    def _load_seen(self, run: RunEvidence) -> dict[str, Any]:
        arms = (a.load for a in run.arms.values() if a.name not in ELSEWHERE and a.load is not None)
        during = reduce(LoadEvidence.merged, arms, LoadEvidence())
        between = None if self._load is None else self._load.to_json()
        after = _load_of(self._after)
        return {"before": _load_of(self._before), "during": asdict(during), "between": between, "after": after}

    def _frozen(self) -> dict[str, Any]:
        frozen = self._before.frozen() if self._before is not None else {}
        return {**frozen, "prompts": {p.key: p.digest for p in self._prompts}}


def _load_of(facts: Facts | None) -> dict[str, float | None] | None:
    """What the engine was busy with at that moment."""
    if facts is None:
        return None
    return {"running": facts.running, "waiting": facts.waiting, "kv_usage": facts.kv_usage}
