"""What breaks under the panel: a full, read-only, held or damaged database; clocks that jump; processes killed."""

from __future__ import annotations

import contextlib
import json
import secrets
import signal
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from sqlalchemy import event

from app.commands import stopping
from app.commands.backup import backup
from app.telemetry import poller
from tests.support.ending import seconds_to_end
from tests.support.panel import Panel, running_panel
from tests.unit.foundation.test_commands import run, serving
from tests.unit.hostile.stage import wait_for


class Clock:
    def __init__(self) -> None:
        self.now = 1_796_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def panel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Panel]:
    with running_panel(tmp_path_factory.mktemp("faults") / "var", POLL_SECONDS="3600") as found:
        yield found


@contextmanager
def pragma(panel: Panel, *statements: str) -> Iterator[None]:
    """Every connection of the panel gets these before it is used, and is thrown away afterwards."""
    engine = panel.services.db.engine

    def apply(connection: sqlite3.Connection, _record: object, _proxy: object) -> None:
        for statement in statements:
            connection.execute(f"PRAGMA {statement}")

    event.listen(engine, "checkout", apply)
    try:
        yield
    finally:
        event.remove(engine, "checkout", apply)
        engine.dispose()


class TestDatabase:
    @pytest.mark.parametrize(
        ("statements", "told"),
        [
            (("max_page_count=1",), "disk is full"),
            (("query_only=ON",), "readonly database"),
        ],
    )
    def test_full_or_read_only_it_is_told_read_on_and_heals(
        self, panel: Panel, statements: tuple[str, ...], told: str
    ) -> None:
        admin, browser = panel.client(), panel.browser()
        browser.get("/")
        with pragma(panel, *statements):
            refused = []
            for number in range(400):
                answer = admin.post("/api/v1/tokens", json={"name": f"{told}-{number}" + "x" * 40, "role": "viewer"})
                if answer.status_code != 201:
                    refused.append(answer)
                    break
            assert refused[0].status_code == 503
            assert told in refused[0].json()["detail"]
            assert refused[0].json()["type"].endswith("database_unusable")
            # The same in the middleware that keeps answers. A longer row: a short one may still fit into a page.
            keyed = admin.post(
                "/api/v1/tokens",
                json={"name": f"{told}-keyed-".ljust(60, "x"), "role": "viewer"},
                headers={"Idempotency-Key": secrets.token_hex(100)},
            )
            assert keyed.status_code == 503
            assert browser.get("/").status_code == 200, "reading goes on"
            assert admin.get("/api/v1/tokens").status_code == 200
            assert httpx.get(f"{panel.url}/livez").status_code == 200
        assert admin.post("/api/v1/tokens", json={"name": f"after {told}", "role": "viewer"}).status_code == 201
        assert unrecorded(panel) == []

    def test_held_by_another_process(self, panel: Panel) -> None:
        admin = panel.client()
        other = sqlite3.connect(panel.services.settings.data_dir / "tierkeeper.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        try:
            with pragma(panel, "busy_timeout=50"):
                answer = admin.post("/api/v1/tokens", json={"name": "held", "role": "viewer"})
                assert answer.status_code == 503
                assert "another process has been writing" in answer.json()["detail"]
                assert admin.get("/api/v1/tokens").status_code == 200, "reading goes on"
        finally:
            other.execute("ROLLBACK")
            other.close()
        assert admin.post("/api/v1/tokens", json={"name": "held", "role": "viewer"}).status_code == 201
        assert unrecorded(panel) == []


def unrecorded(panel: Panel) -> list[str]:
    """Tokens without a line in the audit trail, and lines about tokens that are not there."""
    path = panel.services.settings.data_dir / "tierkeeper.db"
    connection = sqlite3.connect(path)
    made = {name for (name,) in connection.execute("select name from api_token")}
    told = {
        json.loads(detail)["name"]
        for (detail,) in connection.execute("select detail from audit_event where action = 'token.create'")
    }
    connection.close()
    return sorted(made ^ told)


class TestClock:
    @pytest.mark.parametrize("jump", [-86400.0, 86400.0, -400 * 86400.0])
    def test_a_jump_neither_crashes_nor_wedges(self, tmp_path: Path, jump: float) -> None:
        clock = Clock()
        settings = {"POLL_SECONDS": "1", "SESSION_IDLE_SECONDS": "172800"}
        with running_panel(tmp_path / "var", clock=clock, **settings) as panel:
            admin, browser = panel.client(), panel.browser()
            admin.post("/api/v1/servers", json={"url": "http://127.0.0.1:9", "name": "lmc"})
            clock.now += jump
            for path in ("/", "/servers", "/alarms", "/activity", "/schedules"):
                assert browser.get(path).status_code == 200, path
            wait_for("readiness", lambda: httpx.get(f"{panel.url}/readyz", timeout=30).status_code == 200)
            made = admin.post("/api/v1/tokens", json={"name": "after", "role": "viewer"})
            assert made.status_code == 201
            rows = admin.get("/api/v1/audit").json()["items"]
            assert rows[0]["action"] == "token.create", "newest first by order of writing, not by the clock"


class TestProcess:
    @pytest.mark.timeout(600)
    def test_sigterm_ends_it_in_time_whoever_is_connected(self, tmp_path: Path) -> None:
        data = tmp_path / "var"
        with serving(data, "serve", ADMIN_PASSWORD="x") as served:
            token = run(data, "token", "create", "--name", "t", "--role", "admin").stdout.strip()
            port = urlsplit(served.url).port
            bearer = f"Host: x\r\nAuthorization: Bearer {token}\r\n"
            assert httpx.get(f"{served.url}/api/v1/openapi.json", timeout=60).status_code == 200
            opened = [
                # half a request, a body that never comes, an idle connection, a reader that never reads
                *(_open(port, b"GET /api/v1/me HTTP/1.1\r\nHost: x\r\n") for _ in range(10)),
                *(
                    _open(port, f"POST /api/v1/tokens HTTP/1.1\r\n{bearer}Content-Length: 1000\r\n\r\n".encode())
                    for _ in range(10)
                ),
                *(_open(port, b"") for _ in range(10)),
                *(_open(port, f"GET /api/v1/openapi.json HTTP/1.1\r\n{bearer}\r\n".encode()) for _ in range(5)),
                *(
                    _open(port, f"GET /servers HTTP/1.1\r\nAccept: text/event-stream\r\n{bearer}\r\n".encode())
                    for _ in range(5)
                ),
            ]
            assert httpx.get(f"{served.url}/livez", timeout=30).status_code == 200
            served.process.send_signal(signal.SIGTERM)
            seconds = seconds_to_end(served.process)
            status = served.process.wait()
            for connection in opened:
                connection.close()
        assert status == 0
        assert seconds < 5.0

    @pytest.mark.timeout(600)
    def test_sigterm_ends_it_in_time_whatever_it_waits_for(self, tmp_path: Path) -> None:
        """A database that somebody else holds, an engine and a webhook that never answer, in the middle of a run."""
        data = tmp_path / "var"
        with _nobody_answers() as (silent, taken), serving(data, "serve", ADMIN_PASSWORD="x") as served:
            token = run(data, "token", "create", "--name", "t", "--role", "admin").stdout.strip()
            api = httpx.Client(base_url=served.url, headers={"Authorization": f"Bearer {token}"}, timeout=60)
            server = api.post("/api/v1/servers", json={"url": silent, "name": "lmc"}).json()["id"]
            body = {"url": f"{silent}/e", "name": "gpu", "server_id": server}
            engine = api.post("/api/v1/engines", json=body).json()["id"]
            began = api.post("/api/v1/acceptance-runs", json={"engine_id": engine, "profile": "quick"})
            assert began.status_code == 202, began.text
            wait_for("a run under way", lambda: api.get(began.headers["location"]).json()["state"] == "running")
            notifier = api.post(
                "/api/v1/notifiers", json={"name": "hook", "kind": "webhook", "url": f"{silent}/hook"}
            ).json()
            before = len(taken)
            threading.Thread(target=_try_notifier, args=(served.url, token, notifier["id"]), daemon=True).start()
            wait_for("the webhook called", lambda: len(taken) > before)
            other = sqlite3.connect(data / "tierkeeper.db", isolation_level=None, timeout=30)
            other.execute("BEGIN IMMEDIATE")
            threading.Thread(target=_make_token, args=(served.url, token), daemon=True).start()
            time.sleep(0.3)
            served.process.send_signal(signal.SIGTERM)
            seconds = seconds_to_end(served.process)
            status = served.process.wait()
            other.execute("ROLLBACK")
            other.close()
            api.close()
        assert status == 0
        assert seconds < 5.0
        with running_panel(data, POLL_SECONDS="3600") as panel:
            ran = panel.client().get(began.headers["location"]).json()
            assert ran["state"] == "interrupted", "the next start settles it"
            assert unrecorded(panel) == []

    def test_the_graces_are_shorter_than_the_time_there_is(self) -> None:
        # uvicorn itself waits 0.1 s before its grace; a second is left for work to stop at its next check.
        assert 0.1 + stopping.REQUEST_GRACE_SECONDS + poller.STOP_SECONDS + 1.0 <= stopping.STOP_SECONDS < 5.0

    def test_kill_9_loses_no_line_of_what_was_answered_and_frees_the_directory(self, tmp_path: Path) -> None:
        data = tmp_path / "var"
        told: list[str] = []
        with serving(data, "serve", ADMIN_PASSWORD="x") as served:
            token = run(data, "token", "create", "--name", "first", "--role", "admin").stdout.strip()
            headers = {"Authorization": f"Bearer {token}"}
            enough = threading.Event()

            def write() -> None:
                with httpx.Client(base_url=served.url, headers=headers, timeout=60) as client:
                    for number in range(10_000):
                        try:
                            made = client.post("/api/v1/tokens", json={"name": f"n{number}", "role": "viewer"})
                        except httpx.HTTPError:
                            return
                        if made.status_code == 201:
                            told.append(f"n{number}")
                        if len(told) >= 15:
                            enough.set()

            writer = threading.Thread(target=write)
            writer.start()
            assert enough.wait(90)
            served.process.kill()
            served.process.wait(30)
            writer.join(60)
        with serving(data, "serve", ADMIN_PASSWORD="x") as served:
            client = httpx.Client(base_url=served.url, headers=headers, timeout=60)
            names = {item["name"] for item in client.get("/api/v1/tokens").json()["items"]}
            trail = client.get("/api/v1/audit", params={"page_size": 500}).json()["items"]
            client.close()
        assert set(told) <= names
        assert names == {row["detail"]["name"] for row in trail if row["action"] == "token.create"}

    def test_a_backup_taken_while_it_writes_starts_a_panel_elsewhere(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data, restored = tmp_path / "var", tmp_path / "restored"
        with running_panel(data, POLL_SECONDS="3600") as panel:
            admin, stop, made = panel.client(), threading.Event(), list[str]()

            def write() -> None:
                number = 0
                while not stop.is_set():
                    answer = admin.post("/api/v1/tokens", json={"name": f"n{number}", "role": "viewer"})
                    assert answer.status_code == 201
                    made.append(f"n{number}")
                    number += 1

            writer = threading.Thread(target=write)
            writer.start()
            try:
                wait_for("some rows", lambda: len(made) > 5)
                before = list(made)
                restored.mkdir(mode=0o700)
                monkeypatch.setenv("TIERKEEPER_DATA_DIR", str(data))
                backup(restored / "tierkeeper.db")
            finally:
                stop.set()
                writer.join(60)
        with running_panel(restored, POLL_SECONDS="3600") as panel:
            assert set(before) <= {token.name for token in panel.services.auth.list_tokens().items}
            assert unrecorded(panel) == []

    def test_a_damaged_database_stops_the_start_in_one_line_with_the_way_out(self, tmp_path: Path) -> None:
        data = tmp_path / "var"
        assert run(data, "token", "create", "--name", "kept", "--role", "admin").returncode == 0
        assert run(data, "backup", str(tmp_path / "copy.db")).returncode == 0
        (data / "tierkeeper.db").write_bytes(b"no database" * 4096)
        for leftover in data.glob("tierkeeper.db-*"):
            leftover.unlink()
        refused = run(data, "serve", "--port", "0")
        assert refused.returncode == 3
        assert "restore a backup in its place" in refused.stderr
        assert "Traceback" not in refused.stderr
        # The way out works.
        (data / "tierkeeper.db").unlink()
        (tmp_path / "copy.db").rename(data / "tierkeeper.db")
        assert run(data, "token", "create", "--name", "kept", "--role", "admin").returncode == 3, "the name is taken"


@contextmanager
def _nobody_answers() -> Iterator[tuple[str, list[socket.socket]]]:
    """An address where connections are taken and nothing is ever said; and those taken."""
    listening = socket.create_server(("127.0.0.1", 0))
    taken: list[socket.socket] = []

    def take() -> None:
        with contextlib.suppress(OSError):
            while True:
                taken.append(listening.accept()[0])

    threading.Thread(target=take, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", taken
    finally:
        listening.close()
        for connection in taken:
            connection.close()


def _try_notifier(url: str, token: str, ident: str) -> None:
    with contextlib.suppress(httpx.HTTPError):
        httpx.post(f"{url}/api/v1/notifiers/{ident}/test", headers={"Authorization": f"Bearer {token}"}, timeout=60)


def _make_token(url: str, token: str) -> None:
    body = {"name": "never answered", "role": "viewer"}
    with contextlib.suppress(httpx.HTTPError):
        httpx.post(f"{url}/api/v1/tokens", json=body, headers={"Authorization": f"Bearer {token}"}, timeout=60)


def _open(port: int | None, data: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port or 0), timeout=30)
    connection.sendall(data)
    return connection
