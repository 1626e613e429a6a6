"""Builders for fleet tests: a real SQLite file, a frozen clock, a fake source of live values."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from app.audit.service import AuditService
from app.database import Base, Database
from app.fleet.live import EngineLive, ServerLive, StoreLive
from app.fleet.service import FleetService
from app.settings import Settings


class FrozenClock:
    """A clock that only moves when told."""

    def __init__(self, now: float = 1_796_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class FakeLive:
    """Live values set by the test."""

    def __init__(self) -> None:
        self.servers: dict[int, ServerLive] = {}
        self.engines: dict[int, EngineLive] = {}
        self.stores: dict[int, StoreLive] = {}

    def servers_live(self, ids: Collection[int]) -> Mapping[int, ServerLive]:
        return {i: self.servers[i] for i in ids if i in self.servers}

    def engines_live(self, ids: Collection[int]) -> Mapping[int, EngineLive]:
        return {i: self.engines[i] for i in ids if i in self.engines}

    def stores_live(self, ids: Collection[int]) -> Mapping[int, StoreLive]:
        return {i: self.stores[i] for i in ids if i in self.stores}


class Bench:
    """A fleet service over a fresh database."""

    def __init__(self, tmp_path: Path, *, names: Mapping[str, list[str]] | None = None) -> None:
        import app.audit.tables
        import app.telemetry.tables  # noqa: F401

        self.data_dir = tmp_path / "panel"
        self.data_dir.mkdir()
        self.settings = Settings(data_dir=self.data_dir)
        self.db = Database(f"sqlite:///{tmp_path / 'fleet.db'}")
        Base.metadata.create_all(self.db.engine)
        self.clock = FrozenClock()
        self.audit = AuditService(db=self.db, clock=self.clock)
        self.live = FakeLive()
        self.names = names or {}
        self.fleet = FleetService(
            db=self.db,
            clock=self.clock,
            settings=self.settings,
            audit=self.audit,
            live=self.live,
            resolve=lambda host: self.names.get(host, []),
        )

    def audited(self) -> list[tuple[str, str, dict[str, object]]]:
        events = self.audit.list_events(page_size=500, page_token=None).items
        return [(e.action, e.target_id, e.detail) for e in reversed(events)]
