"""Roles are enforced on every route by one mechanism: this walks all of them, so that none is forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.dependencies.models import Dependant

from app.api.deps import RequireRole
from app.main import create_app
from app.settings import load_settings
from tests.support.panel import Panel

# What CONTRACT lists as open, the sign-in, and the static files.
OPEN = {"/livez", "/readyz", "/metrics", "/login", "/api/v1/openapi.json"}
# Changes are for operators and admins; these reads by POST and the sign-out are not changes to anything shared.
READS_BY_POST = {
    "/logout",
    "/theme",
    "/api/v1/probes",
    "/api/v1/sizing",
    "/api/v1/sizing/prefix",
    "/api/v1/launch-commands",
}


#: Event streams: whoever reads them to the end waits for ever (`tests/unit/web/test_streams.py` reads them).
ENDLESS = frozenset({"/live"})


def routes() -> list[Any]:
    """Every route with its effective path and dependencies: FastAPI keeps included routers apart until asked."""
    app = create_app(load_settings({}))
    return [route for route in _flatten(app.routes) if getattr(route, "dependant", None) is not None]


def _flatten(found: Any) -> Iterator[Any]:
    for route in found:
        contexts = getattr(route, "effective_route_contexts", None)
        if contexts is not None:
            yield from _flatten(contexts())
        else:
            yield route


def role_of(dependant: Dependant) -> str | None:
    roles = [d.call.role for d in _all(dependant) if isinstance(d.call, RequireRole)]
    return max(roles, key=["viewer", "operator", "admin"].index) if roles else None


def _all(dependant: Dependant) -> Iterator[Dependant]:
    yield dependant
    for inner in dependant.dependencies:
        yield from _all(inner)


def test_there_are_routes_to_look_at() -> None:
    assert len(routes()) > 60


def test_every_route_needs_a_role_except_the_listed_ones() -> None:
    unguarded = {route.path for route in routes() if role_of(route.dependant) is None}
    assert unguarded <= OPEN


def test_no_change_is_open_to_viewers() -> None:
    loose = {
        (method, route.path)
        for route in routes()
        for method in route.methods or ()
        if method not in ("GET", "HEAD", "OPTIONS") and role_of(route.dependant) == "viewer"
    }
    assert {path for _, path in loose} <= READS_BY_POST


def test_nothing_changes_by_get() -> None:
    guarded = {
        route.path
        for route in routes()
        if route.methods and "GET" in route.methods and role_of(route.dependant) == "operator"
    }
    # Forms of actions are for those who may do them; looking at a form changes nothing.
    assert {path for path in guarded if not path.endswith(("/new", "/edit"))} == set()


class TestLive:
    def test_without_credentials_everything_is_refused(self, panel: Panel) -> None:
        client = panel.client(None)
        for route in routes():
            if route.path in OPEN:
                continue
            path = route.path.replace("{", "").replace("}", "")
            for method in sorted(route.methods or ()):
                answer = client.request(method, path)
                if route.path.startswith("/api/v1/"):
                    assert answer.status_code == 401, (method, path, answer.status_code)
                    assert answer.headers["content-type"] == "application/problem+json"
                else:
                    assert answer.status_code in (303, 401), (method, path, answer.status_code)

    def test_a_viewer_changes_nothing(self, panel: Panel) -> None:
        client = panel.client("viewer")
        for route in routes():
            if role_of(route.dependant) not in ("operator", "admin"):
                continue
            path = route.path.replace("{", "").replace("}", "")
            for method in sorted(route.methods or ()):
                assert client.request(method, path).status_code == 403, (method, path)

    @pytest.mark.parametrize("header", ["Bearer", "Bearer nonsense", "Basic YWRtaW46YWRtaW4=", "Bearer \u00e9"])
    def test_a_bad_credential_is_401(self, panel: Panel, header: str) -> None:
        answer = panel.client(None).get("/api/v1/me", headers={"Authorization": header.encode("utf-8")})  # type: ignore[dict-item]
        assert answer.status_code == 401

    def test_an_unknown_address_is_a_problem_with_a_way_out(self, panel: Panel) -> None:
        answer = panel.client("viewer").get("/api/v1/nothing-here")
        assert answer.status_code == 404
        assert answer.json()["detail"] == "there is nothing at this address"


def test_documents_name_every_route_family(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "API.md").read_text()
    families = {route.path.split("/")[3] for route in routes() if route.path.startswith("/api/v1/")}
    assert sorted(f for f in families if f"/{f}" not in text) == []


def test_the_document_explains_every_operation_and_every_parameter() -> None:
    paths = create_app(load_settings({})).openapi()["paths"]
    operations = [(f"{method} {path}", op) for path, item in paths.items() for method, op in item.items()]
    assert len(operations) > 150
    assert [name for name, op in operations if len(op.get("description", "")) < 10] == []
    silent = [
        f"{name} {parameter['name']}"
        for name, op in operations
        for parameter in op.get("parameters", [])
        if not parameter.get("description")
    ]
    assert silent == []
