"""Storms of connections, and clients that open one and do nothing: bounded, and nobody else waits for them."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from app.web.connections import GuardedProtocol, connection_limit
from tests.support.panel import Panel, running_panel
from tests.unit.foundation.test_commands import run, serving
from tests.unit.hostile.stage import wait_for
from tests.unit.hostile.test_load import resident_kib

STORM = 3000
MAX_GROWTH_KIB = 128 * 1024


class Impatient(GuardedProtocol):
    """Waits for seconds where the panel waits for a minute; takes few."""

    limit = 40
    head_seconds = 1.5
    client_seconds = 3.0
    look_seconds = 0.2


@pytest.fixture(scope="module")
def panel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Panel]:
    with running_panel(tmp_path_factory.mktemp("storms") / "var", protocol=Impatient, POLL_SECONDS="3600") as found:
        yield found


def connect(url: str, data: bytes = b"", *, receive_buffer: int | None = None) -> socket.socket:
    parts = urlsplit(url)
    connection = socket.socket()
    if receive_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(60)
    connection.connect((parts.hostname or "", parts.port or 0))
    connection.sendall(data)
    return connection


def is_over(connection: socket.socket) -> bool:
    """Whether the other side has ended it; what it sent before is thrown away."""
    connection.setblocking(False)
    try:
        while connection.recv(65536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


class TestWaitingForTheClient:
    @pytest.mark.parametrize("begun", [b"", b"GET /livez HTTP/1.1\r\nHost: x\r\n"])
    def test_half_open_ends_and_dripping_does_not_put_it_off(self, panel: Panel, begun: bytes) -> None:
        connection = connect(panel.url, begun)
        deadline = time.monotonic() + 30
        while not is_over(connection):
            assert time.monotonic() < deadline, "a head that is never complete holds a connection for good"
            if begun:
                with contextlib.suppress(OSError):
                    connection.send(b"X-A: b\r\n")
            time.sleep(0.2)
        connection.close()

    def test_a_body_that_does_not_come_ends(self, panel: Panel) -> None:
        token = panel.client().headers["Authorization"]
        head = f"POST /api/v1/tokens HTTP/1.1\r\nHost: x\r\nAuthorization: {token}\r\nContent-Length: 100\r\n\r\n"
        connection = connect(panel.url, head.encode())
        wait_for("the end of it", lambda: is_over(connection), 30)
        connection.close()

    def test_an_answer_that_is_not_read_ends(self, panel: Panel) -> None:
        document = httpx.get(f"{panel.url}/api/v1/openapi.json", timeout=120).content  # made once, seconds of work
        asked = 40  # more than the system's own buffers hold
        connection = connect(panel.url, receive_buffer=2048)
        connection.sendall(b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * asked)
        time.sleep(3 * Impatient.client_seconds)
        received = 0
        with contextlib.suppress(ConnectionResetError):
            while piece := connection.recv(65536):
                received += len(piece)
        assert received < asked * len(document), "all of it was kept for somebody who did not read"
        connection.close()

    def test_a_head_without_end_is_refused(self, panel: Panel) -> None:
        connection = connect(panel.url, b"GET /livez HTTP/1.1\r\nHost: x\r\n")
        with contextlib.suppress(OSError):
            for _ in range(64):
                connection.sendall(b"X-More: " + b"y" * 4096 + b"\r\n")
        with contextlib.suppress(OSError):
            assert connection.recv(100).startswith(b"HTTP/1.1 431 ")
        wait_for("the end of it", lambda: is_over(connection), 30)
        connection.close()

    def test_a_request_that_is_ours_to_answer_is_never_cut_off(self, panel: Panel) -> None:
        # A body of many pieces with pauses longer than a head may take, as a whole.
        def slowly() -> Iterator[bytes]:
            for piece in (b'{"name": "slow', b'ly made",', b' "role":', b' "viewer"}'):
                time.sleep(0.8)
                yield piece

        made = panel.client().post("/api/v1/tokens", content=slowly(), headers={"Content-Type": "application/json"})
        assert made.status_code == 201

    def test_those_that_wait_longest_make_room(self, panel: Panel) -> None:
        opened = [connect(panel.url) for _ in range(4 * Impatient.limit)]
        assert httpx.get(f"{panel.url}/livez", timeout=30).status_code == 200
        assert sum(not is_over(connection) for connection in opened) <= Impatient.limit
        for connection in opened:
            connection.close()


@pytest.mark.timeout(600)
def test_a_storm_leaves_memory_and_liveness_as_they_were(tmp_path: Path) -> None:
    data = tmp_path / "var"
    with serving(data, "serve", ADMIN_PASSWORD="x") as served:
        token = run(data, "token", "create", "--name", "t", "--role", "viewer").stdout.strip()
        headers = {"Authorization": f"Bearer {token}"}
        assert httpx.get(f"{served.url}/api/v1/servers", headers=headers, timeout=60).status_code == 200
        process = Path(f"/proc/{served.process.pid}")
        before = resident_kib(served.process.pid)
        heads = (b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\nX-A: " + b"y" * 4000)
        kept: list[socket.socket] = []
        most = 0
        for number in range(STORM):
            # Most go on as they came; only so many are kept that this process has descriptors for them.
            kept.append(connect(served.url, heads[number % 3]))
            if len(kept) > 600:
                kept.pop(0).close()
            if number % 500 == 499:
                most = max(most, sum(1 for _ in (process / "fd").iterdir()))
                assert httpx.get(f"{served.url}/livez", timeout=30).status_code == 200
        assert httpx.get(f"{served.url}/api/v1/servers", headers=headers, timeout=60).status_code == 200
        after = resident_kib(served.process.pid)
        for connection in kept:
            connection.close()
    assert after - before < MAX_GROWTH_KIB
    assert most < 1.5 * connection_limit() + 200
