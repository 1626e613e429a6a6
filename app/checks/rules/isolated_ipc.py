"""Isolated IPC is a promise that both sides must make."""

from __future__ import annotations

from collections.abc import Iterable

from app.checks import effective
from app.checks.base import Check, Finding
from app.checks.facts import Facts


class IsolatedIpc(Check):
    id = "isolated_ipc"
    title = "isolated_ipc is equal on both sides"
    looks_at = "--isolated-ipc of the server; lmcache.mp.isolated_ipc of the engine"
    why = (
        "It decides which handles are exchanged. With different values the engine registers, and its first transfer "
        "waits for an event that the other side cannot open."
    )
    source = "lmcache server --help; connector options of LMCache 0.5.6"

    def check(self, facts: Facts) -> Iterable[Finding]:
        server = facts.server
        if server is None or server.config is None or facts.engine is None or server.config.isolated_ipc is None:
            return
        connector = effective.connector(facts)
        if connector is not None and connector.value != effective.MP_CONNECTOR:
            return
        theirs, own = server.config.isolated_ipc, effective.option_flag(facts, "isolated_ipc")
        subject = facts.pair_name
        if own is None:
            yield self.unknown(
                subject,
                f"{'on' if theirs else 'off'} at the server; the engine does not tell",
                fix=effective.how_to_see(facts.engine),
                configured=theirs,
            )
            return
        values = {"configured": theirs, "effective": own.value, "origin": f"/config of the server; {own.origin}"}
        if own.value != theirs:
            wanted = "--isolated-ipc" if own.value else "--no-isolated-ipc"
            yield self.fail(
                subject,
                f"{'on' if theirs else 'off'} at the server, {'on' if own.value else 'off'} at the engine",
                title="isolated_ipc differs",
                fix=f'lmcache server {wanted}, or "lmcache.mp.isolated_ipc": {str(theirs).lower()} at the engine',
                **values,
            )
        else:
            yield self.ok(subject, "on" if theirs else "off", **values)
