"""The frame around every page: the alarms' count, toasts with a way on, and numbers that are old."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import httpx
import pytest

from app.alerts.schemas import AlertCounts
from app.web import frame
from app.web.contexts import Toast
from tests.support.panel import Panel
from tests.unit.web.test_pages import PLAIN, Document, render


def counts(**over: int) -> AlertCounts:
    values: dict[str, Any] = dict.fromkeys(AlertCounts.model_fields, 0)
    return AlertCounts(**(values | over))


@pytest.mark.parametrize(
    ("found", "count", "kind", "means"),
    [
        (counts(), 0, "info", "alarms fire"),
        (counts(info=1), 1, "info", "alarm fires"),
        (counts(warning=2, info=1), 3, "warn", "alarms fire"),
        (counts(critical=1, warning=2), 3, "bad", "alarms fire"),
    ],
)
def test_the_navigation_says_how_many_alarms_fire_in_the_colour_of_the_worst(
    found: AlertCounts, count: int, kind: str, means: str
) -> None:
    item = next(i for i in frame.navigation(found) if i.key == "alarms")
    assert (item.count, item.kind, item.count_means) == (count, kind, means)
    assert [i for i in frame.navigation(found) if i.key != "alarms" and i.count] == []


def test_a_badge_is_read_out_and_nought_is_none() -> None:
    text = render("overview", PLAIN)
    (badge,) = re.findall(r'<span class="count s-(\w+)">(\d+)<span class="vh"> ([^<]+)</span></span>', text)
    assert badge == ("bad", "1", "new problems")


def flash(**over: str) -> str:
    told = {"k": "ok", "t": "Done.", "p": "", "l": "", "u": ""} | over
    return base64.urlsafe_b64encode(json.dumps(told).encode()).decode()


def test_a_toast_leads_on_inside_the_panel_only() -> None:
    assert frame._read_flash(flash(p="/cleanup/runs/3", l="See the run")) == Toast(
        "ok", "Done.", "/cleanup/runs/3", "See the run"
    )
    for path in ("https://evil.example/", "//evil.example", "/\\evil.example", "/a\nb"):
        read = frame._read_flash(flash(p=path, l="x"))
        assert read is not None
        assert read.link_path == "/"
    for broken in ("", "%%%", base64.urlsafe_b64encode(b"[1]").decode(), base64.urlsafe_b64encode(b"{}").decode()):
        assert frame._read_flash(broken) is None


def test_a_toast_is_text_with_one_link(panel: Panel) -> None:
    browser: httpx.Client = panel.browser()
    browser.cookies.set(frame.FLASH_COOKIE, flash(t="<b>12</b> went", p="/cleanup/runs/3", l="See the run"))
    text = browser.get("/servers").text
    toast = re.search(r'<div class="toast">.*?</div>', text, re.DOTALL)
    assert toast is not None
    assert "&lt;b&gt;12&lt;/b&gt; went" in toast.group()
    assert [a["href"] for a in Document(toast.group()).all("a")] == ["/cleanup/runs/3"]
    assert Document(toast.group()).all("form") == []


def test_numbers_of_a_server_that_is_away_are_dimmed_and_their_time_is_said() -> None:
    away, well = render("server-down", PLAIN), render("server", PLAIN)
    assert 'class="tiles aged"' in away
    assert 'class="tiles aged"' not in well
    assert "The numbers below are from" in away
    rows = re.findall(r'<tr class="aged">.*?</tr>', render("overview", PLAIN), re.DOTALL)
    assert rows
    for row in rows:
        assert "unreachable" in row
