"""The tables of the demo's pages, downloaded as somebody would; who may, what is refused, long lists to their end."""

from __future__ import annotations

import csv
import html
import io
import json
import re
import time
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from app.auth.schemas import TokenInput
from app.web import downloads
from app.web.tables import listed, table_in
from tests.support.demo import PASSWORD, running_demo
from tests.support.panel import Panel

#: One page of each kind is looked at: what follows a number in an address is the same page of something else.
_KIND = re.compile(r"/\d+")
_LINK = re.compile(r'<a\b[^>]*\bhref="(/[^"#]*)"')
_DOWNLOAD = re.compile(r'<a href="([^"]*format=csv[^"]*)"[^>]*\bdownload>', re.DOTALL)
#: Shapes of pages that nothing links to before something was done.
MORE = ("/activity?view=audit", "/alarms/facts", "/settings/users", "/settings/tokens", "/search?q=sandbox")


def rows_of(answer: httpx.Response) -> list[list[str]]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert re.fullmatch(r'attachment; filename="[\w-]+\.csv"', answer.headers["content-disposition"])
    return list(csv.reader(io.StringIO(answer.text)))


@pytest.fixture(scope="module")
def demo() -> Iterator[httpx.Client]:
    with running_demo() as (url, _, _), httpx.Client(base_url=url, timeout=60.0) as client:
        client.headers["Origin"] = url
        assert client.post("/login", data={"username": "admin", "password": PASSWORD}).status_code == 303
        until = time.monotonic() + 120
        while not client.get("/api/v1/acceptance-runs").json()["items"]:  # the last thing the tour does
            assert time.monotonic() < until, "the demo's tour did not end"
            time.sleep(0.5)
        yield client


def walk(client: httpx.Client) -> dict[str, str]:
    """One page of every kind that links lead to, from the overview on: address -> HTML."""
    found: dict[str, str] = {}
    kinds: set[str] = set()
    waiting = ["/", *MORE]
    while waiting:
        path = waiting.pop(0)
        kind = _KIND.sub("/*", path.split("?")[0]) + ("?view" if "view=" in path else "")
        if kind in kinds or path.startswith(("/api/", "/static", "/help", "/style", "/logout")):
            continue
        kinds.add(kind)
        answer = client.get(path)
        if answer.status_code != 200 or not answer.headers["content-type"].startswith("text/html"):
            continue
        found[path] = answer.text
        waiting += [html.unescape(link) for link in _LINK.findall(answer.text) if "format=" not in link]
    return found


@pytest.mark.timeout(300)
def test_every_table_of_the_demo_can_be_downloaded(demo: httpx.Client) -> None:
    pages = walk(demo)
    assert len(pages) > 35, sorted(pages)
    seen = 0
    for path, page in pages.items():
        links = {
            parse_qs(urlsplit(html.unescape(a)).query)["table"][0]: html.unescape(a) for a in _DOWNLOAD.findall(page)
        }
        for table in listed(page):
            if table.own:
                own = re.search(r'href="(/api/v1/[^"]*\.csv[^"]*)"', page)
                assert own is not None, (path, table)
                assert demo.get(html.unescape(own.group(1))).headers["content-type"].startswith("text/csv")
                continue
            shown = table_in(page, table.name)
            assert shown is not None
            answer = demo.get(links[table.name])
            # The demo goes on living: what stands on the page before and after is what must be in the file.
            still = table_in(demo.get(path).text, table.name)
            if still is None:
                continue
            rows = rows_of(answer)
            head, body = rows[0], rows[1:]
            assert len(head) == len(shown.head), (path, table)
            assert [h.removesuffix(" (bytes)") for h in head] == shown.head
            names = {row[0] for row in shown.rows} & {row[0] for row in still.rows}
            said = {row[0].removeprefix("'") for row in body}
            gone = [name for name in names if name not in said]
            assert len(gone) <= max(2, len(names) // 4), (path, table, gone)
            assert len(body) >= min(len(shown.rows), len(still.rows)) - 2
            lines = demo.get(links[table.name].replace("format=csv", "format=jsonl"))
            if lines.status_code == 404:
                continue
            assert lines.headers["content-type"].startswith("application/x-ndjson")
            assert all(len(json.loads(line)) == len(head) for line in lines.text.splitlines())
            seen += 1
    assert seen > 30


def test_a_long_list_is_followed_to_its_end(panel: Panel, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(34):
        panel.services.auth.create_token(TokenInput(name=f"=long-{number}", role="viewer"), actor="test")
    monkeypatch.setattr(downloads, "ROWS", "10")
    client = panel.browser()
    asked = "/activity?view=audit&page_size=20"
    table = listed(client.get(asked).text)[0]
    rows = rows_of(client.get(f"{asked}&format=csv&table={table.name}"))
    every = client.get("/api/v1/audit?page_size=500").json()["items"]
    assert len(rows) - 1 == len(every) > 34
    when = rows[0].index("when")
    assert [row[when] for row in rows[1:]] == [entry["at"] for entry in every]


def test_it_shows_what_the_page_shows_to_whoever_asks(panel: Panel) -> None:
    asked = "/settings/users?format=csv&table=users"
    stranger = httpx.Client(base_url=panel.url, headers={"Accept": "text/html"})
    answer = stranger.get(asked)
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/login")
    stranger.close()
    viewer = panel.client("viewer")
    page, file = viewer.get("/settings/users"), viewer.get(asked)
    assert page.status_code == file.status_code == 403
    assert "password" not in file.text
    assert rows_of(panel.browser().get(asked))[1][0].startswith("admin")


def test_what_is_not_there_is_said(panel: Panel) -> None:
    client = panel.browser()
    missing = client.get("/servers?format=csv&table=nothing")
    assert missing.status_code == 404
    assert "no table of that name" in missing.text
    assert "it has" in missing.text or "it has none just now" in missing.text
    other = client.get("/settings/users?format=xls&table=users")
    assert other.status_code == 400
    assert "csv, jsonl" in other.text
    assert client.get("/servers/99999?format=csv&table=x").status_code == 404


def test_capitals_mean_the_same_and_a_page_of_one_table_needs_no_name(panel: Panel) -> None:
    client = panel.browser()
    wanted = rows_of(client.get("/settings/users?format=csv&table=users"))
    assert rows_of(client.get("/settings/users?format=CSV&table=Users"))[0] == wanted[0]
    assert rows_of(client.get("/settings/users?format=csv"))[0] == wanted[0]
    unnamed = client.get("/activity?format=CSV")
    assert unnamed.status_code == 404
    assert "table: name one" in unnamed.text


def test_the_answer_to_a_form_is_downloaded_by_its_form(panel: Panel) -> None:
    client = panel.browser()
    data = {
        "bytes_per_token": "57344", "tensor_parallel": "1", "pipeline_parallel": "1", "kv_cache_dtype": "auto",
        "l1_gib": "20", "l2_gb": "100", "order": "cyclic", "contexts": "12", "tokens": "1000",
    }  # fmt: skip
    page = client.post("/sizing", data=data)
    assert page.status_code == 200, page.text
    table = listed(page.text)[0]
    button = re.search(rf'form="post-sizing"\s+formaction="([^"]*format=csv[^"]*table={table.name})"', page.text)
    assert button is not None
    rows = rows_of(client.post(html.unescape(button.group(1)), data=data))
    shown = table_in(page.text, table.name)
    assert shown is not None
    assert len(rows) - 1 == len(shown.rows) > 0
