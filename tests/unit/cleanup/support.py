"""A world for cleanup tests: a real directory and database, an inventory over the disk, servers made of rules."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.audit.service import AuditService
from app.cleanup.disk import signed
from app.cleanup.ports import Batch, Gone, Selection, StoreTotals
from app.cleanup.schemas import PlanView, PolicyInput, RunView
from app.cleanup.service import CleanupService
from app.cleanup.tiers import Dropped, Reset, ServerGlance
from app.database import Base, Database
from app.errors import StoreError, TargetError
from app.fleet.service import FleetService
from app.fleet.tables import Engine, Server, Store, StoreServer
from app.fleet.targets import EngineTarget, ServerTarget
from app.lmcache.object_keys import ObjectKey, decode_model, format_name, parse_name
from app.records.facts import FileFact
from app.records.filters import RecordFilter
from app.records.store_dir import StoreDirectory
from app.scheduling.runner import WorkRunner
from app.scheduling.service import SchedulingService
from app.settings import Settings

MODEL = "/models/tiny"
START = 1_796_000_000.0
Judge = Callable[[bytes, FileFact], tuple[str, str | None]]


def key_of(number: int, *, model: str = MODEL, salt: str = "") -> ObjectKey:
    return ObjectKey(model, 0x01000100, 0, hashlib.sha256(str(number).encode()).digest(), salt)


def name_of(number: int, *, model: str = MODEL, salt: str = "") -> bytes:
    return format_name(key_of(number, model=model, salt=salt)).encode()


class Clock:
    """Moves only when told to; `ticking` follows the real clock from there."""

    def __init__(self, now: float = START) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class DiskInventory:
    """What the records room offers, over a plain walk of the directory. `judge` says what a file is."""

    path: Path
    clock: Callable[[], float]
    classes: dict[bytes, tuple[str, str | None]] = field(default_factory=dict)
    judge: Judge | None = None
    holds: dict[bytes, str] = field(default_factory=dict)
    found: list[FileFact] = field(default_factory=list)
    scanned_at: float | None = None
    gone: list[bytes] = field(default_factory=list)
    back: list[bytes] = field(default_factory=list)
    cleared_models: list[tuple[str, float]] = field(default_factory=list)
    scans: int = 0
    another: bool = False
    in_time: Callable[[], bool] = lambda: True

    def _class(self, fact: FileFact) -> tuple[str, str | None]:
        parsed = parse_name(fact.name)
        if parsed is None:
            return "foreign", None
        if parsed.temporary:
            return "temporary", None
        if self.judge is not None:
            return self.judge(fact.name, fact)
        return self.classes.get(fact.name, ("current", None))

    def check_directory(self, store_id: int, directory: StoreDirectory) -> None:
        if self.another:
            raise StoreError("another directory")

    def totals(self, store_id: int) -> StoreTotals:
        known = [f for f in self.found if parse_name(f.name) is not None]
        return StoreTotals(len(known), sum(f.size for f in known), self.scanned_at)

    def refresh(self, store_id: int, check_cancel: Callable[[], None]) -> None:
        with StoreDirectory.open(str(self.path)) as directory:
            self.found = [fact for batch in directory.walk() for fact in batch]
        self.scanned_at = self.clock()
        self.scans += 1

    def select(self, store_id: int, selection: Selection) -> Iterator[Batch]:
        where = RecordFilter.from_query(selection.filters) if selection.filters is not None else None
        facts = list(self.found)
        if selection.least_recent_first:
            facts.sort(key=lambda f: (f.mtime_ns if selection.by_age else max(f.atime_ns, f.mtime_ns), f.name))
        for number, fact in enumerate(facts):
            cls, reason = self._class(fact)
            if cls == "foreign" or not _wanted(selection, where, cls, reason, fact):
                continue
            parsed = parse_name(fact.name)
            model = decode_model(parsed.model) if parsed else None
            yield Batch(cls, reason, model, fact.device, [(*fact[:5], signed(fact.inode), number + 1)])

    def classify_now(self, store_id: int, facts: Sequence[FileFact]) -> list[tuple[str, str | None]]:
        return [self._class(fact) for fact in facts]

    def polled_in_time(self, store_id: int) -> bool:
        return self.in_time()

    def held(self, store_id: int) -> Mapping[bytes, str]:
        return dict(self.holds)

    def check_filter(self, filters: Mapping[str, Any]) -> dict[str, Any]:
        RecordFilter.from_query(filters, prefix="filter.")
        return dict(filters)

    def removed(self, store_id: int, records: Sequence[Gone], run_id: int) -> None:
        names = [name for name, _, _ in records]
        self.gone += names
        self.found = [fact for fact in self.found if fact.name not in names]

    def restored(self, store_id: int, facts: Sequence[FileFact], run_id: int, actor: str) -> None:
        for fact in facts:
            self.back.append(fact.name)
            self.holds[fact.name] = "restored"

    def cleared(self, store_id: int, model_name: str, at: float, run_id: int) -> None:
        self.cleared_models.append((model_name, at))


def _wanted(selection: Selection, where: RecordFilter | None, cls: str, reason: str | None, fact: FileFact) -> bool:
    if selection.classes is not None:
        if cls not in selection.classes:
            return False
        reasons = selection.classes[cls]
        return reasons is None or reason in reasons
    if where is not None:
        if where.classes and cls not in where.classes:
            return False
        if where.reasons and reason not in where.reasons:
            return False
        if where.q and where.q.encode() not in fact.name:
            return False
    return True


@dataclass
class FakeCalls:
    """A cache server and an engine made of rules. `l1` and `l0` hold keys; hooks run before calls."""

    clock: Callable[[], float]
    served: frozenset[str] = frozenset({MODEL})
    l1: set[ObjectKey] = field(default_factory=set)
    locked: int = 0
    busy: int = 0
    dev_mode: bool = True
    engine_start: float | None = START - 1000
    server_start: float | None = START - 1000
    registered: int | None = 1
    stores_waiting: int = 0
    down: set[str] = field(default_factory=set)
    log: list[str] = field(default_factory=list)
    on_reset: Callable[[], None] = lambda: None
    on_delete: Callable[[], None] = lambda: None

    def _up(self, name: str) -> None:
        if name in self.down:
            raise TargetError("refused", f"{name} refused the connection")

    async def glance(self, server: ServerTarget) -> ServerGlance:
        self._up("server")
        if self.stores_waiting:
            self.stores_waiting -= 1
        return ServerGlance(self.served, self.registered, len(self.l1), self.server_start, 120.0, self.stores_waiting)

    async def delete_l1(self, server: ServerTarget, keys: Sequence[ObjectKey]) -> Dropped:
        self._up("server")
        self.on_delete()
        self.log.append(f"l1 {len(keys)}")
        if self.locked:
            self.locked -= 1
            return Dropped(len(keys) - 1, 1, True)
        self.l1 -= set(keys)
        return Dropped(len(keys), 0, True)

    async def reset(self, engine: EngineTarget) -> Reset:
        self._up("engine")
        self.on_reset()
        if not self.dev_mode:
            self.log.append("l0 unavailable")
            return Reset("unavailable", "no dev mode")
        if self.busy:
            self.busy -= 1
            self.log.append("l0 busy")
            return Reset("busy", "blocks are in use")
        self.log.append("l0 done")
        return Reset("done", "emptied")

    async def engine_started(self, engine: EngineTarget) -> float | None:
        self._up("engine")
        return self.engine_start


_TEMPLATE: list[bytes] = []


def _database(url: str) -> Database:
    """A database with all tables; made once, then copied (making forty tables takes longer than most tests)."""
    path = Path(url.removeprefix("sqlite:///"))
    if path.exists():
        return Database(url)
    if not _TEMPLATE:
        made = Database(url)
        Base.metadata.create_all(made.engine)
        with made.engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        made.dispose()
        _TEMPLATE.append(path.read_bytes())
        return Database(url)
    path.write_bytes(_TEMPLATE[0])
    return Database(url)


class World:
    """A store with its panel. Work runs in the calling thread."""

    def __init__(
        self,
        base: Path,
        *,
        servers: bool = True,
        url: str | None = None,
        chunk: int = 1000,
        clock: Clock | None = None,
    ) -> None:
        self.base = base
        self.path = base / "store"
        self.path.mkdir(exist_ok=True)
        self.clock = clock or Clock()
        self.db = _database(url or f"sqlite:///{base / 'panel.db'}")
        self.settings = Settings(data_dir=base / "data")
        self.audit = AuditService(db=self.db, clock=self.clock)
        self.runner = WorkRunner(self.db, self.clock)
        self.scheduling = SchedulingService(db=self.db, clock=self.clock, audit=self.audit, runner=self.runner)
        self.fleet = FleetService(db=self.db, clock=self.clock, settings=self.settings, audit=self.audit)
        self.inventory = DiskInventory(self.path, self.clock)
        self.calls = FakeCalls(self.clock)
        self.slept = 0.0
        self.service = CleanupService(
            db=self.db,
            clock=self.clock,
            runner=self.runner,
            audit=self.audit,
            fleet=self.fleet,
            scheduling=self.scheduling,
            inventory=self.inventory,
            calls=self.calls,
            sleep=self._sleep,
            chunk=chunk,
        )
        self.store_id = self._targets(servers)

    async def _sleep(self, seconds: float) -> None:
        self.slept += seconds
        self.clock.forward(seconds)

    def _targets(self, servers: bool) -> int:
        with self.db.write() as session:
            found = session.get(Store, 1)
            if found is not None:
                return found.id
            store = Store(name="main", path=str(self.path), server_path=str(self.path), created_at=START)
            session.add(store)
            session.flush()
            if servers:
                server = Server(name="cache", url="http://127.0.0.1:1", created_at=START, health_since=START)
                session.add(server)
                session.flush()
                session.add(StoreServer(store_id=store.id, server_id=server.id))
                session.add(
                    Engine(
                        name="gpu",
                        url="http://127.0.0.1:2",
                        server_id=server.id,
                        created_at=START,
                        health_since=START,
                    )
                )
            return store.id

    # files

    def write(
        self, name: bytes | str, body: bytes = b"x" * 64, *, age: float = 86_400.0, used: float | None = None
    ) -> Path:
        """A file written `age` seconds ago and used `used` seconds ago (default: never since)."""
        path = self.path / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
        now = self.clock()
        os.utime(path, (now - (age if used is None else used), now - age))
        return path

    def fill(
        self, count: int, *, first: int = 0, cls: tuple[str, str | None] | None = None, age: float = 86_400.0
    ) -> list[bytes]:
        """Records, each with its own bytes."""
        names = [name_of(first + n) for n in range(count)]
        for number, name in enumerate(names):
            self.write(name, hashlib.sha256(name).digest() * 2, age=age - number * 1e-3)
            if cls is not None:
                self.inventory.classes[name] = cls
        return names

    def names(self) -> set[bytes]:
        """Files in the store, ours left out."""
        return {
            os.fsencode(path.relative_to(self.path))
            for path in self.path.rglob("*")
            if not path.is_dir() and ".tierkeeper" not in path.parts
        }

    def quarantined(self) -> set[bytes]:
        """Names below all quarantine folders."""
        base = self.path / ".tierkeeper" / "quarantine"
        found = set()
        for path in base.rglob("*"):
            if path.is_file() and path.name != "manifest.jsonl":
                found.add(os.fsencode(Path(*path.relative_to(base).parts[1:])))
        return found

    # going through the service

    def policy(self, select: list[dict[str, Any]], **more: Any) -> int:
        body = PolicyInput(
            name=more.pop("name", f"p{os.urandom(4).hex()}"), store_id=str(self.store_id), select=select, **more
        )
        return int(self.service.create_policy(body, actor="test").id)

    def plan(self, select: list[dict[str, Any]], **more: Any) -> PlanView:
        view = self.service.start_policy_plan(self.policy(select, **more), actor="test")
        assert view.state == "succeeded", view.error
        return view

    def run(self, select: list[dict[str, Any]], **more: Any) -> RunView:
        return self.service.start_run(int(self.plan(select, **more).id), actor="test")

    def adds_up(self, run_id: int | str) -> RunView:
        """The run, whose numbers must add up and agree with its list, however it ended."""
        run = self.service.get_run(int(run_id))
        states = [item.state for item in self.service.export_run_records(int(run_id))]
        done = run.removed.records + sum(run.skipped.values()) + run.failed_total
        assert run.planned.records + run.added.records == done + run.not_reached
        assert run.planned.records + run.added.records == len(states)
        assert run.not_reached == states.count("planned")
        return run

    def states(self, run_id: int | str) -> dict[bytes, str]:
        return {i.name.encode(): i.state for i in self.service.export_run_records(int(run_id))}
