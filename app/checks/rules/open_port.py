"""Who can reach the server's HTTP port without a key?"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from app.checks.base import Check, Finding
from app.checks.facts import Facts, ServerSide

_ALL = ("0.0.0.0", "::", "")  # noqa: S104


_WHO = {
    "all": "all interfaces", "public": "a public address", "private": "its network", "loopback": "this host only",
}  # fmt: skip


class OpenPort(Check):
    id = "open_port"
    title = "The server's HTTP port is not open to everybody"
    looks_at = (
        "--http-host and --run-script-api-enabled of the server; whether it answers beyond loopback without a key"
    )
    why = (
        "That port has no authentication (an API key comes with 0.5.7): whoever reaches it can clear the cache, read "
        "the whole environment with its secrets at /env, and with --run-script-api-enabled run code."
    )
    source = "LMCache#5128, #1944, #2757; lmcache server --help"

    def check(self, facts: Facts) -> Iterable[Finding]:
        server = facts.server
        if server is None or server.config is None:
            return
        host, scripts = server.config.http_host, bool(server.config.run_script_api_enabled)
        if host is None and server.answers_from is None:
            yield self.unknown(server.name, "the server does not tell where its HTTP port listens")
            return
        fix = "lmcache server --http-host 127.0.0.1, with a proxy or an SSH tunnel for those who need it"
        values = {
            "configured": host,
            "effective": _WHO[_reach(host)] + (", run_script enabled" if scripts else ""),
            "origin": "command line" if server.planned else "/config of the server",
        }
        seen = f"; it answered at {', '.join(server.answers_from)} without a key" if server.answers_from else ""
        if server.answers_from == () and host in _ALL:
            seen = "; it did not answer beyond loopback from this host"
        reach = _reach(host)
        if scripts and reach != "loopback":
            yield self.fail(
                server.name,
                f"listens on {host} with the run_script interface: whoever reaches it runs code on this host{seen}",
                title="Anybody who reaches the port can run code",
                fix=f"--no-run-script-api-enabled; {fix}",
                **values,
            )
        elif reach != "loopback" and server.key_refused and not server.answers_from:
            yield self.ok(server.name, f"listens on {host}, and asks for a key beyond loopback", **values)
        elif reach == "all" and self._in_bridge(facts, server):
            yield self.warn(
                server.name,
                "listens on all interfaces of its container; published ports are open to whoever reaches the host",
                title="The port is protected by the container network only",
                fix="do not publish the port, or publish it as 127.0.0.1:8080:8080",
                **values,
            )
        elif reach in ("all", "public"):
            yield self.fail(
                server.name,
                f"listens on {'all interfaces' if reach == 'all' else host} without a key{seen}",
                title="The HTTP port is open to everybody",
                fix=fix,
                **values,
            )
        elif reach == "private":
            yield self.warn(
                server.name,
                f"listens on {host}: everybody in that network can clear the cache and read its environment{seen}",
                title="The HTTP port is open to the network",
                fix=f"{fix}, or a firewall",
                **values,
            )
        else:
            yield self.ok(server.name, f"listens on {host}", **values)

    @staticmethod
    def _in_bridge(facts: Facts, server: ServerSide) -> bool:
        """Whether a container network stands before the port (and no answer beyond loopback was seen)."""
        own = next((item for item in facts.containers if item.role == "server"), None)
        return own is not None and own.network != "host" and not server.answers_from


def _reach(host: str | None) -> str:
    if host is None or host in _ALL:
        return "all"
    if host == "localhost":
        return "loopback"
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "private"  # a name: whatever it is, it is not loopback by declaration
    if address.is_loopback:
        return "loopback"
    return "private" if address.is_private or address.is_link_local else "public"
