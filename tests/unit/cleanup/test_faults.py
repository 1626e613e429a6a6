"""The fault matrix: kill -9 at any instant of a run, a restore or a purge; the next start tells the truth.

The child kills itself before or after the n-th call that changes anything on the disk or in the journal, which reaches
every instant between two such calls; the long form kills from outside at random times.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from app.cleanup import journal as journal_module
from app.cleanup.execution import RunExecutor
from tests.unit.cleanup.support import World, name_of

#: `make chaos` sets it: the long form of the matrix.
chaos = pytest.mark.skipif(not os.environ.get("CHAOS"), reason="long; set CHAOS=1")
CORRUPT = [{"kind": "corrupt"}]
CALLS = ("rename", "unlink", "link", "write", "fsync", "fdatasync", "mkdir")


def body_of(number: int) -> bytes:
    return hashlib.sha256(b"body %d" % number).digest() * 4


class Store:
    """A directory with planned records and bystanders, over a panel that can be started again and again."""

    def __init__(self, base: Path, planned: int, *, removal: str) -> None:
        base.mkdir(exist_ok=True)
        self.base = base
        self.planned = {name_of(n): body_of(n) for n in range(planned)}
        self.others = {name_of(n): body_of(n) for n in range(10**6, 10**6 + 20)}
        world = self.start()
        for name, body in {**self.planned, **self.others}.items():
            (world.path / os.fsdecode(name)).write_bytes(body)
        self.plan_id = int(world.plan(CORRUPT, removal=removal).id)
        world.db.dispose()

    def start(self) -> World:
        """As a new process of the panel does."""
        world = World(self.base, chunk=100)
        planned = self.planned
        world.inventory.judge = lambda name, fact: ("corrupt", "short") if name in planned else ("current", None)
        return world

    def in_child(self, work: Callable[[World], object], *, point: int | None, after: bool = False) -> int:
        """Forks a panel that does some work and dies at the point; returns how many calls it made (None: all)."""
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(reader)
                world = self.start()
                calls = _arm(point, after)
                work(world)
                os.write(writer, str(calls[0]).encode())
            finally:
                os._exit(0)
        os.close(writer)
        _, status = os.waitpid(pid, 0)
        with os.fdopen(reader) as said:
            made = said.read()
        if point is not None:
            assert os.WIFSIGNALED(status) or made, "it ended by itself or by the kill"
        return int(made or 0)

    def check(self, *, deleted: bool, run_id: int = 1) -> World:
        """Starts again, and holds the truth told against the disk: 0 lost, 0 double, 0 unplanned."""
        world = self.start()
        world.runner.recover()
        states = world.states(run_id)
        assert set(states) == set(self.planned)
        quarantine = _quarantine(world)
        for name, body in self.planned.items():
            state = states[name]
            place = world.path / os.fsdecode(name)
            here, there = place.exists(), name in quarantine
            assert not (here and there), f"{state}: twice"
            if here:
                assert state in ("planned", "in_place", "restored"), state
                assert place.read_bytes() == body
                assert place.stat().st_nlink == 1
            elif there:
                assert state == "quarantined"
                assert quarantine[name].read_bytes() == body
            else:
                assert state == ("deleted" if deleted else "purged"), state
        for name, body in self.others.items():
            assert (world.path / os.fsdecode(name)).read_bytes() == body
        run = world.adds_up(run_id)
        gone = [s for s in states.values() if s in ("quarantined", "deleted", "purged", "restored")]
        assert run.removed.records == len(gone)
        assert run.in_quarantine.records == len(quarantine)
        return world


def _quarantine(world: World) -> dict[bytes, Path]:
    base = world.path / ".tierkeeper" / "quarantine"
    return {os.fsencode(p.name): p for p in base.rglob("*") if p.is_file() and p.name != "manifest.jsonl"}


def _arm(point: int | None, after: bool) -> list[int]:
    """Counts calls, and dies at the given one."""
    calls = [0]

    def wrapped(real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **more: object) -> object:
            calls[0] += 1
            fatal = calls[0] == point
            if fatal and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = real(*args, **more)
            if fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call

    for name in CALLS:
        setattr(os, name, wrapped(getattr(os, name)))
    journal_module.Journal.turn = wrapped(journal_module.Journal.turn)  # type: ignore[method-assign, assignment]
    return calls


def run_it(store: Store) -> Callable[[World], object]:
    return lambda world: world.service.start_run(store.plan_id, actor="test")


@pytest.mark.parametrize("removal", ["quarantine", "delete"])
def test_kill_at_random_instants_of_a_run(tmp_path: Path, removal: str) -> None:
    dice = random.Random(20261130)
    first = Store(tmp_path / "measure", 1000, removal=removal)
    calls = first.in_child(run_it(first), point=None)
    assert calls > 1000
    first.check(deleted=removal == "delete").db.dispose()
    for number in range(3):
        store = Store(tmp_path / str(number), 1000, removal=removal)
        store.in_child(run_it(store), point=dice.randrange(1, calls), after=dice.random() < 0.5)
        world = store.check(deleted=removal == "delete")
        # another run finishes the work
        world.clock.forward(4000)
        rest = world.run(CORRUPT)
        assert rest.verdict in ("succeeded", "nothing_to_do")
        assert not world.names() & set(store.planned)
        if removal == "quarantine":
            for run_id in (1, int(rest.id)):
                world.service.restore(run_id, None, actor="test")
            assert {n: (world.path / os.fsdecode(n)).read_bytes() for n in store.planned} == store.planned
        world.db.dispose()


@pytest.mark.parametrize("kind", ["restore", "purge"])
def test_kill_at_random_instants_of_a_restore_or_a_purge(tmp_path: Path, kind: str) -> None:
    dice = random.Random(4)

    def work(world: World) -> object:
        return getattr(world.service, kind)(1, None, actor="test")

    for number in range(3):
        store = Store(tmp_path / str(number), 300, removal="quarantine")
        store.in_child(run_it(store), point=None)
        store.in_child(work, point=dice.randrange(1, 310), after=dice.random() < 0.5)
        world = store.check(deleted=False)
        job = work(world)
        assert job.state == "succeeded"  # type: ignore[attr-defined]
        assert _quarantine(world) == {}
        if kind == "restore":
            assert {n: (world.path / os.fsdecode(n)).read_bytes() for n in store.planned} == store.planned
            assert set(world.inventory.holds) | set(world.inventory.back) <= set(store.planned)
        else:
            assert not world.names() & set(store.planned)
        world.db.dispose()


def test_a_store_that_is_away_at_the_start_is_settled_by_the_next_run(tmp_path: Path) -> None:
    store = Store(tmp_path, 300, removal="quarantine")
    store.in_child(run_it(store), point=150)
    place, away = tmp_path / "store", tmp_path / "away"
    place.rename(away)
    world = store.start()  # finds an empty directory, as an unmounted one is; then none at all
    place.rmdir()
    world.runner.recover()
    run = world.service.get_run(1)
    assert run.state == "interrupted"
    before = list(world.states(1).values())
    world.db.dispose()
    away.rename(place)
    world = store.start()
    world.clock.forward(4000)
    assert world.run(CORRUPT).verdict == "succeeded"
    after = list(world.states(1).values())
    assert after.count("quarantined") > before.count("quarantined"), "the open intent was settled first"
    assert len(_quarantine(world)) == 300
    world.db.dispose()


@pytest.mark.parametrize("removal", ["quarantine", "delete"])
def test_a_run_that_is_killed_before_it_begins_says_what_was_planned(tmp_path: Path, removal: str) -> None:
    store = Store(tmp_path, 50, removal=removal)

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def begin(world: World) -> None:
        RunExecutor._plan_of = die  # type: ignore[assignment, method-assign]  # of this child only
        run_it(store)(world)

    assert store.in_child(begin, point=None) == 0
    world = store.check(deleted=removal == "delete")
    run = world.service.get_run(1)
    assert (run.state, run.planned.records, run.not_reached) == ("interrupted", 50, 50)
    world.db.dispose()


@chaos
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("removal", ["quarantine", "delete"])
def test_fifty_kills_from_outside(tmp_path: Path, removal: str) -> None:
    """25 random times each way over 5,000 records."""
    dice = random.Random(int.from_bytes(os.urandom(4), "big"))
    began = time.monotonic()
    first = Store(tmp_path / "measure", 5000, removal=removal)
    first.in_child(run_it(first), point=None)
    seconds = time.monotonic() - began
    for number in range(25):
        store = Store(tmp_path / str(number), 5000, removal=removal)
        pid = os.fork()
        if pid == 0:
            try:
                world = store.start()
                run_it(store)(world)
            finally:
                os._exit(0)
        time.sleep(dice.uniform(0, seconds))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        world = store.start()
        started = world.service.list_runs(page_size=1, page_token=None).items
        world.db.dispose()
        if started:
            store.check(deleted=removal == "delete").db.dispose()
