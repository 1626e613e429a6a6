"""What was just done can be taken back from its toast: once, for ten minutes, by who did it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.auth.schemas import UserInput
from app.auth.service import Principal
from app.errors import Conflict
from app.fleet.schemas import ServerCreate, StoreCreate
from app.web.undo import KEEP_SECONDS, MOST, UndoStore
from tests.support.panel import Panel
from tests.unit.web.test_pages import Document

ADMIN = Principal("admin", "admin", "user")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class TestStore:
    def keep(self, store: UndoStore, principal: Principal = ADMIN) -> str:
        return store.keep(lambda actor: actor, path="/x", said="Back.", principal=principal)

    def test_it_works_once_and_knows_who_asks(self) -> None:
        store = UndoStore(Clock())
        key = self.keep(store)
        undo = store.take(key, ADMIN)
        assert (undo.take_back("user:admin"), undo.path, undo.said) == ("user:admin", "/x", "Back.")
        with pytest.raises(Conflict, match="taken back no more"):
            store.take(key, ADMIN)

    def test_nobody_else_and_nobody_who_lost_the_role(self) -> None:
        store = UndoStore(Clock())
        key = self.keep(store)
        for principal in (Principal("eve", "admin", "user"), Principal("admin", "operator", "user")):
            with pytest.raises(Conflict):
                store.take(key, principal)
        assert store.take(key, ADMIN).path == "/x"  # refusing it to others does not use it up

    def test_it_is_forgotten_after_a_while_and_never_grows(self) -> None:
        clock = Clock()
        store = UndoStore(clock)
        key = self.keep(store)
        clock.now += KEEP_SECONDS + 1
        with pytest.raises(Conflict):
            store.take(key, ADMIN)
        keys = [self.keep(store) for _ in range(MOST + 5)]
        with pytest.raises(Conflict):
            store.take(keys[4], ADMIN)
        assert store.take(keys[5], ADMIN).path == "/x"


@pytest.fixture(scope="module")
def browser(panel: Panel) -> httpx.Client:
    return panel.browser()


@pytest.fixture(scope="module")
def store_id(panel: Panel, tmp_path_factory: pytest.TempPathFactory) -> str:
    fleet = panel.services.fleet
    server = fleet.create_server(ServerCreate(url="http://127.0.0.1:9", name="silent"), actor="test")
    path: Path = tmp_path_factory.mktemp("kv")
    return fleet.create_store(
        StoreCreate(path=str(path), server_ids=[server.id], name="kv", confirm=True), actor="test"
    ).id


def key_in(text: str) -> str:
    toast = re.search(r'<div class="toast">.*?</form>', text, re.DOTALL)
    assert toast is not None, "the toast offers no way back"
    keys = [a["value"] for a in Document(toast.group()).all("input") if a.get("name") == "key"]
    assert len(keys) == 1
    return keys[0]


def act(browser: httpx.Client, path: str, data: dict[str, Any] | None = None) -> str:
    """Posts a form; the key that its toast holds."""
    answer = browser.post(path, data=data or {})
    assert answer.status_code == 303, answer.text
    return key_in(browser.get(answer.headers["location"]).text)


def take_back(browser: httpx.Client, key: str) -> str:
    answer = browser.post("/undo", data={"key": key})
    assert answer.status_code == 303
    return browser.get(answer.headers["location"]).text


def items(browser: httpx.Client, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = browser.get(f"/api/v1{path}").json()["items"]
    return found


@pytest.fixture
def policy(browser: httpx.Client, store_id: str) -> dict[str, Any]:
    body = {
        "name": "nightly",
        "store_id": store_id,
        "schedule": "17 3 * * *",
        "timezone": "Europe/Berlin",
        "select": [{"kind": "incompatible"}, {"kind": "temporary", "older_than": "2h"}],
        "protect": {"accessed_within": "24h", "models": ["/models/a"]},
        "limits": {"max_bytes": "200GB", "max_fraction": 0.3},
        "quarantine_for": "7d",
        "blackouts": [{"start": "08:00", "end": "20:00", "days": [1, 2]}],
    }
    for old in items(browser, "/policies"):
        browser.delete(f"/api/v1/policies/{old['id']}")
    made = browser.post("/api/v1/policies", json=body)
    assert made.status_code == 201, made.text
    return dict(made.json())


KEPT = (
    "name", "enabled", "schedule", "timezone", "select", "protect", "limits", "removal", "quarantine_for", "blackouts",
)  # fmt: skip


def test_a_changed_policy_is_as_it_was_in_every_field(browser: httpx.Client, policy: dict[str, Any]) -> None:
    here = f"/cleanup/policies/{policy['id']}"
    form = {"name": "nightly", "store_id": policy["store_id"], "take": ["corrupt"], "removal": "delete"}
    key = act(browser, f"{here}/edit", form)
    changed = browser.get(f"/api/v1/policies/{policy['id']}").json()
    assert (changed["enabled"], changed["select"]) == (False, [{"kind": "corrupt"}])
    assert "nightly is as it was before" in take_back(browser, key)
    again = browser.get(f"/api/v1/policies/{policy['id']}").json()
    assert {name: again[name] for name in KEPT} == {name: policy[name] for name in KEPT}
    assert "taken back no more" in take_back(browser, key)


def test_a_deleted_policy_is_made_again(browser: httpx.Client, policy: dict[str, Any]) -> None:
    key = act(browser, f"/cleanup/policies/{policy['id']}/delete")
    assert items(browser, "/policies") == []
    take_back(browser, key)
    (again,) = items(browser, "/policies")
    assert {name: again[name] for name in KEPT} == {name: policy[name] for name in KEPT}


def test_schedules(browser: httpx.Client, store_id: str) -> None:
    body = {"name": "scan", "kind": "scan", "target_id": store_id, "cron": "0 4 * * *", "options": {"gentle": True}}
    made = browser.post("/api/v1/schedules", json=body).json()
    key = act(browser, f"/schedules/{made['id']}/pause")
    assert browser.get(f"/api/v1/schedules/{made['id']}").json()["paused"] is True
    assert "goes on" in take_back(browser, key)
    assert browser.get(f"/api/v1/schedules/{made['id']}").json()["paused"] is False
    take_back(browser, act(browser, f"/schedules/{made['id']}/delete"))
    again = next(s for s in items(browser, "/schedules") if s["name"] == "scan")
    assert {k: again[k] for k in body} == body


def test_the_schedule_of_a_policy_is_deleted_with_its_policy_only(browser: httpx.Client, store_id: str) -> None:
    body = {"name": "by night", "store_id": store_id, "select": [{"kind": "corrupt"}], "schedule": "0 3 * * *"}
    assert browser.post("/api/v1/policies", json=body).status_code == 201
    (schedule,) = [s for s in items(browser, "/schedules") if s["name"] == "by night"]
    page = browser.get("/schedules").text
    assert f"/schedules/{schedule['id']}/pause" in page
    assert f"/schedules/{schedule['id']}/delete" not in page


def test_silences(browser: httpx.Client) -> None:
    asked = {"rule": "server_unreachable", "hours": "3", "comment": "rollout"}
    key = act(browser, "/alarms/silences", asked)
    assert [s["state"] for s in items(browser, "/silences")] == ["active"]
    take_back(browser, key)
    assert [s["state"] for s in items(browser, "/silences")] == ["over"]
    act(browser, "/alarms/silences", asked)
    silence = next(s for s in items(browser, "/silences") if s["state"] == "active")
    key = act(browser, f"/alarms/silences/{silence['id']}/end")
    assert not [s for s in items(browser, "/silences") if s["state"] == "active"]
    assert "in force again" in take_back(browser, key)
    again = next(s for s in items(browser, "/silences") if s["state"] == "active")
    assert {k: again[k] for k in ("matcher", "comment", "ends_at")} == {
        k: silence[k] for k in ("matcher", "comment", "ends_at")
    }


def test_maintenance_windows(browser: httpx.Client, store_id: str) -> None:
    form = {"name": "sunday", "window_target": f"store:{store_id}", "cron": "0 2 * * 0", "minutes": "90"}
    assert browser.post("/alarms/windows", data=form).status_code == 303
    (made,) = items(browser, "/maintenance-windows")
    take_back(browser, act(browser, f"/alarms/windows/{made['id']}/off"))
    assert items(browser, "/maintenance-windows")[0]["enabled"] is True
    take_back(browser, act(browser, f"/alarms/windows/{made['id']}/delete"))
    (again,) = items(browser, "/maintenance-windows")
    kept = ("name", "matcher", "cron", "timezone", "duration_seconds", "enabled")
    assert {k: again[k] for k in kept} == {k: made[k] for k in kept}


def test_alarm_rules_and_what_is_different_for_one_target(browser: httpx.Client, store_id: str) -> None:
    rule = "/alarms/rules/store_full"
    before = browser.get("/api/v1/alert-rules/store_full").json()
    key = act(browser, rule, {"severity": "info", "for_seconds": "77"})
    assert browser.get("/api/v1/alert-rules/store_full").json()["severity"] == "info"
    take_back(browser, key)
    assert browser.get("/api/v1/alert-rules/store_full").json() == before
    browser.post(f"{rule}/overrides", data={"target": f"store:{store_id}", "o_severity": "info"})
    (override,) = browser.get("/api/v1/alert-rules/store_full").json()["overrides"]
    take_back(browser, act(browser, f"{rule}/overrides/{override['id']}/delete"))
    (again,) = browser.get("/api/v1/alert-rules/store_full").json()["overrides"]
    assert (again["target_id"], again["severity"]) == (store_id, "info")


def test_users(panel: Panel, browser: httpx.Client) -> None:
    user = panel.services.auth.create_user(
        UserInput(username="rosa", password="correct horse battery", role="viewer"), actor="test"
    )
    take_back(browser, act(browser, f"/settings/users/{user.id}", {"role": "operator"}))
    take_back(browser, act(browser, f"/settings/users/{user.id}", {"disabled": "yes"}))
    rosa = next(u for u in items(browser, "/users") if u["username"] == "rosa")
    assert (rosa["role"], rosa["disabled"]) == ("viewer", False)
