"""`tierkeeper demo`: the panel with the sandbox, registered and seeded so that there is something to see at once.

The sandbox is a simulation and says so in its targets' labels; what the panel does with it is real: the scan, the
plan, the cleanup run and the acceptance run below are started through the same services as anybody's.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import structlog

from app import data_dir
from app.acceptance.schemas import AcceptanceRequest
from app.cleanup.schemas import FilterPlanInput, PolicyInput
from app.commands.demo_history import seed_history
from app.commands.serve import serve
from app.errors import InvalidInput, TierkeeperError
from app.fleet.sandbox import SANDBOX_LABEL
from app.fleet.schemas import EngineCreate, EnginePatch, ServerCreate, ServerPatch, StoreCreate
from app.scheduling.work import ACTIVE_STATES
from app.services import Services
from app.settings import Settings

log = structlog.get_logger()

ACTOR = "system:demo"
LABELS = SANDBOX_LABEL
POLL_SECONDS = 2.0
PATIENCE_SECONDS = 60.0
#: A file in the sandbox's directory: somebody removed it, so that the next start does not bring it back.
REMOVED = "removed"


#: What the sandbox can be told to do wrong at its start: the component, and its faults (`app.sandbox.misbehaviour`).
FAULTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "l2-garbage": ("server-0", {"l2_garbage": True}),
    "reset-lies": ("engine-0", {"reset_lies": True}),
    "stores-stuck": ("server-0", {"stores_stuck": True}),
    "same-answers": ("engine-0", {"constant_answers": "numbers"}),
}


def demo(settings: Settings, *, fault: str | None = None) -> None:
    """Serves the panel with a sandbox beside it until SIGTERM or SIGINT. Raises InvalidInput for an unknown fault."""
    if fault is not None and fault not in FAULTS:
        raise InvalidInput.field("--fault", f"{fault!r} is none of {', '.join(FAULTS)}")
    data_dir.prepare(settings.data_dir)
    if "poll_seconds" not in settings.model_fields_set:
        # Somebody who tries the panel wants to see it move.
        settings = settings.model_copy(update={"poll_seconds": POLL_SECONDS})
    directory = settings.data_dir.resolve() / "sandbox"
    if (directory / REMOVED).exists():
        print(f"The sandbox was removed; delete {directory} to have it back.", flush=True)
        serve(settings)
        return
    child, facts = _start_sandbox(directory)
    if fault is not None:
        component, changes = FAULTS[fault]
        httpx.post(f"{facts['control']}/{component}/misbehave", json=changes, trust_env=False).raise_for_status()
    served = threading.Event()

    def prepare(services: Services) -> None:
        log.info("demo.sandbox", control=facts["control"], fault=fault)
        _prepare(services, facts)
        threading.Thread(
            target=_end_when_removed, args=(services, facts, child, directory, served), name="demo-sandbox", daemon=True
        ).start()

    try:
        serve(settings, before_serving=prepare)
    finally:
        served.set()
        _stop(child)


def _end_when_removed(
    services: Services,
    facts: Mapping[str, Any],
    child: subprocess.Popen[str],
    directory: Path,
    served: threading.Event,
) -> None:
    """Stops the simulation, and takes its files away, once the panel knows none of its targets any more."""
    own = {*facts["servers"], *facts["engines"], facts["store"]}
    while not served.wait(1.0):
        if own.isdisjoint(services.fleet.addresses()):
            _stop(child)
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True, exist_ok=True)
            (directory / REMOVED).touch()
            return


def _stop(child: subprocess.Popen[str]) -> None:
    if child.stdin is not None and not child.stdin.closed:
        child.stdin.close()
    try:
        child.wait(5)
    except subprocess.TimeoutExpired:
        child.kill()


def _start_sandbox(directory: Path) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    directory.mkdir(parents=True, exist_ok=True)
    # The sandbox's past is told once: a later start goes on from the same one.
    marker = directory / "since"
    if not marker.exists():
        marker.write_text(repr(time.time()))
    child = subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "app.commands.sandbox_child", str(directory), marker.read_text()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C stops the panel first; the sandbox ends when its input closes
    )
    line = child.stdout.readline() if child.stdout else ""
    if not line:
        raise TierkeeperError("the sandbox did not start; see the lines above")
    return child, json.loads(line)


def _prepare(services: Services, facts: Mapping[str, Any]) -> None:
    """Registers the sandbox's targets (or their new addresses), then shows around in the background."""
    servers = {view.name: view for view in services.fleet.list_servers(page_size=500, page_token=None).items}
    if "sandbox" in servers:
        services.fleet.patch_server(int(servers["sandbox"].id), ServerPatch(url=facts["servers"][0]), actor=ACTOR)
        engines = {view.name: view for view in services.fleet.list_engines(page_size=500, page_token=None).items}
        for name, url in zip(("atlas-8b", "atlas-coder"), facts["engines"], strict=True):
            if name in engines:
                services.fleet.patch_engine(int(engines[name].id), EnginePatch(url=url), actor=ACTOR)
        return
    server = services.fleet.create_server(
        ServerCreate(url=facts["servers"][0], name="sandbox", labels=LABELS), actor=ACTOR
    )
    engine_ids = [
        services.fleet.create_engine(
            EngineCreate(url=url, name=name, server_id=server.id, labels=LABELS), actor=ACTOR
        ).id
        for name, url in zip(("atlas-8b", "atlas-coder"), facts["engines"], strict=True)
    ]
    store = services.fleet.create_store(
        StoreCreate(path=facts["store"], name="sandbox-l2", server_ids=[server.id], labels=LABELS), actor=ACTOR
    )
    tour = threading.Thread(
        target=_tour, args=(services, facts, server.id, engine_ids, store.id), name="demo-tour", daemon=True
    )
    tour.start()


def _tour(services: Services, facts: Mapping[str, Any], server_id: str, engine_ids: list[str], store_id: str) -> None:
    try:
        if not _wait(lambda: services.fleet.get_server(int(server_id)).layouts != []):
            return
        seed_history(services, int(server_id), [int(i) for i in engine_ids], facts)
        scan = services.records.start_scan(int(store_id), actor=ACTOR)
        _wait(lambda: services.records.get_scan(int(scan.id)).state not in ACTIVE_STATES)
        policy = services.cleanup.create_policy(_keep_it_safe(services, store_id), actor=ACTOR)
        services.cleanup.start_policy_plan(int(policy.id), actor=ACTOR)
        plan = services.cleanup.start_filter_plan(
            int(store_id), FilterPlanInput(filter={"reason": "empty"}, quarantine_for="7d"), actor=ACTOR
        )
        _wait(lambda: services.cleanup.get_plan(int(plan.id)).state not in ACTIVE_STATES)
        services.cleanup.start_run(int(plan.id), actor=ACTOR)
        services.acceptance.start(AcceptanceRequest(engine_id=engine_ids[0], profile="quick"), actor=ACTOR)
    except TierkeeperError as error:
        log.warning("demo.tour_stopped", reason=error.detail)
    except Exception:
        log.exception("demo.tour_crashed")


def _keep_it_safe(services: Services, store_id: str) -> PolicyInput:
    preset = services.cleanup.presets()[0].policy
    return PolicyInput.model_validate({**preset, "store_id": store_id})


def _wait(ready: Any) -> bool:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if ready():
            return True
        time.sleep(0.2)
    return False
