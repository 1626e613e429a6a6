"""One benchmark run from its request to its result: targets, snapshots, warm-up, the form, snapshots again, verdict.

Runs in a worker thread with an event loop of its own. Trouble with a target and the deadline end in a verdict; only a
cancel ends in none.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from app.acceptance.facts import read_facts
from app.benchmark import fixes, preflight, snapshot
from app.benchmark.conduct import Conduct, Watch
from app.benchmark.fill import Filler
from app.benchmark.forms import FORMS, SALT_PREFIX, Work
from app.benchmark.ports import Openers, Pace
from app.benchmark.prompts import Vocabulary
from app.benchmark.recorder import Recorder
from app.benchmark.restarting import Hook, Restarter
from app.benchmark.result import RunData, SideInfo, build
from app.benchmark.schemas import BenchmarkInput, ResultView
from app.benchmark.scope import scope
from app.benchmark.shapes import Plan, Planned
from app.benchmark.stack import Asking, Engine, RunStopped, Server, Side, ask
from app.benchmark.verdict import Finding, Verdict, verdict
from app.clock import Clock
from app.errors import StoreError, TierkeeperError
from app.fleet.targets import EngineTarget, ServerTarget, StoreTarget
from app.lmcache.polling import poll_server
from app.vllm.polling import poll_engine

_SPARE_CONNECTIONS = 16


@dataclass(frozen=True)
class RunInput:
    """Everything a run needs, read from its row before it begins. `baseline` None: scenario B alone."""

    request: BenchmarkInput
    run_key: str
    plan: Plan
    engine: EngineTarget
    server: ServerTarget | None
    stores: tuple[StoreTarget, ...]
    readers: tuple[EngineTarget, ...] = ()
    baseline: EngineTarget | None = None
    baseline_server: ServerTarget | None = None
    baseline_stores: tuple[StoreTarget, ...] = ()
    hook: Hook | None = None


@dataclass
class Outcome:
    """What a run gave; `execution` writes it into the row."""

    verdict: Verdict | None = None
    result: ResultView | None = None
    snapshots: dict[str, Any] = field(default_factory=dict)
    scope: dict[str, Any] | None = None


class Run:
    """One execution. `main` never raises for what targets do; whatever ends it, `outcome` holds what was seen."""

    def __init__(
        self,
        given: RunInput,
        recorder: Recorder,
        clock: Clock,
        *,
        pace: Pace | None = None,
        openers: Openers | None = None,
    ) -> None:
        self._in = given
        self._recorder = recorder
        self._clock = clock
        self._pace = pace or Pace()
        self._open = openers or Openers()
        self._findings: list[Finding] = []
        self._work: Work | None = None
        self._engines: dict[int, Engine] = {}
        self._servers: dict[int, Server] = {}
        self._snapshots: dict[str, dict[str, Any]] = {}
        self._mode = "left"
        request = given.request
        self._asking = Asking(request.output_tokens, request.request_timeout_seconds, clock, self._pace)
        self.filler: Filler | None = None  # of the lookup form: what it wrote is to be taken away afterwards
        self.stop_filling = False
        self.outcome = Outcome()

    async def main(self) -> None:
        """The whole run."""
        try:
            async with asyncio.timeout(self._in.request.deadline_seconds):
                async with AsyncExitStack() as clients:
                    await self._go(clients)
        except TimeoutError:
            text = f"the run did not end within its deadline of {self._in.request.deadline_seconds:g} s"
            self._findings.append(Finding("deadline", "invalid", text, fixes.RUN_AGAIN))
        except RunStopped as stop:
            self._findings.append(stop.finding)
        except StoreError as error:
            self._findings.append(Finding("store_trouble", "error", error.detail, fixes.FILES))
        except TierkeeperError as error:
            self._findings.append(Finding("trouble", "error", error.detail, fixes.RUN_AGAIN))
        finally:
            self.stop_filling = True
            self._conclude()

    async def _go(self, clients: AsyncExitStack) -> None:
        await self._recorder.stage("looking at engines and cache servers")
        sides = await self._sides(clients)
        engines = list(self._engines.values())
        preflight.check_lengths(self._in.request, self._in.plan, engines)
        await self._vocabularies(engines)
        await self._warm_up(engines)
        await self._drop_guessed_links(engines)
        await self._look(sides, "before")
        self._findings += preflight.check_plan(self._in.request, self._in.plan, sides)
        self._mode, found = await preflight.prefix_cache(self._in.request.prefix_cache, engines, self._pace)
        self._findings += found
        used = {s.target.id: s for side in sides if (s := side.server) is not None}
        watch = Watch(list(used.values()), self._pace)
        self._work = self._make_work(sides, watch)
        self._recorder.total = planned_requests(self._in.request, self._in.plan, len(sides))
        watching = asyncio.create_task(watch.run())
        try:
            await FORMS[self._in.request.form](self._work)
            self._findings += await self._work.conduct.between.at_the_end()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await self._recorder.flush()
        await self._recorder.stage("looking again")
        try:
            await self._look(sides, "after")
        except RunStopped as stop:
            raise RunStopped(replace(stop.finding, severity="invalid")) from stop
        self._compare_looks()

    # targets

    async def _sides(self, clients: AsyncExitStack) -> list[Side]:
        given = self._in
        server = await self._server(clients, given.server, given.stores)
        main = await self._engine(clients, given.engine, server)
        readers = [await self._engine(clients, reader, server) for reader in given.readers]
        b = Side("b", "B", [main], readers)
        if given.baseline is None:
            return [b]
        if given.baseline.id == given.engine.id:
            return [Side("a", "A", [main], readers, fresh_salts=True), b]
        other = await self._server(clients, given.baseline_server, given.baseline_stores)
        return [Side("a", "A", [await self._engine(clients, given.baseline, other)]), b]

    async def _server(
        self, clients: AsyncExitStack, target: ServerTarget | None, stores: tuple[StoreTarget, ...]
    ) -> Server | None:
        if target is None:
            return None
        if target.id not in self._servers:
            client = await clients.enter_async_context(self._open.lmcache(target))
            self._servers[target.id] = Server(target, client, stores)
        return self._servers[target.id]

    async def _engine(self, clients: AsyncExitStack, target: EngineTarget, server: Server | None) -> Engine:
        if target.id not in self._engines:
            request = self._in.request
            at_once = max(request.concurrency or 1, request.prompts if request.form == "request_rate" else 1)
            client = await clients.enter_async_context(self._open.vllm(target, at_once + _SPARE_CONNECTIONS))
            reading = await poll_engine(client)
            preflight.usable_engine(target.name, reading)
            in_process = bool(reading.metrics and reading.metrics.in_process)
            facts = read_facts(reading, None)
            self._engines[target.id] = Engine(target, client, facts, Vocabulary(), server, in_process=in_process)
        return self._engines[target.id]

    async def _look(self, sides: list[Side], when: Literal["before", "after"]) -> None:
        """Snapshots of every scenario; at the first look also what the run works with."""
        request = self._in.request
        for side in sides:
            engine, server = side.engines[0], side.server
            of_engine, of_server = await asyncio.gather(
                poll_engine(engine.client), asyncio.sleep(0) if server is None else poll_server(server.client)
            )
            preflight.usable_engine(engine.target.name, of_engine)
            base_path = None
            if server is not None and of_server is not None:
                preflight.usable_server(server.target.name, of_server)
                base_path = server.stores[0].server_path if server.stores else None
            facts = read_facts(of_engine, of_server, base_path=base_path)
            if when == "before":
                for seat in side.all_engines:
                    seat.start = facts.engine_start if seat is engine else seat.facts.engine_start
                engine.facts = facts
                if server is not None and of_server is not None:
                    server.chunk_size = facts.chunk_size
                    # Under quotas an unknown salt may store nothing (E1): such servers get a nonce instead.
                    server.salts = "isolated" not in (facts.eviction_policy or "").lower()
                    if of_server.metrics is not None:
                        server.identity = (of_server.metrics.instance_id, of_server.metrics.process_start_time)
            of_a = side.name == "a"
            labels = {
                "hardware": (request.baseline_hardware if of_a else None) or request.hardware,
                "image": (request.baseline_image if of_a else None) or request.image,
            }
            taken = snapshot.take(
                engine.target.name, server.target.name if server else None, facts, of_engine, of_server, labels
            )
            taken["readers"] = [await self._look_at_reader(reader, labels) for reader in side.readers]
            self._snapshots.setdefault(side.name, {})[when] = taken

    async def _look_at_reader(self, reader: Engine, labels: dict[str, str | None]) -> dict[str, Any]:
        reading = await poll_engine(reader.client)
        preflight.usable_engine(reader.target.name, reading)
        found: dict[str, Any] = snapshot.take(
            reader.target.name, None, read_facts(reading, None), reading, None, labels
        )["engine"]
        return found

    def _compare_looks(self) -> None:
        restarted = self._in.request.form == "restart"
        for looks in self._snapshots.values():
            for sentence in snapshot.changes(looks["before"], looks["after"], restarts=restarted):
                self._findings.append(Finding("changed", "invalid", sentence, fixes.SAME))

    async def _vocabularies(self, engines: list[Engine]) -> None:
        if self._in.request.texts is not None:
            return
        for engine in engines:
            engine.vocabulary = await preflight.learn_vocabulary(engine.client, engine.facts.model, self._in.run_key)
            if not engine.vocabulary.exact:
                text = f"the engine {engine.target.name} tells no token ids: prompts have about the length asked for"
                self._findings.append(Finding("lengths_near", "note", text))

    async def _drop_guessed_links(self, engines: list[Engine]) -> None:
        """An engine without a connector uses no cache server: its link was only guessed from the model it serves."""
        for engine in engines:
            if engine.server is None or preflight.has_connector(await poll_engine(engine.client)) is not False:
                continue
            text = f"the engine {engine.target.name} has no KV connector: it is measured as an engine without a cache"
            self._findings.append(Finding("no_connector", "note", text))
            engine.server = None

    # the work

    def _make_work(self, sides: list[Side], watch: Watch) -> Work:
        given, request = self._in, self._in.request
        conduct = Conduct(self._asking, watch, self._recorder)
        data = RunData(request.form, request.shape, [_info(side) for side in sides])
        work = Work(
            request=request,
            run_key=given.run_key,
            sides=sides,
            plan=given.plan,
            data=data,
            conduct=conduct,
            pace=self._pace,
            prefix_cache=self._mode,
        )
        if request.form == "restart" and request.restart is not None:
            wanted = request.restart
            work.restart = Restarter(wanted.target, given.hook, wanted.wait_seconds, self._pace, self._recorder)
        if request.form == "lookup":
            work.filler = self.filler = self._filler(sides[-1])
        return work

    def _filler(self, side: Side) -> Filler:
        engine = side.engines[0]
        if not self._in.stores:
            text = "no store with a directory is registered for this server"
            raise RunStopped(Finding("no_store", "error", text, fixes.FILES))
        layout = engine.facts.layout
        ranks = layout.world_size if layout is not None else 1
        model = engine.facts.model_root or engine.facts.model
        salt = f"{SALT_PREFIX}{self._in.run_key}-fill"
        return Filler(self._in.stores[0], model, ranks << 24 | ranks << 8, salt, lambda: self.stop_filling)

    async def _warm_up(self, engines: list[Engine]) -> None:
        """One request for each engine that counts nowhere: the first after a start differs."""
        await self._recorder.stage("warming up")
        plan = self._in.plan
        sample = plan.first[0]
        pieces = tuple(replace(p, stream=f"warm up {p.stream}") for p in sample.pieces)
        for engine in engines:
            measured = await ask(
                engine,
                Planned("warm", pieces, text=sample.text),
                self._asking,
                side="warm",
                repeat=0,
                phase="warm",
                position=0,
                salt=f"{SALT_PREFIX}{self._in.run_key}-warm",
                began=0.0,
            )
            if measured.error is not None:
                text = f"the engine {engine.target.name} did not answer the warm-up request: {measured.error}"
                raise RunStopped(Finding("engine_refused", "error", text, fixes.REFUSED))

    # the end

    def _conclude(self) -> None:
        """Puts together what was seen."""
        work = self._work
        findings = [*self._findings]
        if work is not None:
            findings += [*work.findings, *work.conduct.findings]
        before = {name: looks["before"] for name, looks in self._snapshots.items() if "before" in looks}
        if work is not None and "a" in before and "b" in before:
            work.data.differences = snapshot.differences(before["a"], before["b"])
            if self._in.baseline is not None and self._in.baseline.id != self._in.engine.id:
                work.data.only_the_connector = snapshot.only_the_connector(
                    work.data.differences, before["a"], before["b"]
                )
                findings += _scope_findings(work.data)
            else:
                findings.append(Finding("same_engine", "note", "A and B are one engine: only their salts differ."))
        decided = verdict(findings)
        result = None
        if work is not None:
            work.data.phases = work.conduct.phases
            names = {p.scenario for p in work.data.phases}
            work.data.sides += [
                replace(info, name=f"{info.name}2", title=f"{info.title}, again")
                for info in list(work.data.sides)
                if f"{info.name}2" in names
            ]
            result = build(work.data, valid=decided.name == "valid")
        self.outcome = Outcome(
            verdict=decided,
            result=result,
            snapshots=self._snapshots,
            scope=scope(self._in.request, self._in.plan, before, prefix_cache=self._mode) if before else None,
        )


def planned_requests(request: BenchmarkInput, plan: Plan, sides: int) -> int:
    """How many requests a run makes, the warm-up not counted."""
    both = len(plan.first) + len(plan.second)
    if request.form == "two_pass":
        return (sides * ((request.repeats or 3) + 1) + request.noise_repeat) * both
    if request.form == "request_rate":
        return (sides * (request.repeats or 1) + request.noise_repeat) * both
    if request.form == "restart":
        return 3 * (request.repeats or 1) * len(plan.first)
    if request.form == "lookup" and request.lookup is not None:
        points = 1 + (len(set(request.lookup.records)) if request.lookup.allow_fill else 0)
        return points * request.lookup.lookups
    return len(plan.first)


def _info(side: Side) -> SideInfo:
    cache: Literal["lmcache", "none", "new_salts"] = "lmcache" if side.engines[0].has_cache else "none"
    titles = {"lmcache": "with the cache", "none": "without LMCache", "new_salts": "the cache of no use"}
    if side.fresh_salts:
        cache = "new_salts"
    names = tuple(e.target.name for e in side.all_engines)
    server = side.server.target.name if side.server is not None else None
    return SideInfo(side.name, f"{side.title}: {titles[cache]}", cache, names, server)


def _scope_findings(data: RunData) -> list[Finding]:
    """Whether only the connector differs between A and B, as a note or a warning."""
    if data.only_the_connector is True:
        return [Finding("only_the_connector", "note", "A and B differ in the connector only.")]
    others = [f"{d['part']} {d['field']}" for d in data.differences if not d["connector"]]
    if data.only_the_connector is None:
        text = "an engine does not tell its flags (no /server_info), so what else differs between A and B is not known"
        return [Finding("flags_unknown", "warning", text, fixes.DEV_MODE)]
    return [
        Finding(
            "differences", "warning", f"A and B differ in more than the connector: {', '.join(others)}", fixes.SCOPE
        )
    ]
