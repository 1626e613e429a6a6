"""Our own folder deleted, moved or replaced while a run, a restore, a purge or a settling goes on in it."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from app.cleanup import jobs, journal
from app.cleanup.disk import StoreRoot
from app.cleanup.footing import FootingLost
from app.cleanup.lock import StoreLock
from app.cleanup.schemas import RunView
from app.cleanup.tables import CleanupEpisode
from tests.unit.cleanup.support import Clock, World, key_of, name_of

CORRUPT = [{"kind": "corrupt"}]
Happens = Callable[[World], None]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, chunk=5)
    yield made
    made.db.dispose()


def own(world: World) -> Path:
    return world.path / ".tierkeeper"


def deleted(world: World) -> None:
    shutil.rmtree(own(world))


def moved(world: World) -> None:
    own(world).rename(world.base / "moved")


def moved_behind_a_link(world: World) -> None:
    moved(world)
    own(world).symlink_to(world.base / "moved")


def replaced_by_another(world: World) -> None:
    moved(world)
    own(world).mkdir()


def replaced_by_a_copy(world: World) -> None:
    moved(world)
    shutil.copytree(world.base / "moved", own(world))


def quarantine_moved(world: World) -> None:
    (own(world) / "quarantine").rename(world.base / "moved")


def run_folder_deleted(world: World) -> None:
    for folder in (own(world) / "quarantine").iterdir():
        shutil.rmtree(folder)


def lock_deleted(world: World) -> None:
    (own(world) / "lock").unlink()


def manifest_deleted(world: World) -> None:
    next(own(world).rglob("manifest.jsonl")).unlink()


ALL = [
    (deleted, "/.tierkeeper is gone while"),
    (moved, "/.tierkeeper was moved to {base}/moved while"),
    (moved_behind_a_link, "/.tierkeeper was replaced by a symbolic link while"),
    (replaced_by_another, "/.tierkeeper was replaced by another directory while"),
    (replaced_by_a_copy, "/.tierkeeper was replaced by another directory while"),
    (quarantine_moved, "/.tierkeeper/quarantine was moved to {base}/moved while"),
    (run_folder_deleted, "is gone while"),
    (lock_deleted, "/.tierkeeper/lock is gone while"),
    (manifest_deleted, "/manifest.jsonl is gone while"),
]
FOLDERS = ALL[:7]
TAKES_FILES_ALONG = (deleted, run_folder_deleted)


def before_chunk(world: World, number: int, happens: Happens) -> None:
    """Lets it happen after the look at our folder, and before the first file of a chunk moves."""
    judge, chunks = world.inventory.classify_now, [0]

    def frozen(store_id: int, facts: Any) -> Any:
        chunks[0] += 1
        if chunks[0] == number:
            happens(world)
        return judge(store_id, facts)

    world.inventory.classify_now = frozen  # type: ignore[method-assign]


def files_below(world: World) -> Counter[bytes]:
    """How often each record's name is there, in the store, in quarantine, or where it was moved to."""
    return Counter(os.fsencode(p.name) for p in world.base.rglob("*.data") if p.is_file() and not p.is_symlink())


def ended_with_the_truth(world: World, run: RunView, names: list[bytes]) -> None:
    """Whatever happened: no count contradicts the disk."""
    assert (run.state, run.verdict) == ("failed", "failed")
    run = world.adds_up(run.id)
    states = world.states(run.id)
    for name, state in states.items():
        assert (state == "planned") == (name in world.names()), state
        assert (state == "quarantined") == (name not in world.names() and name in files_below(world)), state
    assert set(states.values()) <= {"planned", "quarantined", "vanished"}
    assert run.in_quarantine.records == list(states.values()).count("quarantined")
    assert world.inventory.cleared_models == []


@pytest.mark.parametrize(("happens", "says"), ALL)
@pytest.mark.parametrize("removal", ["quarantine", "delete"])
def test_between_two_chunks_of_a_run(world: World, happens: Happens, says: str, removal: str) -> None:
    names = world.fill(30, cls=("corrupt", "short"))
    plan = world.plan(CORRUPT, removal=removal)
    # a heartbeat ends each chunk: the next one looks before it does anything
    beats, beat = [0], StoreLock.beat

    def frozen(lock: StoreLock) -> int:
        at = beat(lock)
        beats[0] += 1
        if beats[0] == 3:  # the first tells that the lock is held
            happens(world)
        return at

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(StoreLock, "beat", frozen)
        run = world.service.start_run(int(plan.id), actor="test")
    assert says.format(base=world.base) in (run.error or "")
    assert "stopped at once, and touched nothing else" in (run.error or "")
    assert len(world.names() & set(names)) == 20, "two chunks of five had gone"
    assert run.not_reached == 20
    if removal == "delete":
        assert (run.removed.records, run.in_quarantine.records) == (10, 0)
        assert "Nothing of this run lies in quarantine" in (run.error or "")
        return
    ended_with_the_truth(world, run, names)
    if happens in TAKES_FILES_ALONG:
        assert (run.removed.records, run.skipped) == (0, {"vanished": 10})
        assert "10 records that had been moved into quarantine went with it, and count as vanished" in (run.error or "")
    else:
        assert (run.removed.records, run.skipped) == (10, {})
        assert "10 records that had been moved into quarantine lie in /" in (run.error or "")
        elsewhere = happens not in (lock_deleted, manifest_deleted)
        assert ("To have them restored, move that folder back" in (run.error or "")) == elsewhere


@pytest.mark.parametrize(("happens", "says"), ALL)
def test_in_the_middle_of_a_chunk(world: World, happens: Happens, says: str) -> None:
    names = world.fill(30, cls=("corrupt", "short"))
    plan = world.plan(CORRUPT)
    before_chunk(world, 3, happens)
    run = world.service.start_run(int(plan.id), actor="test")
    assert says.format(base=world.base) in (run.error or "")
    # a folder that is deleted takes nothing in; one that lies elsewhere takes the chunk that was under way
    assert run.not_reached == (20 if happens in TAKES_FILES_ALONG else 15)
    ended_with_the_truth(world, run, names)
    if happens is replaced_by_another:
        assert list(own(world).iterdir()) == [], "what took its place is not ours"


def test_the_last_chunk_counts_too(world: World) -> None:
    names = world.fill(10, cls=("corrupt", "short"))
    plan = world.plan(CORRUPT)
    before_chunk(world, 2, moved)
    run = world.service.start_run(int(plan.id), actor="test")
    assert "was moved to" in (run.error or "")
    ended_with_the_truth(world, run, names)


def test_hash_folders_are_not_made_anew_where_the_quarantine_was(world: World) -> None:
    for number in range(10):
        name = f"{key_of(number).chunk_hash.hex()[:2]}/{os.fsdecode(name_of(number))}"
        world.write(name)
    world.inventory.judge = lambda name, fact: ("corrupt", "short")
    plan = world.plan(CORRUPT)
    before_chunk(world, 2, deleted)
    run = world.service.start_run(int(plan.id), actor="test")
    assert (run.state, run.not_reached) == ("failed", 5)
    assert not own(world).exists()


def test_moved_back_it_can_be_restored(world: World) -> None:
    names = world.fill(30, cls=("corrupt", "short"))
    plan = world.plan(CORRUPT)
    before_chunk(world, 3, moved_behind_a_link)
    run = world.service.start_run(int(plan.id), actor="test")
    own(world).unlink()
    (world.base / "moved").rename(own(world))
    job = world.service.restore(int(run.id), None, actor="test")
    assert (job.state, job.records) == ("succeeded", 15)
    assert world.names() == set(names)


def test_nobody_else_can_lock_a_store_whose_lock_moved_for_long(world: World) -> None:
    """The lock that was moved along is let go of, and the run that held it has stopped."""
    world.fill(30, cls=("corrupt", "short"))
    plan = world.plan(CORRUPT)
    before_chunk(world, 3, replaced_by_another)
    run = world.service.start_run(int(plan.id), actor="test")
    assert run.state == "failed"
    with (world.base / "moved" / "lock").open("rb") as left:
        fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
    again = world.run(CORRUPT)
    assert (again.verdict, again.removed.records) == ("succeeded", 15)


def test_caches_are_not_called_clean_after_that(world: World) -> None:
    names = world.fill(10, cls=("incompatible", "other_layout"))
    plan = world.plan([{"kind": "incompatible"}])
    world.calls.on_reset = lambda: moved(world) if own(world).exists() else None
    run = world.service.start_run(int(plan.id), actor="test")
    assert world.calls.log, "the caches were reached"
    ended_with_the_truth(world, run, names)
    assert world.service.get_run(int(run.id)).error is not None
    with world.db.read() as session:
        assert [row.closed_at for row in session.scalars(select(CleanupEpisode))] == [None]


@pytest.mark.parametrize(("happens", "says"), FOLDERS)
@pytest.mark.parametrize("kind", ["restore", "purge"])
def test_a_restore_or_a_purge_stops_too(
    world: World, monkeypatch: pytest.MonkeyPatch, happens: Happens, says: str, kind: str
) -> None:
    names = world.fill(30, cls=("corrupt", "short"))
    run_id = int(world.run(CORRUPT).id)
    chunks = [0]

    def frozen(fd: int) -> None:
        chunks[0] += 1
        if chunks[0] == 2:
            happens(world)

    monkeypatch.setattr(jobs, "sync_directory", frozen)
    job = getattr(world.service, kind)(run_id, None, actor="test")
    assert job.state == "failed"
    assert says.format(base=world.base) in (job.error or "")
    assert job.records == 10
    run = world.adds_up(run_id)
    states = Counter(world.states(run_id).values())
    done = "restored" if kind == "restore" else "purged"
    gone = happens in TAKES_FILES_ALONG
    assert states == {done: 10, "vanished" if gone else "quarantined": 20}
    assert run.in_quarantine.records == (0 if gone else 20)
    assert len(world.names()) == (10 if kind == "restore" else 0)
    assert set(world.inventory.back) == world.names(), "what is back is held"
    assert (world.names() | set(files_below(world))) <= set(names)


@pytest.mark.parametrize("happens", [deleted, moved])
def test_a_restore_in_the_middle_of_a_chunk(world: World, monkeypatch: pytest.MonkeyPatch, happens: Happens) -> None:
    world.fill(10, cls=("corrupt", "short"))
    run_id = int(world.run(CORRUPT).id)
    real, calls = os.link, [0]

    def link(*args: Any, **more: Any) -> None:
        real(*args, **more)
        calls[0] += 1
        if calls[0] == 3:
            happens(world)

    monkeypatch.setattr(os, "link", link)
    job = world.service.restore(run_id, None, actor="test")
    assert job.state == "failed"
    states = world.states(run_id)
    back = {name for name, state in states.items() if state == "restored"}
    assert back <= world.names(), "what it says is back is back"
    assert set(world.inventory.back) == back
    assert "vanished" in states.values() if happens is deleted else "vanished" not in states.values()
    world.adds_up(run_id)


@pytest.mark.parametrize("happens", [moved_behind_a_link, quarantine_moved])
def test_a_quarantine_behind_a_link_has_not_vanished(world: World, happens: Happens) -> None:
    world.fill(5, cls=("corrupt", "short"))
    run_id = int(world.run(CORRUPT).id)
    happens(world)
    if happens is quarantine_moved:
        (own(world) / "quarantine").symlink_to(world.base / "moved")
    job = world.service.restore(run_id, None, actor="test")
    assert job.state == "failed"
    assert "is a symbolic link to" in (job.error or "")
    assert set(world.states(run_id).values()) == {"quarantined"}


@pytest.mark.parametrize("happens", [deleted, moved])
def test_settling_leaves_open_what_it_cannot_tell(
    world: World, monkeypatch: pytest.MonkeyPatch, happens: Happens
) -> None:
    world.fill(5, cls=("corrupt", "short"))
    plan = world.plan(CORRUPT)

    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        # as a kill does: the files have moved, and nothing says so
        patched.setattr(journal.Journal, "turn", _then_dies(journal.Journal.turn, Killed))
        with pytest.raises(Killed):
            world.service.start_run(int(plan.id), actor="test")
    found = journal._found

    def frozen(*args: Any) -> Any:
        outcome = found(*args)
        if own(world).exists():
            happens(world)
        return outcome

    monkeypatch.setattr(journal, "_found", frozen)
    before = world.states(1)
    with (
        StoreRoot(str(world.path)) as root,
        StoreLock(root, owner="me", work="test", clock=Clock()),
        pytest.raises(FootingLost),
    ):
        world.service._recovery.settle_store(root, world.store_id)
    assert world.states(1) == before


def _then_dies(real: Callable[..., None], how: type[BaseException]) -> Callable[..., None]:
    turns = [0]

    def turn(*args: Any) -> None:
        turns[0] += 1
        if turns[0] > 1:
            raise how
        real(*args)

    return turn


def test_a_look_costs_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with StoreRoot(str(tmp_path)) as root, StoreLock(root, owner="me", work="test", clock=Clock()):
        looks, real = [0], os.stat

        def stat(*args: Any, **more: Any) -> os.stat_result:
            looks[0] += 1
            return real(*args, **more)

        monkeypatch.setattr(os, "stat", stat)
        root.verify()
    assert looks[0] <= 3
