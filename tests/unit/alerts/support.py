"""A sandbox, a panel that polls it, and the alarms, on one clock that moves when told."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import app.alerts.tables
import app.schema
from app.alerts.delivery import Sender
from app.alerts.fact_schemas import FactView
from app.alerts.schemas import (
    AlertView,
)
from app.alerts.service import AlertsService
from app.audit.service import AuditService
from app.database import Database
from app.fleet.schemas import EngineCreate, ServerCreate, StoreCreate
from app.fleet.service import FleetService
from app.records.service import RecordsService
from app.sandbox import EngineSpec, SandboxConfig, SandboxThread, ServerSpec
from app.scheduling.runner import WorkRunner
from app.settings import Settings
from app.telemetry.poller import Poller
from app.telemetry.service import TelemetryService
from tests.unit.fleet.support import FrozenClock

START = 1_796_000_000.0
assert app.alerts.tables.Alert.__tablename__ in app.schema.metadata.tables


class Panel:
    """Every service that alarms need, over a fresh database. No thread, no network but the poller's."""

    def __init__(self, folder: Path, clock: FrozenClock | None = None, *, sender: Sender | None = None) -> None:
        data_dir = folder / "panel"
        data_dir.mkdir(exist_ok=True)
        self.clock = clock or FrozenClock(START)
        self.settings = Settings(data_dir=data_dir)
        self.db = Database(f"sqlite:///{folder / 'alerts.db'}")
        app.schema.metadata.create_all(self.db.engine)
        self.audit = AuditService(db=self.db, clock=self.clock)
        self.fleet = FleetService(
            db=self.db, clock=self.clock, settings=self.settings, audit=self.audit, resolve=lambda host: []
        )
        self.telemetry = TelemetryService(db=self.db, clock=self.clock, settings=self.settings, fleet=self.fleet)
        self.runner = WorkRunner(self.db, self.clock)
        self.records = RecordsService(
            db=self.db,
            clock=self.clock,
            settings=self.settings,
            runner=self.runner,
            fleet=self.fleet,
            telemetry=self.telemetry,
            audit=self.audit,
        )
        self.poller = Poller(db=self.db, clock=self.clock, settings=self.settings, fleet=self.fleet)
        self.sender = sender or Sender(resolve=lambda host: [], timeout=5.0)
        self.alerts = self.new_alerts()

    def new_alerts(self) -> AlertsService:
        """Another service over the same database, as after a restart of the panel."""
        return AlertsService(
            db=self.db,
            clock=self.clock,
            settings=self.settings,
            audit=self.audit,
            fleet=self.fleet,
            telemetry=self.telemetry,
            records=self.records,
            sender=self.sender,
            base_url="http://panel.example",
        )

    def tick(self, seconds: float = 10.0) -> None:
        """Time passes, everything is polled once, alarms are evaluated."""
        self.clock.now += seconds
        asyncio.run(self.poller.poll_all_once())
        self.alerts.evaluate()

    def run(self, seconds: float, step: float = 10.0, *, each: Callable[[], None] | None = None) -> None:
        """Ticks for so long."""
        for _ in range(round(seconds / step)):
            if each is not None:
                each()
            self.tick(step)

    def firing(self) -> dict[str, AlertView]:
        """Alarms that fire and are not explained by another one, by rule."""
        return {a.rule: a for a in self.alerts.active() if a.state == "firing"}

    def pending(self) -> dict[str, AlertView]:
        found = self.alerts.list_alerts(page_size=500, page_token=None, state=["pending"]).items
        return {a.rule: a for a in found}

    def fact(self, name: str, kind: str = "server") -> FactView:
        found = [f for f in self.alerts.facts(target_kind=kind).items if f.fact == name]
        assert len(found) == 1, [f.fact for f in self.alerts.facts().items]
        return found[0]

    def close(self) -> None:
        self.db.dispose()


class Stage(Panel):
    """A panel beside a sandbox. `register` makes the targets known to it."""

    def __init__(
        self,
        folder: Path,
        *,
        servers: int | Sequence[ServerSpec] = 1,
        engines: int | Sequence[EngineSpec] = 1,
        config: SandboxConfig | None = None,
        sender: Sender | None = None,
    ) -> None:
        super().__init__(folder, sender=sender)
        self.sandbox = SandboxThread(
            folder / "sandbox", clock=self.clock, servers=servers, engines=engines, config=config
        )
        self.control = self.sandbox.control
        self.prompts = 0

    def register(self, *, store: bool = True) -> None:
        self.server_ids = [
            int(self.fleet.create_server(ServerCreate(url=url, name=f"cache-{n}"), actor="t").id)
            for n, url in enumerate(self.sandbox.server_urls)
        ]
        self.engine_ids = []
        for n, url in enumerate(self.sandbox.engine_urls):
            server = self.control.engine(n).spec.server
            body = EngineCreate(
                url=url, name=f"gpu-{n}", server_id=None if server is None else str(self.server_ids[server])
            )
            self.engine_ids.append(int(self.fleet.create_engine(body, actor="t").id))
        if store:
            self.sandbox.store_path.mkdir(parents=True, exist_ok=True)
            body = StoreCreate(
                path=str(self.sandbox.store_path),
                name="disk",
                server_ids=[str(i) for i in self.server_ids],
                confirm=True,
            )
            self.store_id = int(self.fleet.create_store(body, actor="t").id)

    def ask(self, length: int = 640, *, which: int | None = None, engine: int = 0) -> None:
        """One prompt; a new one each time, or the same one for the same `which`."""
        if which is None:
            self.prompts += 1
            which = 1000 + self.prompts
        prompt = [(which * 131 + n * (which + 7)) % 500 + 6 for n in range(length)]
        model = self.control.engine(engine).spec.served_model_name
        body = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
        request = urllib.request.Request(
            f"{self.sandbox.engine_urls[engine]}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.status == 200

    def reset(self, engine: int = 0) -> None:
        """Empties the engine's own cache."""
        url = f"{self.sandbox.engine_urls[engine]}/reset_prefix_cache"
        with urllib.request.urlopen(urllib.request.Request(url, b"", method="POST"), timeout=10) as answer:
            assert json.load(answer) == {"success": True}

    def clear_l1(self, server: int = 0) -> None:
        body = json.dumps({"tier": "l1"}).encode()
        request = urllib.request.Request(
            f"{self.sandbox.server_urls[server]}/cache/clear", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.status == 200

    def scan(self) -> None:
        self.records.start_scan(self.store_id, actor="t")


@contextmanager
def staged(folder: Path, *, store: bool = True, **options: Any) -> Iterator[Stage]:
    """A running, registered stage."""
    stage = Stage(folder, **options)
    with stage.sandbox:
        stage.register(store=store)
        yield stage
    stage.close()


@dataclass
class Receiver:
    """A local HTTP server that keeps what it is sent; `status` is what it answers."""

    status: int = 200
    got: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""

    def titles(self) -> list[str]:
        return [str(item["body"].get("title")) for item in self.got]


@contextmanager
def receiver() -> Iterator[Receiver]:
    """A receiver of messages on a free port of the loopback interface."""
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.got.append(
                {
                    "path": self.path,
                    "headers": {k.lower(): v for k, v in self.headers.items()},
                    "body": json.loads(body),
                }
            )
            self.send_response(found.status)
            if 300 <= found.status < 400:
                self.send_header("Location", found.url + "/elsewhere")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
