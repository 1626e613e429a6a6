"""A raw server that answers with the captures of one cache server."""

from __future__ import annotations

from tests.unit.wire.raw_http import RawServer, capture, reply

METRICS_TYPE = "text/plain; charset=utf-8"


def captured_server(folder: str = "server-with-engine", prefix: str = "after-traffic.") -> RawServer:
    """Health, status, metrics, configuration, version and adapters as LMCache 0.5.6 answered them."""
    return RawServer(
        {
            "GET /": reply(capture("server-with-engine/root.json")),
            "GET /healthcheck": reply(capture("server-with-engine/healthcheck.json")),
            "GET /status": reply(capture(f"{folder}/{prefix}status.json")),
            "GET /metrics": reply(capture(f"{folder}/{prefix}metrics.txt"), content_type=METRICS_TYPE),
            "GET /config": reply(capture(f"{folder}/{prefix}config.json")),
            "GET /config/adapters": reply(capture("server-with-engine/config_adapters.json")),
            "GET /version": reply(capture("server-with-engine/version.txt")),
        }
    )
