"""Work that nobody would begin or end any more: queued by a process that died, or owed to a database that refuses."""

from __future__ import annotations

import ast
import gc
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

import app
import app.schema  # every table
from app.database import Database
from app.errors import StoreError
from app.scheduling.runner import INSIST_SECONDS, UNBEGUN, WorkKind, WorkRunner
from app.scheduling.work import WorkColumns
from tests.unit.foundation.conftest import FrozenClock
from tests.unit.foundation.test_work import Job, dies_holding, load, queue


@pytest.fixture
def runner(db: Database, clock: FrozenClock) -> WorkRunner:
    Job.metadata.tables["test_job"].create(db.engine, checkfirst=True)
    return WorkRunner(db, clock, pause=lambda _: None)


def queued_by(runner: WorkRunner, db: Database, clock: FrozenClock) -> int:
    with db.write() as session:
        job = Job(created_at=clock())
        runner.queue(session, job)
        return job.id


def held(stack: ExitStack, db: Database) -> None:
    stack.enter_context(locked(db))


@contextmanager
def locked(db: Database) -> Iterator[None]:
    """Another process holds the write lock, and nobody here waits long for it."""

    def impatient(connection: sqlite3.Connection, _record: object, _proxy: object) -> None:
        connection.execute("PRAGMA busy_timeout=20")

    event.listen(db.engine, "checkout", impatient)
    other = sqlite3.connect(str(db.url.database), isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.close()
        event.remove(db.engine, "checkout", impatient)


class TestQueued:
    def test_a_row_whose_process_is_gone_is_ended_by_whoever_looks(
        self, db: Database, clock: FrozenClock, runner: WorkRunner
    ) -> None:
        ended: list[tuple[int, str]] = []
        settled: list[int] = []
        kind = WorkKind("job", Job, lambda _: None, settled.append, lambda _, job, state: ended.append((job, state)))
        runner.register(kind)
        name, kill = dies_holding(db)
        try:
            job = queue(db, clock, owner=name)
            mine = queued_by(runner, db, clock)
            runner.recover()
            assert load(db, job).state == "queued", "its process lives and will begin it"
        finally:
            kill()
        runner.recover()
        row = load(db, job)
        assert (row.state, row.error, row.finished_at) == ("interrupted", UNBEGUN, clock())
        assert ended == [(job, "interrupted")]
        assert settled == [], "nothing was done, so there is nothing to settle"
        assert load(db, mine).state == "queued"
        assert not runner.run_here("job", job)

    def test_a_start_takes_over_what_a_panel_that_is_gone_left_and_nothing_else(
        self, db: Database, clock: FrozenClock, runner: WorkRunner
    ) -> None:
        runner.register(WorkKind("job", Job, lambda _: None))
        beside, kill = dies_holding(db)
        try:
            left, of_an_older_version = queue(db, clock, owner="elsewhere:1:1"), queue(db, clock)
            living = queue(db, clock, owner=beside)
            assert runner.take_over_queue() == [("job", left), ("job", of_an_older_version)]
            runner.recover()
            assert [load(db, job).state for job in (left, of_an_older_version, living)] == ["queued"] * 3
            assert load(db, left).owner == runner.owner
            assert WorkRunner(db, clock).alive(load(db, left).owner)
        finally:
            kill()

    def test_every_room_queues_through_the_runner(self) -> None:
        """A row that names no owner would be ended by the next look."""
        kinds = {kind.__name__ for kind in WorkColumns.__subclasses__() if kind.__module__.startswith("app.")}
        assert {"Scan", "CleanupRun", "AcceptanceRun", "BenchmarkRun"} < kinds
        made = set()
        for path in Path(app.__file__).parent.rglob("*.py"):
            text = path.read_text()
            if not any(f"{kind}(" in text for kind in kinds):
                continue
            parts = list(ast.walk(ast.parse(text)))
            imports = [part for part in parts if isinstance(part, ast.ImportFrom)]
            tables = {name.name for part in imports if (part.module or "").endswith(".tables") for name in part.names}
            for call in parts:
                if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
                    continue
                if call.func.id not in kinds & tables:
                    continue
                given = {keyword.arg for keyword in call.keywords}
                if "state" in given or None in given:
                    continue  # not queued: it is written as running, or as something that is over
                assert "_runner.queue(session, " in text, f"{path}: {call.func.id} is queued without an owner"
                made.add(call.func.id)
        assert made == kinds

    def test_one_that_could_not_be_claimed_is_begun_later(
        self, db: Database, clock: FrozenClock, runner: WorkRunner
    ) -> None:
        begun = threading.Event()
        runner.register(WorkKind("job", Job, lambda _: begun.set()))
        runner.start()
        job = queued_by(runner, db, clock)
        with locked(db):
            future = runner.submit("job", job)
            assert future is not None
            with pytest.raises(OperationalError):
                future.result(30)
        assert load(db, job).state == "queued"
        runner.recover()
        assert begun.wait(60)
        runner.stop()
        assert load(db, job).state == "succeeded"


class TestEnds:
    """The database is locked while the work runs, so that its very last write fails."""

    def test_one_that_cannot_be_written_is_told_and_written_later(
        self, db: Database, clock: FrozenClock, runner: WorkRunner
    ) -> None:
        ended: list[str] = []
        with ExitStack() as stack:
            kind = WorkKind(
                "job", Job, lambda _: held(stack, db), ended=lambda _session, _job, state: ended.append(state)
            )
            runner.register(kind)
            runner.start()
            job, other = queued_by(runner, db, clock), queue(db, clock, state="running", owner=runner.owner)
            future = runner.submit("job", job)
            assert future is not None
            assert future.result(30)
            over = clock()
            clock.advance(60)
            runner.recover()
            told = load(db, job)
            assert told.state == "running", "others go by the row"
            assert told.error == (
                "it has ended (succeeded), which could not be written yet (database is locked); "
                "this is tried again every few seconds, see to the database"
            )
            assert load(db, other).error is None
        runner.recover()
        row = load(db, job)
        assert (row.state, row.error, row.finished_at) == ("succeeded", None, over)
        assert ended == ["succeeded"]
        runner.recover()
        assert ended == ["succeeded"]
        runner.stop()

    def test_stopping_is_the_last_try_of_a_panel(self, db: Database, clock: FrozenClock, runner: WorkRunner) -> None:
        with ExitStack() as stack:
            runner.register(WorkKind("job", Job, lambda _: held(stack, db)))
            runner.start()
            job = queued_by(runner, db, clock)
            future = runner.submit("job", job)
            assert future is not None
            assert future.result(30)
        runner.stop()
        assert load(db, job).state == "succeeded"

    def test_a_command_goes_on_trying(self, db: Database, clock: FrozenClock, runner: WorkRunner) -> None:
        tries: list[float] = []
        with ExitStack() as stack:

            def pause(seconds: float) -> None:
                tries.append(seconds)
                if len(tries) == 3:
                    stack.close()

            runner = WorkRunner(db, clock, pause=pause)
            runner.register(WorkKind("job", Job, lambda _: held(stack, db)))
            job = queued_by(runner, db, clock)
            assert runner.run_here("job", job)
        assert tries == list(INSIST_SECONDS[:3])
        assert load(db, job).state == "succeeded"

    def test_a_command_that_gives_up_says_why_and_its_row_ends_with_it(
        self, db: Database, clock: FrozenClock, runner: WorkRunner
    ) -> None:
        command = WorkRunner(db, clock, pause=lambda _: None)
        with ExitStack() as stack:
            for each in (command, runner):
                each.register(WorkKind("job", Job, lambda _: held(stack, db)))
            job = queued_by(command, db, clock)
            with pytest.raises(OperationalError, match="locked"):
                command.run_here("job", job)
            runner.recover()
        assert load(db, job).state == "running"
        del command
        gc.collect()
        runner.recover()
        assert (load(db, job).state, load(db, job).error) == ("interrupted", "the process that ran it is gone")

    def test_one_that_was_taken_over_and_can_be_neither_settled_nor_given_back(
        self, db: Database, clock: FrozenClock, runner: WorkRunner
    ) -> None:
        with ExitStack() as stack:

            def settle(_job: int) -> None:
                held(stack, db)
                raise StoreError("the store is away")

            runner.register(WorkKind("job", Job, lambda _: None, recover=settle))
            job = queue(db, clock, state="running", owner="elsewhere:1:1")
            runner.recover()
            assert load(db, job).owner == runner.owner
        runner.register(WorkKind("job", Job, lambda _: None))
        runner.recover()
        assert load(db, job).state == "interrupted"
