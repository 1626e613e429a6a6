"""The HTTP side of cleanup, on a running panel: statuses, locations, roles, downloads, and what is refused."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.web.formats import exact
from tests.support.panel import Panel, running_panel
from tests.unit.cleanup.support import name_of

API = "/api/v1"


@pytest.fixture(scope="module")
def panel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Panel]:
    with running_panel(tmp_path_factory.mktemp("cleanup-panel") / "var") as running:
        yield running


class Desk:
    """One store of the panel, and a client."""

    def __init__(self, panel: Panel, base: Path) -> None:
        self.path = base / "l2"
        self.path.mkdir()
        self.client = panel.client()
        body = {"path": str(self.path), "name": base.name, "confirm": True}
        self.store_id = self.made(self.client.post(f"{API}/stores", json=body))["id"]

    def made(self, answer: httpx.Response, status: int = 201) -> dict[str, Any]:
        assert answer.status_code == status, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def empty_records(self, count: int) -> list[str]:
        """Records of size zero, written two hours ago: corrupt beyond doubt."""
        names = [name_of(n).decode() for n in range(count)]
        for name in names:
            (self.path / name).write_bytes(b"")
            os.utime(self.path / name, (time.time() - 7200, time.time() - 7200))
        return names

    def policy(self, **more: Any) -> dict[str, Any]:
        body = {"name": f"p-{os.urandom(3).hex()}", "store_id": self.store_id, "select": [{"kind": "corrupt"}], **more}
        return self.made(self.client.post(f"{API}/policies", json=body))

    def wait(self, location: str) -> dict[str, Any]:
        for _ in range(200):
            found = self.made(self.client.get(location), 200)
            if found["state"] not in ("queued", "running"):
                return found
            time.sleep(0.05)
        raise AssertionError(f"{location} did not end: {found}")


@pytest.fixture
def desk(panel: Panel, tmp_path: Path) -> Desk:
    return Desk(panel, tmp_path)


class TestWholeWay:
    def test_policy_plan_run_records_restore_purge(self, desk: Desk) -> None:
        names = desk.empty_records(5)
        policy = desk.policy(quarantine_for="7d")
        assert policy["store_id"] == desk.store_id
        assert desk.made(desk.client.get(f"{API}/policies/{policy['id']}"), 200) == policy

        answer = desk.client.post(f"{API}/policies/{policy['id']}/plans")
        assert answer.status_code == 202
        plan = desk.wait(answer.headers["location"])
        assert (plan["state"], plan["records"], plan["bytes"]) == ("succeeded", 5, 0)
        assert plan["by_reason"] == {"empty": {"records": 5, "bytes": 0}}
        assert plan["leaves"]["records"] == 0
        assert plan["leaves"]["free_bytes"] > 0
        assert plan["expires_at"] > plan["finished_at"]
        records = desk.made(desk.client.get(f"{API}/plans/{plan['id']}/records", params={"page_size": 3}), 200)
        assert [r["class"] for r in records["items"]] == ["corrupt"] * 3
        assert records["next_page_token"]
        assert set(os.listdir(desk.path)) - {".tierkeeper"} == set(names), "a dry run moves nothing"

        answer = desk.client.post(f"{API}/plans/{plan['id']}/runs")
        assert answer.status_code == 202
        run = desk.wait(answer.headers["location"])
        assert (run["verdict"], run["removed"]["records"], run["skipped"], run["failed"]) == ("succeeded", 5, {}, [])
        assert run["freed_bytes_measured"] is not None
        assert set(os.listdir(desk.path)) == {".tierkeeper"}
        assert desk.client.post(f"{API}/plans/{plan['id']}/runs").status_code == 409
        assert run["id"] in [r["id"] for r in desk.client.get(f"{API}/cleanup-runs").json()["items"]]

        around = desk.made(desk.client.get(f"{API}/cleanup-runs/{run['id']}"), 200)["hit_rate"]
        assert (around["before"], around["before_reason"]) == (None, "nothing was measured then"), "telemetry is asked"

        waits = desk.made(desk.client.get(f"{API}/stores/{desk.store_id}/quarantine"), 200)
        assert (waits["records"], waits["items"][0]["run_id"]) == (5, run["id"])
        assert waits["items"][0]["purge_after"]

        items = desk.made(desk.client.get(f"{API}/cleanup-runs/{run['id']}/records"), 200)["items"]
        assert {i["state"] for i in items} == {"quarantined"}
        answer = desk.client.post(f"{API}/cleanup-runs/{run['id']}/restore", json={"record_ids": [items[0]["id"]]})
        assert answer.status_code == 202
        job = desk.wait(answer.headers["location"])
        assert (job["state"], job["records"]) == ("succeeded", 1)
        assert items[0]["name"] in os.listdir(desk.path)
        answer = desk.client.post(f"{API}/cleanup-runs/{run['id']}/purge")
        assert desk.wait(answer.headers["location"])["records"] == 4
        after = desk.made(desk.client.get(f"{API}/cleanup-runs/{run['id']}"), 200)
        assert (after["restored_records"], after["purged"]["records"], after["in_quarantine"]["records"]) == (1, 4, 0)

    def test_downloads(self, desk: Desk) -> None:
        name = name_of(1, salt="=cmd").decode()
        (desk.path / name).write_bytes(b"")
        os.utime(desk.path / name, (time.time() - 7200, time.time() - 7200))
        run = desk.wait(desk.client.post(f"{API}/policies/{desk.policy()['id']}/runs").headers["location"])
        lines = desk.client.get(f"{API}/cleanup-runs/{run['id']}/records.jsonl").text.splitlines()
        (item,) = map(json.loads, lines)
        assert (item["name"], item["class"], item["state"]) == (name, "corrupt", "quarantined")
        answer = desk.client.get(f"{API}/cleanup-runs/{run['id']}/records.csv")
        assert "attachment" in answer.headers["content-disposition"]
        (row,) = csv.DictReader(io.StringIO(answer.text))
        assert row["name"] == f"'{name}", "no formula for a spreadsheet"
        assert row["cache_salt"] == "'=cmd"

    def test_filter_plan(self, desk: Desk) -> None:
        desk.empty_records(2)
        answer = desk.client.post(
            f"{API}/stores/{desk.store_id}/plans", json={"filter": {"class": "corrupt"}, "removal": "delete"}
        )
        assert answer.status_code == 202
        plan = desk.wait(answer.headers["location"])
        assert (plan["origin"], plan["filter"], plan["removal"], plan["records"]) == (
            "filter",
            {"class": "corrupt"},
            "delete",
            2,
        )

    def test_a_plan_that_differs_from_the_page_it_was_asked_on_says_so(self, panel: Panel, desk: Desk) -> None:
        desk.empty_records(3)
        desk.wait(desk.client.post(f"{API}/stores/{desk.store_id}/scans").headers["location"])
        browser = panel.browser()
        page = browser.get(f"/stores/{desk.store_id}/records?class=corrupt").text
        assert 'name="seen_records" value="3"' in page
        assert re.search(r'aria-sort="descending">\s*<a href="[^"]*"[^>]*>class', page), "certainly wrong ones first"
        assert "order=-certainty" in page, "of the API the same order is asked for"
        newest = browser.get(f"/stores/{desk.store_id}/records?class=corrupt&order=-modified_at").text
        assert re.search(r'aria-sort="descending">\s*<a href="[^"]*"[^>]*>written', newest)
        scanned = desk.client.get(f"{API}/stores/{desk.store_id}/summary").json()["scanned_at"]
        assert f'name="seen_scanned_at" value="{scanned}"' in page

        def planned(**seen: str) -> str:
            form = {"class": "corrupt", **seen}
            where = browser.post(f"/stores/{desk.store_id}/plans", data=form).headers["location"].split("?")[0]
            desk.wait(f"{API}/plans/{where.rsplit('/', 1)[1]}")
            return browser.get(where).text

        assert "matched on the page" not in planned(seen_records="3", seen_scanned_at=scanned)
        assert "matched on the page" not in planned()
        for wrong in ({"records": "3"}, {"records": -1}, {"records": 3, "scanned_at": "yesterday"}):
            body = {"filter": {"class": "corrupt"}, "seen": wrong}
            assert desk.client.post(f"{API}/stores/{desk.store_id}/plans", json=body).status_code == 422
        told = planned(seen_records="2", seen_scanned_at="2026-01-02T03:04:05Z")
        assert "2 matched on the page this was planned from, 3 are planned." in told
        assert exact("2026-01-02T03:04:05Z") in told and exact(scanned) in told, "the scan behind each"

    def test_idempotency_key(self, desk: Desk) -> None:
        desk.empty_records(1)
        policy = desk.policy()
        headers = {"Idempotency-Key": os.urandom(8).hex()}
        first = desk.client.post(f"{API}/policies/{policy['id']}/runs", headers=headers)
        desk.wait(first.headers["location"])
        second = desk.client.post(f"{API}/policies/{policy['id']}/runs", headers=headers)
        assert second.json()["id"] == first.json()["id"]


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "field"),
        [
            ({"select": [{"kind": "capacity", "high": "70%", "low": "85%"}]}, "select[0].low"),
            ({"select": [{"kind": "temporary", "older_than": "soon"}]}, "select[0].older_than"),
            ({"schedule": "99 * * * *"}, "schedule"),
            ({"store_id": "nope"}, "store_id"),
            ({"removal": "burn"}, "removal"),
            ({"unknown": 1}, "unknown"),
            ({"enabled": "yes"}, "enabled"),
        ],
    )
    def test_422_names_the_field(self, desk: Desk, change: dict[str, Any], field: str) -> None:
        body = {"name": "x", "store_id": desk.store_id, "select": [{"kind": "corrupt"}], **change}
        answer = desk.client.post(f"{API}/policies", json=body)
        assert answer.status_code == 422, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        assert field in [e["field"] for e in answer.json()["errors"]]

    @pytest.mark.parametrize(
        "path",
        [
            "policies/{}",
            "plans/{}",
            "plans/{}/records",
            "cleanup-runs/{}",
            "cleanup-runs/{}/records",
            "cleanup-runs/{}/records.csv",
            "quarantine-jobs/{}",
            "stores/{}/quarantine",
        ],
    )
    @pytest.mark.parametrize("ident", ["999999", "abc", "-1", "1.5", "%00", "1e3", "9" * 30])
    def test_404_for_whatever_names_nothing(self, desk: Desk, path: str, ident: str) -> None:
        assert desk.client.get(f"{API}/{path.format(ident)}").status_code == 404

    def test_409_for_a_name_that_is_taken(self, desk: Desk) -> None:
        policy = desk.policy()
        body = {"name": policy["name"], "store_id": desk.store_id, "select": [{"kind": "corrupt"}]}
        assert desk.client.post(f"{API}/policies", json=body).status_code == 409

    def test_foreign_page_tokens_are_400(self, desk: Desk) -> None:
        token = "bm90IG91cnM"
        for path in ("policies", "plans", "cleanup-runs", f"stores/{desk.store_id}/quarantine", "quarantine-jobs"):
            answer = desk.client.get(f"{API}/{path}", params={"page_token": token})
            assert answer.status_code == 400, path

    def test_roles(self, panel: Panel, desk: Desk) -> None:
        policy = desk.policy()
        viewer, operator = panel.client("viewer"), panel.client("operator")
        body = {"name": "y", "store_id": desk.store_id, "select": [{"kind": "corrupt"}]}
        assert viewer.get(f"{API}/policies").status_code == 200
        assert viewer.post(f"{API}/policies/{policy['id']}/plans").status_code == 403
        assert operator.post(f"{API}/policies", json=body).status_code == 403
        assert operator.post(f"{API}/policies/{policy['id']}/plans").status_code == 202
        assert panel.client(None).get(f"{API}/cleanup-runs").status_code == 401

    def test_patch_and_delete(self, desk: Desk) -> None:
        policy = desk.policy(schedule="0 3 * * *")
        answer = desk.client.patch(
            f"{API}/policies/{policy['id']}", json={"enabled": False, "limits": {"max_records": 9}}
        )
        assert (answer.json()["enabled"], answer.json()["limits"]["max_records"]) == (False, 9)
        assert answer.json()["schedule"] == "0 3 * * *"
        assert desk.client.patch(f"{API}/policies/{policy['id']}", json={"store_id": "1"}).status_code == 422
        assert desk.client.delete(f"{API}/policies/{policy['id']}").status_code == 204
        assert desk.client.get(f"{API}/policies/{policy['id']}").status_code == 404

    def test_presets_are_ready_to_post(self, desk: Desk) -> None:
        for preset in desk.client.get(f"{API}/policy-presets").json():
            body = {**preset["policy"], "store_id": desk.store_id, "name": f"{preset['id']}-{desk.store_id}"}
            assert desk.client.post(f"{API}/policies", json=body).status_code == 201


class TestSomeOfARunByThePage:
    """The run's page restores and purges single records, and those that a filter describes, as the API does."""

    @pytest.fixture
    def names(self, desk: Desk) -> list[str]:
        return desk.empty_records(5)

    @pytest.fixture
    def run(self, desk: Desk, names: list[str]) -> dict[str, Any]:
        started = desk.client.post(f"{API}/policies/{desk.policy()['id']}/runs")
        run = desk.wait(started.headers["Location"])
        assert run["removed"]["records"] == len(names), run
        return run

    def post(self, panel: Panel, run: dict[str, Any], what: str, **values: Any) -> httpx.Response:
        return panel.browser().post(f"/cleanup/runs/{run['id']}/{what}", data={"some": "1", **values})

    def ident(self, desk: Desk, run: dict[str, Any], name: str) -> str:
        items = desk.client.get(f"{API}/cleanup-runs/{run['id']}/records").json()["items"]
        return str(next(item["id"] for item in items if item["name"] == name))

    def test_the_page_offers_it_record_by_record(self, panel: Panel, desk: Desk, run: dict[str, Any]) -> None:
        text = panel.browser().get(f"/cleanup/runs/{run['id']}").text
        assert text.count('name="record"') == 5
        assert f'action="/cleanup/runs/{run["id"]}/restore"' in text
        assert f'formaction="/cleanup/runs/{run["id"]}/purge"' in text

    def test_records_are_found_by_what_became_of_them(self, panel: Panel, desk: Desk, run: dict[str, Any]) -> None:
        assert run["outcomes"] == {"quarantined": 5}
        browser, here = panel.browser(), f"/cleanup/runs/{run['id']}"
        page = browser.get(f"{here}?state=quarantined").text
        assert f'href="{here}?state=quarantined#records"' in page
        assert f"/api/v1/cleanup-runs/{run['id']}/records.csv?state=quarantined" in page, "and downloaded"
        assert page.count('name="record"') == 5
        none = browser.get(f"{here}?state=used").text
        assert "No record of this run ended like that" in none and 'name="record"' not in none
        assert "failed with EACCES (13)" in browser.get(f"{here}?state=failed&errno=13").text
        assert browser.get(f"{here}?state=nonsense&errno=x").text.count('name="record"') == 5
        records = f"{API}/cleanup-runs/{run['id']}/records"
        assert desk.client.get(records, params={"state": "used"}).json()["items"] == []
        assert desk.client.get(records, params={"state": "nonsense"}).status_code == 422
        lines = desk.client.get(f"{records}.csv", params={"state": "used"}).text.splitlines()
        assert len(lines) == 1, "the head alone"

    def test_one_record_goes_back(self, panel: Panel, desk: Desk, names: list[str], run: dict[str, Any]) -> None:
        one = self.ident(desk, run, names[1])
        assert self.post(panel, run, "restore", record=one, harm="on").status_code == 303
        assert [name for name in names if (desk.path / name).exists()] == [names[1]]

    def test_what_a_filter_describes_goes_back(
        self, panel: Panel, desk: Desk, names: list[str], run: dict[str, Any]
    ) -> None:
        part = names[2][-20:]
        described = {"class": "corrupt", "reason": "empty", "q": part, "harm": "on"}
        assert self.post(panel, run, "restore", **described).status_code == 303
        assert [name for name in names if (desk.path / name).exists()] == [names[2]]

    def test_damaged_records_go_back_only_when_that_is_asked_for(
        self, panel: Panel, desk: Desk, names: list[str], run: dict[str, Any]
    ) -> None:
        browser = panel.browser()
        here = f"/cleanup/runs/{run['id']}"
        view = desk.client.get(f"{API}/cleanup-runs/{run['id']}").json()
        assert view["waiting_by_reason"] == {"empty": {"records": 5, "bytes": 0}}
        told = "5 records of these cannot be read"
        assert told in browser.get(here).text
        assert told in browser.get(f"/stores/{desk.store_id}/quarantine").text
        refused = self.post(panel, run, "restore", record=self.ident(desk, run, names[1]))
        assert refused.status_code == 422
        assert "1 record of these was wrong or damaged when taken (empty 1)" in refused.text
        browser.post(f"{here}/restore")
        assert not any((desk.path / name).exists() for name in names)
        browser.post(f"{here}/restore", data={"harm": "on"})
        assert all((desk.path / name).exists() for name in names)

    def test_some_are_purged_when_the_store_is_named(
        self, panel: Panel, desk: Desk, names: list[str], run: dict[str, Any]
    ) -> None:
        one = self.ident(desk, run, names[0])
        refused = self.post(panel, run, "purge", record=one, confirm="something else")
        assert refused.status_code == 422
        assert "nothing was changed" in refused.text
        assert 'value="something else"' in refused.text, "what was typed is kept"
        assert self.post(panel, run, "purge", record=one, confirm=run["store_name"]).status_code == 303
        after = desk.client.get(f"{API}/cleanup-runs/{run['id']}").json()
        assert (after["purged"]["records"], after["in_quarantine"]["records"]) == (1, 4)

    @pytest.mark.parametrize("what", ["restore", "purge"])
    def test_a_form_that_names_none_means_none_not_all(
        self, panel: Panel, desk: Desk, names: list[str], run: dict[str, Any], what: str
    ) -> None:
        refused = self.post(panel, run, what, confirm=run["store_name"])
        assert refused.status_code == 422
        assert "cannot be used: tick records in the table or describe them; nothing was changed" in refused.text
        assert 'aria-invalid="true"' not in refused.text, "no single box is wrong"
        assert not any((desk.path / name).exists() for name in names)
        assert desk.client.get(f"{API}/cleanup-runs/{run['id']}").json()["in_quarantine"]["records"] == 5
