"""Restarts out of the layout observations: every one that polls saw, of servers and of their engines."""

from __future__ import annotations

from typing import Any

from app.telemetry.restarts import Restart
from app.telemetry.tables import Observation
from tests.unit.telemetry.support import Bench, captured_server

T0 = 1_796_000_000.0


def saw(bench: Bench, server_id: int, at: float, **more: Any) -> None:
    values = {"ok": True, "instance_id": "a", "process_start": T0 - 500, "engine_starts": {}} | more
    with bench.db.write() as session:
        session.add(Observation(server_id=server_id, first_at=at, last_at=at + 60, polls=6, **values))


def test_every_restart_is_told_and_what_ran_before_is_none(bench: Bench) -> None:
    ident = bench.add_server(captured_server())
    saw(bench, ident, T0, engine_starts={"7": T0 - 400})
    saw(bench, ident, T0 + 100, ok=False, instance_id=None, process_start=None)
    saw(bench, ident, T0 + 200, instance_id="b", process_start=T0 + 150, engine_starts={"7": T0 - 400})
    saw(bench, ident, T0 + 300, instance_id="b", process_start=T0 + 150, engine_starts={"7": T0 + 250})
    saw(bench, ident, T0 + 400, instance_id="c", process_start=T0 + 380, engine_starts={"7": T0 + 250})
    assert bench.telemetry.restarts(ident, T0 - 1000) == [
        Restart("server", ident, T0 + 150),
        Restart("engine", 7, T0 + 250),
        Restart("server", ident, T0 + 380),
    ]
    # Later ones only: the process that still ran at that time is not one of them.
    assert bench.telemetry.restarts(ident, T0 + 360) == [Restart("server", ident, T0 + 380)]
    assert bench.telemetry.restarts(ident + 1, 0.0) == []


def test_a_server_that_tells_no_start_restarted_when_its_new_instance_was_seen(bench: Bench) -> None:
    ident = bench.add_server(captured_server())
    saw(bench, ident, T0, process_start=None)
    saw(bench, ident, T0 + 100, process_start=None, instance_id="b")
    saw(bench, ident, T0 + 200, process_start=None, instance_id="b", engine_starts={"7": None})
    assert bench.telemetry.restarts(ident, 0.0) == [Restart("server", ident, T0 + 100)]


def test_a_poll_without_metrics_makes_no_second_process_of_it(bench: Bench) -> None:
    ident = bench.add_server(captured_server())
    saw(bench, ident, T0)
    saw(bench, ident, T0 + 100, process_start=None)
    saw(bench, ident, T0 + 200)
    assert bench.telemetry.restarts(ident, 0.0) == []
