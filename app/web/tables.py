"""The tables of a rendered page as rows, for spreadsheets and programs. Pure.

What is downloaded is what the page says: the same template, the same filters, the same rights. Where the page rounds
(sizes, times), the exact value stands beside it (`data-bytes`, `datetime`) and is taken instead.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import unescape
from html.parser import HTMLParser
from urllib.parse import parse_qsl, urlencode

#: A spreadsheet would take a cell that begins with one of these for a formula; names come from disks and servers.
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_NUMBER = re.compile(r"[+-]?(\d+|\d{1,3}(,\d{3})+)(\.\d+)?")
_BYTES = re.compile(r"-?\d+ bytes")
_VOID = frozenset({"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "wbr"})
#: What a table shows but does not say: buttons, forms, pictures, dialogs.
_SILENT = frozenset({"button", "form", "script", "style", "template", "svg", "select", "progress"})
#: Nothing is put between the texts of these and their neighbours.
_INLINE = frozenset({"b", "i", "em", "strong", "wbr", "a", "abbr"})
_PLACES = re.compile(
    r"<(?P<level>h[1-4])\b[^>]*>(?P<heading>.*?)</(?P=level)>"
    r"|<table\b(?P<attributes>[^>]*)>(?:\s*<caption\b[^>]*>(?P<caption>.*?)</caption>)?",
    re.DOTALL,
)
_TAG = re.compile(r"<[^>]*>")


@dataclass(frozen=True)
class Listed:
    """A table that a page has. `name` is unique on its page and stable: part of an address."""

    name: str
    title: str
    own: bool  # the page has its own, fuller download of it


@dataclass
class Table:
    """What a table says: `rows` have the columns of `head`; `next` is the address of the page with more rows."""

    head: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    next: str | None = None

    def columns_of_bytes(self) -> frozenset[int]:
        """Columns whose sizes stand alone in their cells, as ``1234 bytes``."""
        return frozenset(i for i in range(len(self.head)) if any(_BYTES.fullmatch(row[i]) for row in self.rows))

    def in_bytes(self, columns: frozenset[int]) -> Table:
        """The same with the unit of those columns in their heads, so that their cells are numbers."""
        head = [f"{title} (bytes)" if i in columns and title != "bytes" else title for i, title in enumerate(self.head)]
        rows = [
            [c.removesuffix(" bytes") if i in columns and _BYTES.fullmatch(c) else c for i, c in enumerate(row)]
            for row in self.rows
        ]
        return Table(head, rows, self.next)


class _Reader(HTMLParser):
    """Collects tables; knows nothing of what they are about."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tables: list[Table] = []
        self._table: Table | None = None
        self._row: list[str] | None = None
        self._cell: list[str] | None = None
        self._picture = ""  # what a picture in the cell is called, for cells that are nothing else
        self._head_row = False
        self._spanned = False
        self._skipping: list[str] = []  # open elements inside one that is silent
        self._frozen: list[str] = []  # open elements inside one whose exact value was taken
        self._in_foot = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if self._skipping or self._frozen:
            if tag not in _VOID:
                (self._skipping or self._frozen).append(tag)
            return
        if tag == "a" and values.get("rel") == "next" and self._table is None and self.tables:
            self.tables[-1].next = values.get("href")
        if tag == "table":
            self._table = Table()
        if self._table is None:
            return
        if tag in _SILENT or "popover" in values:
            if tag == "svg" and self._cell is not None and values.get("aria-label"):
                self._picture = self._picture or values["aria-label"]
            self._skipping.append(tag)
        elif tag == "tfoot":
            self._in_foot = True
        elif tag == "thead":
            self._head_row = True
        elif tag == "tr":
            self._row, self._spanned = [], False
        elif tag in ("td", "th"):
            self._cell, self._picture = [], ""
            self._spanned = self._spanned or "colspan" in values
        elif self._cell is not None:
            self._exact(tag, values)

    def _exact(self, tag: str, values: dict[str, str]) -> None:
        """Inside a cell: takes the exact value where the page shows a rounded or shortened one."""
        assert self._cell is not None
        exact = values.get("datetime") if tag == "time" else None
        if "data-bytes" in values:
            exact = f"{values['data-bytes']} bytes"
        elif tag == "code" and values.get("title"):
            exact = values["title"]
        elif "data-full" in values:
            exact = values["data-full"]
        if exact is not None:
            self._cell.append(f" {exact} ")
            self._frozen.append(tag)
        elif tag not in _INLINE:
            self._cell.append(" ")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._cell is not None and not self._skipping:
            self._cell.append(" ")

    def handle_endtag(self, tag: str) -> None:
        for stack in (self._skipping, self._frozen):
            if stack:
                if tag in stack:
                    while stack.pop() != tag:
                        pass
                return
        if self._table is None:
            return
        if tag in ("td", "th") and self._cell is not None and self._row is not None:
            self._row.append(_plain(self._cell) or self._picture)
            self._cell = None
        elif tag == "tr" and self._row is not None:
            self._end_row(self._table, self._row)
            self._row = None
        elif tag == "thead":
            self._head_row = False
        elif tag == "tfoot":
            self._in_foot = False
        elif tag == "table":
            self._end_table(self._table)
            self._table = None
        elif self._cell is not None and tag not in _INLINE:
            self._cell.append(" ")

    def handle_data(self, data: str) -> None:
        if self._cell is not None and not self._skipping and not self._frozen:
            self._cell.append(data)

    def _end_row(self, table: Table, row: list[str]) -> None:
        if self._head_row:
            table.head = row
        elif not self._in_foot and not (len(row) == 1 and self._spanned):  # a row of one cell says "nothing yet"
            table.rows.append(row)

    def _end_table(self, table: Table) -> None:
        width = max([len(table.head), *(len(row) for row in table.rows)], default=0)
        table.head += ["what", *(["value"] if width == 2 else [f"value {i}" for i in range(1, width)])][
            len(table.head) : width
        ]
        for row in table.rows:
            row += [""] * (width - len(row))
        _drop_actions(table)
        self.tables.append(table)


def listed(page: str) -> list[Listed]:
    """The tables of a page's HTML, in their order: each is called as its caption, or the heading above it, says.

    Looks at headings only: every page is asked this when it is drawn.
    """
    found: list[Listed] = []
    heading = "Table"
    for place in _PLACES.finditer(page) if "<table" in page else ():
        if place["level"]:
            heading = _text(place["heading"]) or heading
            continue
        title = _text(place["caption"] or "") or heading
        if title != heading and title in {t.title for t in found}:
            title = f"{heading}: {title}"
        name = _name(title, {t.name for t in found})
        found.append(Listed(name, title, "data-own-download" in place["attributes"]))
    return found


def table_url(path: str, name: str, kind: str) -> str:
    """Where one table of the page at `path` (with its filters) is downloaded: all of it, from the first page on."""
    where, _, query = path.partition("?")
    kept = [(k, v) for k, v in parse_qsl(query) if k not in ("format", "table", "page_token")]
    return f"{where}?{urlencode([*kept, ('format', kind), ('table', name)])}"


def table_in(page: str, name: str) -> Table | None:
    """One table of a page's HTML, or None when it has none of that name. Rows of a foot (sums) are no rows."""
    names = [table.name for table in listed(page)]
    if name not in names:
        return None
    reader = _Reader()
    reader.feed(page)
    reader.close()
    return reader.tables[names.index(name)]


def csv_text(rows: Sequence[Sequence[str]]) -> str:
    """Rows as RFC 4180 has them; a cell that a spreadsheet would compute is told to be text."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerows([_inert(cell) for cell in row] for row in rows)
    return out.getvalue()


def json_lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """One object a row, in the order of the columns; columns of one name are numbered."""
    keys: list[str] = []
    for name in head:
        key, number = name or "column", 2
        while key in keys:
            key, number = f"{name} {number}", number + 1
        keys.append(key)
    return "".join(json.dumps(dict(zip(keys, row, strict=True)), ensure_ascii=False) + "\n" for row in rows)


def _inert(cell: str) -> str:
    return f"'{cell}" if cell.startswith(FORMULA) and not _NUMBER.fullmatch(cell) else cell


def _plain(pieces: list[str]) -> str:
    text = re.sub(r" (?=[,.;:)](?:\s|$))", "", " ".join("".join(pieces).split()))
    return text.replace(",", "") if _NUMBER.fullmatch(text) else text


def _text(html: str) -> str:
    return " ".join(unescape(_TAG.sub(" ", html)).split())


def _drop_actions(table: Table) -> None:
    """Columns of buttons say nothing."""
    for index in reversed([i for i, title in enumerate(table.head) if title == "actions"]):
        for row in (table.head, *table.rows):
            del row[index]


def _name(title: str, taken: set[str]) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:48].rstrip("-") or "table"
    name, number = slug, 2
    while name in taken:
        name, number = f"{slug}-{number}", number + 1
    return name
