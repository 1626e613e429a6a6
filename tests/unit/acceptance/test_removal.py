"""A run's own records go through cleanup, under all its rules; nothing else goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app.acceptance.canary_schemas import CanaryInput
from app.acceptance.removal import CleanupRemover
from app.acceptance.schemas import AcceptanceRequest
from app.clock import system_clock
from app.database import Base
from app.errors import Conflict
from app.fleet.schemas import EngineCreate, ServerCreate, StoreCreate
from app.records.schemas import ANOTHER_SCAN
from app.sandbox import SandboxThread
from app.services import Services
from app.settings import load_settings
from app.wiring import build_services


@dataclass
class Whole:
    """All rooms of a panel over a sandbox; work runs in this thread."""

    services: Services
    sandbox: SandboxThread
    engine: str

    def records(self) -> set[str]:
        return {p.name for p in self.sandbox.store_path.rglob("*.data") if ".tierkeeper" not in p.parts}


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[Whole]:
    data = tmp_path / "data"
    data.mkdir()
    services = build_services(load_settings({}, data_dir=data, log_level="ERROR"), system_clock)
    Base.metadata.create_all(services.db.engine)
    with SandboxThread(tmp_path / "sandbox") as sandbox:
        fleet = services.fleet
        server = fleet.create_server(ServerCreate(url=sandbox.server_url), actor="t")
        engine = fleet.create_engine(EngineCreate(url=sandbox.engine_url, server_id=server.id), actor="t")
        fleet.create_store(StoreCreate(path=str(sandbox.store_path), server_ids=[server.id], confirm=True), actor="t")
        yield Whole(services, sandbox, engine.id)
    services.db.dispose()


class TestThroughCleanup:
    def test_only_the_runs_own_records_go(self, whole: Whole) -> None:
        others = whole.sandbox.store_path / ("m@0x01000100@0@" + "ab" * 32 + "@tk-someone-else.data")
        others.write_bytes(b"x" * 64)
        run = whole.services.acceptance.start(
            AcceptanceRequest(engine_id=whole.engine, lengths=[150, 210]), actor="tester"
        )
        assert run.verdict == "pass", run.reasons
        assert run.evidence["removal"]["removed"] > 0
        assert run.evidence["removal"]["left"] == 0
        assert whole.records() == {others.name}

    def test_wished_otherwise_they_stay(self, whole: Whole) -> None:
        body = AcceptanceRequest(engine_id=whole.engine, lengths=[150], remove_records=False)
        run = whole.services.acceptance.start(body, actor="tester")
        assert run.evidence["removal"]["reason"] == "that was the wish"
        assert whole.records()

    def test_canaries_survive_the_removal_of_everything_else(self, whole: Whole) -> None:
        run = whole.services.acceptance.start(AcceptanceRequest(engine_id=whole.engine, lengths=[210]), actor="t")
        made = whole.services.acceptance.canaries.keep(CanaryInput(run_id=run.id, count=1), actor="t")
        kept = whole.records()
        assert made.outcome == "ok" and len(kept) == 3
        remover = CleanupRemover(
            runner=whole.services.runner, records=whole.services.records, cleanup=whole.services.cleanup
        )
        found = remover.remove_salted(1, "tk-", actor="t")
        assert found.removed == 0
        assert whole.records() == kept


class _Rooms:
    """Records, cleanup and runner in one, with states given by the test."""

    def __init__(self, **states: Any) -> None:
        self.states = states
        self.calls: list[str] = []

    def run_here(self, kind_name: str, work_id: int) -> bool:
        self.calls.append(f"{kind_name} {work_id}")
        return True

    def _view(self, kind: str, **more: Any) -> Any:
        state = self.states.get(kind, "succeeded")
        return type("View", (), {"id": "7", "state": state, "error": "broken", "notes": ["note"], **more})()

    def start_scan(self, store_id: int, *, actor: str, gentle: bool = False) -> Any:
        if self.states.get("busy"):
            raise Conflict("a scan is active")
        return self._view("scan")

    def get_scan(self, scan_id: int) -> Any:
        if self.states.get("meets", 0) > 0:  # a scan that is still at the inventory
            self.states["meets"] -= 1
            view = self._view("scan")
            view.state, view.error = "failed", ANOTHER_SCAN
            return view
        return self._view("scan")

    def start_filter_plan(self, store_id: int, body: Any, *, actor: str, housekeeping: bool) -> Any:
        self.calls.append(f"plan {body.filter} {body.removal}")
        return self._view("plan", records=self.states.get("records", 3))

    def get_plan(self, plan_id: int) -> Any:
        return self._view("plan", records=self.states.get("records", 3))

    def start_run(self, plan_id: int, *, actor: str) -> Any:
        return self.get_run(plan_id)

    def get_run(self, run_id: int) -> Any:
        removed = type("Count", (), {"records": self.states.get("removed", 3), "bytes": 30})()
        return self._view("run", verdict=self.states.get("verdict", "succeeded"), removed=removed)


def remover(rooms: _Rooms, patience: float = 0.1) -> CleanupRemover:
    return CleanupRemover(runner=rooms, records=rooms, cleanup=rooms, poll=0.01, patience=patience)


class TestWhatStays:
    def test_a_scan_that_met_another_one_is_made_again(self) -> None:
        rooms = _Rooms(meets=3)
        found = remover(rooms, patience=5).remove_salted(1, "tk-abc-", actor="t")
        assert (found.removed, found.reason) == (3, None)
        never = remover(_Rooms(meets=10**6)).remove_salted(1, "tk-abc-", actor="t")
        assert (never.removed, never.left) == (0, None)
        assert ANOTHER_SCAN in (never.reason or "")

    def test_all_gone(self) -> None:
        rooms = _Rooms()
        found = remover(rooms).remove_salted(1, "tk-abc-", actor="t")
        assert (found.removed, found.bytes, found.left, found.reason) == (3, 30, 0, None)
        assert "plan {'q': '@tk-abc-'} delete" in rooms.calls

    @pytest.mark.parametrize(
        ("states", "left", "said"),
        [
            ({"scan": "failed"}, None, "scan before it ended failed"),
            ({"plan": "failed"}, None, "plan ended failed"),
            ({"removed": 2, "verdict": "failed"}, 1, "ended failed"),
            ({"plan": "running"}, None, "did not end"),
            ({"records": 0}, 0, ""),
        ],
    )
    def test_the_reason_is_told(self, states: dict[str, Any], left: int | None, said: str) -> None:
        found = remover(_Rooms(**states)).remove_salted(1, "tk-abc-", actor="t")
        assert found.left == left
        assert said in (found.reason or "")

    def test_a_store_that_is_always_being_scanned(self) -> None:
        with pytest.raises(Conflict):
            remover(_Rooms(busy=True)).remove_salted(1, "tk-abc-", actor="t")

    def test_a_cancel_ends_the_waiting(self) -> None:
        began = time.monotonic()
        found = remover(_Rooms(plan="running"), patience=60).remove_salted(
            1, "tk-abc-", actor="t", cancelled=lambda: True
        )
        assert found.reason == "the removal was cancelled"
        assert time.monotonic() - began < 5
