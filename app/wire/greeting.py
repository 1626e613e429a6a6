"""Listen before speaking: never send HTTP to a ZeroMQ port.

One HTTP request to the message port of an LMCache server (5555 by default, right beside its HTTP port 8080) ends that
server's message thread: ``/healthcheck`` and ``/status`` stay green, and nothing is cached any more until a restart
(seen on 0.5.6). A ZeroMQ socket greets within a millisecond; an HTTP server never speaks first. So the first contact
with an address in this process only listens.
"""

from __future__ import annotations

import asyncio
import time

from app.errors import TargetError
from app.wire.proxies import HttpProxy

_GREETING = b"\xff"
_LOCAL_WAIT = 0.1
_REMOTE_WAIT = 0.25
_MOST_WAIT = 1.0
_MOST_KNOWN = 10_000

_proven: dict[tuple[str, int], None] = {}


def speaks_http(host: str, port: int) -> bool:
    """Whether an HTTP answer came from there in this process."""
    return (host, port) in _proven


def remember(host: str, port: int) -> None:
    """An HTTP answer came from there."""
    if len(_proven) >= _MOST_KNOWN:
        _proven.clear()
    _proven[(host, port)] = None


def forget(host: str, port: int) -> None:
    """Nothing answered there: whatever comes back may be something else."""
    _proven.pop((host, port), None)


async def listen(host: str, port: int, *, connect_timeout: float, proxy: HttpProxy | None = None) -> None:
    """Connect (through `proxy` where there is one), listen for a moment, hang up. Raises TargetError ``unreadable`` if
    the other side speaks first, ``refused`` where the proxy lets nobody listen.

    An address that cannot be reached is no finding here: the request itself will say what is wrong.
    """
    began = time.perf_counter()
    try:
        async with asyncio.timeout(connect_timeout):
            opening = asyncio.open_connection(host, port) if proxy is None else proxy.connect(host, port)
            reader, writer = await opening
    except (OSError, TimeoutError, UnicodeError):
        return
    took = time.perf_counter() - began
    local = host in ("localhost", "::1") or host.startswith("127.")
    first = b""
    try:
        async with asyncio.timeout(_LOCAL_WAIT if local else min(_MOST_WAIT, max(_REMOTE_WAIT, 4 * took))):
            first = await reader.read(16)
    except (OSError, TimeoutError):
        pass
    finally:
        writer.close()
    if first.startswith(_GREETING):
        raise TargetError(
            "unreadable",
            f"{host}:{port} is a ZeroMQ port (LMCache's message port): HTTP there would stop the cache server. "
            "Enter the address of its HTTP port, usually 8080",
        )
    if first:
        raise TargetError("unreadable", f"what listens on {host}:{port} speaks first and is no HTTP server")
