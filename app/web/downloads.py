"""Every table of every page as CSV or JSON lines: ``?format=csv&table=NAME`` at the page's own address.

The page is drawn as for whoever asks (same filters, same rights), its table is read, and the pages behind it are
followed until there is none: one page is in memory at a time. Pages need nothing for that; their layout finds their
tables (`app.web.tables`) and links to them.
"""

from __future__ import annotations

import contextlib
import gzip
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.problems import is_api, respond
from app.web.tables import Table, csv_text, json_lines, listed, table_in

FORMATS = {"csv": "text/csv; charset=utf-8", "jsonl": "application/x-ndjson"}
#: Rows asked for at once, where a page takes the number: fewer pages to draw.
ROWS = "500"
#: A list longer than this has an export of its own.
MAX_PAGES = 2000


@dataclass
class _Answer:
    """What the application answered to one page."""

    start: Message
    body: bytes

    @property
    def html(self) -> str | None:
        """The page, or None when it is none: a redirect to the sign-in, an error, a file."""
        headers = Headers(raw=self.start["headers"])
        if self.start["status"] != 200 or not headers.get("content-type", "").startswith("text/html"):
            return None
        packed = headers.get("content-encoding") == "gzip"
        return (gzip.decompress(self.body) if packed else self.body).decode()


class TableDownloads:
    """Middleware: stands inside of everything that checks requests, around the routes."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = parse_qsl(scope.get("query_string", b"").decode("latin-1")) if scope["type"] == "http" else []
        asked = dict(query)
        kind, name = asked.get("format", "").lower(), asked.get("table", "").lower()
        request = Request(scope) if scope["type"] == "http" else None
        if not kind or request is None or scope["method"] not in ("GET", "POST") or is_api(request):
            await self.app(scope, receive, send)
            return
        if kind not in FORMATS:
            detail = f"format: {kind[:40]!r} is none of {', '.join(FORMATS)}; ask for ?format=csv&table=NAME"
            await respond(request, 400, "bad_request", "Bad request", detail, ())(scope, receive, send)
            return
        kept = [(k, v) for k, v in query if k not in ("format", "table", "page_token", "page_size")]
        first = await self._ask(scope, [*kept, ("page_size", ROWS)], receive)
        page = first.html
        if page is None:
            await send(first.start)
            await send({"type": "http.response.body", "body": first.body})
            return
        names = [listing.name for listing in listed(page)]
        if not name and len(names) == 1:
            name = names[0]
        table = table_in(page, name)
        if table is None:
            there = f"it has {', '.join(names)}" if names else "it has none just now"
            detail = f"table: this page has no table of that name; {there}" if name else f"table: name one; {there}"
            await respond(request, 404, "not_found", "Not found", detail, ())(scope, receive, send)
            return
        rows = self._rows(scope, table, name, kind)
        # Names of files are made of what a page is called, never of what others wrote.
        place = "-".join(part for part in scope["path"].split("/") if part.isascii() and part.isalnum())
        headers = {"Content-Disposition": f'attachment; filename="{"-".join(filter(None, (place, name)))}.{kind}"'}
        await StreamingResponse(rows, media_type=FORMATS[kind], headers=headers)(scope, receive, send)

    async def _rows(self, scope: Scope, table: Table, name: str, kind: str) -> AsyncIterator[str]:
        """The text of the table, a piece a page."""
        sizes = table.columns_of_bytes()
        table = table.in_bytes(sizes)
        head = table.head
        if kind == "csv":
            yield csv_text([head])
        for _ in range(MAX_PAGES):
            yield csv_text(table.rows) if kind == "csv" else json_lines(head, table.rows)
            if table.next is None:
                return
            query = parse_qsl(urlsplit(table.next).query)
            page = (await self._ask({**scope, "method": "GET"}, query)).html
            found = table_in(page, name) if page else None
            # A row of text in place of the rest would look like data: what is cut short must be seen to be.
            if found is None:
                raise ConnectionAbortedError("a page of the table could not be read")
            table = found.in_bytes(sizes)
        raise ConnectionAbortedError("the table has more pages than are followed")

    async def _ask(self, scope: Scope, query: list[tuple[str, str]], receive: Receive | None = None) -> _Answer:
        """One page, drawn as for the one who asks. Pages of a GET have no body to receive."""
        headers = MutableHeaders(raw=list(scope["headers"]))
        for name in ("accept-encoding", "hx-request"):
            with contextlib.suppress(KeyError):
                del headers[name]
        inner: dict[str, Any] = {
            **scope,
            "headers": headers.raw,
            "query_string": urlencode(query).encode("ascii"),
            "state": dict(scope.get("state") or {}),
        }
        start: Message = {}
        pieces: list[bytes] = []

        async def nothing() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def keep(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
            else:
                pieces.append(message.get("body", b""))

        await self.app(inner, receive if receive is not None and scope["method"] == "POST" else nothing, keep)
        return _Answer(start, b"".join(pieces))
