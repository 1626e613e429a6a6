"""A command that calls a panel: what the panel says becomes the command's error, whichever command it is."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from app.commands.remote_panel import PanelUnreachable, remote_panel
from app.errors import Conflict, InvalidInput, NotFound, TierkeeperError

STORES = [{"id": "7", "name": "cache"}, {"id": "8", "name": "7"}, {"id": "9", "name": "Big"}]


class _Answers(BaseHTTPRequestHandler):
    """`/api/v1/stores`: a list in pages of one. `/api/v1/status/N`: a problem of that status."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/api/v1/stores":
            at = int(parse_qs(url.query).get("page_token", ["0"])[0])
            more = str(at + 1) if at + 1 < len(STORES) else None
            return self._say(200, json.dumps({"items": [STORES[at]], "next_page_token": more}))
        if url.path == "/api/v1/page":
            return self._say(200, "<html>")
        return self._say(int(url.path.rsplit("/", 1)[-1]), json.dumps({"detail": "name: 'x' is taken"}))

    def _say(self, status: int, body: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_args: object) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, InvalidInput),
        (404, NotFound),
        (409, Conflict),
        (413, InvalidInput),
        (422, InvalidInput),
        (401, PanelUnreachable),
        (500, PanelUnreachable),
    ],
)
def test_what_the_panel_says_is_what_the_command_says(url: str, status: int, error: type[TierkeeperError]) -> None:
    with remote_panel(url, None) as panel, pytest.raises(error, match="name: 'x' is taken"):
        panel.call("GET", f"/status/{status}")


def test_something_else_than_a_panel_is_named(url: str) -> None:
    with remote_panel(url, None) as panel, pytest.raises(PanelUnreachable, match="is no panel"):
        panel.call("GET", "/page")


def test_nothing_that_answers_is_named_with_its_address() -> None:
    with (
        remote_panel("http://127.0.0.1:9", None) as panel,
        pytest.raises(PanelUnreachable, match=r"127\.0\.0\.1:9/api/v1/ does not answer"),
    ):
        panel.call("GET", "/stores")


def test_no_address_names_the_option() -> None:
    with pytest.raises(InvalidInput, match="--url: 'http://a:b' is not an address"), remote_panel("http://a:b", None):
        pass


@pytest.mark.parametrize(("wanted", "ident"), [("cache", "7"), ("CACHE", "7"), ("7", "8"), ("9", "9"), ("big", "9")])
def test_a_name_wins_over_an_id_and_every_page_is_read(url: str, wanted: str, ident: str) -> None:
    with remote_panel(url, None) as panel:
        assert panel.find("/stores", "store", wanted) == ident


def test_an_unknown_name_tells_those_there_are(url: str) -> None:
    with remote_panel(url, None) as panel, pytest.raises(NotFound, match="registered are: 7, Big, cache"):
        panel.find("/stores", "store", "other")
