"""Where nobody may make the panel connect: link-local addresses and those where clouds hand out credentials.

The check made when an address is entered is not enough: a name may point elsewhere by the time it is used (DNS
rebinding). So every connection is looked at once more when it stands and before a byte is sent, by its real peer.
One policy per process, set once by whoever wires it; the default is the strict one.
"""

from __future__ import annotations

import ipaddress
from typing import Any

from app.errors import TargetError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_METADATA = frozenset(
    ipaddress.ip_address(a)
    for a in ("169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254")
)
#: IPv6 networks that hold an IPv4 address in their last 32 bits: NAT64 (well-known and local-use), stateless
#: translation, and the old IPv4-compatible form.
_TRANSLATED = tuple(
    ipaddress.ip_network(network) for network in ("64:ff9b::/96", "64:ff9b:1::/48", "::ffff:0:0:0/96", "::/96")
)
_CONNECTED = "connection.connect_tcp.complete"

_policy = {"allow_link_local": False}


def allow_link_local(allowed: bool) -> None:
    """Sets the policy of this process."""
    _policy["allow_link_local"] = allowed


def embedded(address: Address) -> Address:
    """The IPv4 address that an IPv6 one stands for, where it does."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and any(address in network for network in _TRANSLATED) and int(address) > 0xFFFF:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        return inner or address
    return address


def is_local_secret(address: Address) -> bool:
    """Whether it is link-local or a cloud's metadata service, however it is written."""
    inner = embedded(address)
    return inner.is_link_local or inner in _METADATA


def check_peer(host: object) -> None:
    """Raises TargetError ``refused`` for a peer that the policy forbids; a socket file has no address and passes."""
    try:
        address = ipaddress.ip_address(str(host).partition("%")[0])
    except ValueError:
        return
    if is_local_secret(address) and not _policy["allow_link_local"]:
        raise TargetError(
            "refused",
            f"the name led to {address}, a link-local or cloud metadata address, which is forbidden; "
            "set TIERKEEPER_ALLOW_LINK_LOCAL=true if a target really lives there",
        )


async def guard(event: str, info: dict[str, Any]) -> None:
    """An httpcore trace (request extension ``trace``) that looks at each new connection before anything is sent."""
    if event == _CONNECTED:
        stream = info["return_value"]
        try:
            check_peer((stream.get_extra_info("server_addr") or ("",))[0])
        except TargetError:
            await stream.aclose()
            raise


def guard_sync(event: str, info: dict[str, Any]) -> None:
    """As `guard`, for synchronous clients."""
    if event == _CONNECTED:
        stream = info["return_value"]
        try:
            check_peer((stream.get_extra_info("server_addr") or ("",))[0])
        except TargetError:
            stream.close()
            raise
