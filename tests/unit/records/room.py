"""The records service over a real database and directory, with servers whose polls a test writes down."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

import app.schema
from app.audit.service import AuditService
from app.database import Database
from app.fleet.service import FleetService
from app.fleet.tables import Server, Store, StoreServer
from app.lmcache.layouts import KVLayout
from app.lmcache.object_keys import format_name
from app.records.service import RecordsService
from app.scheduling.runner import WorkRunner
from app.settings import Settings, load_settings
from app.telemetry.service import TelemetryService
from app.telemetry.tables import Observation, SampleRaw, Series
from tests.unit.records.disk import key, write
from tests.unit.records.world import LAYOUTS

POLL = 10.0


class Clock:
    def __init__(self) -> None:
        self.now = float(int(time.time()))

    def __call__(self) -> float:
        return self.now


class Room:
    """One store with one server. `base` is the time everything counts from: now, as the file system has it."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.base = self.clock.now
        self.root = folder / "l2"
        self.root.mkdir()
        self.settings: Settings = load_settings({"TIERKEEPER_DATA_DIR": str(folder / "var")})
        self.settings.data_dir.mkdir()
        self.db = Database(self.settings.sqlalchemy_url)
        app.schema.metadata.create_all(self.db.engine)
        self.audit = AuditService(db=self.db, clock=self.clock)
        self.fleet = FleetService(db=self.db, clock=self.clock, settings=self.settings, audit=self.audit)
        self.telemetry = TelemetryService(db=self.db, clock=self.clock, settings=self.settings, fleet=self.fleet)
        self.runner = WorkRunner(self.db, self.clock)
        self.waits: list[float] = []
        self.records = RecordsService(
            db=self.db,
            clock=self.clock,
            settings=self.settings,
            runner=self.runner,
            fleet=self.fleet,
            telemetry=self.telemetry,
            audit=self.audit,
            rest=self.waits.append,
        )
        with self.db.write() as session:
            session.add(Server(id=1, name="s1", url="http://h:1", created_at=0, health_since=0, health_state="healthy"))
            session.add(Store(id=1, name="disk", path=str(self.root), server_path=str(self.root), created_at=0))
            session.flush()
            session.add(StoreServer(store_id=1, server_id=1))

    def close(self) -> None:
        self.db.dispose()

    def polls(
        self,
        start: float,
        end: float,
        layouts: Mapping[str, KVLayout],
        *,
        server: int = 1,
        instance: str = "i1",
        boot: float = -100_000.0,
        engine_start: float | None = None,
        engine_ids: tuple[str, ...] = (),
        version: str = "0.5.6",
    ) -> None:
        """A run of equal good polls; times are relative to `base`."""
        with self.db.write() as session:
            session.add(
                Observation(
                    server_id=server,
                    first_at=self.base + start,
                    last_at=self.base + end,
                    polls=2,
                    ok=True,
                    instance_id=instance,
                    process_start=self.base + boot,
                    lmcache_version=version,
                    contexts={ident: json.loads(layout.to_json()) for ident, layout in layouts.items()},
                    engine_starts={} if engine_start is None else {"1": self.base + engine_start},
                    engine_ids=list(engine_ids),
                    drained=True,
                    clock_offset=0.0,
                    reap_timeout_seconds=120.0,
                )
            )

    def hits(self, values: Mapping[float, float], *, server: int = 1, interval: float = POLL) -> None:
        """Hit tokens at polls, by time relative to `base`."""
        with self.db.write() as session:
            for ident, metric in ((10 * server, "hit_tokens"), (10 * server + 1, "interval_seconds")):
                session.merge(Series(id=ident, target_kind="server", target_id=server, metric=metric))
            session.flush()
            for at, value in values.items():
                stamp = round((self.base + at) * 1000)
                session.add(SampleRaw(series_id=10 * server, at=stamp, value=value))
                session.add(SampleRaw(series_id=10 * server + 1, at=stamp, value=interval))

    def record(self, number: int, age: float, size: int = 32768, *, salt: str = "", model: str = "/models/tiny") -> str:
        """A record written `age` seconds before `base`; its name."""
        name = format_name(key(number, salt=salt, model=model))
        write(self.root, name, size, mtime=self.base - age)
        return name

    def scan(self) -> None:
        scan = self.records.start_scan(1, actor="test")
        assert scan.state == "succeeded", scan.error

    def classes(self) -> dict[str, tuple[str, str | None]]:
        from app.records.filters import RecordFilter

        page = self.records.list_records(1, RecordFilter(), order="name", page_size=500, page_token=None)
        return {item.name: (item.class_, item.reason) for item in page.items}

    def changed_layout(self) -> None:
        """bfloat16 until 2,000 s ago, float16 since; both listed for two minutes."""
        self.polls(-10_000, -2_000, {"c1": LAYOUTS[0]}, engine_ids=("c1",))
        self.polls(-1_990, -1_870, {"c1": LAYOUTS[0], "c2": LAYOUTS[1]}, engine_ids=("c1",))
        self.polls(-1_860, -1, {"c2": LAYOUTS[1]}, engine_ids=("c1", "c2"))
