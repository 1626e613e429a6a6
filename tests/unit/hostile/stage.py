"""A panel with something of everything in it: targets that answer, records, a policy, plans, runs, alarms, users."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from app.acceptance.schemas import AcceptanceRequest
from app.auth.schemas import TokenInput, UserInput
from app.cleanup.schemas import FilterPlanInput, PolicyInput
from app.fleet.schemas import EngineCreate, ServerCreate, StoreCreate
from app.sandbox import SandboxThread
from app.scheduling.schemas import ScheduleInput
from app.scheduling.work import ACTIVE_STATES
from tests.support.panel import Panel, running_panel

ACTOR = "test"
PATIENCE_SECONDS = 90.0


@dataclass(frozen=True)
class Stage:
    """The panel and the simulated targets behind it."""

    panel: Panel
    sandbox: SandboxThread


@contextmanager
def peopled_panel(base: Path, **environment: str) -> Iterator[Stage]:
    """A running panel in `base` whose first of everything has the id 1."""
    sandbox = SandboxThread(base / "sandbox")
    with sandbox, running_panel(base / "var", POLL_SECONDS="30", **environment) as panel:
        sandbox.prime(20)
        _people(panel, sandbox)
        yield Stage(panel, sandbox)


def wait_for(what: str, ready: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
    """Returns when `ready` says so; fails, naming `what`, when it does not in time."""
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s"
        time.sleep(0.05)


def _people(panel: Panel, sandbox: SandboxThread) -> None:
    services = panel.services
    fleet = services.fleet
    server = fleet.create_server(ServerCreate(url=sandbox.server_url, name="lmc"), actor=ACTOR)
    engine = fleet.create_engine(EngineCreate(url=sandbox.engine_url, name="gpu", server_id=server.id), actor=ACTOR)
    wait_for("a first poll", lambda: fleet.get_server(int(server.id)).layouts != [])
    store = fleet.create_store(
        StoreCreate(path=str(sandbox.store_path), server_ids=[server.id], name="l2", confirm=True), actor=ACTOR
    )
    scan = services.records.start_scan(int(store.id), actor=ACTOR)
    wait_for("a scan", lambda: services.records.get_scan(int(scan.id)).state not in ACTIVE_STATES)
    preset = services.cleanup.presets()[0].policy
    policy = services.cleanup.create_policy(PolicyInput.model_validate({**preset, "store_id": store.id}), actor=ACTOR)
    services.cleanup.start_policy_plan(int(policy.id), actor=ACTOR)
    plan = services.cleanup.start_filter_plan(
        int(store.id), FilterPlanInput(filter={"reason": "empty"}, quarantine_for="7d"), actor=ACTOR
    )
    wait_for("a plan", lambda: services.cleanup.get_plan(int(plan.id)).state not in ACTIVE_STATES)
    services.cleanup.start_run(int(plan.id), actor=ACTOR)
    services.scheduling.create(
        ScheduleInput(name="nightly scan", kind="scan", target_id=store.id, cron="0 3 * * *"), actor=ACTOR
    )
    run = services.acceptance.start(AcceptanceRequest(engine_id=engine.id, profile="quick"), actor=ACTOR)
    wait_for("an acceptance run", lambda: services.acceptance.get(int(run.id)).state not in ACTIVE_STATES)
    services.auth.create_user(UserInput(username="olga", password="long enough", role="operator"), actor=ACTOR)
    services.auth.create_token(TokenInput(name="a first token", role="viewer"), actor=ACTOR)
