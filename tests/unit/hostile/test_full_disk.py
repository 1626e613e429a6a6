"""File systems that are truly full, under the data directory and under a store. Where none may be mounted: skipped
(`test_faults.py` has the database's side of it by other means).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.sandbox import SandboxThread
from tests.support.chaos import Damaged
from tests.support.disk import fill, small_disk
from tests.support.panel import running_panel
from tests.unit.foundation.test_commands import run, serving
from tests.unit.hostile.stage import wait_for


@pytest.fixture
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", request.param) as mounted:
        if not mounted:
            pytest.skip("this user may mount no file system")
        yield tmp_path / "disk"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("disk", [16], indirect=True)
def test_a_full_data_directory_is_told_keeps_what_was_answered_and_heals(disk: Path) -> None:
    data = disk / "var"
    with serving(data, "serve", ADMIN_PASSWORD="x", POLL_SECONDS="3600") as served:
        token = run(data, "token", "create", "--name", "first", "--role", "admin").stdout.strip()
        api = httpx.Client(base_url=f"{served.url}/api/v1", headers={"Authorization": f"Bearer {token}"}, timeout=60)
        answered = {"first"}

        def make(name: str) -> httpx.Response:
            answer = api.post("/tokens", json={"name": name, "role": "viewer"})
            if answer.status_code == 201:
                answered.add(name)
            return answer

        assert make("before").status_code == 201
        ballast = fill(disk)
        # The log of writes may still have room in pages it holds already: not for many.
        refused = next(answer for number in range(200) if (answer := make(f"full-{number}")).status_code != 201)
        assert refused.status_code == 503, refused.text
        assert refused.json()["type"].endswith("database_unusable")
        assert "free space on its file system" in refused.json()["detail"]
        assert httpx.get(f"{served.url}/livez", timeout=30).status_code == 200
        assert {item["name"] for item in api.get("/tokens").json()["items"]} == answered, "reading goes on"
        second = run(disk / "other", "serve", "--port", "0")
        assert second.returncode != 0
        assert "free space" in second.stderr
        assert "Traceback" not in second.stderr
        ballast.unlink()
        assert make("after").status_code == 201
        served.process.kill()
        served.process.wait(30)
        api.close()
    connection = sqlite3.connect(data / "tierkeeper.db")
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert {name for (name,) in connection.execute("select name from api_token")} == answered
    connection.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("disk", [64], indirect=True)
def test_a_full_store_loses_nothing_and_is_cleaned_when_there_is_room(disk: Path, tmp_path: Path) -> None:
    with SandboxThread(disk / "sandbox") as sandbox, running_panel(tmp_path / "var", POLL_SECONDS="3600") as panel:
        sandbox.prime(8)
        damaged = Damaged(sandbox.store_path)
        damaged.add()
        api = panel.client()
        server = api.post("/api/v1/servers", json={"url": sandbox.server_url, "name": "lmc"}).json()["id"]
        body = {"path": str(sandbox.store_path), "name": "l2", "server_ids": [server], "confirm": True}
        store = api.post("/api/v1/stores", json=body).json()["id"]
        policy = {"name": "damaged", "store_id": store, "select": [{"kind": "corrupt", "reasons": ["empty"]}]}
        policy |= {"removal": "quarantine", "quarantine_for": "7d"}
        ident = api.post("/api/v1/policies", json=policy).json()["id"]
        whole = {path.name: path.read_bytes() for path in sandbox.store_path.glob("*.data")}

        def work(path: str) -> dict[str, object]:
            at = api.post(f"/api/v1{path}").headers["location"]
            wait_for(path, lambda: api.get(at).json()["state"] not in ("queued", "running"))
            found: dict[str, object] = api.get(at).json()
            return found

        def everything() -> dict[str, bytes]:
            held = [*sandbox.store_path.glob("*.data"), *(sandbox.store_path / ".tierkeeper").rglob("*.data")]
            assert len(held) == len({path.name for path in held}), "no record is in two places"
            return {path.name: path.read_bytes() for path in held}

        ballast = fill(disk)
        assert os.statvfs(disk).f_bavail == 0
        assert work(f"/stores/{store}/scans")["state"] == "succeeded", "looking needs no room"
        ran = work(f"/policies/{ident}/runs")
        # Either there was room enough for the names of the quarantine, or it says what there was no room for.
        assert ran["verdict"] == "succeeded" or "space" in str(ran), ran
        assert everything() == whole
        ballast.unlink()
        assert work(f"/stores/{store}/scans")["state"] == "succeeded"
        assert work(f"/policies/{ident}/runs")["verdict"] in ("succeeded", "nothing_to_do")
        assert everything() == whole
        assert not damaged.names & {path.name for path in sandbox.store_path.glob("*.data")}
