"""Writing a run's rows while it goes on: requests, the stage, progress. Each write is one short unit of work in a
thread, made between requests and never while one is timed alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import insert, update

from app.benchmark.measures import Measured
from app.benchmark.tables import BenchmarkRun, BenchmarkSample
from app.database import Database


class Recorder:
    """The rows of one run. `progress(done, total)` is the work's own."""

    def __init__(
        self, db: Database, run_id: int, progress: Callable[[int, int | None], None], *, every: float = 1.0
    ) -> None:
        self._db = db
        self._run_id = run_id
        self._progress = progress
        self._every = every
        self._waiting: list[Measured] = []
        self._done = 0
        self.total: int | None = None
        self._last = time.monotonic()
        self._flushing = asyncio.Lock()

    async def add(self, request: Measured) -> None:
        """Keeps one request; writes them together about once a second."""
        self._waiting.append(request)
        self._done += 1
        if time.monotonic() - self._last >= self._every:
            await self.flush()

    async def flush(self) -> None:
        """Writes what waits."""
        async with self._flushing:
            rows, self._waiting = self._waiting, []
            self._last = time.monotonic()
            await asyncio.to_thread(self._write, rows, self._done)

    async def stage(self, text: str) -> None:
        """What the run does just now; what waits is written with it."""
        await self.flush()
        await asyncio.to_thread(self._stage, text)

    def _write(self, rows: Sequence[Measured], done: int) -> None:
        if rows:
            with self._db.write() as session:
                session.execute(insert(BenchmarkSample), [self._row(r) for r in rows])
        self._progress(done, None if self.total is None else max(self.total, done))

    def _stage(self, text: str) -> None:
        with self._db.write() as session:
            session.execute(update(BenchmarkRun).where(BenchmarkRun.id == self._run_id).values(stage=text[:300]))

    def _row(self, request: Measured) -> dict[str, Any]:
        return {
            "run_id": self._run_id,
            "scenario": request.scenario,
            "repeat": request.repeat,
            "phase": request.phase,
            "position": request.position,
            "key": request.key,
            "engine_name": request.engine,
            "salt": request.salt,
            "started_at": request.started_at,
            "offset_seconds": request.offset,
            "planned_offset_seconds": request.planned_offset,
            "total_seconds": request.total,
            "http_status": request.http_status,
            "error": request.error,
            "ttft_seconds": request.ttft,
            "latency_seconds": request.latency,
            "itl_seconds": [round(gap, 7) for gap in request.itl],
            "prompt_tokens": request.prompt_tokens,
            "output_tokens": request.output_tokens,
            "cached_tokens": request.cached_tokens,
            "reachable_tokens": request.reachable,
        }
