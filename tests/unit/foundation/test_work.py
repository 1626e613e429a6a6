from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.database import Base, Database
from app.errors import StoreError
from app.scheduling import runner as runner_module
from app.scheduling.owners import LOCK_FILE, Owners, process_identity
from app.scheduling.runner import WorkContext, WorkKind, WorkRunner
from app.scheduling.work import WorkColumns
from tests.unit.foundation.conftest import FrozenClock


class Job(WorkColumns, Base):
    __tablename__ = "test_job"


@pytest.fixture
def runner(db: Database, clock: FrozenClock) -> WorkRunner:
    Base.metadata.tables["test_job"].create(db.engine, checkfirst=True)
    return WorkRunner(db, clock)


def queue(db: Database, clock: FrozenClock, **values: object) -> int:
    with db.write() as session:
        job = Job(created_at=clock(), **values)
        session.add(job)
        session.flush()
        return job.id


def load(db: Database, job_id: int) -> Job:
    with db.read() as session:
        row = session.get(Job, job_id)
    assert row is not None
    return row


def test_a_row_runs_once_and_ends_succeeded(db: Database, clock: FrozenClock, runner: WorkRunner) -> None:
    ran: list[int] = []
    runner.register(WorkKind("job", Job, lambda context: ran.append(context.id)))
    job = queue(db, clock)
    assert runner.run_here("job", job) is True
    assert runner.run_here("job", job) is False
    assert ran == [job]
    assert load(db, job).state == "succeeded"


def test_an_error_of_ours_is_told_as_it_is_and_a_bug_with_its_place(
    db: Database, clock: FrozenClock, runner: WorkRunner
) -> None:
    def refuse(context: WorkContext) -> None:
        raise StoreError("the directory is gone")

    def crash(context: WorkContext) -> None:
        raise ZeroDivisionError("x")

    for run, message in ((refuse, "the directory is gone"), (crash, "ZeroDivisionError: x (test_work.py:")):
        runner.register(WorkKind("job", Job, run))
        job = queue(db, clock)
        runner.run_here("job", job)
        row = load(db, job)
        assert row.state == "failed"
        assert row.error is not None
        assert row.error.startswith(message)


def test_a_log_that_cannot_be_written_leaves_no_row_running(
    db: Database, clock: FrozenClock, runner: WorkRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    def crash(context: WorkContext) -> None:
        raise ZeroDivisionError("x")

    monkeypatch.setattr(runner_module, "log", SimpleNamespace(error=full, exception=full, info=full))
    runner.register(WorkKind("job", Job, crash))
    job = queue(db, clock)
    with pytest.raises(OSError, match="no space left"):
        runner.run_here("job", job)
    assert load(db, job).state == "failed"


def test_cancel_reaches_a_running_job_and_a_queued_one(db: Database, clock: FrozenClock, runner: WorkRunner) -> None:
    started = threading.Event()

    def wait_for_cancel(context: WorkContext) -> None:
        started.set()
        while True:
            context.check_cancel()

    runner.register(WorkKind("job", Job, wait_for_cancel))
    runner.start()
    job, waiting = queue(db, clock), queue(db, clock, owner=runner.owner)
    runner.submit("job", job)
    assert started.wait(5)
    runner.cancel("job", job)
    runner.cancel("job", waiting)
    runner.stop()
    assert load(db, job).state == "cancelled"
    assert load(db, waiting).state == "cancelled"


def test_stopping_the_process_leaves_interrupted(db: Database, clock: FrozenClock, runner: WorkRunner) -> None:
    started = threading.Event()

    def endless(context: WorkContext) -> None:
        started.set()
        while True:
            context.check_cancel()

    runner.register(WorkKind("job", Job, endless))
    runner.start()
    job = queue(db, clock)
    runner.submit("job", job)
    assert started.wait(5)
    runner.stop()
    assert load(db, job).state == "interrupted"


def test_a_row_of_a_dead_process_is_settled_then_interrupted(
    db: Database, clock: FrozenClock, runner: WorkRunner
) -> None:
    settled: list[int] = []
    runner.register(WorkKind("job", Job, lambda context: None, recover=settled.append))
    mine = queue(db, clock, state="running", owner=runner.owner)
    before_locks = process_identity(1).rsplit(":", 1)[0]
    reused_pid = queue(db, clock, state="running", owner=f"{before_locks}:1")
    other_host = queue(db, clock, state="running", owner="elsewhere:1:1")
    none = queue(db, clock, state="running", owner=None)
    runner.recover()
    assert settled == [reused_pid, other_host, none]
    assert [load(db, job).state for job in settled] == ["interrupted"] * 3
    assert load(db, mine).state == "running"


def dies_holding(db: Database) -> tuple[str, Callable[[], None]]:
    """Another process that holds its byte; what it is called in rows, and how it is killed."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        owners = Owners(db)
        owners.hold()
        os.write(writer, owners.me.encode())
        signal.pause()
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as said:
        name = os.read(said.fileno(), 500).decode()

    def kill() -> None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    return name, kill


def test_a_process_is_told_by_its_lock_whatever_its_host_is_called(db: Database, runner: WorkRunner) -> None:
    name, kill = dies_holding(db)
    # A container that was made anew: another host name, the same pid and perhaps the same start.
    elsewhere = f"recreated:1:1#{name.rpartition('#')[2]}"
    try:
        assert runner.alive(name)
        assert runner.alive(elsewhere)
    finally:
        kill()
    assert not runner.alive(name)
    assert not runner.alive(elsewhere)


def test_two_rows_of_one_process_name_but_another_lock_are_two_processes(db: Database) -> None:
    first, second = Owners(db), Owners(db)
    first.hold()
    assert first.me.partition("#")[0] == second.me.partition("#")[0]
    assert second.alive(first.me)
    assert not first.alive(second.me), "it has not claimed anything"
    first.let_go()
    assert not second.alive(first.me)


def test_a_lock_file_that_was_removed_is_made_and_held_again(db: Database, tmp_path: Path) -> None:
    mine, other = Owners(db), Owners(db)
    mine.hold()
    (tmp_path / LOCK_FILE).unlink()
    assert not other.alive(mine.me)
    mine.hold()
    assert other.alive(mine.me)


def test_without_locks_a_process_is_told_by_host_and_pid(db: Database, tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE).symlink_to(tmp_path / "nowhere" / "at all")
    owners = Owners(db)
    owners.hold()
    assert owners.me == process_identity(os.getpid())
    assert Owners(db).alive(owners.me)


def test_cancel_ends_a_row_whose_process_is_gone(db: Database, clock: FrozenClock, runner: WorkRunner) -> None:
    ended: list[tuple[int, str]] = []
    runner.register(
        WorkKind("job", Job, lambda context: None, ended=lambda session, job, state: ended.append((job, state)))
    )
    name, kill = dies_holding(db)
    job, waiting = queue(db, clock, state="running", owner=name), queue(db, clock, owner=runner.owner)
    try:
        runner.cancel("job", job)
        assert load(db, job).state == "running", "it lives: it stops by itself"
    finally:
        kill()
    runner.cancel("job", job)
    runner.cancel("job", waiting)
    assert load(db, job).state == "interrupted"
    assert ended == [(job, "interrupted"), (waiting, "cancelled")]


def test_a_row_that_cannot_be_settled_is_tried_again(db: Database, clock: FrozenClock, runner: WorkRunner) -> None:
    troubles = [StoreError("the database is away")]

    def recover(job: int) -> None:
        if troubles:
            raise troubles.pop()

    runner.register(WorkKind("job", Job, lambda context: None, recover=recover))
    job = queue(db, clock, state="running", owner="elsewhere:1:1")
    runner.recover()
    row = load(db, job)
    assert (row.state, row.owner) == ("running", "elsewhere:1:1")
    runner.recover()
    assert load(db, job).state == "interrupted"


def test_the_last_progress_is_written_with_the_end(db: Database, clock: FrozenClock, runner: WorkRunner) -> None:
    def count(context: WorkContext) -> None:
        for done in range(1, 11):
            context.progress(done, 10, "things")  # the clock stands still: only the first is written at once

    runner.register(WorkKind("job", Job, count))
    job = queue(db, clock)
    runner.run_here("job", job)
    row = load(db, job)
    assert (row.progress_done, row.progress_total, row.progress_unit) == (10, 10, "things")
