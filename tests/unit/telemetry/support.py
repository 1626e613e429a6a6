"""Builders for telemetry tests: captured answers behind fake transports, a real database, a frozen clock."""

from __future__ import annotations

import json
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from typing import Any

import httpx

from app.audit.service import AuditService
from app.database import Base, Database
from app.fleet.schemas import EngineCreate, ServerCreate
from app.fleet.service import FleetService
from app.fleet.targets import EngineTarget, ServerTarget
from app.lmcache.client import LMCacheClient
from app.settings import Settings
from app.telemetry.poller import Poller
from app.telemetry.service import TelemetryService
from app.vllm.client import VLLMClient
from tests.unit.fleet.support import FrozenClock

CAPTURES = Path(__file__).parents[2] / "fixtures" / "captures"
TEXT = "text/plain; version=0.0.4; charset=utf-8"
MODEL = "/models/tiny-llama"

Answer = tuple[int, str, bytes] | Exception


def capture(name: str) -> bytes:
    return (CAPTURES / name).read_bytes()


class FakeTarget:
    """An address whose answers the test sets: path → (status, content type, body), or an exception to raise."""

    def __init__(self, answers: dict[str, Answer]) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.date: Callable[[], float] | None = None

    def transport(self) -> httpx.MockTransport:
        return httpx.MockTransport(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.asked.append(path)
        answer = self.answers.get(path, (404, "application/json", b'{"detail":"Not Found"}'))
        if isinstance(answer, Exception):
            raise answer
        status, kind, body = answer
        headers = {"content-type": kind}
        if self.date is not None:
            headers["date"] = formatdate(self.date(), usegmt=True)
        return httpx.Response(status, headers=headers, stream=httpx.ByteStream(body))

    def json(self, path: str) -> Any:
        answer = self.answers[path]
        assert not isinstance(answer, Exception)
        return json.loads(answer[2])

    def set_json(self, path: str, value: object, status: int = 200) -> None:
        self.answers[path] = (status, "application/json", json.dumps(value).encode())

    def set_metric(self, path: str, sample: str, value: float | None) -> None:
        """Replaces the value of the sample line(s) that begin so; None removes them."""
        answer = self.answers[path]
        assert not isinstance(answer, Exception)
        lines = []
        found = False
        for line in answer[2].decode().splitlines():
            if line.startswith(sample) and not line.startswith("#"):
                found = True
                if value is None:
                    continue
                line = f"{line.rpartition(' ')[0]} {value}"
            lines.append(line)
        if not found:
            assert value is not None, f"no sample {sample}"
            lines.append(f"{sample} {value}")
        self.answers[path] = (answer[0], answer[1], ("\n".join(lines) + "\n").encode())


def captured_server() -> FakeTarget:
    """The cache server of the captures, after real traffic."""
    folder = "server-with-engine/"
    return FakeTarget(
        {
            "/healthcheck": (200, "application/json", capture(folder + "healthcheck.json")),
            "/status": (200, "application/json", capture(folder + "after-traffic.status.json")),
            "/metrics": (200, TEXT, capture(folder + "after-traffic.metrics.txt")),
            "/config": (200, "application/json", capture(folder + "after-traffic.config.json")),
            "/config/adapters": (200, "application/json", capture(folder + "config_adapters.json")),
            "/version": (200, "application/json", capture(folder + "version.txt")),
            "/": (200, "application/json", capture("server-idle/root.json")),
        }
    )


def captured_engine(*, dev_mode: bool = True) -> FakeTarget:
    """The engine of the captures, attached to that server."""
    answers: dict[str, Answer] = {
        "/health": (200, "text/plain", b""),
        "/metrics": (200, TEXT, capture("engine/with-lmcache.metrics.txt")),
        "/version": (200, "application/json", capture("engine/with-lmcache.version.json")),
        "/v1/models": (200, "application/json", capture("engine/with-lmcache.v1_models.json")),
    }
    if dev_mode:
        answers["/server_info"] = (200, "application/json", capture("engine/with-lmcache.server_info.json"))
    return FakeTarget(answers)


class Bench:
    """Fleet, telemetry and poller over a fresh database; targets are fakes by URL."""

    def __init__(self, tmp_path: Path, *, poll_seconds: float = 10.0) -> None:
        import app.audit.tables  # noqa: F401

        data_dir = tmp_path / "panel"
        data_dir.mkdir(exist_ok=True)
        self.settings = Settings(data_dir=data_dir, poll_seconds=poll_seconds)
        self.db = Database(f"sqlite:///{tmp_path / 'telemetry.db'}")
        Base.metadata.create_all(self.db.engine)
        # The moment of the captures: the server's process started 60 s before.
        self.clock = FrozenClock(1_795_964_256.0)
        self.targets: dict[str, FakeTarget] = {}
        self.fleet = FleetService(
            db=self.db,
            clock=self.clock,
            settings=self.settings,
            audit=AuditService(db=self.db, clock=self.clock),
            resolve=lambda host: [],
        )
        self.telemetry = TelemetryService(db=self.db, clock=self.clock, settings=self.settings, fleet=self.fleet)
        self.poller = self.new_poller()

    def new_poller(self) -> Poller:
        """Another poller over the same database, as after a restart of the panel."""
        return Poller(
            db=self.db,
            clock=self.clock,
            settings=self.settings,
            fleet=self.fleet,
            server_clients=self._server_client,
            engine_clients=self._engine_client,
            jitter=lambda: 0.5,
        )

    def _server_client(self, target: ServerTarget) -> LMCacheClient:
        return LMCacheClient(target.url, transport=self.targets[target.url].transport())

    def _engine_client(self, target: EngineTarget) -> VLLMClient:
        return VLLMClient(target.url, transport=self.targets[target.url].transport())

    def add_server(self, fake: FakeTarget, url: str = "http://cache:8080") -> int:
        self.targets[url] = fake
        return int(self.fleet.create_server(ServerCreate(url=url), actor="test").id)

    def add_engine(self, fake: FakeTarget, url: str = "http://gpu:8000", server_id: int | None = None) -> int:
        self.targets[url] = fake
        body = EngineCreate(url=url, server_id=None if server_id is None else str(server_id))
        return int(self.fleet.create_engine(body, actor="test").id)

    async def tick(self, seconds: float = 10.0) -> None:
        """Time passes, then everything is polled once."""
        self.clock.now += seconds
        await self.poller.poll_all_once()
