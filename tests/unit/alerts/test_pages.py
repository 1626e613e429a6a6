"""The pages of alarms and their routes, in a whole panel over HTTP."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest
from sqlalchemy import update

from app.alerts.schemas import NotifierInput, RulePatch
from app.alerts.tables import Alert
from app.fleet.schemas import ServerCreate
from app.fleet.tables import Server
from app.web.formats import exact
from app.web.pages.alarms import together
from tests.support.panel import Panel as WholePanel
from tests.support.panel import running_panel
from tests.unit.alerts.support import Receiver, receiver
from tests.unit.web.test_pages import Document

HOSTILE = 'cache"><script>alert(1)</script>\u202e'


@pytest.fixture(scope="module")
def got() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholePanel]:
    """A panel that polls once an hour; two servers are down by its rows, one of them with a hostile name."""
    with running_panel(tmp_path_factory.mktemp("alarms") / "var", POLL_SECONDS="3600") as panel:
        services = panel.services
        for name in ("quiet", HOSTILE.replace("\u202e", "")):
            services.fleet.create_server(
                ServerCreate(url=f"http://127.0.0.1:{9 if name == 'quiet' else 13}", name=name), actor="t"
            )
        services.alerts.rules.patch_rule("server_unreachable", RulePatch(for_seconds=0), actor="t")
        services.alerts.rules.patch_rule("panel_blind", RulePatch(enabled=False), actor="t")
        with services.db.write() as session:
            session.execute(
                update(Server).values(
                    health_state="unreachable", health_reason=f"refused {HOSTILE}", health_since=services.clock()
                )
            )
        services.alerts.evaluate()
        assert services.alerts.counts().critical == 2
        yield panel


@pytest.fixture(scope="module")
def browser(whole: WholePanel) -> httpx.Client:
    return whole.browser()


@pytest.fixture(scope="module")
def api(whole: WholePanel) -> httpx.Client:
    return whole.client("admin")


PATHS = [
    "/alarms",
    "/alarms/1",
    "/alarms/history",
    "/alarms/history?severity=critical&rule=server_unreachable&target=server:1",
    "/alarms/rules",
    "/alarms/rules/hit_rate_low",
    "/alarms/rules/panel_blind",
    "/alarms/rules/server_degraded",
    "/alarms/quiet",
    "/alarms/quiet?rule=server_unreachable&target=server:1",
    "/alarms/notifiers",
    "/alarms/facts",
    "/alarms/facts?target=server:1",
]


@pytest.mark.parametrize("path", PATHS)
def test_pages_are_well_formed_and_only_show_text(browser: httpx.Client, path: str) -> None:
    answer = browser.get(path)
    assert answer.status_code == 200, answer.text[:500]
    assert "<script>alert" not in answer.text
    document = Document(answer.text)
    assert (document.unbalanced, document.open) == ([], [])
    assert len(document.all("h1")) == 1
    assert "\u202e" not in "".join(document.text)
    ids = [attrs["id"] for _, attrs in document.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    labelled = {attrs["for"] for attrs in document.all("label") if "for" in attrs}
    for attrs in document.all("input", "select", "textarea"):
        if attrs.get("type") not in ("hidden", "checkbox", "radio"):
            assert attrs.get("id") in labelled or "aria-label" in attrs, attrs
    for attrs in document.all("th"):
        assert attrs.get("scope") in ("col", "row"), attrs
    for tag, attrs in document.elements:
        assert "style" not in attrs, (tag, attrs)
        assert not [a for a in attrs if a.startswith("on")], (tag, attrs)


@pytest.mark.parametrize("path", PATHS)
def test_a_viewer_sees_and_changes_nothing(whole: WholePanel, path: str) -> None:
    answer = whole.client("viewer").get(path, headers={"Accept": "text/html"})
    assert answer.status_code == 200
    assert not re.search(r'<form[^>]*method="post"[^>]*action="/alarms', answer.text)


def test_what_is_wrong_says_what_it_means_and_what_to_do(browser: httpx.Client) -> None:
    text = browser.get("/alarms").text
    assert "A cache server gives no answer" in text
    assert "What to do:" in text
    assert 'href="/servers/1"' in text
    # Two servers, one rule: what it means and what to do is said once, and each server has its row.
    assert (text.count("What to do:"), text.count('scope="row"')) == (1, 2)
    assert "2 alarms" in text
    assert set(re.findall(r'action="(/alarms/\d+/acknowledge)"', text)) == {
        "/alarms/1/acknowledge",
        "/alarms/2/acknowledge",
    }
    one = browser.get("/alarms/1").text
    assert "Who was told" in one
    assert 'href="/help/runbooks#' in one
    assert 'href="/help/alarms#server-unreachable"' in one


def test_alarms_of_one_rule_in_one_state_stand_together(whole: WholePanel) -> None:
    first, second = whole.services.alerts.active()
    seen = second.model_copy(update={"state": "acknowledged"})
    other = first.model_copy(update={"rule": "server_degraded"})
    assert together([first, other, second]) == [[first, second], [other]]
    assert together([first, second, seen]) == [[first, second], [seen]]
    assert together([]) == []


def test_an_alarm_of_its_own_has_a_card_of_its_own(whole: WholePanel, browser: httpx.Client) -> None:
    with whole.services.db.write() as session:
        session.execute(update(Alert).where(Alert.id == 2).values(state="acknowledged", acknowledged_by="eve"))
    try:
        text = browser.get("/alarms").text
    finally:
        with whole.services.db.write() as session:
            session.execute(update(Alert).where(Alert.id == 2).values(state="firing", acknowledged_by=None))
    assert text.count("What to do:") == 2
    assert text.count("Look there") == 2
    assert "Seen by eve" in text
    document = Document(text)
    assert (document.unbalanced, document.open) == ([], [])


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"state": "firing"}, "that is switched on wanted an alarm of this severity"),
        ({"state": "pending", "fired_at": None}, "It has not fired."),
        ({"state": "resolved", "fired_at": None}, "It has not fired: it was over before."),
        ({"silenced_by": "silence 3"}, "The silence 3 keeps it quiet"),
        ({"state": "resolved", "silenced_by": "silence 3"}, "The silence 3 kept it quiet"),
        ({"explained_by": 2}, "Another alarm is its cause, and is told in its place"),
        ({"state": "acknowledged"}, "kept quiet until it was seen"),
    ],
)
def test_why_nobody_was_told(whole: WholePanel, browser: httpx.Client, fields: dict[str, object], told: str) -> None:
    with whole.services.db.write() as session:
        row = session.get_one(Alert, 1)
        before = {name: getattr(row, name) for name in fields}
        session.execute(update(Alert).where(Alert.id == 1).values(**fields))
    try:
        text = browser.get("/alarms/1").text
    finally:
        with whole.services.db.write() as session:
            session.execute(update(Alert).where(Alert.id == 1).values(**before))
    assert "Nobody was told" in text
    assert told in " ".join(text.split())


def test_acknowledging(whole: WholePanel, browser: httpx.Client) -> None:
    answer = browser.post("/alarms/1/acknowledge", data={"note": "restarting"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/alarms/1")
    assert "restarting" in browser.get("/alarms/1").text
    assert browser.post("/alarms/1/acknowledge", data={"note": "x" * 2000}).status_code == 422
    assert browser.post("/alarms/999/acknowledge", data={}).status_code == 404
    assert whole.services.alerts.get_alert(1).state == "acknowledged"


def test_a_rule_is_set_by_its_form(whole: WholePanel, browser: httpx.Client) -> None:
    path = "/alarms/rules/hit_rate_low"
    wrong = browser.post(path, data={"enabled": "on", "severity": "info", "for_seconds": "soon", "t_floor": "0.4"})
    assert wrong.status_code == 422
    assert "is not a number" in wrong.text
    assert 'value="soon"' in wrong.text
    too_much = browser.post(path, data={"enabled": "on", "severity": "info", "for_seconds": "60", "t_floor": "4"})
    assert "is not from 0 to 1" in too_much.text
    good = {"enabled": "on", "severity": "info", "for_seconds": "60", "t_floor": "0.4", "t_requested_tokens": "100000"}
    assert browser.post(path, data=good).status_code == 303
    rule = whole.services.alerts.rules.get_rule("hit_rate_low")
    assert (rule.severity, rule.for_seconds, rule.enabled) == ("info", 60.0, True)
    assert {t.name: t.value for t in rule.thresholds}["floor"] == 0.4
    assert "changed" in browser.get("/alarms/rules").text
    override = {"target": "server:1", "o_enabled": "no", "o_severity": "", "o_t_floor": "0.1"}
    assert browser.post(f"{path}/overrides", data=override).status_code == 303
    assert browser.post(f"{path}/overrides", data={**override, "target": ""}).status_code == 422
    assert browser.post(f"{path}/overrides/1/delete").status_code == 303
    assert browser.post(path, data={"reset": "yes"}).status_code == 303
    rule = whole.services.alerts.rules.get_rule("hit_rate_low")
    assert (rule.severity, rule.overrides, [t.value == t.default for t in rule.thresholds]) == (
        "warning",
        [],
        [True, True],
    )


def test_silences_and_windows_by_their_forms(whole: WholePanel, browser: httpx.Client) -> None:
    body = {"target": "server:1", "rule": "server_unreachable", "severity": "", "hours": "1", "comment": HOSTILE}
    assert browser.post("/alarms/silences", data=body).status_code == 303
    assert browser.post("/alarms/silences", data={**body, "hours": "0"}).status_code == 422
    assert browser.post("/alarms/silences", data={**body, "comment": ""}).status_code == 422
    text = browser.get("/alarms/quiet").text
    assert "&lt;script&gt;" in text
    assert "<script>alert" not in text
    ends = exact(whole.services.alerts.quiet.get_silence(1).ends_at)
    assert f'<span class="sub">{ends}</span>' in text  # the clock itself, not only "in 1 h"
    assert browser.post("/alarms/silences/1/end").status_code == 303
    window = {
        "name": "nightly",
        "window_target": "",
        "labels": "team=red",
        "cron": "0 3 * * *",
        "timezone": "UTC",
        "minutes": "30",
    }
    assert browser.post("/alarms/windows", data=window).status_code == 303
    assert browser.post("/alarms/windows", data=window).status_code == 409
    wrong = browser.post("/alarms/windows", data={**window, "name": "w", "cron": "often"})
    assert wrong.status_code == 422
    assert 'value="often"' in wrong.text
    for what in ("off", "on", "delete"):
        assert browser.post(f"/alarms/windows/1/{what}").status_code == 303
    assert browser.post("/alarms/windows/1/delete").status_code == 404
    assert whole.services.alerts.quiet.get_silence(1).state == "over"


def test_a_notifier_by_its_form_keeps_its_secret(browser: httpx.Client, got: Receiver) -> None:
    secret = "s3cret-path"
    body = {"notifier_name": "hook", "kind": "webhook", "url": f"{got.url}/{secret}", "headers": "X-Key: s3cret-path"}
    wrong = browser.post("/alarms/notifiers", data={**body, "kind": "apprise"})
    assert wrong.status_code == 422
    assert secret not in wrong.text
    assert 'value="hook"' in wrong.text
    assert browser.post("/alarms/notifiers", data={**body, "send_resolved": "on"}).status_code == 303
    page = browser.get("/alarms/notifiers").text
    assert secret not in page
    assert "webhook at 127.0.0.1" in page
    browser.post("/alarms/notifiers/1/test")
    assert got.titles() == ["[TEST] Tierkeeper"]
    got.status = 500
    browser.post("/alarms/notifiers/1/test")
    assert "answered 500" in browser.get("/alarms/notifiers").text
    got.status = 200
    for what in ("off", "on", "delete"):
        assert browser.post(f"/alarms/notifiers/1/{what}").status_code == 303
    assert browser.post("/alarms/notifiers/1/what").status_code == 404


class TestApi:
    def test_alarms(self, api: httpx.Client) -> None:
        found = api.get("/api/v1/alerts", params={"state": ["firing", "acknowledged"]}).json()
        assert {a["rule"] for a in found["items"]} == {"server_unreachable"}
        assert api.get("/api/v1/alerts/counts").json()["critical"] in (1, 2)
        one = api.get("/api/v1/alerts/2").json()
        assert one["changes"][0]["new_state"] == "firing"
        seen = api.post("/api/v1/alerts/2/acknowledge", json={"note": "mine"})
        assert (seen.status_code, seen.json()["state"]) == (200, "acknowledged")
        assert api.post("/api/v1/alerts/2/acknowledge").status_code == 200  # a body is not needed
        assert api.get("/api/v1/alerts", params={"state": "nonsense"}).status_code == 422
        for path in ("alerts/999", "alerts/x", "alert-rules/x", "silences/9", "maintenance-windows/9", "notifiers/9"):
            assert api.get(f"/api/v1/{path}").status_code == 404, path
        assert api.get("/api/v1/alerts", params={"target_id": "x"}).status_code == 404
        assert api.get("/api/v1/notifications", params={"alert_id": "x"}).status_code == 404

    def test_rules_and_overrides(self, api: httpx.Client) -> None:
        rules = api.get("/api/v1/alert-rules").json()["items"]
        assert all(rule["means"] and rule["action"] for rule in rules)
        patched = api.patch("/api/v1/alert-rules/store_full", json={"thresholds": {"bytes": 5e9}})
        assert {t["name"]: t["value"] for t in patched.json()["thresholds"]}["bytes"] == 5e9
        assert api.patch("/api/v1/alert-rules/store_full", json={"thresholds": {"x": 1}}).status_code == 422
        assert api.patch("/api/v1/alert-rules/store_full", json={"colour": 1}).status_code == 422
        body = {"target_kind": "server", "target_id": "1", "for_seconds": 5}
        made = api.post("/api/v1/alert-rules/server_unhealthy/overrides", json=body)
        assert made.status_code == 200
        assert api.delete(f"/api/v1/alert-rules/server_unhealthy/overrides/{made.json()['id']}").status_code == 204

    def test_silences_and_windows(self, api: httpx.Client) -> None:
        body = {"matcher": {"severities": ["info"]}, "comment": "x", "seconds": 60}
        made = api.post("/api/v1/silences", json=body)
        assert made.status_code == 201
        assert made.headers["location"] == f"/api/v1/silences/{made.json()['id']}"
        assert api.delete(made.headers["location"]).status_code == 204
        assert api.get("/api/v1/silences", params={"state": "active"}).json()["items"] == []
        window = {"name": "api", "cron": "0 3 * * *", "duration_seconds": 60}
        made = api.post("/api/v1/maintenance-windows", json=window)
        assert made.status_code == 201
        path = made.headers["location"]
        assert api.patch(path, json={"duration_seconds": 120}).json()["duration_seconds"] == 120
        assert api.patch(path, json={"name": None}).status_code == 422
        assert api.delete(path).status_code == 204

    def test_notifiers(self, api: httpx.Client, got: Receiver) -> None:
        body = {"name": "api", "kind": "webhook", "url": got.url}
        made = api.post("/api/v1/notifiers", json=body)
        assert made.status_code == 201
        assert got.url not in made.text
        path = made.headers["location"]
        assert api.post(f"{path}/test").json()["delivered"] is True
        assert api.patch(path, json={"min_severity": "critical"}).json()["min_severity"] == "critical"
        assert api.get("/api/v1/notifications").json()["items"] == []
        assert api.delete(path).status_code == 204
        assert api.post("/api/v1/notifiers", json={**body, "url": "http://169.254.169.254/"}).status_code == 422

    def test_facts_and_hit_rates(self, api: httpx.Client) -> None:
        facts = api.get("/api/v1/facts", params={"target_kind": "server", "target_id": "1"}).json()
        states = {f["fact"]: f["state"] for f in facts["items"]}
        assert states["server_health"] == "bad"
        assert states["hit_rate"] == "unknown"
        rates = api.get("/api/v1/servers/1/hit-rates").json()
        assert (rates["value"], rates["parts"]) == (None, [])
        assert rates["reason"]
        assert api.get("/api/v1/servers/99/hit-rates").status_code == 404

    def test_roles(self, whole: WholePanel) -> None:
        viewer, operator = whole.client("viewer"), whole.client("operator")
        silence = {"matcher": {}, "comment": "x", "seconds": 60}
        assert viewer.post("/api/v1/silences", json=silence).status_code == 403
        assert operator.post("/api/v1/silences", json=silence).status_code == 201
        assert operator.patch("/api/v1/alert-rules/store_full", json={}).status_code == 403
        notifier = NotifierInput(name="x", kind="webhook", url="http://127.0.0.1:9/").model_dump()
        assert operator.post("/api/v1/notifiers", json=notifier).status_code == 403
        assert operator.post("/api/v1/alerts/2/acknowledge", json={}).status_code == 200
