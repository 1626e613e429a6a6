"""Nothing listens on 9090."""

from __future__ import annotations

from collections.abc import Iterable

from app.checks.base import Check, Finding
from app.checks.facts import Facts

DEFAULT = 9090


class PrometheusPort(Check):
    id = "prometheus_port"
    title = "Nobody expects metrics on the Prometheus port"
    looks_at = "--prometheus-port of the server"
    why = (
        "`lmcache server` serves /metrics on its HTTP port (8080). --prometheus-port belongs to the server without an "
        "HTTP front end and is ignored here: a scrape job on 9090 sees a dead target."
    )
    source = "LMCache#3962; measured with LMCache 0.5.6"

    def check(self, facts: Facts) -> Iterable[Finding]:
        server = facts.server
        if server is None or server.config is None or server.config.prometheus_port is None:
            return
        port, http = server.config.prometheus_port, server.config.http_port
        values = {
            "configured": port,
            "effective": f"metrics on port {http or 8080}",
            "origin": "command line" if server.planned else "/config of the server",
        }
        if port != DEFAULT and port != http:
            yield self.warn(
                server.name,
                f"--prometheus-port {port} was set, but nothing listens there: scrape port {http or 8080}",
                title="The Prometheus port was set and does nothing",
                fix=f"scrape http://HOST:{http or 8080}/metrics and leave out --prometheus-port",
                **values,
            )
        else:
            yield self.ok(server.name, f"the default; metrics are on port {http or 8080}", **values)
