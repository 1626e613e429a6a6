"""Readiness, canaries and hooks in a whole panel over the sandbox: API, reports and pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from app.sandbox import SandboxThread
from tests.support.panel import Panel, running_panel

RUN = {"profile": "quick", "lengths": [150, 210]}


@dataclass(frozen=True)
class Site:
    panel: Panel
    admin: httpx.Client
    browser: httpx.Client
    engine: str
    run: str


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A panel whose engine passed a run, with its canaries kept by one click."""
    base = tmp_path_factory.mktemp("readiness")
    with SandboxThread(base / "sandbox") as sandbox, running_panel(base / "data", POLL_SECONDS="1") as panel:
        admin = panel.client("admin")
        server = admin.post("/api/v1/servers", json={"url": sandbox.server_url}).json()
        engine = admin.post(
            "/api/v1/engines", json={"url": sandbox.engine_url, "server_id": server["id"], "name": "engine-a"}
        ).json()
        body = {"path": str(sandbox.store_path), "server_id": server["id"], "confirm": True}
        assert admin.post("/api/v1/stores", json=body).status_code == 201
        started = admin.post("/api/v1/acceptance-runs", json={"engine_id": engine["id"], **RUN})
        run = ended(admin, started.headers["Location"])
        assert run["verdict"] == "pass", run["reasons"]
        yield Site(panel, admin, panel.browser(), engine["id"], run["id"])
        panel.close()


def ended(client: httpx.Client, where: str) -> dict[str, object]:
    while True:
        found: dict[str, object] = client.get(where, params={"wait": 20}).json()
        if found["state"] not in ("queued", "running"):
            return found


def part(site: Site, key: str) -> dict[str, object]:
    found = site.admin.get(f"/api/v1/engines/{site.engine}/readiness").json()
    return next(p for p in found["parts"] if p["key"] == key)


def test_a_tested_pair_that_was_never_left_alone_for_a_day_is_unknown(site: Site) -> None:
    found = site.panel.client("viewer").get("/api/v1/readiness").json()["items"][0]
    assert found["engine_name"] == "engine-a"
    assert found["state"] in ("unknown", "not_ready")
    assert {p["key"] for p in found["parts"]} == {"correctness", "canaries", "soak", "disk", "checks", "scope"}
    correct = part(site, "correctness")
    assert correct["state"] == "ready"
    assert correct["age_seconds"] is not None
    assert part(site, "soak")["state"] == "unknown"
    assert site.admin.get("/api/v1/engines/999/readiness").status_code == 404


def test_one_click_keeps_canaries_and_readiness_sees_them(site: Site) -> None:
    assert part(site, "canaries")["text"] == "no prompt is kept as a canary"
    page = site.browser.get(f"/acceptance/runs/{site.run}").text
    assert f"/acceptance/runs/{site.run}/canaries" in page
    answer = site.browser.post(f"/acceptance/runs/{site.run}/canaries", headers=same_origin(site))
    assert answer.status_code == 303
    runs = site.admin.get("/api/v1/canaries/runs").json()["items"]
    made = ended(site.admin, f"/api/v1/canaries/runs/{runs[0]['id']}")
    assert made["outcome"] == "ok", made
    assert part(site, "canaries")["state"] == "unknown"  # kept, not read back yet
    answer = site.browser.post("/acceptance/canaries/check", data={"engine_id": site.engine}, headers=same_origin(site))
    assert answer.status_code == 303
    runs = site.admin.get("/api/v1/canaries/runs").json()["items"]
    assert ended(site.admin, f"/api/v1/canaries/runs/{runs[0]['id']}")["outcome"] == "ok"
    assert part(site, "canaries")["state"] == "ready"
    page = site.browser.get("/acceptance/canaries").text
    assert "engine-a" in page
    assert 'class="beats"' in page


def same_origin(site: Site) -> dict[str, str]:
    return {"sec-fetch-site": "same-origin"}


def test_readiness_has_an_address_of_its_own(site: Site) -> None:
    answer = site.browser.get("/readiness", params={"engine_id": site.engine}, follow_redirects=False)
    assert answer.status_code == 303
    assert answer.headers["location"].endswith(f"/acceptance/readiness?engine_id={site.engine}")
    assert "Readiness" in site.browser.get("/readiness", follow_redirects=True).text


def test_reports(site: Site) -> None:
    for form, media in (("json", "application/json"), ("md", "text/markdown"), ("html", "text/html")):
        answer = site.admin.get(f"/api/v1/engines/{site.engine}/readiness/report.{form}")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(media)
        assert "engine-a" in answer.text
        assert "Correctness" in answer.text
    assert "sandbox" in answer.headers["content-security-policy"]
    # On a phone the rows become blocks, and what their columns were called stands before them.
    assert '<table class="words stack">' in answer.text and 'data-label="what to do"' in answer.text
    assert re.search(r"<h1 class=\"\w+\">(Ready|Not ready|Unknown)</h1>", answer.text)
    assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", answer.text)
    assert site.admin.get(f"/api/v1/engines/{site.engine}/readiness/report.pdf").status_code == 404


def test_hooks_are_added_and_deleted_on_the_page(site: Site) -> None:
    headers = same_origin(site)
    wrong = {"name": "h", "engine_kind": "command", "timeout_seconds": "5"}
    answer = site.browser.post("/acceptance/hooks", data=wrong, headers=headers)
    assert answer.status_code == 422
    assert "give the command and its arguments" in answer.text
    assert 'value="h"' in answer.text  # what was typed stays
    assert site.browser.post("/acceptance/hooks", data={"name": "n"}, headers=headers).status_code == 422
    good = {
        "name": "both",
        "timeout_seconds": "5",
        "engine_kind": "command",
        "engine_does": "systemctl restart 'vllm one'",
        "server_kind": "webhook",
        "server_does": "http://127.0.0.1:9/restart",
        "server_headers": "Authorization: secret-value",
    }
    assert site.browser.post("/acceptance/hooks", data=good, headers=headers).status_code == 303
    hook = site.admin.get("/api/v1/hooks").json()["items"][0]
    assert hook["engine"]["argv"] == ["systemctl", "restart", "vllm one"]
    assert hook["server"]["header_names"] == ["Authorization"]
    page = site.browser.get("/acceptance/hooks").text
    assert "systemctl" in page
    assert "secret-value" not in page
    start = site.browser.get("/acceptance/new").text
    assert "restarted_engine" in start
    assert ">both<" in start
    away = f"/acceptance/hooks/{hook['id']}/delete"
    assert site.browser.post(away, headers=headers).status_code == 303
    assert len(site.admin.get("/api/v1/hooks").json()["items"]) == 1, "its name was not typed"
    assert site.browser.post(away, data={"confirm": "both"}, headers=headers).status_code == 303
    assert site.admin.get("/api/v1/hooks").json()["items"] == []


def test_two_runs_make_a_trend_and_can_be_compared(site: Site) -> None:
    started = site.admin.post("/api/v1/acceptance-runs", json={"engine_id": site.engine, **RUN})
    assert ended(site.admin, started.headers["Location"])["verdict"] == "pass"
    page = site.browser.get("/acceptance").text
    assert "Time to first token, run by run" in page
    assert "/acceptance/compare" in page
    assert site.browser.get("/acceptance/compare", params={"a": site.run, "b": started.json()["id"]}).status_code == 200


def test_canaries_can_be_scheduled_on_the_page(site: Site) -> None:
    assert f'value="canary:{site.engine}"' in site.browser.get("/schedules").text


def test_all_conditions_can_be_started_from_the_page(site: Site) -> None:
    body = {"engine_id": site.engine, "profile": "quick", "arms": ["cold", "restarted_engine"], "lengths": "150 x"}
    answer = site.browser.post("/acceptance/new", data=body, headers=same_origin(site))
    assert answer.status_code == 422
    assert "not a list of token counts" in answer.text
    answer = site.browser.post("/acceptance/new", data=body | {"lengths": "150"}, headers=same_origin(site))
    assert answer.status_code == 422  # no hook chosen
    assert "restart_hook_id" in answer.text
