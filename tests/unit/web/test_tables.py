"""Every table of every page can be taken away as a file, and says there what it says on the page."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from urllib.parse import parse_qs, urlsplit

import pytest

from app.web.tables import Table, csv_text, json_lines, listed, table_in, table_url
from tests.unit.web.test_pages import HOSTILE, PLAIN, render

_DOWNLOAD = re.compile(r'<a href="([^"]*)"[^>]*\bdownload>')
_BODY_ROW = re.compile(r"<tr\b[^>]*>(.*?)</tr>", re.DOTALL)


def rows_in(table: str) -> int:
    """Rows of a table's body, those that only say "nothing yet" left out."""
    bodies = re.findall(r"<tbody\b[^>]*>(.*?)</tbody>", table, re.DOTALL)
    rows = [row for body in bodies for row in _BODY_ROW.findall(body)]
    return len([row for row in rows if not (row.count("<td") + row.count("<th") == 1 and "colspan" in row)])


@pytest.mark.parametrize("name", PLAIN)
def test_every_table_of_every_page_has_its_files(name: str) -> None:
    page = render(name, PLAIN)
    if PLAIN[name][1].shell.current == "help":
        return
    links = [parse_qs(urlsplit(html.unescape(href)).query) for href in _DOWNLOAD.findall(page)]
    offered = {(q["table"][0], q["format"][0]) for q in links if "table" in q}
    tables = re.findall(r"<table\b.*?</table>", page, re.DOTALL)
    names = listed(page)
    assert len(names) == len(tables)
    assert len({t.name for t in names}) == len(names)
    for table, text in zip(names, tables, strict=True):
        if table.own:
            assert re.search(r'href="[^"]*(records\.csv|openapi\.json)', page), (name, table)
            continue
        assert {(table.name, "csv"), (table.name, "jsonl")} <= offered, (name, table)
        found = table_in(page, table.name)
        assert found is not None
        assert len(found.rows) == rows_in(text), (name, table)
        assert all(len(row) == len(found.head) for row in found.rows)
        assert all(found.head), (name, table, found.head)
        # No row is empty, and no column is: what is drawn has its word here too.
        assert all(any(row) for row in found.rows), (name, table)


@pytest.mark.parametrize("name", HOSTILE)
def test_what_others_wrote_is_no_formula(name: str) -> None:
    page = render(name, HOSTILE)
    for table in listed(page):
        found = table_in(page, table.name)
        assert found is not None
        text = csv_text([found.head, *found.rows])
        for row in csv.reader(io.StringIO(text)):
            assert len(row) == len(found.head)
            assert not [c for c in row if c[:1] in tuple("=+@\t\r-") and not re.fullmatch(r"[+-]?[\d.]+", c)], table


def test_a_cell_that_begins_like_a_formula_is_text() -> None:
    cells = ["=1+1", "+cmd", "-2+3", "@sum", "\tx", "-12.5", "+3", 'a "b", c', "two\nlines", "–"]
    said = list(csv.reader(io.StringIO(csv_text([cells]))))
    assert said == [["'=1+1", "'+cmd", "'-2+3", "'@sum", "'\tx", "-12.5", "+3", 'a "b", c', "two\nlines", "–"]]
    assert csv_text([["a", "b"]]) == "a,b\r\n"


def test_columns_of_one_name_are_told_apart_in_json() -> None:
    line = json_lines(["a", "a", ""], [["1", "é", '"']])
    assert line.endswith("\n")
    assert json.loads(line) == {"a": "1", "a 2": "é", "column": '"'}


PAGE = """
<h2>Stores <span>2</span></h2>
<div><table class="t"><thead><tr><th>name</th><th>size</th><th>seen</th><th><span class="vh">actions</span></th></tr>
</thead><tbody>
<tr><th><a href="/x">one</a> <button>copy</button></th><td><span data-bytes="1234567">1.2 MB</span></td>
<td><time datetime="2026-01-02T03:04:05Z" title="x">3 min ago</time>, healthy</td><td><form><input></form></td></tr>
<tr><th>two<div popover><p>a dialog</p></div></th><td><i class="unk">unknown</i></td><td>1,234</td><td></td></tr>
</tbody><tfoot><tr><td>sum</td></tr></tfoot></table></div>
<nav><a rel="next" href="/stores?page_token=abc">Next</a></nav>
<h3>Stores 2</h3><table><tbody><tr><td colspan="2">None yet.</td></tr></tbody></table>
<table><caption>Lights</caption><tbody><tr><th>a</th><td><svg aria-label="3 values"><title>x</title></svg></td></tr>
</tbody></table>
"""


def test_exact_values_stand_where_the_page_rounds() -> None:
    assert [(t.name, t.title) for t in listed(PAGE)] == [
        ("stores-2", "Stores 2"),
        ("stores-2-2", "Stores 2"),
        ("lights", "Lights"),
    ]
    first = table_in(PAGE, "stores-2")
    assert first is not None
    assert first.head == ["name", "size", "seen"]
    assert first.rows == [["one", "1234567 bytes", "2026-01-02T03:04:05Z, healthy"], ["two", "unknown", "1234"]]
    assert first.next == "/stores?page_token=abc"
    whole = first.in_bytes(first.columns_of_bytes())
    assert whole.head[1] == "size (bytes)"
    assert [row[1] for row in whole.rows] == ["1234567", "unknown"]
    second, third = table_in(PAGE, "stores-2-2"), table_in(PAGE, "lights")
    assert second is not None
    assert (second.rows, second.next) == ([], None)
    assert third is not None
    assert (third.head, third.rows) == (["what", "value"], [["a", "3 values"]])
    assert table_in(PAGE, "nothing") is None


def test_a_column_of_bytes_does_not_say_it_twice() -> None:
    table = Table(["name", "bytes"], [["one", "12 bytes"]])
    assert table.in_bytes(table.columns_of_bytes()) == Table(["name", "bytes"], [["one", "12"]])


def test_the_address_keeps_the_filters_and_begins_at_the_first_page() -> None:
    assert table_url("/a?class=x+y&page_token=t&format=csv", "rows", "csv") == "/a?class=x+y&format=csv&table=rows"
