"""The checks service over a fresh database, and its routes behind real tokens, without the rest of the panel."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fastapi import FastAPI
from fastapi.testclient import TestClient

import app.auth.tables
import app.checks.tables
import app.scheduling.tables  # noqa: F401
from app.api import checks as routes
from app.api import problems
from app.api.deps import get_services
from app.auth.schemas import TokenInput
from app.auth.service import AuthService
from app.checks.service import ChecksService
from app.fleet.schemas import EngineCreate, ServerCreate, StoreCreate
from app.scheduling.runner import WorkRunner
from app.shapes import Page
from tests.unit.fleet.support import Bench as FleetBench


class FakePolicies:
    """Policies of stores, as the cleanup room lists them."""

    def __init__(self) -> None:
        self.of_store: dict[int, list[Any]] = {}

    def add(
        self, store_id: int, name: str, kind: str, *, enabled: bool = True, schedule: str | None = "0 3 * * *"
    ) -> None:
        policy = SimpleNamespace(name=name, enabled=enabled, schedule=schedule, select=[{"kind": kind}])
        self.of_store.setdefault(store_id, []).append(policy)

    def list_policies(self, *, page_size: int, page_token: str | None, store_id: int | None = None) -> Page[Any]:
        return Page[Any](items=self.of_store.get(store_id or 0, []), next_page_token=None)


class Bench:
    """`fleet`, `checks`, `clock`, and `client(role)` for the routes. Runs happen in the calling thread."""

    def __init__(self, tmp_path: Path) -> None:
        self.base = FleetBench(tmp_path)
        self.clock, self.db, self.fleet = self.base.clock, self.base.db, self.base.fleet
        self.runner = WorkRunner(self.db, self.clock)
        self.policies = FakePolicies()
        self.checks = ChecksService(
            db=self.db,
            clock=self.clock,
            runner=self.runner,
            audit=self.base.audit,
            fleet=self.fleet,
            cleanup=self.policies,
        )
        self.auth = AuthService(db=self.db, clock=self.clock, settings=self.base.settings, audit=self.base.audit)
        self._app = FastAPI()
        problems.install(self._app)
        for router in getattr(routes, "ALL_ROUTERS", (routes.router,)):
            self._app.include_router(router, prefix="/api/v1")
        self.services = SimpleNamespace(
            checks=self.checks, auth=self.auth, settings=self.base.settings, clock=self.clock, fleet=self.fleet
        )
        self._app.dependency_overrides[get_services] = lambda: self.services
        self._app.state.services = self.services  # whom refusals ask who is calling
        self._clients = 0

    def client(self, role: str | None = "admin") -> TestClient:
        headers = {}
        if role is not None:
            self._clients += 1
            body = TokenInput(name=f"t{self._clients}", role=role)  # type: ignore[arg-type]
            headers["Authorization"] = f"Bearer {self.auth.create_token(body, actor='test').token}"
        return TestClient(self._app, headers=headers, raise_server_exceptions=False)

    def server(self, url: str, name: str = "cache-a") -> int:
        return int(self.fleet.create_server(ServerCreate(url=url, name=name), actor="test").id)

    def engine(self, url: str, server_id: int | None, name: str = "engine-a") -> int:
        body = EngineCreate(url=url, name=name, server_id=None if server_id is None else str(server_id))
        return int(self.fleet.create_engine(body, actor="test").id)

    def store(self, path: Path, server_id: int) -> int:
        body = StoreCreate(path=str(path), name="l2", server_ids=[str(server_id)], confirm=True)
        return int(self.fleet.create_store(body, actor="test").id)

    def close(self) -> None:
        self.db.dispose()
