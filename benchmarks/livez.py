"""How long ``GET /livez`` of a real panel takes while it scans: the event loop as somebody outside meets it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

if TYPE_CHECKING:
    from collections.abc import Iterator

_COMMAND = "import sys; from app.cli import main; sys.argv[0] = 'tierkeeper'; main()"
_IDLE_SECONDS = 5.0
_PAUSE = 0.005


@dataclass(frozen=True)
class Latencies:
    """Milliseconds; `seconds` is how long it was asked."""

    p50: float
    p99: float
    longest: float
    asked: int
    seconds: float


@dataclass(frozen=True)
class Livez:
    """Before a scan, in a first scan and in a re-scan with nothing changed."""

    idle: Latencies
    first: Latencies
    again: Latencies


def livez_during_scans(directory: Path, records: int, folder: Path) -> Livez:
    """Starts a panel of its own over `directory`, scans twice through its API, and stops it."""
    folder.mkdir(parents=True, exist_ok=True)
    with _panel(folder) as client:
        body = {"name": "bench", "path": os.path.realpath(directory)}
        made = client.post("/api/v1/stores", json=body)
        made.raise_for_status()
        store = made.json()["id"]
        idle = _ask(client, None)
        scans = []
        for _ in range(2):
            started = client.post(f"/api/v1/stores/{store}/scans")
            started.raise_for_status()
            scans.append(_ask(client, started.json()["id"]))
        found = client.get(f"/api/v1/stores/{store}/summary").json()["records"]
        if found != records:
            raise SystemExit(f"wrong: the panel found {found} of {records} records")
        return Livez(idle, *scans)


def _ask(client: httpx.Client, scan: str | None) -> Latencies:
    """Asks until the scan (or, without one, the idle time) is over; its end is looked for twice a second."""
    taken: list[float] = []
    began = looked = time.perf_counter()
    while True:
        before = time.perf_counter()
        client.get("/livez").raise_for_status()
        now = time.perf_counter()
        taken.append((now - before) * 1000)
        if scan is None and now - began > _IDLE_SECONDS:
            break
        if scan is not None and now - looked > 0.5:
            looked = now
            state = client.get(f"/api/v1/scans/{scan}").json()
            if state["state"] not in ("queued", "running"):
                if state["state"] != "succeeded":
                    raise SystemExit(f"the panel's scan ended {state['state']}: {state['error']}")
                break
        time.sleep(_PAUSE)
    taken.sort()
    share = [taken[len(taken) * part // 100] for part in (50, 99)]
    return Latencies(share[0], share[1], taken[-1], len(taken), time.perf_counter() - began)


@contextmanager
def _panel(folder: Path) -> Iterator[httpx.Client]:
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = {
        "TIERKEEPER_DATA_DIR": str(folder / "var"),
        "TIERKEEPER_PORT": str(port),
        "TIERKEEPER_ADMIN_PASSWORD": "scan-benchmark-only",
    }
    environment = {**os.environ, **given}
    run = [sys.executable, "-c", _COMMAND]
    token = subprocess.run(
        [*run, "token", "create", "--name", "bench", "--role", "admin"],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    with (folder / "panel.log").open("wb") as log:
        process = subprocess.Popen([*run, "serve"], env=environment, stdout=log, stderr=log)
    try:
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as client:
            _wait(client, process)
            yield client
    finally:
        process.terminate()
        process.wait(timeout=60)


def _wait(client: httpx.Client, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        try:
            if client.get("/readyz").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise SystemExit("the panel did not get ready; see panel.log")
