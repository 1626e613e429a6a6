"""The room's pages inside a whole panel, over the sandbox: every page answers, escapes, and keeps what was typed."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from app.benchmark.tables import BenchmarkRun
from app.fleet.sandbox import SANDBOX_LABEL
from tests.support.panel import Panel as WholePanel
from tests.unit.benchmark.conftest import Ids, ended
from tests.unit.web.test_pages import Document


@pytest.fixture(scope="module")
def browser(whole: WholePanel) -> httpx.Client:
    return whole.browser()


@pytest.mark.parametrize(
    "path",
    [
        "/benchmark",
        "/benchmark?verdict=valid&form=two_pass",
        "/benchmark/new",
        "/benchmark/new?experiment=ab&mode=scaled",
        "/benchmark/runs/{run}",
        "/benchmark/compare?a={run}&b={run}",
        "/experiments",
        "/experiments?engine_id={engine}&statistic=median",
        "/experiments?engine_id=nonsense",
    ],
)
def test_pages(browser: httpx.Client, measured: dict[str, Any], ids: Ids, path: str) -> None:
    answer = browser.get(path.format(run=measured["id"], engine=ids["engine"]))
    assert answer.status_code == 200, answer.text[:500]
    document = Document(answer.text)
    assert document.unbalanced == []
    assert document.open == []
    assert len(document.all("h1")) == 1
    assert "<script>" not in answer.text.replace("&lt;script&gt;", "")
    assert " style=" not in answer.text
    ids_seen = [attrs["id"] for _, attrs in document.elements if "id" in attrs]
    assert len(ids_seen) == len(set(ids_seen))
    for attrs in document.all("th"):
        assert attrs.get("scope") in ("col", "row"), attrs


def test_the_page_of_a_run_shows_every_request_and_the_scope(browser: httpx.Client, measured: dict[str, Any]) -> None:
    text = browser.get(f"/benchmark/runs/{measured['id']}").text
    assert "Holds for" in text
    assert "only the connector" in text
    assert text.count('class="dots"') == 8  # two scenarios, two runs, two passes


def test_one_disturbance_found_at_every_pass_is_told_once_with_a_count(
    browser: httpx.Client, whole: WholePanel, measured: dict[str, Any]
) -> None:
    row = {"code": "foreign_traffic", "severity": "invalid", "fix": "Run it alone."}
    found = [{**row, "text": f"others made 1 lookup during pass {n}"} for n in range(13)]
    with whole.services.db.write() as session:
        run = session.get_one(BenchmarkRun, int(measured["id"]))
        before, run.findings = run.findings, found
    try:
        text = browser.get(f"/benchmark/runs/{measured['id']}").text
    finally:
        with whole.services.db.write() as session:
            session.get_one(BenchmarkRun, int(measured["id"])).findings = before
    assert text.count("Run it alone.") == 1
    assert "12 more of this kind" in text
    assert all(f"during pass {n}<" in text for n in range(13))


def test_the_form_says_that_the_sandbox_is_never_quiet(browser: httpx.Client, api: httpx.Client, ids: Ids) -> None:
    assert "traffic of its own" not in browser.get("/benchmark/new").text
    address = f"/engines/{ids['engine']}"
    assert api.patch(address, json={"labels": SANDBOX_LABEL}).status_code == 200
    try:
        assert "The sandbox has traffic of its own" in browser.get("/benchmark/new").text
    finally:
        assert api.patch(address, json={"labels": {}}).status_code == 200


def test_a_form_keeps_what_was_typed_and_names_what_is_wrong(browser: httpx.Client, ids: Ids) -> None:
    answer = browser.post("/benchmark/new", data={"engine_id": ids["engine"], "form": "two_pass", "contexts": "many"})
    assert answer.status_code == 422
    assert "is not a number" in answer.text
    assert 'value="many"' in answer.text
    answer = browser.post(
        "/benchmark/new?estimate=1", data={"engine_id": ids["engine"], "baseline_engine_id": "same", "contexts": "5"}
    )
    assert answer.status_code == 200
    assert "prompt tokens" in answer.text


def test_a_sharegpt_file_can_be_pasted(browser: httpx.Client, ids: Ids) -> None:
    form = {"engine_id": ids["engine"], "form": "request_rate", "prompts": "1"}
    turns = [{"from": "human", "value": "why?"}, {"from": "gpt", "value": "so"}]
    pasted = json.dumps([{"conversations": turns}, {"conversations": turns}])
    answer = browser.post("/benchmark/new?estimate=1", data={**form, "texts": pasted})
    assert answer.status_code == 200, answer.text
    assert "What it takes and disturbs" in answer.text
    answer = browser.post("/benchmark/new?estimate=1", data={**form, "texts": "[1, 2]"})
    assert answer.status_code == 422
    assert "what was pasted holds no prompt" in answer.text


def test_a_run_is_started_from_the_form(browser: httpx.Client, api: httpx.Client, ids: Ids) -> None:
    form = {"engine_id": ids["engine"], "form": "accumulation", "contexts": "2", "tokens": "150", "output_tokens": "2"}
    answer = browser.post("/benchmark/new", data={**form, "remove_records": "on"})
    assert answer.status_code == 303
    found = ended(api, answer.headers["location"].replace("/benchmark/runs", "/benchmark-runs"))
    assert found["verdict"] == "valid", found["findings"]
    assert found["result"]["files"]["files_per_request"] == 2.0
    assert "files per request" in browser.get(answer.headers["location"]).text
