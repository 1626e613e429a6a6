"""The routes of targets and telemetry: roles, statuses, headers, problems. Real HTTP semantics over ASGI."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from fastapi import FastAPI

from app.api import fleet, problems, telemetry
from app.auth.service import Principal
from tests.unit.telemetry.support import Bench, captured_engine, captured_server


@pytest.fixture
async def client(bench: Bench) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    problems.install(app)
    for router in (fleet.router, telemetry.router):
        app.include_router(router, prefix="/api/v1")

    def token_principal(token: str, address: str | None) -> Principal | None:
        return Principal(token, token, "token") if token in ("viewer", "operator", "admin") else None

    app.state.services = SimpleNamespace(
        fleet=bench.fleet, telemetry=bench.telemetry, auth=SimpleNamespace(token_principal=token_principal)
    )
    transport = httpx.ASGITransport(app)
    headers = {"Authorization": "Bearer admin"}
    async with httpx.AsyncClient(transport=transport, base_url="http://panel/api/v1", headers=headers) as made:
        yield made


async def test_a_server_from_post_to_delete(client: httpx.AsyncClient, bench: Bench) -> None:
    bench.targets["http://cache:8080"] = captured_server()
    made = await client.post("/servers", json={"url": "http://cache:8080/", "api_key": "k"})
    assert made.status_code == 201
    body = made.json()
    assert (made.headers["location"], made.headers["etag"]) == (f"/api/v1/servers/{body['id']}", '"1"')
    assert "api_key" not in body
    assert body["health"]["state"] == "unknown"
    await bench.poller.poll_all_once()
    body = (await client.get("/servers")).json()["items"][0]
    lights = body["health"].pop("lights")
    assert {light["name"]: light["value"] for light in lights} == {
        "http_up": True,
        "engine_up": True,
        "engines_registered": True,
        "data_path": None,
    }
    assert body["health"] == {
        "state": "healthy",
        "reason": "answers, all parts healthy, 1 engine registered",
        "since": "2026-11-29T14:57:36.000Z",
        "http_up": True,
        "engine_up": True,
        "engines_registered": 1,
        "data_path_proven_at": None,
    }
    assert (body["hit_rate"]["state"], body["scrape_age_seconds"]) == ("value", 0.0)
    patched = await client.patch(f"/servers/{body['id']}", json={"name": "front"}, headers={"If-Match": '"1"'})
    assert (patched.status_code, patched.headers["etag"]) == (200, '"2"')
    stale = await client.patch(f"/servers/{body['id']}", json={"name": "back"}, headers={"If-Match": '"1"'})
    assert (stale.status_code, stale.json()["errors"][0]["field"]) == (409, "If-Match")
    assert (await client.delete(f"/servers/{body['id']}")).status_code == 204
    assert (await client.get(f"/servers/{body['id']}")).status_code == 404


async def test_an_engine_and_a_store(client: httpx.AsyncClient, bench: Bench, tmp_path: Path) -> None:
    bench.targets["http://gpu:8000"] = captured_engine()
    engine = (await client.post("/engines", json={"url": "http://gpu:8000"})).json()
    await bench.poller.poll_all_once()
    body = (await client.get(f"/engines/{engine['id']}")).json()
    assert (body["model_names"], body["reset_available"], body["l0"]["capacity_tokens"]) == (
        ["tiny-llama"],
        True,
        16384,
    )
    assert (await client.get("/engines", params={"health": "healthy"})).json()["items"] == [body]
    (tmp_path / "l2").mkdir()
    store = await client.post("/stores", json={"path": str(tmp_path / "l2")})
    assert (store.status_code, store.json()["server_ids"]) == (201, [])
    assert (await client.get("/stores", params={"q": "L2"})).json()["items"] == [store.json()]
    renamed = await client.patch(f"/stores/{store.json()['id']}", json={"name": "disk"})
    assert renamed.json()["name"] == "disk"
    assert (await client.delete(f"/stores/{store.json()['id']}")).status_code == 204
    assert (await client.delete(f"/engines/{engine['id']}")).status_code == 204


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/servers", {}, "url"),
        ("/servers", {"url": "cache:8080"}, "url"),
        ("/servers", {"url": "http://169.254.169.254"}, "url"),
        ("/servers", {"url": "http://x", "color": "red"}, "color"),
        ("/servers", {"url": 5}, "url"),
        ("/engines", {"url": "http://x", "server_id": "99"}, "server_id"),
        ("/stores", {"path": "/"}, "path"),
        ("/stores", {"path": "/no/such/directory"}, "path"),
        ("/stores", {}, "path"),
        ("/probes", {"url": "http://user:pw@x"}, "url"),
    ],
)
async def test_bad_input_names_the_field(
    client: httpx.AsyncClient, bench: Bench, path: str, body: dict[str, object], field: str
) -> None:
    answer = await client.post(path, json=body)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert answer.json()["errors"][0]["field"] == field
    assert bench.fleet.server_targets() == bench.fleet.engine_targets() == bench.fleet.store_targets() == []


async def test_roles(client: httpx.AsyncClient) -> None:
    for role, status in (("viewer", 403), ("operator", 403), ("nobody", 401), ("admin", 201)):
        answer = await client.post(
            "/servers", json={"url": "http://cache:8080"}, headers={"Authorization": f"Bearer {role}"}
        )
        assert answer.status_code == status
    for role, status in (("viewer", 200), ("nobody", 401)):
        answer = await client.get("/servers", headers={"Authorization": f"Bearer {role}"})
        assert answer.status_code == status


async def test_ids_that_name_nothing(client: httpx.AsyncClient) -> None:
    for path in ("/servers/1", "/servers/abc", "/engines/01", "/stores/%2e%2e", "/servers/1/samples?metric=up"):
        assert (await client.get(path)).status_code == 404, path
    assert (await client.patch("/servers/9", json={"name": "x"})).status_code == 404
    assert (await client.get("/servers", params={"page_token": "foreign"})).status_code == 400
    assert (await client.get("/servers", params={"page_size": 501})).status_code == 422
    assert (await client.get("/servers", params={"health": "fine"})).status_code == 422


async def test_samples_changes_and_flow(client: httpx.AsyncClient, bench: Bench) -> None:
    server = bench.add_server(captured_server())
    engine = bench.add_engine(captured_engine(), server_id=server)
    await bench.poller.poll_all_once()
    body = (await client.get(f"/servers/{server}/samples", params={"metric": "l1_usage_ratio"})).json()
    assert (body["metric"], body["unit"], body["points"]) == (
        "l1_usage_ratio",
        "ratio",
        [["2026-11-29T14:57:36.000Z", 0.0]],
    )
    span = {"metric": "up", "from": "2026-11-29T15:57:00+01:00", "to": "2026-11-29T14:58:00Z", "step": "60"}
    body = (await client.get(f"/engines/{engine}/samples", params=span)).json()
    assert body["points"] == [["2026-11-29T14:57:00.000Z", 1.0]]
    unescaped = "metric=up&from=2026-11-29T15:57:00+01:00&to=2026-11-29T14:58:00Z&step=60"
    assert (await client.get(f"/engines/{engine}/samples?{unescaped}")).json() == body
    for query, field in (
        ("metric=nope", "metric"),
        ("metric=up&from=yesterday", "from"),
        ("metric=up&to=2026-11-29T14:58:00", "to"),
        ("metric=up&step=-1", "step"),
    ):
        answer = await client.get(f"/servers/{server}/samples?{query}")
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, field)
    changes = (await client.get("/health-changes", params={"target_kind": "server", "target_id": server})).json()
    assert [(c["target_name"], c["old_state"], c["new_state"]) for c in changes["items"]] == [
        ("cache", "unknown", "healthy")
    ]
    assert (await client.get("/health-changes", params={"target_id": "1"})).status_code == 422
    page = (await client.get("/health-changes", params={"page_size": 1})).json()
    rest = (await client.get("/health-changes", params={"page_size": 1, "page_token": page["next_page_token"]})).json()
    assert {page["items"][0]["target_kind"], rest["items"][0]["target_kind"]} == {"server", "engine"}
    assert rest["next_page_token"] is None
    flow = (await client.get("/token-flow", params={"server_id": server})).json()
    assert (flow["state"], flow["total_tokens"]) == ("value", 6000)
    assert (await client.get("/token-flow", params={"server_id": "77"})).status_code == 404
