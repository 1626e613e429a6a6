"""The room over HTTP, in a whole panel: roles, shapes, long polls, reports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app.sandbox import SandboxThread
from tests.support.panel import Panel, running_panel

BODY = {"profile": "quick", "lengths": [150, 210]}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Panel, SandboxThread, str]]:
    """A panel that knows a sandbox's engine; its id."""
    base = tmp_path_factory.mktemp("acceptance-api")
    with SandboxThread(base / "sandbox") as sandbox, running_panel(base / "data", POLL_SECONDS="1") as panel:
        admin = panel.client("admin")
        server = admin.post("/api/v1/servers", json={"url": sandbox.server_url}).json()
        engine = admin.post(
            "/api/v1/engines", json={"url": sandbox.engine_url, "server_id": server["id"], "name": "engine-a"}
        ).json()
        store = admin.post(
            "/api/v1/stores", json={"path": str(sandbox.store_path), "server_id": server["id"], "confirm": True}
        )
        assert store.status_code == 201, store.text
        yield panel, sandbox, engine["id"]
        panel.close()


@pytest.fixture(scope="module")
def passed(site: tuple[Panel, SandboxThread, str]) -> dict[str, Any]:
    """One passed run, started and waited for by an operator."""
    panel, _, engine = site
    operator = panel.client("operator")
    started = operator.post("/api/v1/acceptance-runs", json={"engine_id": engine, **BODY})
    assert started.status_code == 202, started.text
    where = started.headers["Location"]
    assert where == f"/api/v1/acceptance-runs/{started.json()['id']}"
    run: dict[str, Any] = operator.get(where, params={"wait": 25}).json()
    while run["state"] in ("queued", "running"):
        run = operator.get(where, params={"wait": 25}).json()
    assert run["verdict"] == "pass", run["reasons"]
    return run


class TestRuns:
    def test_the_shape_that_scripts_rely_on(self, passed: dict[str, Any]) -> None:
        assert {
            "id",
            "state",
            "progress",
            "error",
            "verdict",
            "reasons",
            "steps",
            "arms",
            "comparisons",
            "evidence",
        } <= set(passed)
        arm = passed["arms"][2]
        assert {
            "name", "requests", "prompt_tokens", "external_tokens", "expected_external_tokens", "external_share",
            "l1_hit_tokens", "l2_hit_tokens", "ttft_ms", "score", "compared_to", "exact_matches", "near_ties", "flips",
            "logprob",
        } <= set(arm)  # fmt: skip
        assert {"median", "mean", "p90", "p99", "min", "max"} <= set(arm["ttft_ms"])
        assert {"mean_abs_difference", "max_abs_difference"} <= set(arm["logprob"])

    def test_reports_in_every_form(self, site: tuple[Panel, SandboxThread, str], passed: dict[str, Any]) -> None:
        viewer = site[0].client("viewer")
        for form, kind in (
            ("json", "application/json"),
            ("xml", "application/xml"),
            ("html", "text/html"),
            ("md", "text/markdown"),
        ):
            answer = viewer.get(passed["report_urls"][form])
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith(kind)
            assert "sandbox" in answer.headers["content-security-policy"]
        assert viewer.get(f"/api/v1/acceptance-runs/{passed['id']}/report.exe").status_code == 404

    def test_answers_latest_list_and_compare(
        self, site: tuple[Panel, SandboxThread, str], passed: dict[str, Any]
    ) -> None:
        panel, _, engine = site
        viewer = panel.client("viewer")
        ident = passed["id"]
        answers = viewer.get(f"/api/v1/acceptance-runs/{ident}/answers", params={"arm": "warm"}).json()
        assert len(answers["items"]) == 2
        listed = viewer.get("/api/v1/acceptance-runs", params={"engine_id": engine, "verdict": "pass"}).json()
        assert ident in [r["id"] for r in listed["items"]]
        latest = viewer.get(f"/api/v1/engines/{engine}/acceptance").json()
        assert latest["last_pass"]["id"] == ident
        compared = viewer.get("/api/v1/acceptance-runs/compare", params={"a": ident, "b": ident}).json()
        assert compared["same_prompts"] is True

    def test_an_estimate(self, site: tuple[Panel, SandboxThread, str]) -> None:
        panel, _, engine = site
        view = panel.client("operator").post("/api/v1/acceptance-runs/estimate", json={"engine_id": engine}).json()
        assert view["arms"] == ["cold", "warm", "external_l1", "external_l2"]

    @pytest.mark.parametrize(
        "body",
        [{"profile": "quick", "api": "chat"}, {"profile": "standard", "lengths": [65, 83, 130, 300, 700]}, BODY],
    )
    def test_a_run_makes_as_many_requests_as_the_form_says(
        self, site: tuple[Panel, SandboxThread, str], passed: dict[str, Any], body: dict[str, Any]
    ) -> None:
        """`passed` has seen to it that the engine was polled."""
        panel, _, engine = site
        operator = panel.client("operator")
        said = operator.post("/api/v1/acceptance-runs/estimate", json={"engine_id": engine, **body}).json()
        assert not [w for w in said["warnings"] if "chunk size" in w]
        run = _ended(
            operator, operator.post("/api/v1/acceptance-runs", json={"engine_id": engine, **body}).headers["Location"]
        )
        assert run["verdict"] == "pass", run["reasons"]
        compared = sum(a["requests"] for a in run["arms"])
        assert (said["requests"], said["compared"]) == (run["progress"]["done"], compared)
        assert run["progress"]["total"] == run["progress"]["done"]

    def test_canaries_over_http(self, site: tuple[Panel, SandboxThread, str], passed: dict[str, Any]) -> None:
        panel, _, engine = site
        operator = panel.client("operator")
        made = operator.post("/api/v1/canaries", json={"run_id": passed["id"], "count": 1})
        assert made.status_code == 202
        run = _ended(operator, made.headers["Location"])
        assert run["outcome"] == "ok", run
        checked = _ended(
            operator, operator.post("/api/v1/canaries/runs", json={"engine_id": engine}).headers["Location"]
        )
        assert checked["outcome"] == "ok", checked
        canary = operator.get(f"/api/v1/canaries/{run['canary_ids'][0]}").json()
        assert canary["last_outcome"] == "ok"
        assert operator.delete(f"/api/v1/canaries/{canary['id']}").status_code == 204
        assert operator.get(f"/api/v1/canaries/{canary['id']}").status_code == 404


def _ended(client: httpx.Client, where: str) -> dict[str, Any]:
    import time

    until = time.monotonic() + 60
    while time.monotonic() < until:
        found: dict[str, Any] = client.get(where).json()
        if found["state"] not in ("queued", "running"):
            return found
        time.sleep(0.1)
    raise AssertionError(f"{where} did not end")


class TestRefusals:
    @pytest.mark.parametrize(
        ("body", "status", "field"),
        [
            ({"engine_id": "99"}, 422, "engine_id"),
            ({"engine_id": 1}, 422, "engine_id"),
            ({}, 422, "engine_id"),
            ({"engine_id": "1", "arms": ["tepid"]}, 422, "arms"),
            ({"engine_id": "1", "deadline_seconds": 0}, 422, "deadline_seconds"),
            ({"engine_id": "1", "colour": "red"}, 422, "colour"),
        ],
    )
    def test_bodies(
        self, site: tuple[Panel, SandboxThread, str], body: dict[str, Any], status: int, field: str
    ) -> None:
        answer = site[0].client("operator").post("/api/v1/acceptance-runs", json=body)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
        assert any(field in e["field"] for e in answer.json()["errors"]), answer.json()

    @pytest.mark.parametrize("ident", ["99", "x", "-1", "0x1", "1.5", "%2e%2e"])
    def test_ids_that_name_nothing(self, site: tuple[Panel, SandboxThread, str], ident: str) -> None:
        client = site[0].client("operator")
        for path in ("", "/report.json", "/answers"):
            assert client.get(f"/api/v1/acceptance-runs/{ident}{path}").status_code == 404
        assert client.post(f"/api/v1/acceptance-runs/{ident}/cancel").status_code == 404

    def test_roles(self, site: tuple[Panel, SandboxThread, str]) -> None:
        panel, _, engine = site
        viewer, operator = panel.client("viewer"), panel.client("operator")
        assert viewer.post("/api/v1/acceptance-runs", json={"engine_id": engine}).status_code == 403
        assert operator.post("/api/v1/hooks", json={"name": "h", "engine": {"argv": ["true"]}}).status_code == 403
        assert panel.client(None).get("/api/v1/acceptance-runs").status_code == 401

    def test_hooks_belong_to_administrators(self, site: tuple[Panel, SandboxThread, str]) -> None:
        admin = site[0].client("admin")
        made = admin.post("/api/v1/hooks", json={"name": "restart", "engine": {"argv": ["true"]}})
        assert made.status_code == 201
        where = made.headers["Location"]
        assert admin.patch(where, json={"timeout_seconds": 5.0}).json()["timeout_seconds"] == 5.0
        assert admin.post("/api/v1/hooks", json={"name": "x", "engine": {}}).status_code == 422
        assert admin.delete(where).status_code == 204
        assert admin.get(where).status_code == 404
