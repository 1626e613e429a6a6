"""The pages over HTTP, as a browser uses them: forms that keep what was typed, redirects, roles, errors."""

from __future__ import annotations

import html
import json
import re
import socket
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from app.auth.schemas import UserInput
from app.cleanup.adapters import RecordsInventory
from app.clock import iso
from app.errors import StoreError
from app.fleet.schemas import EngineCreate, ServerCreate, StoreCreate, StorePatch
from app.records.views import record_id
from app.telemetry.tables import Observation, SampleRaw, Series
from app.web import pages
from app.web.pages.acceptance import _body
from tests.support.authorities import Authority
from tests.support.panel import Panel, running_panel
from tests.unit.web.test_pages import Document

PAGES = [
    "/",
    "/servers",
    "/engines",
    "/stores",
    "/cleanup",
    "/cleanup/policies/new",
    "/acceptance",
    "/acceptance/new",
    "/acceptance/readiness",
    "/acceptance/canaries",
    "/acceptance/hooks",
    "/checks",
    "/checks/rules",
    "/benchmark",
    "/benchmark/new",
    "/experiments",
    "/sizing",
    "/launch",
    "/activity",
    "/activity?view=audit",
    "/schedules",
    "/settings",
    "/settings/users",
    "/settings/tokens",
    "/settings/servers/new",
    "/settings/engines/new",
    "/settings/stores/new",
    "/search",
    "/search?q=nothing",
    "/style",
    "/help",
    "/help/runbooks",
    "/welcome",
]


@pytest.fixture(scope="module")
def browser(panel: Panel) -> httpx.Client:
    return panel.browser()


@pytest.fixture(scope="module")
def store_id(panel: Panel, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store that nobody polls: its server answers nothing."""
    server = panel.services.fleet.create_server(
        ServerCreate(url=f"http://127.0.0.1:{dead_port()}", name="silent"), actor="test"
    )
    path = tmp_path_factory.mktemp("kv")
    body = StoreCreate(path=str(path), server_ids=[server.id], name="kv-a", confirm=True)
    return panel.services.fleet.create_store(body, actor="test").id


def dead_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def field(text: str, name: str) -> dict[str, str]:
    """The attributes of the input or select of that name."""
    found = [
        a
        for a in Document(text).all("input", "select", "textarea")
        if a.get("name") == name and "data-key-search" not in a
    ]
    assert found, f"no field {name}"
    return found[0]


@pytest.mark.parametrize("path", PAGES)
def test_every_page_answers_and_is_never_stored(browser: httpx.Client, path: str) -> None:
    answer = browser.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["cache-control"] == "no-store"
    assert Document(answer.text).unbalanced == []


def test_pages_are_compressed_for_those_who_ask(browser: httpx.Client) -> None:
    packed = browser.get("/servers", headers={"Accept-Encoding": "gzip"})
    plain = browser.get("/servers", headers={"Accept-Encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) * 3 < int(plain.headers["content-length"])
    assert "content-encoding" not in plain.headers
    assert "Cache servers" in packed.text
    assert "Accept-Encoding" in packed.headers["vary"]


def test_pages_of_things_that_are_there(browser: httpx.Client, store_id: str) -> None:
    for path in ("", "/records", "/quarantine", "/records?class=corrupt&order=-size_bytes"):
        assert browser.get(f"/stores/{store_id}{path}").status_code == 200, path
    server = browser.get("/api/v1/servers").json()["items"][0]
    page = browser.get(f"/servers/{server['id']}")
    assert page.status_code == 200
    assert "silent" in page.text
    assert browser.get("/activity?target=server:" + server["id"]).status_code == 200
    assert "silent" in browser.get("/search?q=sile").text


def test_the_search_knows_classes_reasons_policies_and_pages(
    panel: Panel, browser: httpx.Client, store_id: str
) -> None:
    found = browser.get("/search?q=incompat").text
    assert "/help/classes#record-classes" in found
    assert "proven to be of another layout" in found.lower()
    for word in ("Other layout", "other_layout"):
        assert "/help/classes#reasons" in browser.get("/search", params={"q": word}).text
    assert 'href="/cleanup"' in browser.get("/search?q=clean").text
    assert "/help/classes" not in browser.get("/search?q=un").text  # two letters are in too many words
    assert "/help/runbooks#disk-is-full" in browser.get("/search?q=disk+full").text
    assert "/help/runbooks#" not in browser.get("/search?q=disk+nosuchword").text
    body = {"name": "Nightly sweep", "store_id": store_id, "select": [{"kind": "corrupt"}], "enabled": False}
    made = panel.client("admin").post("/api/v1/policies", json=body)
    assert made.status_code == 201, made.text
    assert f"/cleanup/policies/{made.json()['id']}" in browser.get("/search?q=nightly").text
    panel.client("admin").delete(f"/api/v1/policies/{made.json()['id']}")


@pytest.mark.parametrize("path", ["/servers/x", "/servers/999", "/stores/0", "/cleanup/plans/9", "/acceptance/runs/é"])
def test_what_is_not_there_is_a_page_that_says_so(browser: httpx.Client, path: str) -> None:
    answer = browser.get(path)
    assert answer.status_code == 404
    assert "There is no such thing" in answer.text
    assert "<html" in answer.text


def test_a_live_part_gets_the_content_alone(browser: httpx.Client) -> None:
    part = browser.get("/servers", headers={"HX-Request": "true"}).text
    assert "<html" not in part
    assert 'id="live"' in part


def test_a_live_part_of_somebody_signed_out_is_led_to_the_sign_in(panel: Panel) -> None:
    answer = panel.client(None).get("/servers", headers={"HX-Request": "true"})
    assert answer.headers["hx-redirect"] == "/login"
    whole = panel.client(None).get("/stores/1/records?class=corrupt")
    assert whole.headers["location"] == "/login?next=%2Fstores%2F1%2Frecords%3Fclass%3Dcorrupt"


def test_a_wrong_sign_in_keeps_the_name_and_not_the_password(panel: Panel) -> None:
    with httpx.Client(base_url=panel.url, headers={"Origin": panel.url}) as client:
        answer = client.post("/login", data={"username": "admin", "password": "guess-me", "next": "/stores"})
    assert answer.status_code == 401
    assert "user name or password is wrong" in answer.text
    assert field(answer.text, "username")["value"] == "admin"
    assert "guess-me" not in answer.text
    assert field(answer.text, "next")["value"] == "/stores"


def test_signing_in_leads_where_one_wanted_to_go(panel: Panel) -> None:
    with httpx.Client(base_url=panel.url, headers={"Origin": panel.url}) as client:
        data = {"username": "admin", "password": "correct horse battery", "next": "/stores?x=1"}
        assert client.post("/login", data=data).headers["location"] == "/stores?x=1"
        assert client.get("/login").headers["location"] == "/"


@pytest.mark.parametrize(
    ("url", "says"),
    [("", "url"), ("ftp://x", "http"), ("http://169.254.169.254/", "link-local"), ("not an address", "blanks")],
)
def test_a_refused_address_stands_beside_its_field_and_changes_nothing(
    panel: Panel, browser: httpx.Client, url: str, says: str
) -> None:
    before = browser.get("/api/v1/servers").json()["items"]
    answer = browser.post("/settings/servers/new", data={"url": url, "name": "kept <b>", "api_key": "s3cret"})
    assert answer.status_code == 422
    assert field(answer.text, "url")["aria-invalid"] == "true"
    assert field(answer.text, "url")["value"] == url
    assert field(answer.text, "name")["value"] == "kept <b>"
    assert "s3cret" not in answer.text
    errors = re.findall(r'class="err"[^>]*>.*?</svg>(.*?)</p>', answer.text, re.DOTALL)
    assert errors
    if says != "url":
        assert says in " ".join(errors)
    assert browser.get("/api/v1/servers").json()["items"] == before


def test_a_server_is_added_changed_and_forgotten_by_forms(browser: httpx.Client) -> None:
    url = f"http://127.0.0.1:{dead_port()}"
    added = browser.post("/settings/servers/new", data={"url": url, "name": '<img src=x>"', "labels": "rack=b7"})
    assert added.status_code == 303
    page = browser.get(added.headers["location"])
    assert "<img src=x>" not in page.text
    assert "&lt;img src=x&gt;&#34;" in page.text
    assert 'class="toast"' in page.text
    assert 'class="toast"' not in browser.get(added.headers["location"]).text  # shown once
    ident = added.headers["location"].rsplit("/", 1)[1]
    twice = browser.post("/settings/servers/new", data={"url": url})
    assert twice.status_code in (409, 422)
    assert field(twice.text, "url")["value"] == url
    form = browser.get(f"/settings/servers/{ident}")
    assert field(form.text, "labels")["name"] == "labels"
    assert "rack=b7" in form.text
    changed = browser.post(f"/settings/servers/{ident}", data={"url": url, "name": "better", "labels": ""})
    assert changed.status_code == 303
    view = browser.get(f"/api/v1/servers/{ident}").json()
    assert (view["name"], view["labels"]) == ("better", {})
    bad = browser.post(f"/settings/servers/{ident}", data={"url": url, "labels": "no separator"})
    assert bad.status_code == 422
    assert "key=value" in bad.text
    kept = browser.post(f"/settings/servers/{ident}/delete", data={"confirm": "wrong"})
    assert kept.status_code == 303
    assert browser.get(f"/servers/{ident}").status_code == 200
    assert browser.post(f"/settings/servers/{ident}/delete", data={"confirm": "better"}).status_code == 303
    assert browser.get(f"/servers/{ident}").status_code == 404


def test_whose_certificate_is_believed_is_entered_shown_and_changed_by_forms(browser: httpx.Client) -> None:
    url = f"https://127.0.0.1:{dead_port()}"
    refused = browser.post("/settings/engines/new", data={"url": url, "tls_ca": "/no/ca.pem"})
    assert refused.status_code == 422
    assert "/no/ca.pem&#39; cannot be read" in refused.text
    added = browser.post("/settings/engines/new", data={"url": url, "tls_ca": Authority.made("rack CA").pem})
    assert added.status_code == 303
    where = added.headers["location"]
    assert "TLS verified by its own CA: CN=rack CA" in browser.get(where).text
    form = browser.get(f"/settings{where}").text
    assert "-----BEGIN CERTIFICATE-----" in form
    assert 'name="tls_unverified"' in form
    changed = browser.post(f"/settings{where}", data={"url": url, "tls_ca": "", "tls_unverified": "on"})
    assert changed.status_code == 303
    assert "Its certificate is NOT verified" in browser.get(where).text
    assert browser.get(f"/api/v1{where}").json()["tls"]["ca"] is None
    assert browser.post(f"/settings{where}/delete", data={"confirm": "127.0.0.1"}).status_code == 303


def test_what_was_typed_survives_a_probe_and_an_error(browser: httpx.Client) -> None:
    url = f"https://127.0.0.1:{dead_port()}"
    typed = {
        "url": url,
        "name": "kept",
        "api_key": "s3cret-key",
        "headers": "X-Tenant: red",
        "labels": "rack=7",
        "tls_ca": Authority.made("rack CA").pem,
    }
    probed = browser.post("/settings/servers/new", data={**typed, "probe": "1"})
    assert probed.status_code == 200
    assert "Nothing answers there" in probed.text
    assert "s3cret-key" not in probed.text
    for name in ("url", "name"):
        assert field(probed.text, name)["value"] == typed[name]
    for text in ("X-Tenant: red", "rack=7", "-----BEGIN CERTIFICATE-----"):
        assert text in probed.text
    kept = str(field(probed.text, "api_key_kept")["value"])
    # an error in another field keeps it, too
    refused = browser.post(
        "/settings/servers/new", data={**typed, "api_key": "", "api_key_kept": kept, "tls_ca": "-----BEGIN nothing"}
    )
    assert refused.status_code == 422
    assert "own CA. Nothing was changed" in refused.text
    assert "holds no certificate that can be read" in refused.text
    assert "-----BEGIN nothing" in refused.text
    kept = str(field(refused.text, "api_key_kept")["value"])
    added = browser.post("/settings/servers/new", data={**typed, "api_key": "", "api_key_kept": kept})
    assert added.status_code == 303
    where = added.headers["location"]
    saved = browser.get(f"/api/v1{where}").json()
    assert (saved["has_api_key"], saved["header_names"], saved["tls"]["verified_by"]) == (True, ["X-Tenant"], "own_ca")
    assert browser.post(f"/settings{where}/delete", data={"confirm": "kept"}).status_code == 303


@pytest.mark.parametrize("path", ["/", "/nowhere/at/all", "relative"])
def test_a_directory_that_cannot_be_a_store_is_refused(browser: httpx.Client, store_id: str, path: str) -> None:
    data = {"path": path, "server_ids": "1", "confirm": "on"}
    answer = browser.post("/settings/stores/new", data=data)
    assert answer.status_code in (409, 422)
    assert field(answer.text, "path")["value"] == path


def test_the_first_address_may_come_without_its_scheme(browser: httpx.Client) -> None:
    """As a log prints it; what is asked stands in the field then."""
    where = f"127.0.0.1:{dead_port()}"
    before = browser.get("/api/v1/servers").json()["items"]
    page = browser.post("/welcome", data={"url": where, "step": "probe"})
    assert page.status_code == 200
    assert field(page.text, "url")["value"] == f"http://{where}"
    assert "no scheme" not in page.text
    refused = browser.post("/welcome", data={"url": "ftp://127.0.0.1", "step": "probe"})
    assert refused.status_code == 422
    assert field(refused.text, "url")["value"] == "ftp://127.0.0.1"
    assert browser.get("/api/v1/servers").json()["items"] == before


def test_what_answers_at_an_address_is_asked_and_nothing_saved(browser: httpx.Client) -> None:
    before = len(browser.get("/api/v1/engines").json()["items"])
    url = f"http://127.0.0.1:{dead_port()}"
    answer = browser.post("/settings/engines/new", data={"url": url, "probe": "1"})
    assert answer.status_code == 200
    assert field(answer.text, "url")["value"] == url
    assert "refused" in answer.text
    assert len(browser.get("/api/v1/engines").json()["items"]) == before


class TestPolicies:
    def values(self, store_id: str, **over: str | list[str]) -> dict[str, str | list[str]]:
        return {
            "name": "by form",
            "store_id": store_id,
            "take": ["incompatible", "temporary", "capacity"],
            "temporary_older_than": "2h",
            "capacity_high": "85%",
            "capacity_low": "70%",
            "protect_models": "/models/a\n/models/b\n",
            "max_percent": "30",
            "removal": "quarantine",
            "quarantine_for": "7d",
            "schedule": "0 2 * * *",
            "timezone": "Europe/Berlin",
            "enabled": "on",
            "blackouts": "08:00-20:00 1,2",
            **over,
        }

    def test_a_policy_by_form_is_what_the_api_shows(self, browser: httpx.Client, store_id: str) -> None:
        made = browser.post("/cleanup/policies/new", data=self.values(store_id))
        assert made.status_code == 303, re.sub(r"<[^>]+>", "", made.text)
        ident = made.headers["location"].rsplit("/", 1)[1]
        view = browser.get(f"/api/v1/policies/{ident}").json()
        assert view["select"] == [
            {"kind": "incompatible"},
            {"kind": "temporary", "older_than": "2h"},
            {"kind": "capacity", "high": "85%", "low": "70%"},
        ]
        assert view["protect"]["models"] == ["/models/a", "/models/b"]
        assert view["limits"]["max_fraction"] == pytest.approx(0.3)
        assert view["blackouts"] == [{"start": "08:00", "end": "20:00", "days": [1, 2]}]
        assert (view["enabled"], view["next_firings"]) == (False, [])  # what goes for room is deleted
        # The edit form shows the same and, sent back untouched, changes nothing.
        sent = sent_back(browser, f"/cleanup/policies/{ident}/edit")
        sent |= {"protect_models": ["/models/a\n/models/b"], "blackouts": ["08:00-20:00 1,2"]}
        assert browser.post(f"/cleanup/policies/{ident}/edit", data=sent).status_code == 303
        again = browser.get(f"/api/v1/policies/{ident}").json()
        assert {**again, "updated_at": ""} == {**view, "updated_at": ""}
        assert browser.get(f"/cleanup/policies/{ident}").status_code == 200
        assert browser.post(f"/cleanup/policies/{ident}/delete").status_code == 303
        assert browser.get(f"/cleanup/policies/{ident}").status_code == 404

    @pytest.mark.parametrize(
        ("schedule", "told"),
        [
            ("0 2 * * *", ""),
            ("0 2 * * * @layout-change", "and on a layout change"),
            ("@layout-change", "when the layout changes"),
        ],
    )
    def test_the_schedules_page_says_what_a_layout_change_starts(
        self, browser: httpx.Client, store_id: str, schedule: str, told: str
    ) -> None:
        made = browser.post("/cleanup/policies/new", data=self.values(store_id, name="on change", schedule=schedule))
        assert made.status_code == 303
        page = browser.get("/schedules").text
        assert "on change" in page
        for text in ("and on a layout change", "when the layout changes"):
            assert (text in page) is (text == told)
        # One that only a change starts is run, paused and resumed from its row, too.
        assert (f'action="{made.headers["location"]}/runs"' in page) is (schedule == "@layout-change")
        assert browser.post(f"{made.headers['location']}/delete").status_code == 303

    def test_all_that_is_wrong_is_said_at_once(self, browser: httpx.Client, store_id: str) -> None:
        wrong = {
            "name": "",
            "max_records": "many",
            "max_percent": "half",
            "max_bytes": "a lot",
            "blackouts": "08:00-20:00 1,2\nall night\n22:00-23:00 mon",
            "schedule": "every day",
            "timezone": "Mars/Olympus",
            "temporary_older_than": "two hours",
            "quarantine_for": "long",
        }
        for store in (store_id, "999", ""):
            answer = browser.post("/cleanup/policies/new", data=self.values(store, **wrong))
            assert answer.status_code == 422
            for name in (*wrong, *([] if store == store_id else ["store_id"])):
                if name == "store_id":
                    continue  # a name that is missing is told first, the store's with the next
                assert field(answer.text, name)["aria-invalid"] == "true", (store, name)
            text = html.unescape(answer.text)
            assert "half % is not a share of the store" in text
            assert "'all night' is not of the form" in text and "'22:00-23:00 mon' is not of the form" in text
            assert text.count("'all night' is not of the form") == text.count("'22:00-23:00 mon' is not of the form")
        named = browser.post("/cleanup/policies/new", data=self.values("999", **{**wrong, "name": "some name"}))
        for name in ("store_id", *wrong):
            if name != "name":
                assert field(named.text, name)["aria-invalid"] == "true", name

    @pytest.mark.parametrize(
        ("over", "name"),
        [
            ({"capacity_low": "90%"}, "capacity_low"),
            ({"temporary_older_than": "two hours"}, "temporary_older_than"),
            ({"schedule": "every day"}, "schedule"),
            ({"timezone": "Mars/Olympus"}, "timezone"),
            ({"max_percent": "much"}, "max_percent"),
            ({"max_records": "-1"}, "max_records"),
            ({"quarantine_for": "long"}, "quarantine_for"),
            ({"blackouts": "at night"}, "blackouts"),
            ({"name": ""}, "name"),
            ({"take": ["unused"], "unused_for": ""}, "unused_for"),
            ({"take": ["free_space"], "free_space_floor": "200 %"}, "free_space_floor"),
        ],
    )
    def test_what_makes_no_sense_is_said_beside_its_field(
        self, browser: httpx.Client, store_id: str, over: dict[str, str | list[str]], name: str
    ) -> None:
        answer = browser.post("/cleanup/policies/new", data=self.values(store_id, **over))
        assert answer.status_code == 422
        assert field(answer.text, name).get("aria-invalid") == "true", re.sub(r"<[^>]+>", " ", answer.text)
        assert "Nothing was changed" in answer.text
        kept = [a for a in Document(answer.text).all("input") if a.get("name") == "take" and "checked" in a]
        assert {a["value"] for a in kept} == set(over.get("take", ["incompatible", "temporary", "capacity"]))
        assert browser.get("/api/v1/policies").json()["items"] == []

    def test_all_that_is_wrong_is_said_at_once_in_the_words_of_the_form(
        self, browser: httpx.Client, store_id: str
    ) -> None:
        wrong: dict[str, str | list[str]] = {
            "capacity_low": "90%",
            "protect_written_within": "soon",
            "max_percent": "120",
            "schedule": "every day",
            "timezone": "Mars/Olympus",
        }
        answer = browser.post("/cleanup/policies/new", data=self.values(store_id, **wrong))
        said = " ".join(re.sub(r"<[^>]+>", " ", answer.text).split())
        assert answer.status_code == 422
        assert "low mark, high mark, written within, share of the store, schedule, time zone. Nothing" in said
        assert "120 % is not a share of the store: write a number above 0 and up to 100" in said
        assert all(field(answer.text, name).get("aria-invalid") == "true" for name in wrong)

    @pytest.mark.parametrize("preset", ["keep_it_safe", "keep_under_85", "two_weeks_unused"])
    def test_each_preset_can_be_saved_as_it_is(self, browser: httpx.Client, store_id: str, preset: str) -> None:
        sent = sent_back(browser, f"/cleanup/policies/new?preset={preset}&store_id={store_id}")
        sent |= {"store_id": [store_id]}
        made = browser.post("/cleanup/policies/new", data=sent)
        assert made.status_code == 303, re.sub(r"<[^>]+>", "", made.text)
        wanted = next(p for p in browser.get("/api/v1/policy-presets").json() if p["id"] == preset)["policy"]
        view = browser.get(f"/api/v1/policies/{made.headers['location'].rsplit('/', 1)[1]}").json()
        assert (
            sorted(view["select"], key=str) == sorted(wanted["select"], key=str)
            or [s["kind"] for s in view["select"]].sort() == [s["kind"] for s in wanted["select"]].sort()
        )
        assert view["schedule"] == wanted["schedule"]
        # What deletes waits for somebody who has seen its dry run; it may be due within a second.
        assert view["enabled"] is (wanted["removal"] == "quarantine")
        browser.post(f"{made.headers['location']}/delete")

    @pytest.mark.parametrize("paused_on", ["schedules", "policy"])
    def test_a_paused_policy_stays_paused_when_it_is_edited(
        self, browser: httpx.Client, store_id: str, paused_on: str
    ) -> None:
        over: dict[str, str | list[str]] = {"take": ["corrupt"]}
        here = browser.post("/cleanup/policies/new", data=self.values(store_id, **over)).headers["location"]
        ident = here.rsplit("/", 1)[1]
        schedule = policy_schedule(browser, ident)
        assert schedule["paused"] is False
        pause = f"/schedules/{schedule['id']}/pause" if paused_on == "schedules" else f"{here}/pause"
        assert browser.post(pause).status_code == 303
        assert browser.get(f"/api/v1/policies/{ident}").json()["enabled"] is False
        said = " ".join(re.sub(r"<[^>]+>", " ", browser.get(here).text).split())
        assert "Its schedule is paused" in said
        assert "by user:" in said or "by admin" in said
        sent = sent_back(browser, f"{here}/edit")
        assert "enabled" not in sent
        assert browser.post(f"{here}/edit", data=sent | {"name": ["renamed"]}).status_code == 303
        renamed = browser.patch(f"/api/v1/policies/{ident}", json={"name": "renamed again"})
        assert (renamed.json()["enabled"], renamed.json()["next_firings"]) == (False, [])
        assert policy_schedule(browser, ident)["paused"] is True
        resume = pause.replace("/pause", "/resume")
        assert browser.post(resume).status_code == 303
        assert "Its schedule is" not in browser.get(here).text
        assert browser.get(f"/api/v1/policies/{ident}").json()["enabled"] is True
        assert policy_schedule(browser, ident)["paused"] is False
        browser.post(f"{here}/delete")

    def test_what_deletes_runs_by_itself_only_after_somebody_said_so(
        self, browser: httpx.Client, store_id: str
    ) -> None:
        values = self.values(store_id, removal="delete", take=["corrupt"], quarantine_for="", schedule="* * * * *")
        here = browser.post("/cleanup/policies/new", data=values).headers["location"]
        ident = here.rsplit("/", 1)[1]
        assert policy_schedule(browser, ident)["paused"] is True
        page = browser.get(here).text
        assert "Turn the schedule on" in page
        assert "Its schedule is off" in page
        assert browser.post(f"{here}/resume").status_code == 303
        assert policy_schedule(browser, ident)["paused"] is False
        # Another name is no other selection; another selection or another time waits again.
        for over, paused in ({"name": "other"}, False), ({"take": ["corrupt", "unreachable"]}, True):
            assert browser.post(f"{here}/edit", data=values | {"name": "other"} | over).status_code == 303
            assert policy_schedule(browser, ident)["paused"] is paused
        browser.post(f"{here}/resume")
        later = values | {"name": "other", "take": ["corrupt", "unreachable"], "schedule": "5 4 * * *"}
        browser.post(f"{here}/edit", data=later)
        assert policy_schedule(browser, ident)["paused"] is True
        # The API does as it is told.
        told = browser.patch(f"/api/v1/policies/{ident}", json={"enabled": True, "select": [{"kind": "corrupt"}]})
        assert told.json()["enabled"] is True
        assert policy_schedule(browser, ident)["paused"] is False
        browser.post(f"{here}/delete")


def sent_back(browser: httpx.Client, path: str) -> dict[str, list[str]]:
    """What the browser would send of the inputs of a form that nobody touched."""
    sent: dict[str, list[str]] = {}
    for attrs in Document(browser.get(path).text).all("input"):
        if attrs.get("type") in ("checkbox", "radio") and "checked" not in attrs:
            continue
        if attrs.get("name") not in (None, "q"):
            sent.setdefault(attrs["name"], []).append(attrs.get("value", ""))
    return sent


def policy_schedule(browser: httpx.Client, policy_id: str) -> dict[str, Any]:
    """The schedule that a policy carries."""
    items = browser.get("/api/v1/schedules").json()["items"]
    return next(dict(s) for s in items if (s["kind"], s["target_id"]) == ("policy", policy_id))


def test_a_token_is_shown_once_and_works(panel: Panel, browser: httpx.Client) -> None:
    made = browser.post("/settings/tokens", data={"name": "ci", "role": "viewer", "expires_in_days": "1"})
    assert made.status_code == 201
    secret = re.search(r'data-copy="([^"]{20,})"', made.text)
    assert secret is not None
    headers = {"Authorization": f"Bearer {secret.group(1)}"}
    assert panel.client(None).get("/api/v1/me", headers=headers).json()["role"] == "viewer"
    assert secret.group(1) not in browser.get("/settings/tokens").text
    wrong = browser.post("/settings/tokens", data={"name": "", "role": "owner", "expires_in_days": "soon"})
    assert wrong.status_code == 422
    assert field(wrong.text, "expires_in_days")["value"] == "soon"


def test_users_are_made_and_see_what_their_role_allows(panel: Panel, browser: httpx.Client, store_id: str) -> None:
    data = {"username": "vera", "password": "long enough", "role": "viewer"}
    assert browser.post("/settings/users", data=data).status_code == 303
    short = browser.post("/settings/users", data=data | {"username": "x", "password": "short"})
    assert short.status_code == 422
    assert 'value="short"' not in short.text
    vera = panel.browser("vera", "long enough")
    page = vera.get(f"/stores/{store_id}").text
    assert "Scan now" not in page
    assert vera.get("/settings/users").status_code == 403
    assert vera.post(f"/stores/{store_id}/scans").status_code == 403
    assert vera.get("/activity?view=audit").status_code == 403


def test_what_cannot_be_brought_back_wants_its_name_typed(panel: Panel, browser: httpx.Client) -> None:
    data = {"username": "otto", "password": "long enough", "role": "viewer"}
    assert browser.post("/settings/users", data=data).status_code == 303
    assert browser.post("/settings/tokens", data={"name": "pipeline", "role": "viewer"}).status_code == 201
    auth = panel.services.auth
    user = next(u for u in auth.list_users().items if u.username == "otto")
    token = next(t for t in auth.list_tokens().items if t.name == "pipeline")
    for page, path, word in (
        ("/settings/users", f"/settings/users/{user.id}/delete", "otto"),
        ("/settings/tokens", f"/settings/tokens/{token.id}/delete", "pipeline"),
    ):
        assert f'data-confirm-word="{word}"' in browser.get(page).text
        for typed in ({}, {"confirm": word[:-1]}):
            assert browser.post(path, data=typed).status_code == 303
            assert f"type {word} to confirm" in browser.get(page).text
        assert browser.post(path, data={"confirm": f" {word} "}).status_code == 303
        assert f'data-confirm-word="{word}"' not in browser.get(page).text
    assert browser.post(f"/settings/tokens/{token.id}/delete").status_code == 404


def test_every_button_that_deletes_can_be_taken_back_or_wants_a_word() -> None:
    """A route that deletes says how to undo it, or reads the typed word; the sandbox goes by one click, as promised."""
    route = re.compile(r'@router\.post\("([^"]*(?:delete|purge))"\)\ndef \w+\(.*?(?=\n\n\n|\Z)', re.DOTALL)
    source = {path.name: path.read_text() for path in Path(pages.__file__).parent.glob("*.py")}
    told = 0
    for name, text in source.items():
        for found in route.finditer(text):
            told += 1
            if found.group(1).endswith(("/sandbox/delete", "/sessions/delete")):
                continue
            assert re.search(r"undo=|confirm", found.group(0)), (name, found.group(1))
    assert told > 8


def test_a_user_is_signed_out_everywhere_by_a_button(panel: Panel, browser: httpx.Client) -> None:
    data = {"username": "wanda", "password": "long enough", "role": "viewer"}
    assert browser.post("/settings/users", data=data).status_code == 303
    user = next(u for u in panel.services.auth.list_users().items if u.username == "wanda")
    button = f"/settings/users/{user.id}/sessions/delete"
    assert button not in browser.get("/settings/users").text, "she is signed in nowhere"
    first, second = panel.browser("wanda", "long enough"), panel.browser("wanda", "long enough")
    page = browser.get("/settings/users").text
    assert button in page
    assert "2 sessions" in page
    assert first.post(button).status_code == 403, "only admins end sessions"
    answer = browser.post(button)
    assert answer.status_code == 303
    assert [client.get("/api/v1/me").status_code for client in (first, second, browser)] == [401, 401, 200]
    page = browser.get("/settings/users").text
    assert "wanda was signed out everywhere (2 sessions)" in page
    assert button not in page
    row = panel.services.audit.list_events(page_size=1, page_token=None, action="session.revoke").items[0]
    assert (row.actor, row.detail) == ("user:admin", {"username": "wanda", "sessions": 2})


def test_an_explorer_filter_that_makes_no_sense_keeps_what_was_typed(browser: httpx.Client, store_id: str) -> None:
    answer = browser.get(f"/stores/{store_id}/records?older_than=2+weeks&q=abc")
    assert answer.status_code == 422
    assert field(answer.text, "older_than")["value"] == "2 weeks"
    assert field(answer.text, "older_than")["aria-invalid"] == "true"
    assert field(answer.text, "q")["value"] == "abc"
    foreign = browser.get(f"/stores/{store_id}/records?page_token=bm90IG91cnM")
    assert foreign.status_code in (200, 400)


def test_buttons_that_cannot_do_it_say_why(browser: httpx.Client, store_id: str) -> None:
    answer = browser.post("/cleanup/policies/999/plans")
    assert answer.status_code == 404
    started = browser.post(f"/stores/{store_id}/scans")
    assert started.headers["location"] == f"/stores/{store_id}"


def test_another_directory_is_told_on_the_stores_page_and_accepted_by_an_admin(
    panel: Panel, browser: httpx.Client, tmp_path: Path
) -> None:
    root = tmp_path / "kv-volume"
    root.mkdir()
    store = panel.services.fleet.create_store(StoreCreate(path=str(root), name="volume", confirm=True), actor="test")
    here, services = f"/stores/{store.id}", panel.services
    inventory = RecordsInventory(db=services.db, clock=services.clock, records=services.records, runner=services.runner)
    inventory.refresh(int(store.id), lambda: None)
    assert "Another directory lies" not in browser.get(here).text
    root.rename(tmp_path / "away")
    root.mkdir()
    with pytest.raises(StoreError, match="not the directory that the last scan knew"):
        inventory.refresh(int(store.id), lambda: None)
    page = browser.get(here).text
    assert "Another directory lies at the store" in page
    browser.post(f"{here}/directory", data={"found": "1:1"})
    assert list(root.iterdir()) == []
    accepted = browser.post(f"{here}/directory", data={"found": field(page, "found")["value"]})
    assert accepted.headers["location"] == here
    assert "Another directory lies" not in browser.get(here).text
    inventory.refresh(int(store.id), lambda: None)


def test_a_declared_generation_needs_sense(browser: httpx.Client, store_id: str) -> None:
    answer = browser.post(f"/stores/{store_id}/epochs", data={"kind": "declare", "effective_at": "tomorrow"})
    assert answer.status_code == 422
    assert field(answer.text, "effective_at")["value"] == "tomorrow"


def test_an_acceptance_form_keeps_its_fields(panel: Panel, browser: httpx.Client) -> None:
    data = {"engine_id": "999", "profile": "quick", "concurrency": "many", "arms": ["external_l2"]}
    answer = browser.post("/acceptance/new", data=data)
    assert answer.status_code == 422
    assert field(answer.text, "concurrency")["value"] == "many"
    assert "is not a number" in answer.text
    unknown = browser.post("/acceptance/new", data=data | {"concurrency": "1"})
    assert unknown.status_code in (404, 422)


def test_own_prompts_and_tolerances_of_the_form_are_those_of_the_api(panel: Panel, browser: httpx.Client) -> None:
    data = {"engine_id": "999", "prompts": '[{"prompt": "x"', "tolerance.max_abs_nats": "wide"}
    wide = browser.post("/acceptance/new", data=data)
    assert field(wide.text, "tolerance.max_abs_nats")["value"] == "wide"
    torn = browser.post("/acceptance/new", data=data | {"tolerance.max_abs_nats": "0.2"})
    assert torn.status_code == 422
    assert "is no JSON" in torn.text
    assert "[{&#34;prompt&#34;: &#34;x&#34;" in torn.text
    body = _body({"prompts": ["one\ntwo"], "tolerance.max_score_drop": ["0.1"], "request_timeout_seconds": ["7"]})
    assert body["prompts"] == [{"prompt": "one"}, {"prompt": "two"}]
    assert (body["tolerance"], body["request_timeout_seconds"]) == ({"max_score_drop": 0.1}, 7.0)


def test_the_theme_is_drawn_by_the_server(panel: Panel) -> None:
    with httpx.Client(base_url=panel.url) as client:
        dark = client.get("/login", headers={"Cookie": "tierkeeper-theme=dark"}).text
        assert '<html lang="en" data-theme="dark">' in dark
        odd = client.get("/login", headers={"Cookie": 'tierkeeper-theme="><script>'}).text
        assert "data-theme=" not in odd.split("<body")[0]


def test_a_damaged_toast_is_no_toast(panel: Panel, browser: httpx.Client) -> None:
    session = f"tierkeeper={browser.cookies['tierkeeper']}"
    with httpx.Client(base_url=panel.url) as client:
        for cookie in ("nonsense", "eyJrIjoxfQ==", "W10="):
            headers = {"Cookie": f"{session}; tierkeeper-flash={cookie}"}
            answer = client.get("/servers", headers=headers)
            assert answer.status_code == 200
            assert 'class="toast"' not in answer.text


def test_behind_a_prefix_every_address_has_it(tmp_path: Path) -> None:
    with running_panel(tmp_path / "var", ROOT_PATH="/tierkeeper", POLL_SECONDS="3600") as panel:
        panel.services.auth.create_user(UserInput(username="ann", password="long enough", role="admin"), actor="test")
        with httpx.Client(base_url=panel.url, headers={"Origin": panel.url}, timeout=60) as client:
            # The proxy strips the prefix; cookies are for the prefixed path, so they are handed on by hand.
            signed_in = client.post("/login", data={"username": "ann", "password": "long enough"})
            assert signed_in.headers["location"] == "/tierkeeper/"
            assert "Path=/tierkeeper" in signed_in.headers["set-cookie"]
            cookie = signed_in.headers["set-cookie"].split(";")[0]
            page = client.get("/servers", headers={"Cookie": cookie})
        assert page.status_code == 200
        document = Document(page.text)
        for tag, attrs in document.elements:
            for name in ("href", "src", "action", "hx-get"):
                if name in attrs and not attrs[name].startswith("#"):
                    assert attrs[name].startswith("/tierkeeper/"), (tag, attrs)


def test_a_record_that_is_gone_says_where_to_look(browser: httpx.Client, store_id: str) -> None:
    gone = browser.get(f"/records/{record_id(int(store_id), 4_000)}")
    assert gone.status_code == 404
    for path in (f"/stores/{store_id}/records", f"/stores/{store_id}/quarantine", "/cleanup"):
        assert f'href="{path}"' in gone.text
    never = browser.get(f"/records/{record_id(9_999, 1)}")
    assert never.status_code == 404
    assert "quarantine" not in never.text.lower()


def test_a_number_over_time_as_page_and_as_csv(panel: Panel, browser: httpx.Client, store_id: str) -> None:
    server = panel.services.fleet.list_servers(page_size=5, page_token=None).items[0]
    here = f"/servers/{server.id}/history"
    page = browser.get(here, params={"metric": "l1_used_bytes", "range": "7d"})
    assert page.status_code == 200
    document = Document(page.text)
    links = [attrs["href"] for attrs in document.all("a")]
    table = next(link for link in links if link.startswith(f"{here}.csv"))
    assert "metric=l1_used_bytes" in table
    assert "range=7d" in table
    answer = browser.get(table)
    assert answer.headers["content-type"].startswith("text/csv")
    assert answer.text.splitlines()[0] == "time,l1_used_bytes (bytes),lowest,highest"
    # What is not known is an empty value, never 0.
    assert {line.partition(",")[2] for line in answer.text.splitlines()[1:]} <= {",,"}
    for words, query in (
        ("9y", {"range": "9y"}),
        ("RFC 3339", {"from": "soon"}),
        ("is not before", {"from": "2999-01-01T00:00Z"}),
        ("choose one of", {"metric": "nope"}),
    ):
        refused = browser.get(here, params=query)
        assert refused.status_code == 422
        assert words in refused.text


@pytest.mark.parametrize(
    "query",
    [
        {"from": "0001-01-01T00:00:00Z"},
        {"from": "0001-01-01T00:00:00+14:00"},
        {"to": "0001-01-01T00:00:00Z"},
        {"to": "9999-12-31T23:59:59-12:00"},
        {"from": "1969-12-31T23:59:59Z"},
    ],
)
def test_a_time_that_leads_out_of_the_calendar_is_refused_by_name(
    panel: Panel, browser: httpx.Client, store_id: str, query: dict[str, str]
) -> None:
    server = panel.services.fleet.list_servers(page_size=5, page_token=None).items[0]
    for target, metric in ((f"servers/{server.id}", "hit_rate"), (f"stores/{store_id}", "disk_busy_ratio")):
        for path in (f"/{target}/history", f"/{target}/history.csv", f"/api/v1/{target}/samples"):
            refused = browser.get(path, params={"metric": metric, **query})
            assert (path, refused.status_code) == (path, 422)
            assert next(iter(query)) in refused.text
            assert "1970" in refused.text


def test_a_chosen_time_is_a_page_with_its_own_steps_and_export(panel: Panel, browser: httpx.Client) -> None:
    """What was spiky then is in the rows: lowest and highest beside the mean."""
    fleet, clock = panel.services.fleet, panel.services.clock
    server = fleet.create_server(ServerCreate(url=f"http://127.0.0.1:{dead_port()}", name="spiky"), actor="test")
    begin = clock() // 10_800 * 10_800 - 21_600  # ten days and one give steps of three hours
    values = {at: 5e9 if at == 60 else 1e9 for at in range(0, 600, 30)}
    with panel.services.db.write() as session:
        series = Series(target_kind="server", target_id=int(server.id), metric="l1_used_bytes")
        session.add(series)
        session.flush()
        for at, value in values.items():
            session.add(SampleRaw(series_id=series.id, at=round((begin + at) * 1000), value=value))
    start, end = iso(begin - 864_000) or "", iso(begin + 86_400) or ""
    page = browser.get(f"/servers/{server.id}/history", params={"metric": "l1_used_bytes", "from": start, "to": end})
    assert "4.66\u00a0GiB" in page.text
    chart = next(a for a in Document(page.text).all("div") if "data-chart" in a)
    assert f"to={quote(end)}" in chart["data-chart"]
    assert chart["data-history"] == f"/servers/{server.id}/history?metric=l1_used_bytes"
    assert field(page.text, "from")["value"] == start[:16]
    # The form of the page gives times without an offset: they are UTC.
    typed = {"metric": "l1_used_bytes", "from": start[:16], "to": end[:16]}
    rows = browser.get(f"/servers/{server.id}/history.csv", params=typed).text.splitlines()
    assert f"{iso(begin)},1200000000.0,1000000000.0,5000000000.0" in rows
    assert rows[1].endswith(",,,")


def test_a_chart_marks_every_restart_of_the_time_it_shows(panel: Panel, browser: httpx.Client) -> None:
    fleet, now = panel.services.fleet, panel.services.clock()
    server = fleet.create_server(ServerCreate(url=f"http://127.0.0.1:{dead_port()}", name="often"), actor="test")
    engine = fleet.create_engine(
        EngineCreate(url=f"http://127.0.0.1:{dead_port()}", name="its-engine", server_id=server.id), actor="test"
    )
    spans = ((7200, "a", 90_000, 90_000), (5400, "b", 5500, 90_000), (1800, "c", 1900, 1700))
    with panel.services.db.write() as session:
        for ago, instance, server_ago, engine_ago in spans:
            session.add(
                Observation(
                    server_id=int(server.id), first_at=now - ago, last_at=now - ago + 60, ok=True, instance_id=instance,
                    process_start=now - server_ago, engine_starts={engine.id: now - engine_ago},
                )
            )  # fmt: skip

    def marked(path: str, text: str) -> int:
        found = re.search(r"data-chart-marks>(.*?)</script>", browser.get(path).text, re.DOTALL)
        assert found is not None
        return [one[2] for one in json.loads(found[1])].count(text)

    assert marked(f"/servers/{server.id}/history?range=24h", "often restarted") == 2
    assert marked(f"/servers/{server.id}/history?range=1h", "often restarted") == 1
    assert marked(f"/engines/{engine.id}/history?range=24h", "its-engine restarted") == 1
    assert marked(f"/servers/{server.id}", "its-engine restarted") == 1  # of the last hour


def test_the_history_of_a_store_and_of_years(browser: httpx.Client, store_id: str) -> None:
    page = browser.get(f"/stores/{store_id}/history", params={"range": "2y"})
    assert page.status_code == 200
    assert "Free of kv-a" in page.text
    offered = [
        a["href"] for a in Document(page.text).all("a") if f"/stores/{store_id}/history?metric=" in a.get("href", "")
    ]
    assert any("disk_read_latency_seconds" in link for link in offered)
    assert f"/stores/{store_id}/history" in browser.get(f"/stores/{store_id}").text
    answer = browser.get(f"/stores/{store_id}/history.csv", params={"metric": "disk_busy_ratio", "range": "2y"})
    assert answer.text.splitlines()[0] == "time,disk_busy_ratio (ratio),lowest,highest"


def test_lists_of_targets_by_health_and_label(panel: Panel, browser: httpx.Client, store_id: str) -> None:
    fleet = panel.services.fleet
    fleet.patch_store(int(store_id), StorePatch(labels={"zone": "b"}), actor="test")
    page = browser.get("/stores", params={"label": "zone=b"}).text
    assert "kv-a" in page
    assert browser.get("/api/v1/stores", params={"label": "zone=b"}).json()["items"][0]["id"] == store_id
    assert browser.get("/api/v1/stores", params={"label": "zone=c"}).json()["items"] == []
    assert "No store matches" in browser.get("/stores", params={"label": "zone=c"}).text
    assert browser.get("/api/v1/stores", params={"label": "zone"}).status_code == 422
    # A filter that leaves nothing is no fleet without engines.
    none = browser.get("/engines", params={"health": "healthy"}).text
    assert "No engine matches" in none
    assert "No engine registered" not in none
    # Each page of a target leads to all that share a label.
    assert "/stores?label=zone%3Db" in browser.get(f"/stores/{store_id}").text


def test_the_sandbox_goes_with_one_press_and_nothing_else(panel: Panel, browser: httpx.Client, store_id: str) -> None:
    fleet = panel.services.fleet
    box = fleet.create_server(
        ServerCreate(url="http://127.0.0.1:9", name="box", labels={"origin": "sandbox"}), actor="test"
    )
    before = {s.id for s in fleet.list_servers(page_size=50, page_token=None).items}
    assert "Remove the sandbox" in browser.get("/settings").text
    assert browser.post("/settings/sandbox/delete").headers["location"] == "/"
    assert {s.id for s in fleet.list_servers(page_size=50, page_token=None).items} == before - {box.id}
    assert "Remove the sandbox" not in browser.get("/settings").text
