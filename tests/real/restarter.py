"""Small HTTP servers that stand between a panel and the real stack: a restart webhook, and an engine that lies."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class Quiet(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length") or 0))


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The handler on a free port; its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def webhook(restart: Callable[[str], None]) -> type[BaseHTTPRequestHandler]:
    """Restarts what the panel names (``server`` or ``engine``) before it answers."""

    class Handler(Quiet):
        def do_POST(self) -> None:
            told = json.loads(self.body())
            status = 204
            try:
                restart(told["target"])
            except Exception:
                status = 500
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

    return Handler


def lying_engine(url: str) -> type[BaseHTTPRequestHandler]:
    """Everything goes on to the engine but the reset, which is answered with success and not made."""
    parts = urlsplit(url)

    class Handler(Quiet):
        def do_GET(self) -> None:
            self._forward("GET", None)

        def do_POST(self) -> None:
            body = self.body()
            if self.path.startswith("/reset_prefix_cache"):
                self._say(200, {"content-type": "application/json"}, b'{"success":true}')
            else:
                self._forward("POST", body)

        def _say(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _forward(self, method: str, body: bytes | None) -> None:
            connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=480)
            connection.request(method, self.path, body, {"content-type": "application/json"})
            answer = connection.getresponse()
            # Read whole: what is tested here is not the time to the first token.
            kind = answer.getheader("content-type") or "text/plain"
            self._say(answer.status, {"content-type": kind}, answer.read())
            connection.close()

    return Handler
