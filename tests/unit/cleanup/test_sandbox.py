"""The whole way over real sockets: wrong records are served, found, removed everywhere; answers are right again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from app.audit.service import AuditService
from app.cleanup.schemas import PolicyInput, RunView
from app.cleanup.service import CleanupService
from app.fleet.schemas import EngineCreate, ServerCreate, StoreCreate
from app.records.service import RecordsService
from app.records.store_dir import ClockProbe, StoreDirectory
from app.sandbox import EngineSpec, SandboxThread, ServerSpec
from app.scheduling.runner import WorkRunner
from app.scheduling.service import SchedulingService
from app.telemetry.poller import Poller
from tests.unit.sandbox.support import Clock, Driver
from tests.unit.telemetry.support import Bench


class Stage:
    """A sandbox and a panel that polls and cleans it, on one clock."""

    def __init__(self, base: Path, client: httpx.Client, *, dev_mode: bool = True) -> None:
        self.bench = Bench(base)
        clock = Clock()
        self.clock = clock
        self.bench.clock.now = clock.now
        engines = [EngineSpec(dev_mode=dev_mode)]
        self.sandbox = SandboxThread(
            base / "sandbox", clock=self.bench.clock, servers=[ServerSpec(reap_timeout_seconds=20.0)], engines=engines
        )
        self.box = Driver(self.sandbox, clock, client)
        bench = self.bench
        self.poller = Poller(db=bench.db, clock=bench.clock, settings=bench.settings, fleet=bench.fleet)
        runner = WorkRunner(bench.db, bench.clock)
        audit = AuditService(db=bench.db, clock=bench.clock)
        self.records = RecordsService(
            db=bench.db,
            clock=bench.clock,
            settings=bench.settings,
            runner=runner,
            fleet=bench.fleet,
            telemetry=bench.telemetry,
            audit=audit,
        )
        self.cleanup = CleanupService(
            db=bench.db,
            clock=bench.clock,
            runner=runner,
            audit=audit,
            fleet=bench.fleet,
            scheduling=SchedulingService(db=bench.db, clock=bench.clock, audit=audit, runner=runner),
            records=self.records,
            sleep=self._sleep,
        )

    async def _sleep(self, seconds: float) -> None:
        self.bench.clock.now += seconds

    def register(self) -> None:
        fleet = self.bench.fleet
        server = fleet.create_server(ServerCreate(url=self.sandbox.server_url), actor="t")
        fleet.create_engine(EngineCreate(url=self.sandbox.engine_url, name="gpu", server_id=server.id), actor="t")
        self.tick()
        fleet.create_store(
            StoreCreate(path=str(self.sandbox.store_path), server_ids=[server.id], name="main", confirm=True), actor="t"
        )
        safe = self.cleanup.presets()[0].policy
        self.policy = int(self.cleanup.create_policy(PolicyInput(store_id="1", **safe), actor="t").id)

    def tick(self, times: int = 1, seconds: float = 10.0) -> None:
        for _ in range(times):
            self.bench.clock.now += seconds
            asyncio.run(self.poller.poll_all_once())

    def run(self) -> RunView:
        return self.cleanup.start_policy_run(self.policy, actor="t")

    def change_dtype(self) -> dict[str, bytes]:
        """Records in bfloat16, then a float16 engine over them, and its old context dropped."""
        self.tick(4)
        self.box.ask(300)
        self.tick(4)
        old = {p.name: p.read_bytes() for p in self.box.files()}
        assert len(old) == 4
        self.sandbox.control.restart("engine", dtype="float16")
        self.tick(8)
        return old


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Stage]]:
    # Record files carry the sandbox's time, other files the machine's: the difference is the test's, not the store's.
    monkeypatch.setattr(StoreDirectory, "clock_probe", lambda self, clock: ClockProbe(0.0, measured=True))
    stages: list[Stage] = []

    def build(**more: bool) -> Stage:
        stage = Stage(tmp_path, client, **more)
        stage.sandbox.start()
        stages.append(stage)
        stage.register()
        return stage

    with httpx.Client(timeout=10, trust_env=False) as client:
        yield build
        for stage in stages:
            stage.sandbox.stop()
            stage.bench.db.dispose()


def test_wrong_answers_from_disk_are_right_after_a_cleanup_and_stay_right(make: Callable[..., Stage]) -> None:
    stage = make()
    box = stage.box
    old = stage.change_dtype()
    wrong = box.ask(300)
    right = box.ask(300, cache_salt="reference")
    assert wrong.stats == (0, 256, 256)
    assert wrong.distance(right) > 0.3
    stage.tick(2)

    run = stage.run()
    assert (run.state, run.verdict) == ("succeeded", "succeeded"), (run.error, run.notes, run.steps)
    assert run.by_reason["other_layout"].records == 4
    assert [(s.name, s.state) for s in run.steps][-2:] == [("l2_again", "done"), ("l1_again", "done")]
    assert not {p.name for p in box.files()} & set(old)

    healed = box.ask(300)
    assert healed.stats[2] == 0, "computed anew"
    assert healed.logprobs == right.logprobs
    box.only_l2()
    again = box.ask(300)
    assert (again.stats[2], again.logprobs) == (256, right.logprobs)

    # once more: nothing is left to do, and nothing that was stored since is taken
    stage.tick(4)
    kept = {p.name for p in box.files()}
    assert stage.run().verdict == "nothing_to_do"
    assert {p.name for p in box.files()} == kept

    # restoring never goes over what was stored since; without it the files come back byte for byte
    for path in box.files():
        path.unlink()
    job = stage.cleanup.restore(int(run.id), None, actor="t")
    assert job.records >= 4
    assert {p.name: p.read_bytes() for p in box.files()} == old


def test_without_dev_mode_it_is_insufficient_until_the_engine_was_restarted(make: Callable[..., Stage]) -> None:
    stage = make(dev_mode=False)
    box = stage.box
    stage.change_dtype()
    box.ask(300)
    stage.tick(2)
    run = stage.run()
    assert run.verdict == "insufficient"
    assert run.notes == ["restart gpu to clear its GPU cache, then run again"]

    # the GPU cache goes on answering wrongly and writes wrong records anew
    right = box.ask(300, cache_salt="reference")
    still = box.ask(300)
    assert still.stats[0] > 0
    assert still.distance(right) > 0.3
    stage.tick(2)
    assert stage.run().verdict == "insufficient"

    stage.sandbox.control.restart("engine")
    stage.tick(6)
    closing = stage.run()
    assert closing.verdict == "succeeded", (closing.notes, closing.steps)
    assert stage.cleanup.episodes() == []
    healed = box.ask(300)
    assert healed.stats[2] == 0
    assert healed.logprobs == box.ask(300, cache_salt="reference-2").logprobs


def test_a_dead_server_and_a_dead_engine_are_waited_for(make: Callable[..., Stage]) -> None:
    stage = make()
    stage.change_dtype()
    stage.box.ask(300)
    stage.tick(2)
    stage.sandbox.control.refuse("engine")
    run = stage.run()
    assert run.verdict == "insufficient"
    assert any("gpu" in note for note in run.notes)
    stage.sandbox.control.accept("engine")
    stage.tick(2)
    assert stage.run().verdict == "succeeded"


def test_a_short_record_heals_after_its_removal(make: Callable[..., Stage]) -> None:
    stage = make()
    box = stage.box
    stage.tick(4)
    for which in range(6):
        box.ask(300, which=which)
    stage.tick(2)
    path = box.chunk_file(2, which=5)
    whole = path.read_bytes()
    facts = path.stat()
    path.write_bytes(whole[:1000])
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    box.only_l2()
    assert box.ask(300).stats[2] == 128
    stage.tick(4)
    run = stage.run()
    assert run.verdict == "succeeded", (run.error, run.notes)
    assert run.by_reason["short"].records == 1
    assert run.removed.records == 1
    # the key was dead on disk only: L1 may hold it, and stores what it drops anew
    box.delete([path])
    assert box.reset()
    box.ask(300)
    assert path.read_bytes() == whole
