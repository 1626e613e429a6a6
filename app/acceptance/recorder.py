"""Writing a run's rows while it goes on: steps, prompts, answers. Each call is one short unit of work in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from sqlalchemy import insert, select, update

from app.acceptance.prompts import Prompt
from app.acceptance.stack import RunStopped
from app.acceptance.tables import AcceptanceAnswer, AcceptancePrompt, AcceptanceRun, AcceptanceStep
from app.clock import Clock
from app.database import Database

_SECONDS_BETWEEN_WRITES = 0.5


class Recorder:
    """The rows of one run. Not shared between runs."""

    def __init__(self, db: Database, clock: Clock, run_id: int) -> None:
        self._db = db
        self._clock = clock
        self._run_id = run_id
        self._last_progress = 0.0

    def plan(self, steps: Sequence[tuple[str, str]]) -> None:
        """The step list as far as it is known: (name, title), all waiting."""
        with self._db.write() as session:
            session.execute(
                insert(AcceptanceStep),
                [
                    {"run_id": self._run_id, "position": i, "name": name, "title": title, "state": "waiting"}
                    for i, (name, title) in enumerate(steps)
                ],
            )

    def begin(self, name: str, total: int | None = None, detail: str = "") -> None:
        """A step runs now. A step of several batches begins several times; its counts add up."""
        now = self._clock()
        with self._db.write() as session:
            row = session.scalar(
                select(AcceptanceStep).where(AcceptanceStep.run_id == self._run_id, AcceptanceStep.name == name)
            )
            if row is None:
                return
            row.state = "running"
            row.started_at = row.started_at or now
            row.detail = detail or row.detail
            if total is not None:
                row.total = total

    def advance(self, name: str, done: int) -> None:
        """How many requests of a step are done; written at most twice a second."""
        now = self._clock()
        if 0 <= now - self._last_progress < _SECONDS_BETWEEN_WRITES:
            return
        self._last_progress = now
        self._change(name, done=done)

    def end(self, name: str, state: str = "done", detail: str | None = None, count: int | None = None) -> None:
        """A step is over: done, failed or skipped; `count` requests were made."""
        values: dict[str, Any] = {"state": state, "finished_at": self._clock()}
        if detail is not None:
            values["detail"] = detail
        if count is not None:
            values |= {"done": count, "total": count}
        self._change(name, **values)

    def wait_for(self, what: str | None) -> None:
        """What a person is asked to do just now; None when nobody is asked any more."""
        with self._db.write() as session:
            session.execute(
                update(AcceptanceRun).where(AcceptanceRun.id == self._run_id).values(waiting_for=what, continued=False)
            )

    def continued(self) -> bool:
        """Whether the person said that it is done."""
        with self._db.read() as session:
            return bool(session.scalar(select(AcceptanceRun.continued).where(AcceptanceRun.id == self._run_id)))

    def close(self, state: str, detail: str) -> None:
        """What still runs ends in `state`, what never began is skipped."""
        now = self._clock()
        of_run = AcceptanceStep.run_id == self._run_id
        with self._db.write() as session:
            session.execute(
                update(AcceptanceStep)
                .where(of_run, AcceptanceStep.state == "running")
                .values(state=state, finished_at=now, detail=detail)
            )
            session.execute(
                update(AcceptanceStep).where(of_run, AcceptanceStep.state == "waiting").values(state="skipped")
            )

    def prompts(self, prompts: Sequence[Prompt]) -> None:
        """The prompts as they will be sent, variants included."""
        rows = [
            {
                "run_id": self._run_id,
                "key": p.key,
                "kind": "probe" if p.probe else p.kind,
                "digest": p.digest,
                "content": {**p.content, "ignore_eos": p.ignore_eos},
                "expected": p.expected,
                "scoring": p.scoring,
                "max_tokens": p.max_tokens,
            }
            for prompt in prompts
            for p in (prompt, prompt.other, prompt.changed)
            if p is not None
        ]
        with self._db.write() as session:
            session.execute(insert(AcceptancePrompt), rows)

    def answers(self, rows: Sequence[dict[str, Any]]) -> None:
        """Answers with their evidence, as columns of AcceptanceAnswer without the run."""
        if rows:
            with self._db.write() as session:
                session.execute(insert(AcceptanceAnswer), [{"run_id": self._run_id, **row} for row in rows])

    def _change(self, name: str, **values: Any) -> None:
        with self._db.write() as session:
            session.execute(
                update(AcceptanceStep)
                .where(AcceptanceStep.run_id == self._run_id, AcceptanceStep.name == name)
                .values(**values)
            )


class Step:
    """Marks a step of the list as running, then done or failed."""

    def __init__(self, recorder: Recorder, name: str) -> None:
        self._recorder = recorder
        self._name = name

    async def __aenter__(self) -> None:
        await asyncio.to_thread(self._recorder.begin, self._name)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        if kind is None:
            await asyncio.to_thread(self._recorder.end, self._name)
        elif isinstance(error, RunStopped):
            await asyncio.to_thread(self._recorder.end, self._name, "failed", error.finding.text)
