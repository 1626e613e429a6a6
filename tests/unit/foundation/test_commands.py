"""The command as a program: its output, its exit statuses, its life as a process."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import cast

import httpx
import pytest
from pwdlib import PasswordHash
from pwdlib.hashers.argon2 import Argon2Hasher
from structlog.testing import capture_logs

from app.commands.serve import tell_of_sandbox
from app.fleet.sandbox import SandboxTarget
from app.services import Services

PROGRAM = [sys.executable, "-m", "app"]


def environment(data_dir: Path, **settings: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TIERKEEPER_")}
    return clean | {"TIERKEEPER_DATA_DIR": str(data_dir)} | {f"TIERKEEPER_{n}": v for n, v in settings.items()}


def run(data_dir: Path, *arguments: str, stdin: str = "", **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *arguments],
        env=environment(data_dir, **settings),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
    )


class Served:
    def __init__(self, process: subprocess.Popen[str], url: str, printed: list[str]) -> None:
        self.process = process
        self.url = url
        self.printed = printed


@contextmanager
def serving(data_dir: Path, *arguments: str, **settings: str) -> Iterator[Served]:
    process = subprocess.Popen(
        [*PROGRAM, *arguments, "--port", "0"],
        env=environment(data_dir, **settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        found = re.match(r"Tierkeeper on (http://\S+)", first)
        assert found, first
        printed = [first]
        if "ADMIN_PASSWORD" not in settings:
            printed.append(process.stdout.readline())
        yield Served(process, found.group(1), printed)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            raise


class TestServe:
    def test_says_where_it_is_and_how_to_sign_in_and_ends_on_sigterm_within_five_seconds(self, tmp_path: Path) -> None:
        with serving(tmp_path / "var", "serve") as served:
            password = re.search(r"password (\S+)", served.printed[1])
            assert password
            client = httpx.Client(base_url=served.url, headers={"Origin": served.url})
            answer = client.post("/login", data={"username": "admin", "password": password.group(1)})
            assert answer.status_code == 303
            began = time.monotonic()
            served.process.send_signal(signal.SIGTERM)
            assert served.process.wait(10) == 0
            assert time.monotonic() - began < 5
            client.close()

    def test_a_second_panel_on_the_same_data_refuses_in_one_line(self, tmp_path: Path) -> None:
        with serving(tmp_path / "var", "serve", ADMIN_PASSWORD="x") as served:
            second = run(tmp_path / "var", "serve", "--port", "0")
        assert second.returncode == 3
        assert f"process {served.process.pid} at {served.url}" in second.stderr
        assert "Traceback" not in second.stderr

    def test_a_taken_port_names_the_setting(self, tmp_path: Path) -> None:
        with serving(tmp_path / "var", "serve", ADMIN_PASSWORD="x") as served:
            port = served.url.rsplit(":", 1)[1]
            second = run(tmp_path / "other", "serve", "--port", port)
        assert second.returncode == 2
        assert "TIERKEEPER_PORT: cannot listen on" in second.stderr

    def test_commands_work_beside_a_running_panel(self, tmp_path: Path) -> None:
        with serving(tmp_path / "var", "serve", ADMIN_PASSWORD="x") as served:
            token = run(tmp_path / "var", "token", "create", "--name", "ci", "--role", "viewer").stdout.strip()
            me = httpx.get(f"{served.url}/api/v1/me", headers={"Authorization": f"Bearer {token}"})
            assert me.json() == {"name": "ci", "role": "viewer", "kind": "token"}
            copy = tmp_path / "copy.db"
            assert run(tmp_path / "var", "backup", str(copy)).returncode == 0
            assert copy.stat().st_mode & 0o777 == 0o600
            assert run(tmp_path / "var", "backup", str(copy)).returncode == 2

    def test_a_targets_file_is_applied_and_its_mistakes_are_named(self, tmp_path: Path) -> None:
        good = tmp_path / "targets.yaml"
        good.write_text("servers:\n  - name: lmc-a\n    url: http://127.0.0.1:9\n")
        with serving(tmp_path / "var", "serve", ADMIN_PASSWORD="x", TARGETS_FILE=str(good)) as served:
            token = run(tmp_path / "var", "token", "create", "--name", "ci", "--role", "viewer").stdout.strip()
            answer = httpx.get(f"{served.url}/api/v1/servers", headers={"Authorization": f"Bearer {token}"})
            assert [item["name"] for item in answer.json()["items"]] == ["lmc-a"]
        bad = tmp_path / "bad.yaml"
        bad.write_text("servers:\n  - name: lmc-a\n    url: ftp://x\n")
        refused = run(tmp_path / "var", "serve", "--port", "0", TARGETS_FILE=str(bad))
        assert refused.returncode == 2
        assert "bad.yaml" in refused.stderr
        assert "url" in refused.stderr


class TestExitStatus:
    def test_a_token_before_the_first_serve_prints_only_the_token(self, tmp_path: Path) -> None:
        made = run(tmp_path / "var", "token", "create", "--name", "ci", "--role", "operator")
        assert made.returncode == 0
        assert re.fullmatch(r"tk_\S+\n", made.stdout)

    @pytest.mark.parametrize(
        ("arguments", "names"),
        [
            (("token", "create", "--name", "ci", "--role", "owner"), "--role"),
            (("token", "create", "--name", "", "--role", "viewer"), "--name"),
            (("accept", "--engine", "nobody"), "nobody"),
            (("scan", "/nowhere/at/all"), "/nowhere/at/all"),
        ],
    )
    def test_usage_is_2_and_names_the_option(self, tmp_path: Path, arguments: tuple[str, ...], names: str) -> None:
        assert run(tmp_path / "var", "migrate").returncode == 0
        refused = run(tmp_path / "var", *arguments)
        assert refused.returncode == 2, refused.stderr
        assert names in refused.stderr
        assert "Traceback" not in refused.stderr
        assert refused.stdout == ""

    def test_an_unknown_setting_is_2_and_names_the_nearest(self, tmp_path: Path) -> None:
        refused = run(tmp_path / "var", "migrate", POL_SECONDS="3")
        assert refused.returncode == 2
        assert "TIERKEEPER_POLL_SECONDS" in refused.stderr

    def test_a_taken_name_is_3(self, tmp_path: Path) -> None:
        for status in (0, 3):
            assert run(tmp_path / "var", "token", "create", "--name", "ci", "--role", "viewer").returncode == status

    def test_a_user_from_stdin(self, tmp_path: Path) -> None:
        made = run(
            tmp_path / "var",
            "user",
            "create",
            "--username",
            "olga",
            "--role",
            "viewer",
            "--json",
            stdin="long enough\n",
        )
        assert json.loads(made.stdout)["username"] == "olga"

    def test_a_forgotten_password_is_set_again(self, tmp_path: Path) -> None:
        created = run(tmp_path, "user", "create", "--username", "olga", "--role", "viewer", stdin="long enough\n")
        assert created.returncode == 0, created.stderr
        (tmp_path / "new").write_text("another one\n")
        done = run(tmp_path, "user", "password", "--username", "olga", "--password-file", str(tmp_path / "new"))
        assert done.stdout == "password of olga set; signed out everywhere\n", done.stderr
        with closing(sqlite3.connect(tmp_path / "tierkeeper.db")) as db:
            (hashed,) = db.execute("select password_hash from user_account where username = 'olga'").fetchone()
            trail = db.execute("select action, detail from audit_event order by id").fetchall()
        assert PasswordHash((Argon2Hasher(),)).verify("another one", hashed)
        assert trail[-1][0] == "user.update"
        assert "another one" not in trail[-1][1]
        stranger = run(tmp_path, "user", "password", "--username", "igor", stdin="long enough\n")
        assert stranger.returncode == 2
        assert "there is no user 'igor'; known: olga" in stranger.stderr


class _Sandboxed:
    """Services with a sandbox's targets, as far as `tell_of_sandbox` looks."""

    def __init__(self, *targets: SandboxTarget) -> None:
        self.fleet = self
        self._targets = list(targets)

    def sandbox_targets(self) -> list[SandboxTarget]:
        return self._targets


def test_serve_says_how_to_be_rid_of_a_sandbox_that_does_not_run() -> None:
    with capture_logs() as lines:
        tell_of_sandbox(cast("Services", _Sandboxed()))
    assert lines == []
    with capture_logs() as lines:
        tell_of_sandbox(cast("Services", _Sandboxed(SandboxTarget("engine", 1, "atlas-8b"))))
    assert lines[0]["targets"] == ["atlas-8b"]
    assert "Remove the sandbox" in lines[0]["way_out"]


@pytest.mark.slow
def test_the_demo_shows_all_of_the_product_within_half_a_minute(tmp_path: Path) -> None:
    with serving(tmp_path / "var", "demo", ADMIN_PASSWORD="x") as served:
        token = run(tmp_path / "var", "token", "create", "--name", "t", "--role", "viewer").stdout.strip()
        client = httpx.Client(
            base_url=f"{served.url}/api/v1", headers={"Authorization": f"Bearer {token}"}, timeout=20.0
        )

        def items(path: str) -> list[dict[str, object]]:
            return client.get(path).json()["items"]  # type: ignore[no-any-return]

        def wait(path: str, done: str) -> dict[str, object]:
            deadline = time.monotonic() + 60  # 30 s on a machine that does nothing else
            while time.monotonic() < deadline:
                found = [item for item in items(path) if item[done] not in (None, "queued", "running")]
                if found:
                    return found[0]
                time.sleep(0.5)
            raise AssertionError(f"nothing finished at {path}: {client.get(path).text[:400]}")

        assert wait("/cleanup-runs", "verdict")["verdict"] == "succeeded"
        assert wait("/acceptance-runs", "verdict")["verdict"] == "pass"
        summary = client.get("/stores/1/summary").json()
        assert {"current", "incompatible", "corrupt", "unreachable", "temporary", "foreign"} <= {
            name for name, count in summary["by_class"].items() if count["records"] > 0
        }
        server = items("/servers")[0]
        assert server["hit_rate"]["state"] == "value"  # type: ignore[index]
        day = client.get("/servers/1/samples", params={"metric": "hit_rate"}).json()
        assert len([value for _, value in day["points"] if value is not None]) > 10
        client.close()
