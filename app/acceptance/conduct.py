"""What a run does, in order: prompts, warm-up, then batch by batch the arms (RULES.md §3).

cold → (the same again under new salts: the noise floor) → warm → wait until stored → reset → external L1 → reset and
L1 emptied of our keys → external L2 → mixed, shared prefix, changed head → the second engine → restarts.
A batch is as many prompts as fit the caches at once. The first prompt of each batch is a probe: asked without streaming
after each reset, so that vLLM says what its own cache served; it proves the reset.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Protocol

from app.acceptance import fixes, own_records
from app.acceptance.answers import Answer, AnswerSet
from app.acceptance.arms import ArmPlan, Asking, Item, row_of
from app.acceptance.compare import WRONG, compare_pair
from app.acceptance.controls import Control
from app.acceptance.evidence import ResetEvidence, resolve
from app.acceptance.facts import Facts
from app.acceptance.finding import CACHE_ARMS, Finding
from app.acceptance.own_records import OwnRecords
from app.acceptance.plan import RunPlan, Seen
from app.acceptance.prompts import Prompt, head_of, salt
from app.acceptance.references import ask_cold, ask_controls, changed_heads_seen, controls_seen, not_cold
from app.acceptance.restarts import Restarts
from app.acceptance.stack import Asked, RunStopped, Stack
from app.acceptance.tolerance import Mode, fix_tolerance, noise_floor
from app.acceptance.workload import fits_mixed, fits_shared
from app.lmcache.metrics import ServerMetrics


class StepLog(Protocol):
    """The live step list."""

    async def begin(self, name: str) -> None: ...

    async def end(self, name: str, detail: str | None) -> None: ...


class Conduct:
    """One run's way through its arms. `seen` and `asking.results` hold what came of it, also after an exception."""

    def __init__(
        self,
        plan: RunPlan,
        stack: Stack,
        facts: Facts,
        asking: Asking,
        steps: StepLog,
        *,
        second: Stack | None = None,
        restarts: Restarts | None = None,
        controls: Sequence[Control] = (),
    ) -> None:
        assert facts.chunk_size is not None
        self._restarts = restarts
        self._controls = controls
        self._steps = steps
        self._last = True
        self._start: float | None = None  # of the engine process that the references were taken from
        self._renewals = 0
        self._renewed: AnswerSet | None = None
        self._warm_up: Answer | None = None
        self._plan = plan
        self._stack = stack
        self._second = second
        self._chunk = facts.chunk_size
        self._mode: Mode = plan.mode or "near_tie"
        self.asking = asking
        self.seen = Seen()

    def wants(self, *arms: str) -> bool:
        """Whether any of these arms was asked for."""
        return any(a in self._plan.arms for a in arms)

    @property
    def salted(self) -> bool:
        """Whether prompts carry a cache salt of their own (else a nonce)."""
        return self._stack.use_salt

    def give_up(self) -> None:
        """Tells threads that still walk or read for this run to stop."""
        self._stack.stopping.set()

    async def warm_up(self, prompt: Prompt) -> None:
        """One request that counts nowhere (the first after a start differs), and shows what the engine reports."""
        asked = await self._stack.ask(replace(prompt, key="warmup"), salt(self._plan.run_key, "warmup"), stream=True)
        self._refused([asked], "the warm-up request")
        self._warm_up = asked.answer
        self.asking.bracket = asked.counts.cached_tokens is None

    async def batch(self, prompts: Sequence[Prompt], probe: Prompt, *, first: bool, last: bool) -> None:
        """All arms over one batch."""
        self._last = last
        counters = await self._stack.counters.server_before([])
        self._start = (await self._stack.counters.engine()).process_start
        self._renewed = None
        async with self._step("arm:cold"):
            keys = {p.key for p in prompts}
            mine = [c for c in self._controls if c.of in keys]
            controls = await ask_controls(self._stack, self.asking, mine, self.seen.problems)
            cold = await self._cold(prompts, probe)
            if first:
                await self._noise(prompts, cold)
            self._tell_apart(cold)
            self.seen.controls += controls_seen(self._plan.run_key, controls, cold, self.asking)
        reference = cold
        if self.wants("warm"):
            async with self._step("arm:warm"):
                asked = await self._probe(probe, "warm")
                plan = ArmPlan(held=True, probe=asked, reference=cold)
                reference = await self.asking.arm("warm", self._stack, self._items(prompts), plan)
        if self.wants(*CACHE_ARMS):
            async with self._step("stored"):
                # Counters of everybody's records hold the controls' too; by salt each is told from the others.
                sent = [probe, *prompts, *(c.prompt for c in mine if not self.salted)]
                await self._wait_stored(sent, counters)
        arms: tuple[tuple[str, Callable[[], Awaitable[None]]], ...] = (
            ("external_l1", lambda: self._external("external_l1", prompts, probe, reference)),
            ("external_l2", lambda: self._external("external_l2", prompts, probe, reference)),
            ("mixed", lambda: self._mixed(prompts, probe, reference)),
            ("shared_prefix", lambda: self._shared_prefix(prompts, probe)),
            ("changed_head", lambda: self._changed_head(prompts, cold)),
            ("cross_engine", lambda: self._cross_engine(prompts)),
            ("without_cache", lambda: self._without_cache(prompts, reference)),
        )
        if last:
            # Restarts are costly: they are made once, with the batch that the caches hold.
            arms += (
                ("restarted_server", lambda: self._restarted_server(prompts, probe, reference)),
                ("restarted_engine", lambda: self._restarted_engine(prompts, probe)),
            )
        for name, conduct in arms:
            if self.wants(name):
                async with self._step(f"arm:{name}"):
                    await conduct()

    @asynccontextmanager
    async def _step(self, name: str) -> AsyncIterator[None]:
        """Marks a step as running; done once its last batch is through."""
        await self._steps.begin(name)
        yield
        if self._last:
            await self._steps.end(name, None)

    # cold and what it fixes

    async def _cold(self, prompts: Sequence[Prompt], probe: Prompt) -> AnswerSet:
        await self._probe(probe, "cold")
        answers = await self.asking.arm("cold", self._stack, self._items(prompts), ArmPlan(local_empty=True))
        if answers.answers and all(a.refusal is not None for a in answers.answers.values()):
            first = next(iter(answers.answers.values())).refusal
            assert first is not None
            text = f"the engine refused every prompt (HTTP {first.http_status}: {first.message})"
            raise RunStopped(Finding("engine_refused", "error", text, fixes.REFUSED, "cold"))
        return answers

    async def _noise(self, prompts: Sequence[Prompt], cold: AnswerSet) -> None:
        """The same prompts cold again, under new salts: what they differ by is the floor of the tolerance (E4).

        With a nonce in the prompts there is no second cold: another nonce makes another prompt. The floor is unknown.
        """
        lenient = fix_tolerance(self._mode, noise_floor([], 0), max_abs_nats=float("inf"))
        differences: list[float | None] = []
        diverged = 0
        repeated: list[Asked] = []
        rows: list[dict[str, Any]] = []
        repeats = self._plan.numbers.repeats if self.salted else 0
        for repeat in range(1, repeats + 1):
            for prompt in prompts[: self._plan.numbers.repeated_prompts]:
                again = await self._stack.ask(prompt, salt(self._plan.run_key, prompt.key, repeat), stream=True)
                pair = compare_pair(prompt.key, cold.answers.get(prompt.key), again.answer, lenient)
                differences.append(pair.max_abs)
                diverged += pair.outcome in WRONG
                repeated.append(again)
                tokens = resolve(again.counts, self._chunk, local_empty=True)
                rows.append(row_of("cold", again, tokens, repeat=repeat))
        await asyncio.to_thread(self.asking.save, rows)
        self.seen.problems += not_cold(repeated, "cold")
        self.seen.tolerance = fix_tolerance(self._mode, noise_floor(differences, diverged), **self._plan.tolerance)
        self.asking.tolerance = self.seen.tolerance

    def _tell_apart(self, cold: AnswerSet) -> None:
        """Whether answers depend on prompts. A run of one prompt has the warm-up's answer to compare it with."""
        tolerance = self.seen.tolerance
        assert tolerance is not None
        answers = list(cold.answers.values())
        if self._last and self.seen.discrimination.prompts + len(answers) < 2 and self._warm_up is not None:
            answers.append(self._warm_up)
        self.seen.discrimination = self.seen.discrimination.with_answers(answers, tolerance)

    async def _wait_stored(self, sent: Sequence[Prompt], counters: ServerMetrics | None) -> None:
        need_l2 = self.wants("external_l2", "restarted_server")
        stored = await self._stack.wait_stored(self._chunks(sent), counters, need_l2=need_l2)
        self.seen.stored = stored
        if stored.reached_l1 is False and stored.reached_l2 is not True:
            text = f"what the cold arm computed never reached the cache server within {stored.waited_seconds:.0f} s"
            raise RunStopped(Finding("nothing_stored", "invalid", text, fixes.NOT_STORED))
        if stored.reached_l2 and self._stack.use_salt and self._stack.stores:
            salts = [self._salt(p) for p in sent]
            self.seen.before = await self._look_at_records(salts, checksums=True)

    def _chunks(self, prompts: Sequence[Prompt]) -> dict[str, int]:
        """Whole chunks that each salt must have stored, by the lengths the engine counted."""
        lengths = self.asking.lengths
        return {self._salt(p): lengths.get(self._salt(p), p.tokens or 0) // self._chunk for p in prompts}

    # arms that read from the cache

    async def _emptied_l0(self, probe: Prompt, arm: str) -> tuple[ResetEvidence, Asked]:
        """The GPU cache emptied, and proven so by the probe."""
        reset = await self._stack.reset()
        self._check_reset(reset, arm)
        return await self._prove(reset, probe, arm)

    async def _prove(self, reset: ResetEvidence, probe: Prompt, arm: str) -> tuple[ResetEvidence, Asked]:
        asked = await self._probe(probe, arm)
        proven = self._stack.prove_reset(reset, asked)
        if proven.effective is False:
            text = "the engine acknowledged the reset of its prefix cache, but still served a prompt from it"
            raise RunStopped(Finding("reset_had_no_effect", "invalid", text, fixes.RESET_LIES, arm))
        return proven, asked

    def _check_reset(self, reset: ResetEvidence, arm: str) -> None:
        if reset.state == "unavailable":
            text = "the engine has no /reset_prefix_cache (its dev mode is off), so its GPU cache cannot be emptied"
            raise RunStopped(Finding("reset_unavailable", "invalid", text, fixes.DEV_MODE, arm))
        if reset.state == "busy":
            text = f"the engine could not empty its prefix cache for {reset.waited_seconds:.0f} s: blocks are in use"
            raise RunStopped(Finding("reset_busy", "invalid", text, fixes.BUSY, arm))

    def _check_l2(self, arm: str) -> None:
        """What an arm is to read from disk has reached it."""
        stored = self.seen.stored
        if stored is None or stored.reached_l2 is True:
            return
        counted = stored.on_disk if stored.on_disk is not None else stored.completed_l2
        told = "an unknown number" if counted is None else str(counted)
        text = f"{told} of {stored.expected} records reached L2 within {stored.waited_seconds:.0f} s"
        raise RunStopped(Finding("never_reached_l2", "invalid", text, fixes.NEVER_L2, arm))

    async def _external(self, name: str, prompts: Sequence[Prompt], probe: Prompt, reference: AnswerSet) -> None:
        if name == "external_l2":
            self._check_l2(name)
        reset = await self._stack.reset()
        self._check_reset(reset, name)
        emptied = None
        if name == "external_l2":
            salts = [self._salt(p) for p in (probe, *prompts)]
            emptied = await self._stack.empty_l1(salts, allow_clear=self._plan.allow_clear_l1)
            if not emptied.done:
                text = f"L1 could not be emptied of the run's own records: {emptied.detail}"
                raise RunStopped(Finding("l1_not_emptied", "invalid", text, fixes.EMPTY_L1, name))
        reset, asked = await self._prove(reset, probe, name)
        reference = await self._current(name, prompts, reference)
        plan = ArmPlan(
            local_empty=reset.effective is True, probe=asked, reset=reset, l1_emptied=emptied, reference=reference
        )
        await self.asking.arm(name, self._stack, self._items(prompts), plan)
        if name == "external_l2":
            await self._look_again([self._salt(p) for p in (probe, *prompts)])

    async def _current(self, arm: str, prompts: Sequence[Prompt], reference: AnswerSet) -> AnswerSet:
        """The reference, or a new cold when the engine was restarted since (E3): another process may have another
        layout, and then what the old one answered proves nothing against the cache."""
        start = (await self._stack.counters.engine()).process_start
        if start is None or self._start is None or start == self._start:
            return self._renewed or reference
        self._start = start
        self._renewals += 1
        again = self._new_salts(prompts, f"n{self._renewals}")
        self._renewed = await ask_cold("cold on the restarted engine", self._stack, again, self.seen.problems, arm)
        text = "the engine was restarted during the run; cache arms are compared with a new cold arm on its new process"
        self.seen.problems.append(Finding("engine_restarted", "warning", text))
        return self._renewed

    async def _look_again(self, salts: Sequence[str]) -> None:
        """The batch's own records compared with what they were when they had just been stored."""
        before, self.seen.before = self.seen.before, None
        if before is None:
            return
        looked = await self._look_at_records(salts, checksums=before.checksums)
        found = own_records.compare_looks(before, looked)
        self.seen.records = found if self.seen.records is None else self.seen.records.merged(found)

    async def _look_at_records(self, salts: Sequence[str], *, checksums: bool) -> OwnRecords:
        stack, stop = self._stack, self._stack.stopping.is_set
        looked = await asyncio.to_thread(own_records.find, stack.stores, stack.salt_prefix, stop=stop)
        looked = looked.of(salts)
        if checksums:
            looked = await asyncio.to_thread(own_records.with_checksums, stack.stores, looked, stop=stop)
        return looked

    async def _mixed(self, prompts: Sequence[Prompt], probe: Prompt, reference: AnswerSet) -> None:
        """Heads from the GPU cache, the rest from the cache server."""
        fit = [
            p for p in prompts if fits_mixed(self._length(p) or 0, self._chunk) and head_of(p, self._chunk) is not None
        ]
        reset, _ = await self._emptied_l0(probe, "mixed")
        for prompt in fit:
            head = head_of(prompt, self._chunk)
            assert head is not None
            await self._stack.ask(head, self._salt(prompt), stream=False)
        plan = ArmPlan(split=True, reset=reset, reference=await self._current("mixed", fit, reference))
        await self.asking.arm("mixed", self._stack, self._items(fit), plan)

    async def _shared_prefix(self, prompts: Sequence[Prompt], probe: Prompt) -> None:
        """The same documents with other questions: cold under their own salts first, then behind the old records."""
        fit = [p for p in prompts if p.other is not None and fits_shared(p.shared_tokens, self._chunk)]
        new = [(p.other, self._salt(p.other)) for p in fit if p.other is not None]
        reference = await ask_cold("cold, other question", self._stack, new, self.seen.problems, "shared_prefix")
        reset, asked = await self._emptied_l0(probe, "shared_prefix")
        items = [Item(p.other, self._salt(p), p.shared_tokens) for p in fit if p.other is not None]
        plan = ArmPlan(local_empty=reset.effective is True, probe=asked, reset=reset, reference=reference)
        await self.asking.arm("shared_prefix", self._stack, items, plan)

    async def _changed_head(self, prompts: Sequence[Prompt], cold: AnswerSet) -> None:
        new = [(p.changed, self._salt(p.changed)) for p in prompts if p.changed is not None]
        reference = await ask_cold("cold, changed head", self._stack, new, self.seen.problems, "changed_head")
        self.seen.controls += changed_heads_seen(prompts, cold, reference, self.asking)
        items = [Item(p.changed, self._salt(p), 0) for p in prompts if p.changed is not None]
        await self.asking.arm("changed_head", self._stack, items, ArmPlan(local_empty=True, reference=reference))

    async def _cross_engine(self, prompts: Sequence[Prompt]) -> None:
        """Stored by the first engine, read by the second, whose own cold is the reference."""
        second = self._second
        assert second is not None
        name, new = f"cold on {second.engine.name}", self._new_salts(prompts, "x")
        reference = await ask_cold(name, second, new, self.seen.problems, "cross_engine")
        plan = ArmPlan(local_empty=True, reference=reference)
        await self.asking.arm("cross_engine", second, self._items(prompts), plan)

    async def _without_cache(self, prompts: Sequence[Prompt], reference: AnswerSet) -> None:
        assert self._second is not None
        # These salts were never sent to it: whatever is cached there came from a cache that it should not have.
        plan = ArmPlan(local_empty=True, reference=reference)
        await self.asking.arm("without_cache", self._second, self._items(prompts), plan)

    async def _restarted_server(self, prompts: Sequence[Prompt], probe: Prompt, reference: AnswerSet) -> None:
        """The server is new, its L1 empty: what it supplies comes from the disk that the old one wrote."""
        assert self._restarts is not None
        self._check_l2("restarted_server")  # else the restart would cost everybody their L1, for nothing
        await self._restarts.server(self._stack)
        reset, asked = await self._emptied_l0(probe, "restarted_server")
        reference = await self._current("restarted_server", prompts, reference)
        plan = ArmPlan(local_empty=reset.effective is True, probe=asked, reset=reset, reference=reference)
        await self.asking.arm("restarted_server", self._stack, self._items(prompts), plan)

    async def _restarted_engine(self, prompts: Sequence[Prompt], probe: Prompt) -> None:
        """The engine is new, its GPU cache empty; a cold of its own is the reference (E3)."""
        assert self._restarts is not None
        await self._restarts.engine(self._stack)
        name, new = "cold on the restarted engine", self._new_salts(prompts, "r")
        reference = await ask_cold(name, self._stack, new, self.seen.problems, "restarted_engine")
        asked = await self._probe(probe, "restarted_engine")
        plan = ArmPlan(local_empty=True, probe=asked, reference=reference)
        await self.asking.arm("restarted_engine", self._stack, self._items(prompts), plan)

    # small parts

    async def _probe(self, probe: Prompt, arm: str) -> Asked:
        asked = await self._stack.ask(probe, self._salt(probe), stream=False, count=self.asking.bracket)
        self._refused([asked], f"the probe before {arm}")
        self.asking.remember(asked)
        self.seen.probes.append(
            {
                "before": arm,
                "prompt_tokens": asked.counts.prompt_tokens,
                "local_tokens": asked.counts.stats_local,
                "external_tokens": asked.counts.stats_external,
                "cached_tokens": asked.counts.cached_tokens,
            }
        )
        return asked

    def _refused(self, asked: Sequence[Asked], what: str) -> None:
        for a in asked:
            if a.answer.refusal is not None and not self.asking.results["cold"].evidence.answered:
                refusal = a.answer.refusal
                text = f"the engine refused {what} (HTTP {refusal.http_status}: {refusal.message})"
                raise RunStopped(Finding("engine_refused", "error", text, fixes.REFUSED))

    def _items(self, prompts: Sequence[Prompt]) -> list[Item]:
        return [Item(p, self._salt(p)) for p in prompts]

    def _new_salts(self, prompts: Sequence[Prompt], suffix: str) -> list[tuple[Prompt, str]]:
        """These prompts under salts that nobody has sent before."""
        return [(p, salt(self._plan.run_key, f"{p.key}{suffix}")) for p in prompts]

    def _salt(self, prompt: Prompt) -> str:
        return salt(self._plan.run_key, prompt.key)

    def _length(self, prompt: Prompt) -> int | None:
        return self.asking.lengths.get(self._salt(prompt), prompt.tokens)
