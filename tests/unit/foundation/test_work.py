from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from app.database import Base, Database
from app.errors import StoreError
from app.scheduling import runner as runner_module
from app.scheduling.runner import WorkContext, WorkKind, WorkRunner, owner_alive, process_identity, request_cancel
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
    job, waiting = queue(db, clock), queue(db, clock)
    runner.submit("job", job)
    assert started.wait(5)
    request_cancel(db, clock, Job, job)
    request_cancel(db, clock, Job, waiting)
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
    host, pid, _ = runner.owner.rsplit(":", 2)
    reused_pid = queue(db, clock, state="running", owner=f"{host}:{pid}:1")
    other_host = queue(db, clock, state="running", owner="elsewhere:1:1")
    runner.recover()
    assert settled == [reused_pid]
    assert load(db, reused_pid).state == "interrupted"
    assert load(db, mine).state == "running"
    assert load(db, other_host).state == "running"


def test_owner_identity() -> None:
    assert owner_alive(process_identity(1)) or process_identity(1).endswith("gone")
    assert not owner_alive(None)
