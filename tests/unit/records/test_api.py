"""The routes of the room behind real tokens."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from app.api import problems
from app.api import records as routes
from app.api.deps import get_services
from app.auth.schemas import TokenInput
from app.auth.service import AuthService
from app.lmcache.object_keys import format_name
from app.records.store_dir import StoreDirectory
from tests.unit.records.disk import key
from tests.unit.records.room import Room
from tests.unit.records.world import LAYOUTS

#: CONTRACT: what scripts rely on.
RECORD = {
    *("id", "name", "class", "reason", "model_name", "kv_rank", "world_size", "rank", "object_group_id", "chunk_hash"),
    *("cache_salt", "size_bytes", "modified_at", "accessed_at", "epoch_id"),
}
SUMMARY = {
    *("records", "bytes", "by_class", "by_reason", "by_model", "filesystem", "growth_bytes_per_hour", "full_in_hours"),
    "scanned_at",
}


class Api:
    def __init__(self, folder: Path) -> None:
        self.room = Room(folder)
        room = self.room
        self._auth = AuthService(db=room.db, clock=room.clock, settings=room.settings, audit=room.audit)
        self._app = FastAPI()
        problems.install(self._app)
        self._app.include_router(routes.router, prefix="/api/v1")
        services = SimpleNamespace(records=room.records, auth=self._auth, settings=room.settings, clock=room.clock)
        self._app.dependency_overrides[get_services] = lambda: services
        self._app.state.services = services  # whom refusals ask who is calling

    def client(self, role: str) -> TestClient:
        token = self._auth.create_token(TokenInput(name=role, role=role), actor="test").token  # type: ignore[arg-type]
        return TestClient(
            self._app,
            base_url="http://test/api/v1",
            headers={"Authorization": f"Bearer {token}"},
            raise_server_exceptions=False,
        )


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    made = Api(tmp_path)
    yield made
    made.room.close()


def test_scan_and_read(api: Api) -> None:
    room, client = api.room, api.client("operator")
    room.polls(-10_000, -1, {"c1": LAYOUTS[0]})
    names = sorted(room.record(number, 5_000 + number) for number in range(25))
    assert client.get("/stores/1/summary").json()["state"] == "never_scanned"
    started = client.post("/stores/1/scans")
    assert started.status_code == 202
    scan = client.get(started.headers["Location"].removeprefix("/api/v1")).json()
    assert (scan["state"], scan["records"], scan["files_seen"]) == ("succeeded", 25, 25)
    assert {"id", "progress", "bytes", "seconds", "error"} <= scan.keys()
    assert [item["id"] for item in client.get("/stores/1/scans").json()["items"]] == [scan["id"]]
    assert client.get("/scans").json()["items"][0]["id"] == scan["id"]

    page = client.get("/stores/1/records", params={"page_size": 10, "order": "name"}).json()
    assert [item["name"] for item in page["items"]] == names[:10]
    assert page["items"][0].keys() >= RECORD
    first = page["items"][0]
    assert (first["class"], first["kv_rank"], first["world_size"], first["rank"]) == ("current", 0x01000100, 1, 0)
    again = client.get(
        "/stores/1/records", params={"page_size": 10, "order": "name", "page_token": page["next_page_token"]}
    ).json()
    assert [item["name"] for item in again["items"]] == names[10:20]
    detail = client.get(f"/records/{first['id']}").json()
    assert (detail["class"], detail["rule"]) == ("current", "C4")
    assert detail["candidates"][0]["live"]
    summary = client.get("/stores/1/summary").json()
    assert summary.keys() >= SUMMARY
    assert summary["by_class"]["current"] == {"records": 25, "bytes": 25 * 32768}
    assert client.get("/stores/1/growth").json()[0]["by_class"]["total"]["records"] == 25
    found = client.get("/stores/1/records", params={"q": key(7).chunk_hash_hex[:10]}).json()["items"]
    assert [item["name"] for item in found] == [format_name(key(7))]


def test_exports_stream_every_matching_record(api: Api) -> None:
    room, client = api.room, api.client("viewer")
    for number in range(1_200):
        room.record(number, 5_000, 10)
    room.record(5_000, 5_000, 10, model="=cmd|x")
    room.scan()
    lines = client.get("/stores/1/records.jsonl").text.splitlines()
    assert len(lines) == 1_201
    assert json.loads(lines[0]).keys() >= RECORD
    answer = client.get("/stores/1/records.csv", params={"model": "=cmd|x"})
    assert "attachment" in answer.headers["Content-Disposition"]
    (row,) = csv.DictReader(io.StringIO(answer.text))
    assert (row["model_name"], row["size_bytes"]) == ("'=cmd|x", "10"), "a spreadsheet must not run it"
    assert client.get("/stores/9/records.csv").status_code == 404


def test_holds(api: Api) -> None:
    room, operator, viewer = api.room, api.client("operator"), api.client("viewer")
    name = room.record(1, 5_000)
    room.scan()
    with StoreDirectory.open(str(room.root)) as directory:
        fact = directory.stat(name.encode())
    assert fact is not None
    room.records.records_restored(1, [fact], reason="restored from cleanup run 1", actor="olga")
    (hold,) = viewer.get("/stores/1/holds").json()["items"]
    assert (hold["name"], hold["reason"], hold["held_by"], hold["canary"]) == (
        name,
        "restored from cleanup run 1",
        "olga",
        False,
    )
    assert viewer.post("/stores/1/holds/release").status_code == 403
    assert operator.post("/stores/1/holds/release", json={"names": ["other"]}).json() == {"released": 0}
    assert operator.post("/stores/1/holds/release", json={"names": []}).status_code == 422
    assert operator.post("/stores/1/holds/release", json={"names": [name]}).json() == {"released": 1}
    assert viewer.get("/stores/1/holds").json()["items"] == []
    assert viewer.get("/stores/9/holds").status_code == 404


def test_epochs(api: Api) -> None:
    room, operator, viewer = api.room, api.client("operator"), api.client("viewer")
    room.polls(-1_000, -1, {"c1": LAYOUTS[0]})
    room.record(1, 5_000)
    room.scan()
    assert [e["kind"] for e in viewer.get("/stores/1/epochs").json()["items"]] == ["observed"]
    made = operator.post("/stores/1/epochs", json={"kind": "adopt"})
    assert made.status_code == 201
    assert viewer.get("/stores/1/records").json()["items"][0]["class"] == "current"
    assert operator.post("/stores/1/epochs", json={"kind": "adopt"}).status_code == 409, "nothing is left to adopt"
    assert operator.delete(f"/stores/1/epochs/{made.json()['id']}").status_code == 204
    assert viewer.get("/stores/1/records").json()["items"][0]["reason"] == "before_first_seen"


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/stores/x/records", None, 404),
        ("GET", "/stores/2/records", None, 404),
        ("GET", "/records/none", None, 404),
        ("GET", "/scans/0", None, 404),
        ("POST", "/scans/7/cancel", None, 404),
        ("GET", "/stores/1/records?class=good", None, 422),
        ("GET", "/stores/1/records?order=colour", None, 422),
        ("GET", "/stores/1/records?older_than=soon", None, 422),
        ("GET", "/stores/1/records?page_size=501", None, 422),
        ("GET", "/stores/1/records?page_token=abc", None, 400),
        ("POST", "/stores/1/scans", {"gentle": "yes"}, 422),
        ("POST", "/stores/1/epochs", {}, 422),
        ("POST", "/stores/1/epochs", {"kind": "erase"}, 422),
        ("POST", "/stores/1/epochs", {"kind": "declare", "model_name": "nobody"}, 422),
        ("DELETE", "/stores/1/epochs/77", None, 404),
    ],
)
def test_bad_input(api: Api, method: str, path: str, body: object, status: int) -> None:
    answer = api.client("operator").request(method, path, json=body)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("application/problem+json")
    if status == 422:
        assert answer.json()["errors"][0]["field"]


def test_roles(api: Api) -> None:
    viewer = api.client("viewer")
    for method, path in (("POST", "/stores/1/scans"), ("POST", "/scans/1/cancel"), ("DELETE", "/stores/1/epochs/1")):
        assert viewer.request(method, path).status_code == 403
    assert viewer.get("/stores/1/records", headers={"Authorization": "Bearer wrong"}).status_code == 401


def test_another_directory_is_told_and_accepted_by_an_admin_alone(api: Api) -> None:
    api.room.scan()
    viewer, operator, admin = (api.client(role) for role in ("viewer", "operator", "admin"))
    assert viewer.get("/stores/1/directory").json()["state"] == "same"
    api.room.root.rename(api.room.root.with_name("away"))
    api.room.root.mkdir()
    told = viewer.get("/stores/1/directory").json()
    assert (told["state"], told["known"] != told["found"]) == ("another", True)
    scan = operator.post("/stores/1/scans").json()
    assert scan["state"] == "failed" and "mount it" in scan["error"]
    assert operator.post("/stores/1/directory", json={"found": told["found"]}).status_code == 403
    refused = admin.post("/stores/1/directory", json={"found": "1:1"})
    assert refused.status_code == 422 and refused.json()["errors"][0]["field"] == "found"
    assert list(api.room.root.iterdir()) == []
    assert admin.post("/stores/1/directory", json={"found": told["found"]}).json()["state"] == "same"
    assert operator.post("/stores/1/scans").json()["state"] == "succeeded"
    assert viewer.get("/stores/9/directory").status_code == 404
