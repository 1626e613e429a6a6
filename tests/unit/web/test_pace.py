"""How fast long work goes and how long it takes, beside its bar."""

from __future__ import annotations

from typing import Any

import pytest

from app.clock import iso
from app.shapes import Progress, WorkView
from app.web.pace import Pace, pace

NOW = 1_700_000_000.0


def told(done: int, total: int | None, elapsed: float | None, *, unit: str = "files", **over: Any) -> Pace:
    values = {
        "id": "1",
        "state": "running",
        "progress": Progress(done=done, total=total, unit=unit),
        "error": None,
        "created_at": iso(NOW - 999) or "",
        "started_at": iso(NOW - elapsed) if elapsed is not None else None,
        "finished_at": None,
        "requested_by": "admin",
    } | over
    found = pace(WorkView(**values), NOW)
    return Pace(found.speed.replace("\u00a0", " "), found.left.replace("\u00a0", " "))


@pytest.mark.parametrize(
    ("done", "total", "elapsed", "unit", "speed", "left"),
    [
        (3_000, 12_000, 10.0, "files", "300 files/s", "about 30 s left"),
        (60_000, 1_000_000, 2.0, "files", "30.0 k files/s", "about 30 s left"),
        (4, 16, 10.0, "requests", "24 requests a minute", "about 30 s left"),
        (10, 1_000, 600.0, "records", "1 record a minute", ""),
        (100, 1_000, 600.0, "records", "10 records a minute", "about 1 h 30 m left"),
        (500, None, 10.0, "records planned", "50 records/s", ""),
        (12_000, 12_000, 10.0, "files", "1,200 files/s", "finishing"),
    ],
)
def test_speed_and_time_left(done: int, total: int | None, elapsed: float, unit: str, speed: str, left: str) -> None:
    assert told(done, total, elapsed, unit=unit) == Pace(speed, left)


def test_nothing_is_said_before_there_is_something_to_go_by() -> None:
    assert told(0, 100, 30.0) == Pace()
    assert told(5, 100, 0.4) == Pace()
    assert told(5, 100, None) == Pace()
    assert told(5, 100, 30.0, state="queued") == Pace()
    assert told(100, 100, 30.0, state="succeeded") == Pace()
    assert told(30, 100, 1.5).left == ""


def test_work_that_waits_for_somebody_promises_no_end() -> None:
    class Waits(WorkView):
        waiting_for: str | None = None

    work = Waits(
        id="1",
        state="running",
        progress=Progress(done=5, total=10, unit="requests"),
        error=None,
        created_at=iso(NOW - 60) or "",
        started_at=iso(NOW - 60) or "",
        finished_at=None,
        requested_by="admin",
        waiting_for="restart the server",
    )
    assert pace(work, NOW).left == "waits for you"
