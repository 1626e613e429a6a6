"""Which addresses are this machine's own."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def own_addresses(proc: Path = Path("/proc")) -> tuple[str, ...]:
    """Addresses of this host beyond loopback and link-local, most useful first."""
    found: list[str] = []
    with suppress(OSError):
        block: str | None = None
        for line in (proc / "net" / "fib_trie").read_text("ascii", "replace").splitlines():
            word = line.strip()
            if word.startswith("|--"):
                block = word[3:].strip()
            elif word.startswith("/32 host LOCAL") and block:
                found.append(block)
    with suppress(OSError):
        for line in (proc / "net" / "if_inet6").read_text("ascii", "replace").splitlines():
            raw = line.split()[0]
            found.append(":".join(raw[i : i + 4] for i in range(0, 32, 4)))
    usable = []
    for text in dict.fromkeys(found):
        with suppress(ValueError):
            address = ipaddress.ip_address(text)
            if not (address.is_loopback or address.is_link_local or address.is_multicast):
                usable.append(str(address))
    return tuple(usable)


def is_local(host: str, addresses: Iterable[str]) -> bool:
    """Whether a host name or address is this host."""
    name = host.strip("[]").lower()
    if name in ("localhost", "localhost.localdomain", socket.gethostname().lower()):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or str(address) in set(addresses)
