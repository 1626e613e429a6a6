"""Fifty people and some programs at once, slow readers beside them: everybody is served, and memory stays bounded."""

from __future__ import annotations

import os
import socket
import threading
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.unit.foundation.test_commands import run, serving

PEOPLE = int(os.environ.get("HOSTILE_PEOPLE", "50"))
PROGRAMS, SLOW = 8, 40
ROUNDS = int(os.environ.get("HOSTILE_ROUNDS", "3"))
PAGES = ("/", "/servers", "/stores", "/alarms", "/activity", "/checks")
CALLS = ("/api/v1/servers", "/api/v1/audit", "/api/v1/alerts", "/api/v1/me")
MAX_GROWTH_KIB = 200 * 1024


def resident_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS:")).split()[1])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not os.environ.get("HOSTILE_LOAD"), reason="long; make load sets HOSTILE_LOAD=1")
def test_fifty_people_and_programs_at_once(tmp_path: Path) -> None:
    data = tmp_path / "var"
    with serving(data, "serve", ADMIN_PASSWORD="x") as served:
        token = run(data, "token", "create", "--name", "load", "--role", "admin").stdout.strip()
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=served.url, headers={"Origin": served.url}, timeout=120) as client:
            cookie = (
                client.post("/login", data={"username": "admin", "password": "x"}).headers["set-cookie"].split(";")[0]
            )
            for path in PAGES:
                assert client.get(path, headers={"Cookie": cookie}).status_code == 200
        before = resident_kib(served.process.pid)

        # People who open a page and never read it to its end hold a connection, no more.
        slow = [_never_reads(served.url, token) for _ in range(SLOW)]
        answers: Counter[int] = Counter()
        lock = threading.Lock()

        def ask(paths: tuple[str, ...], sent: dict[str, str]) -> None:
            with httpx.Client(base_url=served.url, headers=sent, timeout=300) as client:
                for _ in range(ROUNDS):
                    for path in paths:
                        status = client.get(path).status_code
                        with lock:
                            answers[status] += 1

        threads = [threading.Thread(target=ask, args=(PAGES, {"Cookie": cookie})) for _ in range(PEOPLE)]
        threads += [threading.Thread(target=ask, args=(CALLS, headers)) for _ in range(PROGRAMS)]
        for thread in threads:
            thread.start()
        # Liveness does not wait in the line.
        assert httpx.get(f"{served.url}/livez", timeout=60).status_code == 200
        for thread in threads:
            thread.join(800)
        for connection in slow:
            connection.close()
        after = resident_kib(served.process.pid)
    assert answers == {200: ROUNDS * (PEOPLE * len(PAGES) + PROGRAMS * len(CALLS))}
    assert after - before < MAX_GROWTH_KIB


def _never_reads(url: str, token: str) -> socket.socket:
    parts = urlsplit(url)
    connection = socket.create_connection((parts.hostname or "", parts.port or 0), timeout=60)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    request = f"GET /api/v1/openapi.json HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
    connection.sendall(request.encode())
    return connection
