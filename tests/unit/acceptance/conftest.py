"""A panel's acceptance room over the sandbox: real sockets, real SQLite, a real store directory, no sleeping."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from app.acceptance.ports import RecordRemover
from app.acceptance.run import Openers
from app.acceptance.schemas import AcceptanceRequest, AcceptanceRunView
from app.acceptance.service import AcceptanceService
from app.acceptance.stack import Pace
from app.audit.service import AuditService
from app.clock import system_clock
from app.database import Base, Database
from app.fleet.schemas import EngineCreate, ServerCreate, StoreCreate
from app.fleet.service import FleetService
from app.fleet.targets import EngineTarget, ServerTarget
from app.lmcache.client import LMCacheClient
from app.sandbox import EngineSpec, SandboxConfig, SandboxThread, ServerSpec
from app.scheduling.runner import WorkRunner
from app.schema import metadata  # noqa: F401  (all tables, for foreign keys)
from app.settings import load_settings
from app.vllm.client import ResetAnswer, VLLMClient

SHORT = (150, 210)
#: Seconds. A machine under load must not decide what a test of something else finds.
PATIENCE = 60.0
OnReset = Callable[["Panel", int], None]


class ActingClient(VLLMClient):
    """Lets a test act at the n-th reset: 1 is the preflight, 2 comes before external_l1, 3 before external_l2."""

    act: Callable[[int], None]
    resets: int = 0

    async def reset_prefix_cache(self, *, deadline: float = 15.0) -> ResetAnswer:
        self.resets += 1
        await asyncio.to_thread(self.act, self.resets)
        return await super().reset_prefix_cache(deadline=deadline)


PACE = Pace(poll=0.01, reset=0.5, stored=0.8, counters=0.4, lag=0.4, still=0.0, emptied=0.5, registered=2.0)


@dataclass
class Panel:
    """The service with its targets registered."""

    service: AcceptanceService
    fleet: FleetService
    db: Database
    runner: WorkRunner
    sandbox: SandboxThread
    engines: list[str]
    server: str

    def run(self, **fields: Any) -> AcceptanceRunView:
        """Starts a run and lets it end (no worker threads: it runs here)."""
        fields.setdefault("engine_id", self.engines[0])
        if not fields.keys() & {"profile", "prompts", "lengths"}:
            fields["lengths"] = list(SHORT)  # a test of one fault needs no more
        return self.service.start(AcceptanceRequest.model_validate(fields), actor="tester")

    @property
    def store(self) -> Path:
        return self.sandbox.store_path


PanelMaker = Callable[..., Panel]


@pytest.fixture
def make_panel(tmp_path: Path) -> Iterator[PanelMaker]:
    """Makes a panel over a sandbox; keywords are of Sandbox, plus `with_store` and `pace`."""
    open_things: list[Any] = []

    def make(
        *,
        with_store: bool = True,
        pace: Pace = PACE,
        threads: bool = False,
        on_reset: OnReset | None = None,
        remover: RecordRemover | None = None,
        **sandbox: Any,
    ) -> Panel:
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

        def open_engine(target: EngineTarget) -> VLLMClient:
            client = ActingClient(target.url, connect_timeout=PATIENCE, read_timeout=PATIENCE)
            client.act = lambda n: on_reset(made[0], n) if on_reset is not None else None
            return client

        def open_server(target: ServerTarget) -> LMCacheClient:
            return LMCacheClient(target.url, connect_timeout=PATIENCE, read_timeout=PATIENCE)

        service = AcceptanceService(
            db=db,
            clock=system_clock,
            runner=runner,
            settings=settings,
            audit=audit,
            fleet=fleet,
            pace=pace,
            openers=Openers(vllm=open_engine, lmcache=open_server),
            remover=remover,
        )
        if threads:
            runner.start()
            open_things.append(runner.stop)
        server = fleet.create_server(ServerCreate(url=simulated.server_url, name="cache"), actor="tester")
        engines = [
            fleet.create_engine(EngineCreate(url=url, name=f"engine-{i}", server_id=server.id), actor="tester").id
            for i, url in enumerate(simulated.engine_urls)
        ]
        if with_store:
            fleet.create_store(
                StoreCreate(path=str(simulated.store_path), server_ids=[server.id], temp_dir=".tmp", confirm=True),
                actor="tester",
            )
        made.append(Panel(service, fleet, db, runner, simulated, engines, server.id))
        return made[0]

    yield make
    for close in reversed(open_things):
        close()


@pytest.fixture
def panel(make_panel: PanelMaker) -> Panel:
    """One server, one engine, one store, all well."""
    return make_panel()


def config(*, engine: dict[str, Any] | None = None, server: dict[str, Any] | None = None) -> SandboxConfig:
    """Sandbox templates with some fields changed."""
    return replace(SandboxConfig(), engine=EngineSpec(**(engine or {})), server=ServerSpec(**(server or {})))
