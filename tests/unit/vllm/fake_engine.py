"""A raw server that answers with the captures of one engine, and streams cut as a test wishes."""

from __future__ import annotations

import json
from typing import Any

from tests.unit.wire.raw_http import RawServer, capture, chunked, reply

METRICS_TYPE = "text/plain; version=1.0.0; charset=utf-8"


def recorded(name: str) -> dict[str, Any]:
    """A recorded completion: request, status, content_type, body (text)."""
    found: dict[str, Any] = json.loads(capture(f"engine/{name}"))
    return found


def replay(name: str, *, piece: int | None = None) -> bytes:
    """The recorded answer, a stream in chunks of `piece` bytes (None: one chunk)."""
    found = recorded(name)
    body = found["body"].encode()
    if not str(found["content_type"]).startswith("text/event-stream"):
        return reply(body, found["status"])
    pieces = [body] if piece is None else [body[start : start + piece] for start in range(0, len(body), piece)]
    return chunked(*pieces, content_type=found["content_type"])


def events(*values: object, done: bool = True) -> bytes:
    """A stream of these JSON values (bytes go as they are)."""
    lines = [
        value if isinstance(value, bytes) else b"data: " + json.dumps(value).encode() + b"\n\n" for value in values
    ]
    return b"".join(lines) + (b"data: [DONE]\n\n" if done else b"")


def captured_engine() -> RawServer:
    """Health, version, models, metrics and configuration as vLLM 0.32 answered them."""
    return RawServer(
        {
            "GET /health": reply(""),
            "GET /version": reply(capture("engine/with-lmcache.version.json")),
            "GET /v1/models": reply(capture("engine/with-lmcache.v1_models.json")),
            "GET /metrics": reply(capture("engine/with-lmcache.metrics.txt"), content_type=METRICS_TYPE),
            "GET /server_info": reply(capture("engine/with-lmcache.server_info.config_json.json")),
        }
    )
