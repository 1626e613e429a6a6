"""What a browser makes of the pages: policy, live parts, keys, theme, charts, narrow windows, no scripts."""

from __future__ import annotations

import re
import time

import pytest
from playwright.sync_api import Browser, Page, expect

from app.telemetry.metrics import CATALOGUE
from tests.browser.conftest import Preview, wait_until
from tests.unit.web.pages import all_pages

TICK = "document.body.dispatchEvent(new CustomEvent('tick'))"
NAMES = list(all_pages())


def renewed(page: Page) -> None:
    """Asks the live part again and waits until the answer is in the page."""
    with page.expect_response(lambda r: r.request.headers.get("hx-request") == "true"):
        page.evaluate(TICK)
    page.wait_for_timeout(80)


@pytest.mark.parametrize("width", [390, 1440, 2560])
def test_no_page_is_wider_than_its_window_and_none_breaks_the_policy(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    wide = []
    for name in NAMES:
        page.goto(f"/p/{name}")
        if page.evaluate("document.documentElement.scrollWidth > innerWidth + 1"):
            wide.append(name)
    assert wide == []


def test_live_parts_keep_focus_open_rows_and_scroll(page: Page) -> None:
    page.goto("/")
    more = page.locator("details.more-link").first
    more.locator("summary").click()
    link = page.locator("main table a").first
    link.focus()
    page.evaluate("scrollTo(0, 300)")
    page.evaluate("document.querySelector('main table').dataset.mine = 'kept'")
    before = page.evaluate("scrollY")
    renewed(page)
    assert more.evaluate("e => e.open")
    assert page.evaluate("document.activeElement.matches('main table a')")
    assert page.evaluate("scrollY") == before
    # The very same element: nothing was thrown away and built anew.
    assert page.locator("main table").first.evaluate("e => e.isConnected")


def test_live_updates_shift_nothing(page: Page) -> None:
    page.goto("/", wait_until="load")
    page.evaluate("document.fonts.ready")
    page.evaluate(
        """() => { window.shifts = [];
        const name = s => s.node?.outerHTML?.slice(0, 120) ?? s.node?.textContent ?? "?";
        new PerformanceObserver(l => l.getEntries().forEach(e => window.shifts.push(...e.sources.map(name))))
          .observe({type: 'layout-shift', buffered: false}) }"""
    )
    for _ in range(3):
        renewed(page)
    assert page.evaluate("window.shifts") == []


def test_ages_count_from_the_panels_clock(page: Page, browser: Browser, preview: Preview) -> None:
    """The preview's clock stands at a fixed moment, so the browser's is wrong by hours or months."""
    context = browser.new_context(base_url=preview.url, java_script_enabled=False)
    served = context.new_page()
    served.goto("/")
    ages = "time[data-rel]"
    said = served.locator(ages).all_text_contents()
    context.close()
    page.goto("/", wait_until="load")
    renewed(page)
    shown = page.locator(ages).all_text_contents()
    # Seconds go on counting while the page is open.
    slow = [(a, b) for a, b in zip(said, shown, strict=True) if not a.endswith("s ago") and a != "now"]
    assert len(slow) > 2
    assert [a for a, _ in slow] == [b for _, b in slow]


def test_a_lost_connection_is_said_and_found_again(page: Page, preview: Preview) -> None:
    page.goto("/")
    notice = page.locator("#connection")
    expect(notice).to_be_hidden()
    preview.stop()
    page.evaluate(TICK)
    expect(notice).to_be_visible()
    expect(page.locator("#live-state")).to_have_text("connection lost")
    # What was there stays readable.
    expect(page.locator("main table").first).to_be_visible()
    preview.start()
    page.evaluate(TICK)
    expect(notice).to_be_hidden()
    page.complaints.clear()  # type: ignore[attr-defined]  # the refused connection itself is reported


def test_an_error_answer_does_not_replace_the_page(page: Page) -> None:
    page.goto("/")
    page.route("**/*", lambda route: route.fulfill(status=500, content_type="text/html", body="<p>broken</p>"))
    page.evaluate(TICK)
    expect(page.locator("#connection")).to_contain_text("error (500)")
    expect(page.locator("main table").first).to_be_visible()
    page.complaints.clear()  # type: ignore[attr-defined]


def test_polling_rests_in_a_hidden_tab_and_when_paused(page: Page) -> None:
    page.goto("/")
    asked: list[str] = []
    page.on("request", lambda r: asked.append(r.url) if r.headers.get("hx-request") else None)
    page.keyboard.press("p")
    expect(page.locator("#live-state")).to_have_text("paused")
    page.keyboard.press("p")
    page.wait_for_timeout(150)
    assert len(asked) == 1  # going on asks at once
    page.evaluate(
        """() => { Object.defineProperty(document, 'hidden', {get: () => true, configurable: true});
        document.body.dataset.pollSeconds = '1' }"""
    )
    page.wait_for_timeout(5600)
    assert len(asked) == 1


def test_news_renews_the_live_part_at_once_and_a_page_nobody_sees_hears_none(page: Page, preview: Preview) -> None:
    page.goto("/")
    streams, news = preview.app.state.streams, preview.app.state.news
    wait_until(lambda: streams.count == 1)
    began = time.monotonic()
    with page.expect_response(lambda r: r.request.headers.get("hx-request") == "true"):
        for _ in range(20):  # work that moves on is no reason to ask twenty times
            news.tell("scan")
    asked: list[str] = []
    page.on("request", lambda r: asked.append(r.url) if r.headers.get("hx-request") else None)
    page.wait_for_timeout(1500)
    assert time.monotonic() - began < 4.5
    assert len(asked) <= 1
    page.keyboard.press("p")
    wait_until(lambda: streams.count == 0)
    page.keyboard.press("p")
    wait_until(lambda: streams.count == 1)
    page.evaluate(
        """() => { Object.defineProperty(document, 'hidden', {get: () => true, configurable: true});
        document.dispatchEvent(new Event('visibilitychange')); }"""
    )
    wait_until(lambda: streams.count == 0)


def test_theme_follows_the_system_and_the_choice(browser: Browser, preview: Preview) -> None:
    context = browser.new_context(base_url=preview.url, color_scheme="dark")
    page = context.new_page()
    page.goto("/")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.emulate_media(color_scheme="light")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert dark != light
    page.keyboard.press("t")  # from the system's to dark
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark
    assert {c["name"]: c["value"] for c in context.cookies()}["tierkeeper-theme"] == "dark"
    context.close()


def test_keys(page: Page) -> None:
    page.goto("/")
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#keys")).to_be_hidden()
    page.keyboard.press("j")
    first = page.evaluate("document.activeElement.href")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.href") != first
    page.keyboard.press("g")
    page.keyboard.press("s")
    page.wait_for_url("**/servers")


def test_a_dialog_works_by_keyboard_alone(page: Page) -> None:
    page.goto("/p/plan-delete")
    opener = page.get_by_role("button", name="Delete these")
    opener.focus()
    page.keyboard.press("Enter")
    dialog = page.locator("#confirm")
    expect(dialog).to_be_visible()
    # The next stop of the tab key is inside of it, and its end is the way back.
    page.keyboard.press("Tab")
    assert page.evaluate("document.querySelector('#confirm').contains(document.activeElement)")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert opener.evaluate("e => e === document.activeElement")


def test_nothing_moves_for_those_who_asked_for_that(page: Page, browser: Browser, preview: Preview) -> None:
    moving = """() => document.getAnimations().filter(a => a.playState === 'running'
      && a.effect.getComputedTiming().duration > 10).length"""
    context = browser.new_context(base_url=preview.url, reduced_motion="no-preference")
    lively = context.new_page()
    lively.goto("/p/acceptance-running")
    assert lively.evaluate(moving) > 0
    context.close()
    for name in ("acceptance-running", "run-running", "store-scanning", "plan-running", "overview"):
        page.goto(f"/p/{name}")
        assert page.evaluate(moving) == 0, name


def test_charts_come_in_the_room_that_was_kept_for_them(page: Page) -> None:
    page.goto("/p/server")
    expect(page.locator(".chart .uplot").first).to_be_visible()
    assert page.locator(".chart .uplot").count() == 6
    heights = page.locator(".chart").evaluate_all("list => list.map(e => e.getBoundingClientRect().height)")
    assert max(heights) - min(heights) < 2
    page.locator(".chart .u-over").first.hover()
    expect(page.locator(".chart .u-legend .u-value").first).not_to_have_text("—")
    # A theme change draws them anew, a poll leaves them alone.
    page.keyboard.press("t")
    assert page.locator(".chart .uplot").count() == 6
    renewed(page)
    assert page.locator(".chart .uplot").count() == 6


def test_a_chart_of_a_gauge_shows_the_extremes_of_each_bucket(page: Page) -> None:
    page.goto("/p/server")
    chart = page.locator('.chart[data-title="L1 used"]')
    other = page.locator('.chart[data-title="Hit rate"]')
    expect(chart.locator(".uplot")).to_be_visible()
    expect(other.locator(".uplot")).to_be_visible()
    # Two hidden edges beside the line: the band between them is drawn, and the read-out names it.
    assert chart.locator(".u-series.edge").count() == 2
    assert other.locator(".u-series.edge").count() == 0
    chart.locator(".u-over").hover()
    expect(chart.locator(".u-value").nth(1)).to_contain_text(re.compile(r"GiB \(.* to .*GiB\)"))
    expect(chart.locator(".u-series.edge").first).to_be_hidden()


def test_charts_share_a_cursor_zoom_and_tell_what_happened(page: Page) -> None:
    page.goto("/p/server")
    first, second = (page.locator(f'.chart[data-title="{title}"]') for title in ("Hit rate", "L1 used"))
    for chart in (first, second):
        expect(chart.locator(".uplot")).to_be_visible()
    over = first.locator(".u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2

    def time_at(share: float) -> str:
        page.mouse.move(box["x"] + box["width"] * share, middle)
        expect(first.locator(".u-value").first).not_to_have_text("—")
        return first.locator(".u-value").first.inner_text()

    # One cursor: the other chart reads the same moment.
    whole = time_at(0.1)
    assert second.locator(".u-value").first.inner_text() == whole
    # A drag zooms, a double click goes back.
    page.mouse.move(box["x"] + box["width"] * 0.5, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.9, middle, steps=5)
    page.mouse.up()
    assert time_at(0.1) != whole
    # What was chosen can be seen in finer steps, at an address of its own.
    finer = first.locator(".chart-mark a")
    expect(finer).to_be_visible()
    assert re.search(r"/servers/1/history\?metric=hit_rate&from=20.*Z&to=20.*Z$", finer.get_attribute("href") or "")
    over.dblclick()
    assert time_at(0.1) == whole
    expect(finer).to_be_hidden()
    # What happened is told where the cursor meets its line.
    told = set()
    for x in range(0, int(box["width"]), 5):
        page.mouse.move(box["x"] + x, middle)
        told.add(first.locator(".chart-mark").inner_text())
    assert any("became" in text or "restarted" in text or "Acceptance" in text for text in told), told


def test_no_two_ticks_of_an_axis_read_the_same(page: Page) -> None:
    """For every unit that a series has, from the smallest steps to the largest."""
    units = {m.unit for metrics in CATALOGUE.values() for m in metrics.values()} - {"bool"}
    assert len(units) > 10
    page.goto("/p/server")
    expect(page.locator(".chart .uplot").first).to_be_visible()
    for unit in sorted(units):
        for step in (0.00025, 0.005, 0.25, 1, 2.5, 100, 1500, 2**20, 2.5e9):
            if step > 1 and unit == "ratio":
                continue
            ticks = [step * n for n in range(6)]
            said = page.evaluate("([unit, ticks]) => window.tierkeeperCharts.labels(unit, ticks)", [unit, ticks])
            assert len(set(said)) == 6, (unit, step, said)
            assert max(map(len, said)) <= 22, (unit, said)
    # The axis is as wide as its longest label: the plot begins right of it.
    for chart in page.locator(".chart").all():
        chart.evaluate("e => { e.dataset.unit = 'tokens_per_second' }")
    page.keyboard.press("t")  # drawn anew
    lefts = page.locator(".chart .u-over").evaluate_all("list => list.map(e => parseFloat(e.style.left))")
    assert max(lefts) > 74, lefts
    cores = page.evaluate("window.tierkeeperCharts.labels('cores', [0, 0.005, 0.01, 0.015])")
    assert [text.replace("\u00a0", " ") for text in cores] == [
        "0.000 cores",
        "0.005 cores",
        "0.010 cores",
        "0.015 cores",
    ]


def test_a_typed_confirmation_holds_the_button(page: Page) -> None:
    page.goto("/p/plan-delete")
    page.get_by_role("button", name="Delete these").click()
    dialog = page.locator("#confirm")
    button = dialog.locator("[type=submit]")
    expect(button).to_be_disabled()
    dialog.locator("input[name=confirm]").fill("nvme-a")
    expect(button).to_be_enabled()


def test_copying(browser: Browser, preview: Preview) -> None:
    context = browser.new_context(base_url=preview.url)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto("/p/record")
    page.locator(".copy").first.click()
    assert page.evaluate("navigator.clipboard.readText()").endswith(".data")
    expect(page.locator("#toasts")).to_contain_text("Copied")
    context.close()


def test_everything_reads_without_scripts(browser: Browser, preview: Preview) -> None:
    context = browser.new_context(base_url=preview.url, java_script_enabled=False)
    page = context.new_page()
    for name in NAMES:
        page.goto(f"/p/{name}")
        assert page.locator("main").inner_text().strip(), name
    page.goto("/p/plan-delete")
    # Dialogs and the menu are popovers: the browser opens them by itself.
    page.get_by_role("button", name="Delete these").click()
    expect(page.locator("#confirm")).to_be_visible()
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto("/")
    page.get_by_role("button", name="Menu").click()
    expect(page.get_by_role("link", name="Cleanup", exact=True)).to_be_visible()
    context.close()
