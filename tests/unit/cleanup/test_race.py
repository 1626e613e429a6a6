"""Live writers and readers on the directory while cleanups, restores and purges go on.

Promises: no record written after a plan is ever removed by it; none that was read after the plan is removed for being
unused; the newest version of a record is never lost nor overwritten, by a restore least of all.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from app.cleanup.chunks import read_chunks
from tests.unit.cleanup.support import Clock, World, name_of

NAMES = [name_of(n) for n in range(120)]
SECONDS = 60.0 if os.environ.get("CHAOS") else 3.0
#: How much longer a busy machine may take for enough to happen, seconds.
PATIENCE = 120.0


class RealClock(Clock):
    def __call__(self) -> float:
        return time.time()


class Writers:
    """Threads that create, replace and read records as a cache server does: a temporary file, then a rename.

    A version says when it was written (file system and panel share the clock here), so that a file found anywhere
    tells its age.
    """

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._dice = random.Random(seed)
        self._seed = seed
        self.latest: dict[bytes, int] = {}
        self.read_at: dict[bytes, float] = {}
        self.writes = 0

    def step(self, stop: threading.Event) -> None:
        mine = [n for i, n in enumerate(NAMES) if i % 2 == self._seed]
        while not stop.is_set():
            name = self._dice.choice(mine)
            place = self._world.path / os.fsdecode(name)
            what = self._dice.random()
            if what < 0.45:
                self.write(name, place, only_if_missing=True)
            elif what < 0.6:
                self.write(name, place, only_if_missing=False)
            else:
                self.read(name, place)
            time.sleep(0.0005)

    def write(self, name: bytes, place: Path, *, only_if_missing: bool) -> None:
        if only_if_missing and place.exists():
            return  # as LMCache: a store skips an existing path
        version = time.time_ns()
        temporary = self._world.path / ".tmp" / os.fsdecode(name)
        temporary.parent.mkdir(exist_ok=True)
        temporary.write_bytes(json.dumps({"version": version}).encode())
        # noted before it is there: from here on it must not be lost
        self.latest[name] = version
        temporary.rename(place)
        self.writes += 1

    def read(self, name: bytes, place: Path) -> None:
        try:
            place.read_bytes()
        except FileNotFoundError:
            return
        self.read_at[name] = time.time()


def version_of(path: Path) -> int:
    return int(json.loads(path.read_bytes())["version"])


def race(
    world: World,
    cleanups: Callable[[threading.Event], None],
    kind: type[Writers] | None = None,
    *,
    enough: Callable[[list[Writers]], bool],
) -> list[Writers]:
    """Writers and cleanups at once for a while, and until enough has happened: a busy machine takes longer."""
    stop = threading.Event()
    writers = [(kind or Writers)(world, seed) for seed in (0, 1)]
    failures: list[BaseException] = []

    def guarded(work: Callable[[threading.Event], None]) -> None:
        try:
            work(stop)
        except BaseException as error:
            failures.append(error)
            stop.set()

    threads = [threading.Thread(target=guarded, args=(w.step,)) for w in writers]
    threads.append(threading.Thread(target=guarded, args=(cleanups,)))
    for thread in threads:
        thread.start()
    stop.wait(SECONDS)
    until = time.monotonic() + PATIENCE
    while not enough(writers) and time.monotonic() < until and not stop.wait(0.05):
        pass
    stop.set()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return writers


def folders(world: World) -> list[Path]:
    base = world.path / ".tierkeeper" / "quarantine"
    return [p for p in base.rglob("*") if p.is_file() and p.name != "manifest.jsonl"] if base.exists() else []


@pytest.mark.timeout(300)
def test_wrong_records(tmp_path: Path) -> None:
    """A policy that takes whatever it finds, under full fire, with restores in between."""
    world = World(tmp_path, clock=RealClock(), chunk=20)
    world.inventory.judge = lambda name, fact: ("corrupt", "short")
    planned_at: dict[str, int] = {}
    dice = random.Random(7)

    def cleanups(stop: threading.Event) -> None:
        policy = world.policy([{"kind": "corrupt"}])
        while not stop.is_set():
            world.inventory.refresh(world.store_id, lambda: None)
            plan = world.service.start_policy_plan(policy, actor="test")
            made = time.time_ns()
            time.sleep(dice.random() * 0.02)
            run = world.service.start_run(int(plan.id), actor="test")
            assert run.verdict in ("succeeded", "nothing_to_do"), run.notes
            planned_at[run.quarantine_folder.rsplit("/", 1)[1]] = made
            if dice.random() < 0.4:
                runs = world.service.list_runs(page_size=5, page_token=None).items
                job = world.service.restore(int(dice.choice(runs).id), None, actor="test")
                assert job.state == "succeeded"
                assert job.failed_total == 0
                world.inventory.holds.clear()

    writers = race(world, cleanups, enough=lambda w: sum(x.writes for x in w) > 20 and len(planned_at) >= 2)
    try:
        assert sum(w.writes for w in writers) > 20
        assert len(planned_at) >= 2
        kept: dict[bytes, set[int]] = {}
        states = _states(world)
        for path in folders(world):
            version = version_of(path)
            kept.setdefault(os.fsencode(path.name), set()).add(version)
            folder = path.relative_to(world.path / ".tierkeeper" / "quarantine").parts[0].split(".")[0]
            if states[folder, path.name] != "left_behind":
                assert version < planned_at[folder], f"{path.name} was written after the plan that took it"
        for writer in writers:
            for name, version in writer.latest.items():
                place = world.path / os.fsdecode(name)
                here = version_of(place) if place.exists() else None
                assert here == version or version in kept.get(name, set()), "the newest version is lost"
    finally:
        world.db.dispose()


def _states(world: World) -> dict[tuple[str, str], str]:
    found = {}
    token: str | None = None
    while True:
        page = world.service.list_runs(page_size=500, page_token=token)
        for run in page.items:
            folder = run.quarantine_folder.rsplit("/", 1)[1]
            for item in world.service.export_run_records(int(run.id)):
                found[folder, item.name] = item.state
        token = page.next_page_token
        if token is None:
            return found


@pytest.mark.timeout(300)
def test_records_in_use(tmp_path: Path) -> None:
    """`unused` on a mount that records use: what is read after the plan stays."""
    world = World(tmp_path, clock=RealClock(), chunk=20)
    world.inventory.judge = lambda name, fact: ("current", None)
    removed: list[tuple[int, float, float]] = []  # inode, plan made, run ended
    reads: list[tuple[int, float, float]] = []  # inode, began, done while it still had its name

    def cleanups(stop: threading.Event) -> None:
        policy = world.policy([{"kind": "unused", "for": "14d"}])
        while not stop.is_set():
            # everything looks as if last used twenty days ago; on relatime the next read moves the access time
            old = time.time_ns() - 20 * 86_400 * 10**9
            for name in NAMES:
                with contextlib.suppress(FileNotFoundError):
                    os.utime(world.path / os.fsdecode(name), ns=(old, old))
            world.inventory.refresh(world.store_id, lambda: None)
            plan = world.service.start_policy_plan(policy, actor="test")
            made = time.time()
            time.sleep(0.01)
            world.service.start_run(int(plan.id), actor="test")
            ended = time.time()
            for chunk in read_chunks(world.db, int(plan.id)):
                removed.extend((item.inode, made, ended) for item in chunk.in_state("quarantined"))

    class Readers(Writers):
        def read(self, name: bytes, place: Path) -> None:
            with contextlib.suppress(FileNotFoundError), place.open("rb") as file:
                began = time.time()
                inode = os.fstat(file.fileno()).st_ino
                file.read()
                if place.stat().st_ino == inode:
                    reads.append((inode, began, time.time()))

    race(world, cleanups, Readers, enough=lambda _: len(removed) > 0 and len(reads) > 20)
    world.db.dispose()
    assert removed
    assert len(reads) > 20
    for inode, made, ended in removed:
        after = [r for r in reads if r[0] == inode and r[1] > made and r[2] < ended]
        assert not after, "it was read after the plan, in its place, and removed all the same"
