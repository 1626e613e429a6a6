"""Chaos: traffic all the time, and at random the panel, the cache server or the engine is killed, the disk filled.

What it is done to is a `Stack`; the sandbox is one, a real LMCache server and vLLM another. The panel is a real
process. What was answered is remembered outside of it, and compared in the end.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import httpx
from sqlalchemy import select

from app.cleanup.chunks import names_in_state
from app.cleanup.journal import WAITING
from app.cleanup.tables import Plan
from app.database import Database
from app.lmcache.object_keys import ObjectKey, format_name
from app.sandbox import SandboxThread

Component = Literal["server", "engine"]
PATIENCE_SECONDS = 240.0
EMPTY = 20


class Stack(Protocol):
    """A cache server and an engine over a directory, under traffic of its own."""

    @property
    def server_url(self) -> str: ...

    @property
    def engine_url(self) -> str: ...

    @property
    def store(self) -> Path: ...

    def kill(self, component: Component) -> None:
        """As kill -9 does."""

    def start(self, component: Component) -> None:
        """The same again, at the same address."""

    def can_fill(self) -> bool:
        """Whether the device of the store is small enough to be ours to fill."""

    def fill(self) -> None:
        """Leaves no space on the device of the store."""

    def free(self) -> None:
        """Gives the space back."""


class SandboxStack:
    """The simulated server and engine. The disk is filled where the store is a small file system of its own."""

    def __init__(self, sandbox: SandboxThread) -> None:
        self._sandbox = sandbox
        self.server_url, self.engine_url = sandbox.server_url, sandbox.engine_url
        self.store = sandbox.store_path
        self._ballast = self.store.parent / "ballast"

    def kill(self, component: Component) -> None:
        self._sandbox.control.kill(component)

    def start(self, component: Component) -> None:
        self._sandbox.control.start(component)

    def can_fill(self) -> bool:
        space = os.statvfs(self.store)
        return space.f_frsize * space.f_blocks <= 256 * 2**20

    def fill(self) -> None:
        with contextlib.suppress(OSError), self._ballast.open("wb", buffering=0) as file:
            while True:
                file.write(b"\0" * 2**16)

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)


@dataclass
class Told:
    """What the panel answered and what stood in the store, as remembered outside of it."""

    done: Counter[str] = field(default_factory=Counter)
    tokens: set[str] = field(default_factory=set)
    records: set[str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)


class PanelProcess:
    """`tierkeeper serve` that can be killed and started again on the same data directory."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._process: subprocess.Popen[str] | None = None
        clean = {name: value for name, value in os.environ.items() if not name.startswith("TIERKEEPER_")}
        own = {"DATA_DIR": str(data), "POLL_SECONDS": "1", "ADMIN_PASSWORD": "chaos chaos", "LOG_LEVEL": "ERROR"}
        self._environment = clean | {f"TIERKEEPER_{name}": value for name, value in own.items()}
        self.url = ""

    def start(self) -> None:
        command = [sys.executable, "-m", "app", "serve", "--port", "0"]
        self._process = subprocess.Popen(command, env=self._environment, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        found = re.match(r"Tierkeeper on (http://\S+)", self._process.stdout.readline())
        assert found, "the panel did not start"
        self.url = found.group(1)

    def end(self, number: signal.Signals) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        return self._process.wait(60)

    def token(self) -> str:
        command = [sys.executable, "-m", "app", "token", "create", "--name", "chaos", "--role", "admin"]
        made = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=True)
        return made.stdout.strip()


def run_chaos(stack: Stack, data: Path, *, seconds: float, seed: int = 1, pause: float = 4.0) -> Told:
    """Does it for `seconds`; what it found wrong is in `Told.wrong`."""
    rng, told, panel, stop = random.Random(seed), Told(), PanelProcess(data), threading.Event()
    damaged = Damaged(stack.store)
    damaged.add()
    panel.start()
    headers = {"Authorization": f"Bearer {panel.token()}"}
    told.tokens.add("chaos")
    _register(panel, stack, headers)
    worker = threading.Thread(target=_work, args=(panel, headers, told, stop), name="chaos-client")
    worker.start()
    events: dict[str, Callable[[], None]] = {
        "kill panel": lambda: _kill_panel(panel),
        "kill server": lambda: _kill(stack, "server", rng),
        "kill engine": lambda: _kill(stack, "engine", rng),
    }
    if stack.can_fill():
        events["fill disk"] = lambda: _fill(stack, rng)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline or not told.done.keys() >= events.keys():
        for name in rng.sample(list(events), len(events)):  # in turns: a short run sees every kind as well
            time.sleep(rng.uniform(0.5, pause))
            told.records |= _records(stack.store)
            events[name]()
            told.done[name] += 1
            damaged.add()
    stop.set()
    worker.join(PATIENCE_SECONDS)
    _settle(panel, headers, told)
    _clean(panel, headers, told)
    if panel.end(signal.SIGTERM) != 0:
        told.wrong.append("SIGTERM did not end the panel cleanly")
    _compare(stack, data, damaged.names, told)
    return told


def _kill_panel(panel: PanelProcess) -> None:
    panel.end(signal.SIGKILL)
    panel.start()


def _kill(stack: Stack, component: Component, rng: random.Random) -> None:
    stack.kill(component)
    time.sleep(rng.uniform(0.2, 3.0))
    stack.start(component)


def _fill(stack: Stack, rng: random.Random) -> None:
    stack.fill()
    time.sleep(rng.uniform(0.5, 3.0))
    stack.free()


class Damaged:
    """Empty records, old enough to be called damaged: what the policy is there to remove. Each event adds some."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self.names: set[str] = set()
        (store / "somebody-elses.txt").write_text("not a record")

    def add(self) -> None:
        old = time.time() - 7200
        for number in range(len(self.names), len(self.names) + EMPTY):
            name = format_name(ObjectKey("chaos/model", 0x01000100, 0, number.to_bytes(32, "big")))
            # Made elsewhere and moved, so that no scan sees it before it is old.
            made = self._store.parent / "damaged"
            made.touch()
            os.utime(made, (old, old))
            made.rename(self._store / name)
            self.names.add(name)


def _records(store: Path) -> set[str]:
    return {path.name for path in store.glob("*.data") if path.stat().st_size > 0}


def _register(panel: PanelProcess, stack: Stack, headers: dict[str, str]) -> None:
    with httpx.Client(base_url=f"{panel.url}/api/v1", headers=headers, timeout=120) as client:
        server = client.post("/servers", json={"url": stack.server_url, "name": "lmc"}).json()["id"]
        client.post("/engines", json={"url": stack.engine_url, "name": "gpu", "server_id": server})
        body = {"path": str(stack.store), "name": "l2", "server_ids": [server], "confirm": True}
        store = client.post("/stores", json=body).json()["id"]
        policy = {
            "name": "damaged",
            "store_id": store,
            "select": [{"kind": "corrupt", "reasons": ["empty"]}],
            "removal": "quarantine",
            "quarantine_for": "7d",
        }
        answer = client.post("/policies", json=policy)
        assert answer.status_code == 201, answer.text


def _work(panel: PanelProcess, headers: dict[str, str], told: Told, stop: threading.Event) -> None:
    """Somebody who goes on working: makes tokens, scans, runs the policy. Only what was answered is remembered."""
    number = 0
    while not stop.is_set():
        number += 1
        try:
            with httpx.Client(base_url=f"{panel.url}/api/v1", headers=headers, timeout=30) as client:
                if client.post("/tokens", json={"name": f"t{number}", "role": "viewer"}).status_code == 201:
                    told.tokens.add(f"t{number}")
                if number % 4 == 0:
                    client.post("/stores/1/scans")
                if number % 4 == 2:
                    client.post("/policies/1/runs")
        except (httpx.HTTPError, httpx.InvalidURL):
            pass  # the panel was just killed
        stop.wait(0.1)


def _settle(panel: PanelProcess, headers: dict[str, str], told: Told) -> None:
    """Everything is up again: within a while the panel must say so, and no work may stay half-done."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    seen = ""
    with httpx.Client(base_url=panel.url, headers=headers, timeout=60) as client:
        while time.monotonic() < deadline:
            ready = client.get("/readyz").status_code == 200
            health = client.get("/api/v1/servers").json()["items"][0]["health"]
            active = [
                run["id"]
                for family in ("scans", "plans", "cleanup-runs")
                for run in client.get(f"/api/v1/{family}").json()["items"]
                if run["state"] in ("queued", "running")
            ]
            seen = f"ready {ready}, server {health['state']} ({health['reason']}), active {active}"
            if ready and health["http_up"] and health["state"] in ("healthy", "degraded") and not active:
                return
            time.sleep(0.5)
    told.wrong.append(f"the states were not right in the end: {seen}")


def _clean(panel: PanelProcess, headers: dict[str, str], told: Told) -> None:
    """When all is quiet a scan and a run must take what the kills left."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    with httpx.Client(base_url=f"{panel.url}/api/v1", headers=headers, timeout=60) as client:
        for path, family in (("/stores/1/scans", "scans"), ("/policies/1/runs", "cleanup-runs")):
            work = client.post(path).json()
            while work.get("state") in ("queued", "running") and time.monotonic() < deadline:
                time.sleep(0.2)
                work = client.get(f"/{family}/{work['id']}").json()
            if work.get("state") != "succeeded":
                told.wrong.append(f"{path} on a quiet panel: {work}")


def _compare(stack: Stack, data: Path, damaged: set[str], told: Told) -> None:
    connection = sqlite3.connect(data / "tierkeeper.db")
    if connection.execute("PRAGMA integrity_check").fetchone() != ("ok",):
        told.wrong.append("the database is damaged")
    kept = {name for (name,) in connection.execute("select name from api_token")}
    trail = {
        json.loads(detail)["name"]
        for (detail,) in connection.execute("select detail from audit_event where action = 'token.create'")
    }
    connection.close()
    told.wrong += [f"lost: the token {name} was answered" for name in sorted(told.tokens - kept)]
    told.wrong += [f"the trail and the rows differ about {name}" for name in sorted(kept ^ trail)]
    waiting = Counter(path.name for path in (stack.store / ".tierkeeper").rglob("*.data"))
    journal = _journalled(data)
    told.wrong += [f"in quarantine, and not once in the journal: {name}" for name in sorted(waiting - journal)]
    told.wrong += [f"in the journal, and not in quarantine: {name}" for name in sorted(journal - waiting)]
    quarantined = set(waiting)
    in_place = {path.name for path in stack.store.glob("*.data")}
    told.wrong += [f"gone without a trace: {name}" for name in sorted(damaged - in_place - quarantined)]
    told.wrong += [f"deleted, and nothing was wrong with it: {name}" for name in sorted(told.records - in_place)]
    if not (stack.store / "somebody-elses.txt").exists():
        told.wrong.append("a file that is no record is gone")
    told.wrong += [f"damaged, and still in place: {name}" for name in sorted(damaged & in_place)]
    told.done["quarantined"] = len(damaged & quarantined)


def _journalled(data: Path) -> Counter[str]:
    """The records that the journal says lie in quarantine, read from a database nobody has open any more."""
    db = Database(f"sqlite:///{data / 'tierkeeper.db'}")
    try:
        with db.read() as session:
            plans = session.scalars(select(Plan.id)).all()
        return Counter(
            os.fsdecode(name)
            for plan in plans
            for chunk, _ in names_in_state(db, plan, WAITING)
            for name, _, _ in chunk
        )
    finally:
        db.dispose()
