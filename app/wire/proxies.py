"""The proxy between the panel and an address, as the environment says: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY.

Loopback is never asked by way of a proxy. Behind one, the peer of a connection says nothing about the target: what its
name leads to is looked up here before anything is sent, and where only the proxy knows the name, the proxy decides.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

import httpx

from app.errors import TargetError
from app.wire import destinations

_SCHEMES = ("http", "https")
_HEAD_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class HttpProxy:
    """An HTTP proxy. `url` may hold a password: show `name` (host and port) only."""

    url: str
    name: str

    @classmethod
    def parse(cls, url: str) -> Self:
        """Raises TargetError ``refused`` for one that cannot be used, without showing its password."""
        text = url if "://" in url else f"http://{url}"
        try:
            parts = urlsplit(text)
            host, port = parts.hostname, parts.port
        except ValueError:
            parts, host, port = urlsplit(""), None, None
        if parts.scheme not in _SCHEMES or not host:
            raise TargetError(
                "refused",
                f"the proxy of the environment is no HTTP proxy ({parts.scheme or 'unreadable'}); set HTTP_PROXY and "
                "HTTPS_PROXY to http://host:port, or list this host in NO_PROXY",
            )
        return cls(text, f"{host}:{port or (443 if parts.scheme == 'https' else 80)}")

    async def connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection through the proxy to where `host` and `port` are. Raises TargetError ``refused``."""
        parts = urlsplit(self.url)
        reader, writer = await asyncio.open_connection(
            parts.hostname, int(self.name.rpartition(":")[2]), ssl=True if parts.scheme == "https" else None
        )
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        head = [f"CONNECT {where} HTTP/1.1", f"Host: {where}"]
        if parts.username is not None:
            secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            head.append(f"Proxy-Authorization: Basic {base64.b64encode(secret.encode()).decode()}")
        try:
            writer.write("\r\n".join([*head, "", ""]).encode("latin-1", "replace"))
            answer = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.LimitOverrunError, asyncio.IncompleteReadError) as error:
            writer.close()
            raise TargetError("refused", f"the proxy {self.name} does not answer in HTTP") from error
        words = answer[:_HEAD_BYTES].split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
        if len(words) < 2 or words[1] != "200":
            writer.close()
            said = " ".join(words[1:])[:60] or "nothing readable"
            raise TargetError(
                "refused",
                f"the proxy {self.name} opens no connection to {where} ({said}). Before its first request the panel "
                "only listens there, since HTTP sent to LMCache's message port would stop that server: allow CONNECT "
                f"to it, or list {host} in NO_PROXY",
            )
        return reader, writer


def proxy_of(url: str, environment: Mapping[str, str] | None = None) -> HttpProxy | None:
    """The proxy for an address; None where it is asked directly. Raises TargetError ``refused``.

    environment: {"http": …, "https": …, "all": …, "no": …} in place of the process's own.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    proxies = dict(getproxies_environment() if environment is None else environment)
    found = proxies.get(parts.scheme) or proxies.get("all")
    if not found or is_loopback(host):
        return None
    netloc = f"{host}:{parts.port}" if parts.port else host
    if proxy_bypass_environment(netloc, proxies) or _in_listed_network(host, proxies.get("no", "")):
        return None
    return HttpProxy.parse(found)


def for_httpx(proxy: HttpProxy | None) -> httpx.Proxy | None:
    """As httpx takes it."""
    return None if proxy is None else httpx.Proxy(proxy.url)


def is_loopback(host: str) -> bool:
    """Whether it is this machine, by address or by name."""
    try:
        return destinations.embedded(ipaddress.ip_address(host)).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost" or host.lower().rstrip(".").endswith(".localhost")


def _in_listed_network(host: str, listed: str) -> bool:
    """NO_PROXY entries such as 10.0.0.0/8, which the standard library does not read."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    for entry in listed.split(","):
        try:
            if address in ipaddress.ip_network(entry.strip(), strict=False):
                return True
        except ValueError:
            continue
    return False


async def check_behind(host: str) -> None:
    """Raises TargetError ``refused`` where `host`, as far as it is known here, leads to a forbidden address."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return
    for *_, address in found:
        destinations.check_peer(address[0])
