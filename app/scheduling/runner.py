"""Runs long work in worker threads of this process. See `work.py` for what a row of long work is.

Guarantees: a row has an owner from the moment it is written (`queue`) and is run by at most one process (guarded
UPDATE); the final state is written by whoever ran it, as soon as the database can be written, or by whoever finds its
owner gone: the next start, a look every few seconds, or a request that meets the row (`interrupted`). Runners must poll
`WorkContext.check_cancel()` at least every two seconds of work and hold no database session while doing I/O.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy import select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from app.clock import Clock
from app.database import Database, said_by, trouble
from app.errors import TierkeeperError
from app.scheduling.ends import End, Key, UnwrittenEnds
from app.scheduling.news import News
from app.scheduling.owners import Owners
from app.scheduling.work import CANCELLED, FAILED, INTERRUPTED, QUEUED, RUNNING, SUCCEEDED

log = structlog.get_logger()

#: Pauses of a command that tries to write the end of its work. After two minutes its process ends, and the row with it.
INSIST_SECONDS = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 30.0, 30.0)

#: How long a note of progress waits for another writer, seconds. It is worth no more: the next one says it better.
PROGRESS_PATIENCE = 0.2

#: What a row says whose owner died before it began.
UNBEGUN = "the process that had queued it was gone before it began: nothing was done"


class Cancelled(Exception):
    """Raised by `WorkContext.check_cancel`; the runner turns it into state `cancelled`."""


@dataclass(frozen=True)
class WorkKind:
    """One kind of long work. `table` is an ORM class with WorkColumns.

    run: does the work; returning normally means `succeeded`, Cancelled means `cancelled`, anything else `failed`.
    recover: called for a row whose process is gone, before it is called `interrupted` (settle journals here).
    ended: called with the row's id and its final state in the unit of work that writes that state (audit).
    """

    name: str
    table: type[Any]
    run: Callable[[WorkContext], None]
    recover: Callable[[int], None] | None = None
    ended: Callable[[Session, int, str], None] | None = None


class WorkContext:
    """What a running piece of work sees of its row."""

    def __init__(
        self,
        db: Database,
        clock: Clock,
        table: type[Any],
        work_id: int,
        stopping: threading.Event,
        moved: Callable[[], None] = lambda: None,
    ) -> None:
        self.db = db
        self.clock = clock
        self.id = work_id
        self._moved = moved
        self._table = table
        self._stopping = stopping
        self._last_write = 0.0
        #: What was too soon to be written, or could not be; it is with the row's end.
        self.untold: dict[str, Any] = {}

    def progress(self, done: int, total: int | None = None, unit: str = "", *, force: bool = False) -> None:
        """Records how far the work is; at most twice a second unless forced. Also the heartbeat.

        Work never fails for it: what cannot be written now is left to the next note.
        """
        now = self.clock()
        values = {"progress_done": done, "progress_total": total, "progress_unit": unit}
        if not force and 0 <= now - self._last_write < 0.5:
            self.untold = values
            return
        note = update(self._table).where(self._table.id == self.id).values(**values, heartbeat_at=now)
        why = self.db.write_if_free(lambda session: session.execute(note), patience=PROGRESS_PATIENCE)
        self._last_write, self.untold = now, values if why else {}
        if why is None:
            self._moved()

    def cancelled(self) -> bool:
        """Whether somebody asked to stop, or the process is shutting down."""
        return self._stopping.is_set() or self.cancel_requested()

    def cancel_requested(self) -> bool:
        """Whether somebody asked to cancel this row."""
        with self.db.read() as session:
            return bool(session.scalar(select(self._table.cancel_requested).where(self._table.id == self.id)))

    def check_cancel(self) -> None:
        """Raises Cancelled when `cancelled()`."""
        if self.cancelled():
            raise Cancelled

    @property
    def shutting_down(self) -> bool:
        return self._stopping.is_set()


class WorkRunner:
    """Worker threads of this process and the kinds they know."""

    def __init__(
        self, db: Database, clock: Clock, *, threads: int = 4, pause: Callable[[float], object] = time.sleep
    ) -> None:
        self._db = db
        self._clock = clock
        self._kinds: dict[str, WorkKind] = {}
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._stopping = threading.Event()
        self._owners = Owners(db)
        self._pause = pause
        self._ends = UnwrittenEnds(db)
        #: Queued rows of ours that could not be claimed (a locked database): nobody else would ever begin them.
        self._unclaimed: set[Key] = set()
        #: Rows of dead processes that we took over and could neither settle nor give back.
        self._stuck: set[Key] = set()
        self.news = News()

    @property
    def owner(self) -> str:
        """This process, as rows name it."""
        return self._owners.me

    def register(self, kind: WorkKind) -> None:
        self._kinds[kind.name] = kind

    def start(self) -> None:
        """Starts the threads. Call `recover()` first."""
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="work")

    def stop(self) -> None:
        """Asks running work to stop at its next check and waits for it; rows end `interrupted`."""
        self._stopping.set()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._write_ends()
        self._owners.let_go()

    def queue(self, session: Session, row: Any) -> None:
        """Adds a row of long work, whose owner is this process from now on; `submit` it when it is committed.

        A process that dies between the two leaves a row that anybody knows for nobody's.
        """
        self._owners.hold()
        row.owner = self.owner
        session.add(row)
        session.flush()

    def submit(self, kind_name: str, work_id: int) -> Future[bool] | None:
        """Runs a queued row in a thread. Without started threads (a command): runs it here and returns None."""
        if self._pool is None:
            self.run_here(kind_name, work_id)
            return None
        return self._pool.submit(self.run_here, kind_name, work_id)

    def run_here(self, kind_name: str, work_id: int) -> bool:
        """Claims and runs one row in the calling thread; False when somebody else has it."""
        kind = self._kinds[kind_name]
        try:
            if not self._claim(kind, work_id):
                return False
        except Exception as problem:
            self._unclaimed.add((kind_name, work_id))
            log.error("work.not_claimed", kind=kind_name, id=work_id, why=said_by(problem))
            raise
        moved = partial(self.news.tell, kind.name)
        moved()
        context = WorkContext(self._db, self._clock, kind.table, work_id, self._stopping, moved)
        state, error = SUCCEEDED, None
        crash: Exception | None = None
        try:
            kind.run(context)
        except Cancelled:
            # Somebody's wish to cancel outlives a shutdown that came meanwhile.
            state = CANCELLED if context.cancel_requested() else INTERRUPTED
            error = "the panel was stopped" if state == INTERRUPTED else None
        except TierkeeperError as problem:
            state, error = FAILED, problem.detail
        except Exception as problem:
            crash = problem
            state, error = FAILED, _told(problem)
        self._finish(kind, work_id, End(state, error, self._clock(), context.untold))
        if crash is not None:
            # Only now: a log that cannot be written must not leave the row `running` for ever.
            log.error("work.crashed", kind=kind_name, id=work_id, exc_info=crash)
        return True

    def state_of(self, kind_name: str, work_id: int) -> str | None:
        """State of one row; None when there is no such row."""
        table = self._kinds[kind_name].table
        with self._db.read() as session:
            return session.scalar(select(table.state).where(table.id == work_id))

    def alive(self, owner: str | None) -> bool:
        """Whether the process that a row names as its owner still runs."""
        return self._owners.alive(owner)

    def recover(self) -> None:
        """Ends rows whose process is gone: their rooms settle them, then they are `interrupted`. Cheap where all live.
        Also catches up on what this process could not write before.

        At start before anything new runs, every few seconds, and before a request is refused for what another row does.
        """
        self._write_ends()
        self._begin_unclaimed()
        for kind in self._kinds.values():
            for work_id, state, owner in self._active(kind, QUEUED, RUNNING):
                if self._owners.alive(owner) and not self._was_stuck((kind.name, work_id)):
                    continue
                try:
                    if state == QUEUED:
                        self._end_unbegun(kind, work_id, owner)
                    else:
                        self._end_dead(kind, work_id, owner)
                except Exception as problem:  # one row's trouble keeps no other from its end; the next look tries again
                    if owner == self.owner:
                        self._stuck.add((kind.name, work_id))
                    bug = not (isinstance(problem, DBAPIError) and trouble(problem))
                    log.error("work.not_ended", kind=kind.name, id=work_id, why=said_by(problem), exc_info=bug)

    def take_over_queue(self) -> list[Key]:
        """What a panel that is gone left queued becomes this process's, to be given to `submit`. Call it at start,
        before `recover`, which would end those rows.
        """
        self._owners.hold()
        taken = []
        for kind in self._kinds.values():
            for work_id, state, owner in self._active(kind, QUEUED):
                if not self._owners.alive(owner) and self._hand_over(kind, work_id, owner, self.owner, state):
                    taken.append((kind.name, work_id))
        return taken

    def _was_stuck(self, key: Key) -> bool:
        """Whether a row that bears our name is one to be settled; the asker has it then, and nobody else."""
        try:
            self._stuck.remove(key)
        except KeyError:
            return False
        return True

    def _active(self, kind: WorkKind, *states: str) -> Sequence[Any]:
        table = kind.table
        with self._db.read() as session:
            return session.execute(select(table.id, table.state, table.owner).where(table.state.in_(states))).all()

    def _begin_unclaimed(self) -> None:
        if self._pool is None:
            return
        for key in list(self._unclaimed):
            self._unclaimed.discard(key)
            self.submit(*key)

    def _end_unbegun(self, kind: WorkKind, work_id: int, owner: str | None) -> None:
        table = kind.table
        end = End(INTERRUPTED, UNBEGUN, self._clock())
        with self._db.write() as session:
            ended = session.execute(
                update(table)
                .where(table.id == work_id, table.state == QUEUED, table.owner == owner)
                .values(**end.values())
            )
            if not ended.rowcount:  # type: ignore[attr-defined]
                return
            if kind.ended is not None:
                kind.ended(session, work_id, INTERRUPTED)
        log.info("work.owner_gone", kind=kind.name, id=work_id, owner=owner, state=QUEUED)
        self.news.tell(kind.name)

    def _end_dead(self, kind: WorkKind, work_id: int, owner: str | None) -> None:
        self._owners.hold()
        # Taken over first: two that find the same dead row (a panel's look, a request, a command) must not both settle.
        if not self._hand_over(kind, work_id, owner, self.owner, RUNNING):
            return
        try:
            if kind.recover is not None:
                kind.recover(work_id)
            self._write_end(kind, work_id, End(INTERRUPTED, "the process that ran it is gone", self._clock()))
        except BaseException:
            try:
                self._hand_over(kind, work_id, self.owner, owner, RUNNING)
            except Exception:
                self._stuck.add((kind.name, work_id))
            raise
        log.info("work.owner_gone", kind=kind.name, id=work_id, owner=owner)

    def _hand_over(self, kind: WorkKind, work_id: int, old: str | None, new: str | None, state: str) -> bool:
        table = kind.table
        with self._db.write() as session:
            taken = session.execute(
                update(table).where(table.id == work_id, table.state == state, table.owner == old).values(owner=new)
            )
            return bool(taken.rowcount)  # type: ignore[attr-defined]

    def cancel(self, kind_name: str, work_id: int) -> None:
        """Asks a row to stop; one that nobody runs (yet, or any more) ends at once. Idempotent."""
        kind = self._kinds[kind_name]
        self.recover()
        table = kind.table
        with self._db.write() as session:
            ended = session.execute(
                update(table)
                .where(table.id == work_id, table.state == QUEUED)
                .values(state=CANCELLED, finished_at=self._clock(), cancel_requested=True)
            )
            session.execute(
                update(table).where(table.id == work_id, table.state == RUNNING).values(cancel_requested=True)
            )
            if ended.rowcount and kind.ended is not None:  # type: ignore[attr-defined]
                kind.ended(session, work_id, CANCELLED)

    def _claim(self, kind: WorkKind, work_id: int) -> bool:
        self._owners.hold()
        now = self._clock()
        with self._db.write() as session:
            claimed = session.execute(
                update(kind.table)
                .where(kind.table.id == work_id, kind.table.state == QUEUED)
                .values(state=RUNNING, started_at=now, heartbeat_at=now, owner=self.owner)
            )
            return bool(claimed.rowcount)  # type: ignore[attr-defined]

    def _finish(self, kind: WorkKind, work_id: int, end: End) -> None:
        """Writes the end, or keeps it until it can be written. A command, which nothing else looks after, waits for
        that itself, and raises what stands in the way when it has waited long enough.
        """
        try:
            self._write_end(kind, work_id, end)
            return
        except Exception as problem:
            self._ends.keep(kind.name, kind.table, work_id, end, problem)
            log.error("work.end_not_written", kind=kind.name, id=work_id, state=end.state, why=said_by(problem))
            self.news.tell(kind.name)
            if self._pool is not None:
                return
            trouble = problem
        for seconds in INSIST_SECONDS:
            self._pause(seconds)
            if self._write_ends():
                return
        raise trouble

    def _write_ends(self) -> bool:
        """Writes what could not be written before; False when some of it still cannot."""
        for key, end in self._ends.waiting():
            try:
                self._write_end(self._kinds[key[0]], key[1], end)
            except Exception as problem:
                log.warning("work.end_not_written", kind=key[0], id=key[1], state=end.state, why=said_by(problem))
                return False  # a locked database takes its time to say so: the others wait for the next turn
            self._ends.written(key)
        return True

    def _write_end(self, kind: WorkKind, work_id: int, end: End) -> None:
        with self._db.write() as session:
            ended = session.execute(
                update(kind.table).where(kind.table.id == work_id, kind.table.state == RUNNING).values(**end.values())
            )
            if ended.rowcount and kind.ended is not None:  # type: ignore[attr-defined]
                kind.ended(session, work_id, end.state)
        self.news.tell(kind.name)


def _told(problem: Exception) -> str:
    """What a row says of a crash. For trouble with the database a line of code is no way out: the log has it."""
    if isinstance(problem, DBAPIError):
        return said_by(problem)
    where = traceback.extract_tb(problem.__traceback__)[-1]
    return f"{said_by(problem)} ({Path(where.filename).name}:{where.lineno})"
