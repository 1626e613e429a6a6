"""axe-core (WCAG 2.2 A and AA, best practices) finds nothing serious on any page, in either theme, wide or narrow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.conftest import Preview
from tests.unit.web.pages import all_pages

pytestmark = pytest.mark.timeout(900)
AXE = (Path(__file__).parent / "vendor/axe/axe.min.js").read_text("utf-8")
NAMES = list(all_pages())
GRAVE = ("serious", "critical")
ALL: dict[str, Any] = {"resultTypes": ["violations"]}
#: What a theme or a width can change; the rest was looked at with the light and wide page.
COLOURS: dict[str, Any] = {**ALL, "runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}
LAYOUT: dict[str, Any] = {
    **ALL,
    "runOnly": {"type": "rule", "values": ["target-size", "scrollable-region-focusable"]},
}


def grave(page: Page, options: dict[str, Any]) -> list[str]:
    """What axe calls serious or critical, each with the elements it means."""
    page.evaluate(AXE)  # not a <script>: the pages' security policy would not let one in
    found = page.evaluate("options => axe.run(document, options)", options)["violations"]
    return [
        f"{v['id']}: {node['html'][:160]} | {node['failureSummary'][:200]}"
        for v in found
        if v["impact"] in GRAVE
        for node in v["nodes"][:3]
    ]


@pytest.mark.parametrize(
    ("theme", "width", "options"),
    [("light", 1440, ALL), ("dark", 1440, COLOURS), ("light", 390, LAYOUT)],
    ids=["light", "dark", "narrow"],
)
def test_axe_finds_nothing_serious(
    browser: Browser, preview: Preview, theme: Any, width: int, options: dict[str, Any]
) -> None:
    context = browser.new_context(
        base_url=preview.url,
        color_scheme=theme,
        reduced_motion="reduce",
        viewport={"width": width, "height": 900},
    )
    page = context.new_page()
    found: dict[str, list[str]] = {}
    for name in NAMES:
        page.goto(f"/p/{name}")
        # What is folded away is read too.
        page.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true })")
        if wrong := grave(page, options):
            found[name] = wrong
    context.close()
    assert found == {}, "\n".join(f"{name}: {text}" for name, texts in found.items() for text in texts)


def test_axe_would_find_something(page: Page) -> None:
    page.goto("/")
    page.evaluate("document.querySelector('main').insertAdjacentHTML('beforeend', '<button></button><img src=x>')")
    ids = {text.split(":")[0] for text in grave(page, ALL)}
    assert {"button-name", "image-alt"} <= ids
    page.complaints.clear()  # type: ignore[attr-defined]  # the image is not there
