"""A panel's benchmark room over the sandbox: real sockets, real SQLite, a real store directory, no sleeping."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.audit.service import AuditService
from app.benchmark.ports import Openers, Pace, RecordRemover
from app.benchmark.schemas import BenchmarkInput, BenchmarkRunView
from app.benchmark.service import BenchmarkService
from app.clock import system_clock
from app.database import Base, Database
from app.fleet.schemas import EngineCreate, ServerCreate, StoreCreate
from app.fleet.service import FleetService
from app.fleet.targets import EngineTarget
from app.sandbox import EngineSpec, Latency, SandboxConfig, SandboxThread, ServerSpec
from app.scheduling.runner import WorkRunner
from app.schema import metadata  # noqa: F401  (all tables, for foreign keys)
from app.settings import load_settings
from app.vllm.client import CompletionAnswer, CompletionRequest, VLLMClient
from tests.support.panel import Panel as WholePanel
from tests.support.panel import running_panel

PACE = Pace(poll=0.01, reset=0.5, stored=1.0, settle=0.02, counters=0.5, watch=0.02, registered=3.0)
#: Enough that a computed prompt differs from one that came back, little enough that a suite takes seconds.
QUICK = Latency(compute_per_token=0.000_04, l1_per_token=0.000_002, l2_per_token=0.000_006, decode_per_token=0.000_5)
OnRequest = Callable[["Panel", int], None]


class ActingClient(VLLMClient):
    """Lets a test act before the n-th completion: 1 is the warm-up of the first engine."""

    act: Callable[[], None]

    async def complete(self, request: CompletionRequest) -> CompletionAnswer:
        await asyncio.to_thread(self.act)
        return await super().complete(request)


@dataclass
class Panel:
    """The service with its targets registered. `engines` are ids in the order of the sandbox's."""

    service: BenchmarkService
    fleet: FleetService
    db: Database
    runner: WorkRunner
    sandbox: SandboxThread
    engines: list[str]
    servers: list[str]

    def run(self, **fields: Any) -> BenchmarkRunView:
        """Starts a run and lets it end (no worker threads: it runs here)."""
        fields.setdefault("engine_id", self.engines[0])
        fields.setdefault("noise_repeat", False)
        fields.setdefault("output_tokens", 4)
        fields.setdefault("contexts", 3)
        fields.setdefault("tokens", 200)
        return self.service.start(BenchmarkInput.model_validate(fields), actor="tester")

    @property
    def store(self) -> Path:
        return self.sandbox.store_path


PanelMaker = Callable[..., Panel]


@pytest.fixture
def make_panel(tmp_path: Path) -> Iterator[PanelMaker]:
    """Makes a panel over a sandbox; keywords are of Sandbox, plus what is named here."""
    open_things: list[Any] = []

    def make(
        *,
        with_store: bool = True,
        pace: Pace = PACE,
        threads: bool = False,
        on_request: OnRequest | None = None,
        remover: RecordRemover | None = None,
        **sandbox: Any,
    ) -> Panel:
        sandbox.setdefault("config", config())
        simulated = SandboxThread(tmp_path / "sandbox", **sandbox)
        simulated.__enter__()
        open_things.append(lambda: simulated.__exit__(None, None, None))
        settings = load_settings({}, data_dir=tmp_path / "data", poll_seconds=1.0)
        (tmp_path / "data").mkdir(exist_ok=True)
        db = Database(f"sqlite:///{tmp_path / 'panel.db'}")
        Base.metadata.create_all(db.engine)
        open_things.append(db.dispose)
        audit = AuditService(db=db, clock=system_clock)
        runner = WorkRunner(db, system_clock)
        fleet = FleetService(db=db, clock=system_clock, settings=settings, audit=audit)
        made: list[Panel] = []
        counted = [0]

        def act() -> None:
            counted[0] += 1
            if on_request is not None:
                on_request(made[0], counted[0])

        def open_engine(target: EngineTarget, connections: int) -> VLLMClient:
            client = ActingClient(target.url, connections=connections)
            client.act = act
            return client

        service = BenchmarkService(
            db=db,
            clock=system_clock,
            runner=runner,
            settings=settings,
            audit=audit,
            fleet=fleet,
            pace=pace,
            openers=Openers(vllm=open_engine),
            remover=remover,
        )
        if threads:
            runner.start()
            open_things.append(runner.stop)
        servers = [
            fleet.create_server(ServerCreate(url=url, name=f"cache-{i}"), actor="tester").id
            for i, url in enumerate(simulated.server_urls)
        ]
        engines = []
        for i, url in enumerate(simulated.engine_urls):
            link = simulated.sandbox.world.engines[i].spec.server
            body = EngineCreate(url=url, name=f"engine-{i}", server_id=None if link is None else servers[link])
            engines.append(fleet.create_engine(body, actor="tester").id)
        if with_store:
            fleet.create_store(
                StoreCreate(path=str(simulated.store_path), server_ids=servers[:1], temp_dir=".tmp", confirm=True),
                actor="tester",
            )
        made.append(Panel(service, fleet, db, runner, simulated, engines, servers))
        return made[0]

    yield make
    for close in reversed(open_things):
        close()


@pytest.fixture
def panel(make_panel: PanelMaker) -> Panel:
    """One server, one engine, one store, all well."""
    return make_panel()


# --- a whole panel, shared by the tests of REST, pages and the command

Ids = dict[str, str]


@pytest.fixture(scope="package")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxThread]:
    with SandboxThread(tmp_path_factory.mktemp("sandbox"), engines=with_and_without(), config=config()) as running:
        yield running


@pytest.fixture(scope="package")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholePanel]:
    with running_panel(tmp_path_factory.mktemp("panel") / "var", POLL_SECONDS="3600") as running:
        yield running


@pytest.fixture(scope="package")
def api(whole: WholePanel) -> httpx.Client:
    client = whole.client("admin")
    client.base_url = httpx.URL(f"{whole.url}/api/v1")
    return client


@pytest.fixture(scope="package")
def ids(api: httpx.Client, simulated: SandboxThread) -> Ids:
    """Hostile names: every page must show them as text."""
    server = api.post("/servers", json={"url": simulated.server_url, "name": "cache"}).json()
    engine = api.post(
        "/engines", json={"url": simulated.engine_urls[0], "name": "b<script>", "server_id": server["id"]}
    ).json()
    alone = api.post("/engines", json={"url": simulated.engine_urls[1], "name": "alone"}).json()
    store = {"path": str(simulated.store_path), "server_id": server["id"], "temp_dir": ".tmp", "confirm": True}
    assert api.post("/stores", json=store).status_code == 201
    return {"engine": engine["id"], "alone": alone["id"]}


def bench_body(ids: Ids, **fields: Any) -> dict[str, Any]:
    small = {"contexts": 2, "tokens": 150, "output_tokens": 3, "repeats": 1, "noise_repeat": False}
    return {"engine_id": ids["engine"], "baseline_engine_id": ids["alone"], **small, **fields}


def ended(api: httpx.Client, location: str) -> dict[str, Any]:
    found: dict[str, Any] = api.get(location.removeprefix("/api/v1"), params={"wait": "60"}).json()
    assert found["state"] not in ("queued", "running"), found
    return found


@pytest.fixture(scope="package")
def measured(api: httpx.Client, ids: Ids) -> dict[str, Any]:
    started = api.post("/benchmark-runs", json=bench_body(ids), headers={"Idempotency-Key": "bench-1"})
    assert started.status_code == 202, started.text
    assert started.headers["location"] == f"/api/v1/benchmark-runs/{started.json()['id']}"
    found = ended(api, started.headers["location"])
    assert found["verdict"] == "valid", found["findings"]
    return found


def config(
    *, latency: Latency = QUICK, engine: dict[str, Any] | None = None, server: dict[str, Any] | None = None
) -> SandboxConfig:
    """Sandbox templates with some fields changed."""
    return replace(
        SandboxConfig(), latency=latency, engine=EngineSpec(**(engine or {})), server=ServerSpec(**(server or {}))
    )


def with_and_without(**changed: Any) -> list[EngineSpec]:
    """Two engines of one model: the first with the cache server, the second without a connector."""
    return [EngineSpec(server=0, **changed), EngineSpec(server=None, **changed)]
