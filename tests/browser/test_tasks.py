"""What people come for, done in a browser on a real panel beside a real (simulated) cache: one panel for all tasks."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, Page, expect

from app.commands.demo_history import seed_history
from app.fleet.schemas import EngineCreate, ServerCreate, StoreCreate
from app.sandbox import SandboxThread, demo_specs
from app.services import Services
from tests.browser.conftest import wait_until
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
