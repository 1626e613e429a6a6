"""Addresses of targets: one normal form, and what may not be entered. Pure, but for the resolver that is passed in.

Normal form: ``scheme://host:port[/path]``, host in lower case, port always written, no trailing slash.

Refused, naming the field: anything but http and https, user names and passwords (they end up in logs; there is a field
for the API key), query and fragment, the endpoints themselves (``…/metrics``: the base address is wanted), addresses
that no target can have (unspecified, multicast, broadcast), and link-local and cloud metadata addresses, whichever way
they are written, unless the setting ALLOW_LINK_LOCAL permits them: whoever may add a target must not be able to make
the panel fetch a machine's credentials. A name is also looked up: one that points there is refused, one that does not
resolve just now is kept (the target may be down).
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from app.errors import InvalidInput
from app.wire.destinations import embedded, is_local_secret

#: Host name -> textual addresses; an empty list where it does not resolve.
Resolver = Callable[[str], list[str]]

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_METADATA_NAMES = frozenset(
    {"metadata", "metadata.google.internal", "metadata.goog", "instance-data", "instance-data.ec2.internal"}
)
_LABEL = re.compile(r"^(?!-)[a-z0-9_-]{1,63}(?<!-)$")
_NUMERIC_HOST = re.compile(r"^(0x[0-9a-f]*|\d+)(\.(0x[0-9a-f]*|\d+))*\.?$")
#: What only lacks its scheme: a name or address, perhaps a port and a path.
_BARE = re.compile(r"([a-z0-9_.\-]+|\[[0-9a-f:.]+\])(:\d{1,5})?(/.*)?", re.IGNORECASE)
_ENDPOINTS = re.compile(
    r"/(metrics|status|healthcheck|health|config|conf|version|v1(/.*)?|api/(status|healthcheck)|openapi\.json|docs)$"
)


@dataclass(frozen=True)
class Address:
    """A usable address. `key` is equal for two ways of writing the same one (localhost is 127.0.0.1)."""

    url: str
    host: str
    port: int
    key: str

    @property
    def default_name(self) -> str:
        """For a target without a name: its host, with the port where the host is only a number or this machine."""
        bare = self.host == "localhost" or _literal(self.host) is not None
        return f"{self.host}:{self.port}" if bare else self.host


def parse_address(
    text: str, *, field: str = "url", allow_link_local: bool = False, resolve: Resolver | None = None
) -> Address:
    """The normal form of what was entered. Raises InvalidInput naming `field`."""
    entered = text.strip()
    if any(ord(c) <= 32 or ord(c) == 127 for c in entered) or "\\" in entered:
        raise _refuse(field, text, "has blanks, control characters or backslashes in it")
    if "://" not in entered:
        bare = entered.lstrip("/")
        if _BARE.fullmatch(bare):
            raise _refuse(field, text, f"has no scheme; write http://{bare}")
        raise _refuse(field, text, "is no address; write it like http://host:8080")
    try:
        parts = urlsplit(entered)
        port = parts.port
    except ValueError as error:
        raise _refuse(field, text, f"cannot be read ({error}); write http://host:port") from None
    scheme = parts.scheme.lower()
    if scheme not in ("http", "https"):
        raise _refuse(field, text, "must start with http:// or https://")
    if parts.username is not None or parts.password is not None:
        raise _refuse(field, "(hidden)", "must not hold a user name or password; use api_key or headers")
    if "?" in entered or "#" in entered:
        raise _refuse(field, text, "must not have a query or fragment; write only http://host:port")
    if port == 0:
        raise _refuse(field, text, "has port 0; ports go from 1 to 65535")
    host = _host(field, text, parts.hostname or "")
    path = _path(field, text, parts.path)
    port = port or (443 if scheme == "https" else 80)
    literal = _literal(host)
    _check_reachable(field, text, host, literal, allow_link_local)
    if literal is None and resolve is not None:
        for found in resolve(host):
            _check_reachable(field, f"{text} (resolves to {found})", host, _literal(found), allow_link_local)
    shown = f"[{host}]" if isinstance(literal, ipaddress.IPv6Address) else host
    url = f"{scheme}://{shown}:{port}{path}"
    same = "127.0.0.1" if host == "localhost" else shown
    return Address(url=url, host=host, port=port, key=f"{scheme}://{same}:{port}{path}")


def check_host(field: str, host: str, *, allow_link_local: bool = False, resolve: Resolver | None = None) -> None:
    """Raises InvalidInput where nobody may make the panel call this host (metadata, link-local, no host at all).

    For addresses that are not targets, such as where messages go; whatever else is written in them is not looked at.
    """
    name = host.strip("[]").lower().removesuffix(".")
    literal = _literal(name)
    _check_reachable(field, host, name, literal, allow_link_local)
    if literal is None and resolve is not None:
        for found in resolve(name):
            _check_reachable(field, f"{host} (resolves to {found})", name, _literal(found), allow_link_local)


def address_key(url: str) -> str:
    """The comparison key of an address in normal form."""
    return url.replace("://localhost:", "://127.0.0.1:", 1)


def system_resolver(host: str) -> list[str]:
    """The addresses of a name by the system's resolver, or none."""
    try:
        return sorted({str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)})
    except (OSError, UnicodeError):
        return []


def _refuse(field: str, text: str, why: str) -> InvalidInput:
    shown = text if len(text) <= 120 else text[:117] + "…"
    return InvalidInput.field(field, f"{shown!r} {why}")


def _host(field: str, text: str, host: str) -> str:
    host = host.lower()
    if ":" in host:  # urlsplit has taken the brackets off
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            raise _refuse(field, text, "has an IPv6 address that cannot be read") from None
        if getattr(address, "scope_id", None):
            raise _refuse(field, text, "has an IPv6 zone; use an address without one")
        return address.compressed
    host = host.removesuffix(".")
    if not host:
        raise _refuse(field, text, "has no host; write http://host:port")
    if _NUMERIC_HOST.match(host):
        # 2852039166, 0xA9FEA9FE and 0251.0376.1 are read as IPv4 by the system: only the plain form is taken.
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError:
            raise _refuse(field, text, "has a numeric host that is not four numbers such as 10.0.0.7") from None
    try:
        host = host.encode("idna").decode("ascii") if not host.isascii() else host
    except UnicodeError:
        raise _refuse(field, text, "has a host name that cannot be written in DNS") from None
    if len(host) > 253 or not all(_LABEL.match(label) for label in host.split(".")):
        raise _refuse(field, text, "has a host name with characters that DNS does not allow")
    return host


def _path(field: str, text: str, path: str) -> str:
    path = path.rstrip("/")
    if not path:
        return ""
    endpoint = _ENDPOINTS.search(path)
    if endpoint:
        base = text.strip().rstrip("/")[: -len(endpoint.group(0))]
        raise _refuse(field, text, f"is one of its pages; enter the base address {base}")
    segments = path.split("/")[1:]
    if any(s in ("", ".", "..") for s in segments) or not re.fullmatch(r"[\w%~.+@:,;=!$&'()*/-]+", path, re.ASCII):
        raise _refuse(field, text, "has a path that cannot be used; a path is only needed behind a reverse proxy")
    return path


def _literal(host: str) -> _Address | None:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return address


def _check_reachable(field: str, text: str, host: str, literal: _Address | None, allow_link_local: bool) -> None:
    if literal is not None:
        address = embedded(literal)
        if address.is_unspecified or address.is_multicast or address == ipaddress.IPv4Address("255.255.255.255"):
            raise _refuse(field, text, "is no address a target can have (unspecified, multicast or broadcast)")
        forbidden = is_local_secret(address)
    else:
        forbidden = host in _METADATA_NAMES
    if forbidden and not allow_link_local:
        raise _refuse(
            field,
            text,
            "is a link-local or cloud metadata address, which is forbidden; "
            "set TIERKEEPER_ALLOW_LINK_LOCAL=true if a target really lives there",
        )
