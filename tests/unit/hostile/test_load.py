"""Fifty people and some programs at once while two hundred targets are polled, slow readers and many open event streams
beside them: everybody is served, every target is polled, and memory stays bounded.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.unit.foundation.test_commands import run, serving

PEOPLE = int(os.environ.get("HOSTILE_PEOPLE", "50"))
PROGRAMS, SLOW, STREAMS = 8, 40, 100
PAIRS = int(os.environ.get("HOSTILE_PAIRS", "100"))  # so many cache servers, and as many engines
ROUNDS = int(os.environ.get("HOSTILE_ROUNDS", "3"))
PAGES = ("/", "/servers", "/stores", "/alarms", "/activity", "/checks")
CALLS = ("/api/v1/servers", "/api/v1/audit", "/api/v1/alerts", "/api/v1/me")
MAX_GROWTH_KIB, MAX_KIB = 48 * 1024, 640 * 1024


def resident_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS:")).split()[1])


@pytest.fixture
def targets() -> Iterator[str]:
    """Where the captured answers of any number of servers and engines are."""
    script = Path(__file__).parents[3] / "benchmarks" / "fleet_targets.py"
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    process.kill()
    process.wait()


def _declared(folder: Path, targets: str) -> Path:
    servers = [{"name": f"server {n}", "url": f"{targets}/s{n}"} for n in range(PAIRS)]
    engines = [{"name": f"engine {n}", "url": f"{targets}/e{n}", "server": f"server {n}"} for n in range(PAIRS)]
    file = folder / "targets.yaml"
    file.write_text(json.dumps({"servers": servers, "engines": engines}))
    return file


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not os.environ.get("HOSTILE_LOAD"), reason="long; make load sets HOSTILE_LOAD=1")
def test_fifty_people_and_programs_at_once(tmp_path: Path, targets: str) -> None:
    data = tmp_path / "var"
    declared = _declared(tmp_path, targets)
    with serving(data, "serve", ADMIN_PASSWORD="x", TARGETS_FILE=str(declared), POLL_SECONDS="10") as served:
        token = run(data, "token", "create", "--name", "load", "--role", "admin").stdout.strip()
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=served.url, headers={"Origin": served.url}, timeout=120) as client:
            cookie = (
                client.post("/login", data={"username": "admin", "password": "x"}).headers["set-cookie"].split(";")[0]
            )
            for path in PAGES:
                assert client.get(path, headers={"Cookie": cookie}).status_code == 200
        # People who open a page and never read it to its end hold a connection, no more.
        slow = [_sends(served.url, token, "/api/v1/openapi.json") for _ in range(SLOW)]
        streams = [_sends(served.url, token, "/live") for _ in range(STREAMS)]
        answers: Counter[int] = Counter()
        sizes: list[int] = []
        lock = threading.Lock()

        # Memory is compared from the second round on: in the first all threads are busy for the first time.
        together = threading.Barrier(PEOPLE + PROGRAMS, lambda: sizes.append(resident_kib(served.process.pid)))

        def ask(paths: tuple[str, ...], sent: dict[str, str]) -> None:
            with httpx.Client(base_url=served.url, headers=sent, timeout=300) as client:
                for _ in range(ROUNDS):
                    for path in paths:
                        status = client.get(path).status_code
                        with lock:
                            answers[status] += 1
                    together.wait(600)

        threads = [threading.Thread(target=ask, args=(PAGES, {"Cookie": cookie})) for _ in range(PEOPLE)]
        threads += [threading.Thread(target=ask, args=(CALLS, headers)) for _ in range(PROGRAMS)]
        for thread in threads:
            thread.start()
        # Liveness does not wait in the line.
        assert httpx.get(f"{served.url}/livez", timeout=60).status_code == 200
        for thread in threads:
            thread.join(800)
        for stream in streams:
            stream.settimeout(30)
            assert stream.recv(15) == b"HTTP/1.1 200 OK"
        for connection in (*slow, *streams):
            connection.close()
        asked = httpx.get(f"{targets}/asked", timeout=60).json()
    assert answers == {200: ROUNDS * (PEOPLE * len(PAGES) + PROGRAMS * len(CALLS))}
    told = f"{[size // 1024 for size in sizes]} MiB after each round"
    assert sizes[-1] - sizes[0] < MAX_GROWTH_KIB, told
    assert max(sizes) < MAX_KIB, told
    assert len(asked) == 2 * PAIRS
    assert min(len(times) for times in asked.values()) >= 2, "a target was forgotten while people were served"
    print(f"{told}; polls a target: {min(map(len, asked.values()))}")


def _sends(url: str, token: str, path: str) -> socket.socket:
    """A request whose answer is not read for now."""
    parts = urlsplit(url)
    connection = socket.create_connection((parts.hostname or "", parts.port or 0), timeout=60)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    request = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
    connection.sendall(request.encode())
    return connection
