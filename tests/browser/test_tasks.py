"""What people come for, done in a browser on a real panel beside a real (simulated) cache: one panel for all tasks."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qsl, urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from app.cleanup.schemas import PolicyInput
from app.commands.demo_history import seed_history
from app.fleet.schemas import EngineCreate, ServerCreate, StoreCreate
from app.records.filters import RecordFilter
from app.sandbox import SandboxThread, demo_specs
from app.services import Services
from tests.browser.conftest import wait_until
from tests.browser.test_axe import ALL, COLOURS, grave
from tests.support.panel import ADMIN_PASSWORD, Panel, running_panel

#: Whole tasks, on a machine that may be busy: nothing waits longer than it must.
pytestmark = pytest.mark.timeout(600)
PATIENCE_MS = 60_000


@dataclass
class Stage:
    """A panel, and a sandbox with weeks of use in its store."""

    panel: Panel
    sandbox: SandboxThread
    facts: dict[str, object]

    @property
    def services(self) -> Services:
        return self.panel.services

    def registered(self) -> tuple[str, str, str]:
        """Ids of the server, its first engine and its store, registered as the first run does it."""
        fleet = self.services.fleet
        if not fleet.list_servers(page_size=5, page_token=None).items:
            fleet.create_server(ServerCreate(url=self.sandbox.server_url, name="cache"), actor="test")
        server = fleet.list_servers(page_size=5, page_token=None).items[0]
        if not fleet.list_engines(page_size=5, page_token=None).items:
            fleet.create_engine(
                EngineCreate(url=self.sandbox.engine_url, name="engine", server_id=server.id), actor="test"
            )
        engine = fleet.list_engines(page_size=5, page_token=None).items[0]
        if not fleet.list_stores(page_size=5, page_token=None).items:
            fleet.create_store(
                StoreCreate(path=str(self.sandbox.store_path), name="kv", server_ids=[server.id]), actor="test"
            )
        store = fleet.list_stores(page_size=5, page_token=None).items[0]
        return server.id, engine.id, store.id

    def every_engine(self) -> None:
        """Registers the sandbox's other engines too: a cleanup is only done when the caches of all are clean."""
        fleet = self.services.fleet
        server, _, _ = self.registered()
        known = {e.url for e in fleet.list_engines(page_size=50, page_token=None).items}
        for url in self.sandbox.engine_urls:
            if url.rstrip("/") not in {k.rstrip("/") for k in known}:
                fleet.create_engine(EngineCreate(url=url, server_id=server), actor="test")
        wait_until(
            lambda: all(
                e.health.state == "healthy" and e.model_roots
                for e in fleet.list_engines(page_size=50, page_token=None).items
            )
        )

    def with_history(self) -> str:
        """The store's id, once the panel knows what was registered when (so that wrong records can be told)."""
        server, engine, store = self.registered()
        wait_until(lambda: self.services.fleet.get_server(int(server)).layouts != [])
        if not self.facts.get("told"):
            seed_history(self.services, int(server), [int(engine), int(engine)], self.facts)
            self.facts["told"] = True
        scan = self.services.records.start_scan(int(store), actor="test")
        wait_until(lambda: self.services.records.get_scan(int(scan.id)).state == "succeeded")
        return store


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("tasks")
    servers, engines, config = demo_specs(time.time())
    with SandboxThread(folder / "sandbox", servers=servers, engines=engines, config=config) as sandbox:
        seeded = sandbox.seed_demo()
        facts: dict[str, object] = {
            "epochs": [
                {"model": e.model_path, "dtype": e.layout.dtype, "start": e.start, "end": e.end} for e in seeded.epochs
            ]
        }
        with running_panel(folder / "var", POLL_SECONDS="3") as panel:
            yield Stage(panel, sandbox, facts)


@pytest.fixture(scope="module")
def session(stage: Stage, browser: Browser) -> Iterator[dict[str, object]]:
    """Signed in once, through the form."""
    context = browser.new_context(base_url=stage.panel.url)
    page = context.new_page()
    page.goto("/")
    page.get_by_label("Name").fill("admin")
    page.get_by_label("Password").fill(ADMIN_PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(re.compile(r"/(?!login)"))
    yield context.storage_state()  # type: ignore[misc]
    context.close()


@pytest.fixture
def page(stage: Stage, session: dict[str, object], browser: Browser) -> Iterator[Page]:
    """A page of somebody signed in; it fails its test when the browser complains."""
    context = browser.new_context(
        base_url=stage.panel.url,
        storage_state=session,  # type: ignore[arg-type]
        reduced_motion="reduce",
    )
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: complaints.append(str(e)))
    page.complaints = complaints  # type: ignore[attr-defined]
    yield page
    context.close()
    assert complaints == []


def test_first_run_from_one_address_to_the_first_result(page: Page, stage: Stage) -> None:
    page.goto("/")
    expect(page.get_by_role("heading", name="Point it at your cache")).to_be_visible()
    # Paste a URL, see what was found there, add it.
    page.get_by_label("Address").fill(stage.sandbox.server_url)
    page.get_by_role("button", name="What answers there?").click()
    expect(page.locator(".notice:not(#connection)")).to_contain_text("LMCache")
    page.get_by_role("button", name="Add this cache server").click()
    # The store it names stands in the form already; accepting it starts the first scan.
    expect(page.get_by_label("Directory", exact=True)).to_have_value(str(stage.sandbox.store_path), timeout=PATIENCE_MS)
    page.get_by_role("button", name="Add it").click()
    expect(page.locator("#toasts")).to_contain_text("first scan is under way")
    store = stage.services.fleet.list_stores(page_size=5, page_token=None).items[0]
    wait_until(lambda: stage.services.records.summary(int(store.id)).state == "scanned")
    # What lay there before is a decision of its own, with a way to it.
    page.goto("/")
    steps = page.get_by_role("region", name="First steps")
    expect(steps.get_by_role("listitem").filter(has_text="The first scan")).to_contain_text("done")
    expect(steps).to_contain_text("adopt them if you know they are right")
    # The engine, then the test.
    steps.get_by_role("link", name="Add it").click()
    page.get_by_label("Address").fill(stage.sandbox.engine_url)
    page.get_by_role("button", name="What answers there?").click()
    page.get_by_role("button", name="Add this engine").click()
    expect(page.locator("#toasts")).to_contain_text("was added")
    engine = stage.services.fleet.list_engines(page_size=5, page_token=None).items[0]
    wait_until(lambda: stage.services.fleet.get_engine(int(engine.id)).server_id is not None)
    wait_until(lambda: stage.services.fleet.get_engine(int(engine.id)).health.state == "healthy")
    page.goto("/")
    page.get_by_role("region", name="First steps").get_by_role("link", name="Test it").click()
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.locator(".headline h1")).to_contain_text(re.compile("^Pass"), timeout=2 * PATIENCE_MS)
    page.goto("/")
    expect(page.get_by_role("region", name="First steps")).to_have_count(0)


def test_run_an_acceptance_test_and_read_why_it_did_not_pass(page: Page, stage: Stage) -> None:
    _, engine, _ = stage.registered()
    wait_until(lambda: stage.services.fleet.get_engine(int(engine)).health.state == "healthy")
    stage.sandbox.control.misbehave("engine/0", reset_lies=True)
    try:
        page.goto(f"/acceptance/new?engine_id={engine}")
        page.get_by_role("button", name="Start", exact=True).click()
        headline = page.locator(".headline")
        expect(headline.locator("h1")).to_contain_text(re.compile("^Invalid"), timeout=2 * PATIENCE_MS)
        found = page.locator("main")
        expect(found).to_contain_text("still served a prompt from it")
        # The way out stands beside it.
        expect(found).to_contain_text("each engine URL reaches exactly one engine")
    finally:
        stage.sandbox.control.misbehave("engine/0", reset_lies=False)


def test_a_living_overview_shifts_nothing(page: Page, stage: Stage) -> None:
    """Numbers move with every poll, bars and ribbons with them; no element moves from its place."""
    stage.registered()
    page.goto("/", wait_until="networkidle")
    page.evaluate("document.fonts.ready")
    page.evaluate(
        """() => { window.shifts = []; window.moved = 0;
        const name = s => s.node?.outerHTML?.slice(0, 120) ?? s.node?.textContent ?? "?";
        new PerformanceObserver(list => list.getEntries().forEach(e => {
          window.moved += e.value; window.shifts.push(...e.sources.map(name)) }))
          .observe({type: 'layout-shift', buffered: false}) }"""
    )
    said = {page.locator("main").inner_text()}
    for _ in range(6):
        with page.expect_response(lambda r: r.request.headers.get("hx-request") == "true"):
            page.evaluate("document.body.dispatchEvent(new CustomEvent('tick'))")
        page.wait_for_timeout(1500)
        said.add(page.locator("main").inner_text())
    assert len(said) > 2, "nothing moved at all: the test saw no live update"
    # Cumulative layout shift; 0.1 is what browsers still call good. A line that grows by a word is the most there is.
    assert page.evaluate("window.moved") < 0.02, page.evaluate("window.shifts")


def test_silence_an_alarm_from_the_alarm_itself(page: Page, stage: Stage) -> None:
    stage.with_history()
    wait_until(lambda: any(a.rule == "wrong_records" for a in stage.services.alerts.active()))
    page.goto("/alarms")
    card = page.locator(".card", has=page.get_by_role("heading", name="Wrong records are on disk")).first
    # Every alarm leads to its runbook.
    with page.expect_navigation():
        card.get_by_role("link", name="Runbook").click()
    assert page.url.endswith("/help/runbooks#answers-look-wrong")
    expect(page.locator("#answers-look-wrong")).to_be_in_viewport()
    page.go_back()
    card.get_by_role("link", name="Silence").click()
    page.get_by_label("Why").fill("cleaning tonight")
    page.get_by_role("button", name="Silence", exact=True).click()
    expect(page.locator("main")).to_contain_text("cleaning tonight")
    silences = stage.services.alerts.quiet.list_silences(page_size=5, page_token=None).items
    assert [s.comment for s in silences] == ["cleaning tonight"]


def test_find_and_clean_incompatible_records_then_put_them_back(page: Page, stage: Stage) -> None:
    store = stage.with_history()
    stage.every_engine()
    records = stage.services.records

    def wrong() -> int:
        found = records.summary(int(store)).by_class.get("incompatible")
        return found.records if found is not None else 0

    # The overview says it first, and leads to just these records.
    page.goto("/")
    page.get_by_role("link", name=re.compile("^See them and plan")).first.click()
    page.wait_for_url(re.compile(r"/records\?"))
    chosen = dict(parse_qsl(urlsplit(page.url).query))
    assert set(chosen["class"].split(",")) == {"incompatible", "unverified", "corrupt", "unreachable"}
    assert "derived" in chosen["reason"].split(",")
    count, _, exact = records.count_records(int(store), RecordFilter.from_query(chosen))
    assert exact
    assert count > 100
    expect(page.locator("main")).to_contain_text(f"{count:,} records")
    # A dry run first: it lists them, and removes nothing.
    page.get_by_role("button", name="Plan the removal of all that match").click()
    page.wait_for_url(re.compile(r"/cleanup/plans/\d+"))
    plan_id = int(page.url.rsplit("/", 1)[1])
    wait_until(lambda: stage.services.cleanup.get_plan(plan_id).state == "succeeded", 180)
    plan = stage.services.cleanup.get_plan(plan_id)
    assert (plan.records, plan.held_back) == (count, {})
    heading = page.get_by_role("heading", level=1)
    expect(heading).to_contain_text(f"{count:,} records would go", timeout=2 * PATIENCE_MS)
    before = wrong()
    files = len(list(stage.sandbox.store_path.glob("*.data")))
    page.get_by_role("button", name=f"Move these {count:,} into quarantine").click()
    page.wait_for_url(re.compile(r"/cleanup/runs/\d+"))
    run_id = page.url.rsplit("/", 1)[1]
    wait_until(lambda: stage.services.cleanup.get_run(int(run_id)).verdict is not None, 180)
    page.reload()
    expect(heading).to_contain_text(f"{count:,} records")
    run = stage.services.cleanup.get_run(int(run_id))
    assert (run.removed.records, run.in_quarantine.records, run.failed) == (count, count, [])
    assert run.verdict == "succeeded", (run.notes, run.steps)
    items = stage.services.cleanup.run_records(int(run_id), page_size=500, page_token=None).items
    gone = {item.name for item in items}
    assert not [name for name in gone if (stage.sandbox.store_path / name).exists()]
    gone_wrong = sum(item.class_ == "incompatible" for item in items)
    assert gone_wrong > 100
    wait_until(lambda: wrong() <= before - gone_wrong)
    # Back again, with a word of what that means.
    page.get_by_role("button", name=re.compile(r"^Put all .* back…")).click()
    dialog = page.locator("#put-back")
    expect(dialog).to_contain_text("engines can read them again")
    expect(dialog).to_contain_text("would give wrong answers")
    dialog.get_by_role("checkbox").check()
    dialog.get_by_role("button", name="Put them back, on hold").click()
    expect(page.locator("#toasts")).to_contain_text("put back")
    # What the panel has done is what the page says: the records themselves are counted, not the moment.
    wait_until(lambda: stage.services.cleanup.get_run(int(run_id)).in_quarantine.records == 0, 180)
    assert all((stage.sandbox.store_path / name).exists() for name in gone)
    assert len(list(stage.sandbox.store_path.glob("*.data"))) >= files
    page.reload()
    expect(page.locator("main")).to_contain_text("put back")
    expect(page.get_by_role("button", name=re.compile(r"^Put all .* back…"))).to_have_count(0)


def test_change_a_policy_and_lose_nothing_to_a_contradiction(page: Page, stage: Stage) -> None:
    _, _, store = stage.registered()
    body = PolicyInput(
        name="Keep it under a mark",
        store_id=store,
        enabled=False,
        select=[{"kind": "capacity", "high": "85%", "low": "70%"}],
        removal="delete",
    )
    policy = stage.services.cleanup.create_policy(body, actor="test")
    page.goto("/cleanup")
    page.get_by_role("link", name="Keep it under a mark").first.click()
    page.get_by_role("link", name="Edit").click()
    high, low = page.locator("#capacity_high"), page.locator("#capacity_low")
    expect(high).to_have_value("85%")
    # The low mark above the high one: refused with both named, and nothing typed is lost.
    high.fill("60%")
    low.fill("75%")
    page.get_by_label("Name", exact=True).fill("Keep it low")
    with page.expect_response(lambda r: r.request.method == "POST") as posted:
        page.get_by_role("button", name="Save").click()
    assert posted.value.status == 422
    problem = page.locator("#form-errors")
    expect(problem).to_contain_text("Nothing was changed")
    for mark in (high, low):
        expect(mark).to_have_attribute("aria-invalid", "true")
    expect(high).to_have_value("60%")
    expect(low).to_have_value("75%")
    expect(page.get_by_label("Name", exact=True)).to_have_value("Keep it low")
    unchanged = stage.services.cleanup.get_policy(int(policy.id))
    assert (unchanged.name, unchanged.select) == (policy.name, policy.select)
    # The browser reports every answer of 422; that was the point.
    assert len(page.complaints) == 1  # type: ignore[attr-defined]
    page.complaints.clear()  # type: ignore[attr-defined]
    # Mended, saved, and taken back from the toast.
    low.fill("50%")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#toasts")).to_contain_text("Keep it low was saved")
    changed = stage.services.cleanup.get_policy(int(policy.id))
    assert changed.select[0]["low"] == "50%"
    page.locator("#toasts").get_by_role("button", name="Undo").click()
    expect(page.locator("#toasts")).to_contain_text("as it was before")
    assert stage.services.cleanup.get_policy(int(policy.id)).select == policy.select


#: Pages of rooms that the preview has no samples of.
OTHER_PAGES = (
    "/checks", "/checks/rules", "/benchmark", "/benchmark/new", "/experiments", "/sizing", "/launch", "/alarms",
    "/alarms/rules", "/alarms/rules/hit_rate_low", "/alarms/history", "/alarms/quiet", "/alarms/notifiers",
    "/alarms/facts", "/settings/users", "/api/docs",
)  # fmt: skip


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious_on_the_pages_of_a_running_panel(
    browser: Browser, stage: Stage, session: dict[str, object], theme: Literal["light", "dark"]
) -> None:
    stage.with_history()
    context = browser.new_context(
        base_url=stage.panel.url,
        storage_state=session,  # type: ignore[arg-type]
        color_scheme=theme,
        reduced_motion="reduce",
    )
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    found = {}
    for path in OTHER_PAGES:
        page.goto(path)
        page.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true })")
        if wrong := grave(page, ALL if theme == "light" else COLOURS):
            found[path] = wrong
    context.close()
    assert found == {}, "\n".join(f"{path}: {text}" for path, texts in found.items() for text in texts)


def test_with_scripts_blocked_every_page_reads(browser: Browser, stage: Stage, session: dict[str, object]) -> None:
    server, engine, store = stage.registered()
    context = browser.new_context(
        base_url=stage.panel.url,
        storage_state=session,  # type: ignore[arg-type]
        java_script_enabled=False,
    )
    page = context.new_page()
    page.goto("/")
    links = page.locator("nav[aria-label=Main] a").evaluate_all("list => list.map(e => e.getAttribute('href'))")
    assert len(links) >= 14
    for path in [*links, f"/servers/{server}", f"/engines/{engine}", f"/stores/{store}", f"/stores/{store}/records"]:
        answer = page.goto(path)
        assert answer is not None
        assert answer.status == 200, path
        assert len(page.locator("main").inner_text()) > 40, path
        assert page.locator("h1").count() == 1, path
    context.close()
