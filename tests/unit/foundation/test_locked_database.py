"""What goes on, and what is said, while another process holds the database."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import delete, select, text, update
from sqlalchemy.exc import IntegrityError, OperationalError
from structlog.testing import capture_logs

from app.auth.schemas import TokenInput
from app.auth.service import UNWRITTEN_SECONDS, AuthService
from app.auth.tables import ApiToken, UserSession
from app.database import BUSY_MS, Database
from app.scheduling.jobs import told_in_a_line
from app.scheduling.runner import WorkContext, WorkKind, WorkRunner
from tests.support.locks import held, impatient
from tests.unit.foundation.conftest import FrozenClock
from tests.unit.foundation.test_work import Job, load, queue

LOCKED = (
    "the database cannot be used (database is locked); another process has been writing for long; "
    "run it again when that is done"
)


@pytest.fixture
def runner(db: Database, clock: FrozenClock) -> WorkRunner:
    Job.metadata.tables["test_job"].create(db.engine, checkfirst=True)
    return WorkRunner(db, clock, pause=lambda _: None)


class TestWriteIfFree:
    """With the real timeout: a write that waited for it would take fifteen seconds."""

    def test_it_is_left_out_at_once_and_later_writers_wait_again(self, db: Database, clock: FrozenClock) -> None:
        row = ApiToken(name="a", token_hash="0", role="viewer", created_at=clock(), created_by="t")
        with held(db):
            began = time.monotonic()
            assert db.write_if_free(lambda session: session.add(row)) == LOCKED
            assert time.monotonic() - began < BUSY_MS / 1000 / 3
            with db.read() as session:
                assert session.scalar(text("PRAGMA busy_timeout")) == BUSY_MS
        row = ApiToken(name="a", token_hash="0", role="viewer", created_at=clock(), created_by="t")
        assert db.write_if_free(lambda session: session.add(row)) is None
        with db.read() as session:
            assert session.scalar(select(ApiToken.name)) == "a"
            assert session.scalar(text("PRAGMA busy_timeout")) == BUSY_MS

    def test_an_error_in_what_was_asked_is_raised(self, db: Database) -> None:
        with pytest.raises(IntegrityError):
            db.write_if_free(lambda session: session.add(ApiToken(name=None)))


class TestLastUse:
    def test_nobody_waits_for_it_and_it_is_not_tried_with_every_request(
        self, db: Database, clock: FrozenClock, auth: AuthService
    ) -> None:
        made = auth.create_token(TokenInput(name="ci", role="viewer"), actor="t").token
        session_token = auth.sign_in("admin", str(auth.ensure_admin()), None)
        with db.read() as session:
            seen = session.scalars(select(UserSession)).one().last_seen_at
        clock.advance(3600)
        with held(db), capture_logs() as logs:
            began = time.monotonic()
            for _ in range(3):
                assert auth.token_principal(made, None)
                assert auth.session_principal(session_token, None)
            assert time.monotonic() - began < BUSY_MS / 1000 / 3
            assert [entry["reason"] for entry in logs if entry["event"] == "auth.last_use_not_written"] == [LOCKED]
        assert auth.session_principal(session_token, None)
        with db.read() as session:
            assert session.scalars(select(UserSession)).one().last_seen_at == seen, "not tried again so soon"
        clock.advance(UNWRITTEN_SECONDS)
        assert auth.token_principal(made, None)
        assert auth.session_principal(session_token, None)
        with db.read() as session:
            assert session.scalars(select(ApiToken)).one().last_used_at == clock()
            assert session.scalars(select(UserSession)).one().last_seen_at == clock()


class TestWork:
    def test_progress_that_cannot_be_written_is_left_to_the_next(
        self, db: Database, clock: FrozenClock, runner: WorkRunner
    ) -> None:
        seen: list[tuple[int, float | None]] = []

        def work(context: WorkContext) -> None:
            began = time.monotonic()
            with held(db):
                context.progress(1, 9, "files", force=True)
                seen.append((load(db, context.id).progress_done, None))
            assert time.monotonic() - began < BUSY_MS / 1000 / 3
            clock.advance(1)
            context.progress(2, 9, "files")
            row = load(db, context.id)
            seen.append((row.progress_done, row.heartbeat_at))
            clock.advance(1)
            with held(db):
                context.progress(9, 9, "files", force=True)

        runner.register(WorkKind("job", Job, work))
        job = queue(db, clock)
        start = clock()
        assert runner.run_here("job", job)
        row = load(db, job)
        assert (row.state, row.error) == ("succeeded", None)
        assert seen == [(0, None), (2, start + 1)]
        assert (row.progress_done, row.progress_total) == (9, 9), "what could not be told is with the end"

    def test_what_must_be_written_fails_in_a_sentence(
        self, db: Database, clock: FrozenClock, runner: WorkRunner
    ) -> None:
        def work(context: WorkContext) -> None:
            with held(db), impatient(db), db.write() as session:
                session.execute(update(Job).where(Job.id == context.id).values(progress_done=1))

        runner.register(WorkKind("job", Job, work))
        job = queue(db, clock)
        with capture_logs() as logs:
            runner.run_here("job", job)
        assert (load(db, job).state, load(db, job).error) == ("failed", LOCKED)
        (crash,) = [entry for entry in logs if entry["event"] == "work.crashed"]
        assert isinstance(crash["exc_info"], OperationalError), "where it was is in the log"

    def test_a_bug_in_a_statement_is_told_in_one_line(
        self, db: Database, clock: FrozenClock, runner: WorkRunner
    ) -> None:
        def work(_: WorkContext) -> None:
            with db.write() as session:
                session.add(ApiToken(name=None))

        runner.register(WorkKind("job", Job, work))
        job = queue(db, clock)
        runner.run_here("job", job)
        error = str(load(db, job).error)
        assert error.startswith("IntegrityError: NOT NULL constraint failed: api_token.")
        assert "\n" not in error


class TestJobs:
    def test_a_locked_database_is_one_line(self, db: Database) -> None:
        def job() -> None:
            with db.write() as session:
                session.execute(delete(ApiToken))

        with held(db), impatient(db), capture_logs() as logs:
            told_in_a_line("roll-up", job)()
        assert logs == [{"event": "job.put_off", "job": "roll-up", "why": LOCKED, "log_level": "warning"}]

    def test_a_bug_keeps_its_traceback(self, db: Database) -> None:
        def job() -> None:
            with db.write() as session:
                session.execute(text("SELECT nonsense"))

        with pytest.raises(OperationalError, match="nonsense"):
            told_in_a_line("roll-up", job)()
