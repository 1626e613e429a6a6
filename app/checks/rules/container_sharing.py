"""Containers must share what the transfers need: the IPC namespace, and a way to each other's ports."""

from __future__ import annotations

from collections.abc import Iterable

from app.checks import effective
from app.checks.base import Check, Finding
from app.checks.facts import Container, Facts

_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class ContainerSharing(Check):
    id = "container_sharing"
    title = "The containers share the IPC namespace and reach each other"
    looks_at = "ipc and network of the server's and the engine's container (compose file or docker run)"
    why = (
        "CUDA IPC handles and /dev/shm need one IPC namespace (--ipc=host on both, or one container's for the other); "
        "--network host gives ports, not memory. They are not each other's substitute: with only one of them the "
        "engine connects and then cannot transfer, or can transfer and does not find the server."
    )
    source = "LMCache deployment documentation; docker run reference"

    def check(self, facts: Facts) -> Iterable[Finding]:
        server = next((item for item in facts.containers if item.role == "server"), None)
        engine = next((item for item in facts.containers if item.role == "engine"), None)
        if server is None or engine is None:
            return
        config = facts.server.config if facts.server is not None else None
        isolated = bool(config is not None and config.isolated_ipc)
        shares = _shares_ipc(server, engine) or _shares_ipc(engine, server) or (server.ipc == engine.ipc == "host")
        reaches, how = _reaches(facts, server, engine)
        subject = f"{server.name} · {engine.name}"
        values = {
            "configured": f"ipc {server.ipc or 'own'}/{engine.ipc or 'own'}, "
            f"network {server.network or 'own'}/{engine.network or 'own'}",
            "effective": f"{'isolated IPC' if isolated else 'shared memory' if shares else 'no shared memory'}, "
            f"server {'reached' if reaches else 'not reached'}",
            "origin": server.origin,
        }
        if not shares and not isolated:
            hint = "; the shared network does not replace it" if reaches else ""
            yield self.fail(
                subject,
                f"each has an IPC namespace of its own{hint}",
                title="The containers share no memory",
                fix="--ipc=host on both containers (compose: ipc: host), or --isolated-ipc on the server and "
                '"lmcache.mp.isolated_ipc": true at the engine',
                **values,
            )
        elif not reaches:
            yield self.fail(
                subject,
                f"{how}; the shared IPC namespace does not replace a network",
                title="The engine does not reach the server's message port",
                fix="--network host on both, or one network and lmcache.mp.host with the server's service name",
                **values,
            )
        else:
            yield self.ok(subject, f"memory: {'isolated IPC' if isolated else 'shared IPC namespace'}; {how}", **values)


def _shares_ipc(one: Container, other: Container) -> bool:
    return one.ipc in (f"service:{other.name}", f"container:{other.name}")


def _reaches(facts: Facts, server: Container, engine: Container) -> tuple[bool, str]:
    option = effective.connector_option(facts, "host")
    host = str(option.value).removeprefix("tcp://") if option is not None else "localhost"
    one_stack = (server.network or "") == (engine.network or "")
    joined = engine.network in (f"service:{server.name}", f"container:{server.name}")
    if host in _LOOPBACK:
        together = joined or (server.network == engine.network == "host")
        return together, f"the engine looks for the server on its own {host}" if not together else "one network stack"
    if engine.network == "host" and server.network != "host" and host == server.name:
        return False, f"a container on the host's network does not know the name {host!r}"
    return True, f"the engine looks for the server at {host!r}" + (", same network" if one_stack else "")
