"""A server that stands between a panel and a cache server and keeps every answer the panel was given."""

from __future__ import annotations

import http.client
import json
import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

from tests.real.restarter import Quiet
from tests.real.stack.clients import samples, total

#: The window of the hit rate: what a process younger than this has counted is recent.
YOUNG_SECONDS = 300.0
_LOOKUP = "lmcache_mp_lookup_{}_tokens_total"


@dataclass
class Tape:
    """The answers in their order: (epoch seconds when it was whole, body)."""

    statuses: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    metrics: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)

    def status_at(self, at: float) -> dict[str, Any] | None:
        """The last /status given until `at`."""
        return next((body for when, body in reversed(self.statuses) if when <= at), None)

    def hit_rates(self) -> list[tuple[float, float]]:
        """(time, hit tokens / requested tokens since the scrape before), where any were requested. A process has
        counted from zero, so the first scrape of a young one tells all it ever counted.
        """
        found = []
        nothing: dict[str, float] = {}
        for (_, before), (at, after) in pairwise([(0.0, nothing), *self.metrics]):
            born = after.get("process_start_time_seconds")
            if not before and (born is None or at - born > YOUNG_SECONDS):
                continue
            same = before.get("process_start_time_seconds") == born
            hit, requested = (
                (total(after, name) or 0.0) - ((total(before, name) or 0.0) if same else 0.0)
                for name in (_LOOKUP.format("hit"), _LOOKUP.format("requested"))
            )
            if requested > 0:
                found.append((at, hit / requested))
        return found


def recording(url: str, tape: Tape) -> type[Quiet]:
    """Forwards GET; what cannot be forwarded is cut off without an answer, as by a server that is not there."""
    parts = urlsplit(url)

    class Handler(Quiet):
        def do_GET(self) -> None:
            try:
                connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=20)
                connection.request("GET", self.path)
                answer = connection.getresponse()
                body = answer.read()
                connection.close()
            except (OSError, http.client.HTTPException):
                tape.refused.append(time.time())
                self.close_connection = True
                self.connection.close()
                return
            if answer.status == 200 and self.path == "/status":
                tape.statuses.append((time.time(), json.loads(body)))
            elif answer.status == 200 and self.path == "/metrics":
                tape.metrics.append((time.time(), samples(body.decode())))
            self.send_response(answer.status)
            self.send_header("content-type", answer.getheader("content-type") or "text/plain")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler
