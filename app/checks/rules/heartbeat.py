"""An engine must ping often enough not to be taken for dead, and not be kept for ever when it is."""

from __future__ import annotations

from collections.abc import Iterable

from app.checks import effective
from app.checks.base import Check, Finding
from app.checks.facts import Facts


class Heartbeat(Check):
    id = "heartbeat"
    title = "Three heartbeats fit into the reap timeout"
    looks_at = "lmcache.mp.heartbeat_interval of the engine against --worker-reap-timeout-seconds of the server"
    why = (
        "A worker that is silent for the reap timeout loses its registration: nothing of it is cached any more. "
        "Without reaping, the context of a dead engine stays for ever and its layout stays live."
    )
    source = "lmcache server --help (at least 3 × the heartbeat); LMCache#4808"

    def check(self, facts: Facts) -> Iterable[Finding]:
        server = facts.server
        if server is None or facts.engine is None:
            return
        connector = effective.connector(facts)
        if connector is not None and connector.value != effective.MP_CONNECTOR:
            return
        reap = server.config.worker_reap_timeout_seconds if server.config is not None else None
        if reap is None and server.status is not None:
            reap = server.status.reap_timeout_seconds
        beat = effective.option_number(facts, "heartbeat_interval")
        subject = facts.pair_name
        if reap == 0:
            yield self.warn(
                subject,
                "reaping is switched off: the context of a dead engine is never dropped",
                title="Dead engines stay registered",
                fix="lmcache server --worker-reap-timeout-seconds 120",
                configured="0 s",
                effective="never reaped",
                origin="/config of the server",
            )
            return
        if reap is None or beat is None:
            yield self.unknown(
                subject,
                f"the {'reap timeout' if reap is None else 'heartbeat interval'} is not known",
                fix=effective.how_to_see(facts.engine),
            )
            return
        told = effective.set_seconds(beat.value)
        values = {
            "configured": effective.set_seconds(beat.value),
            "effective": f"reaped after {effective.set_seconds(reap)}",
            "origin": f"{beat.origin}; /config of the server",
        }
        if 3 * beat.value > reap:
            yield self.fail(
                subject,
                f"3 × {beat.value:g} s = {effective.set_seconds(3 * beat.value)} exceeds the reap timeout of "
                f"{effective.set_seconds(reap)}",
                title="A living engine may be taken for dead",
                fix=f"lmcache server --worker-reap-timeout-seconds {max(30, int(3 * beat.value + 1))}, or a shorter "
                '"lmcache.mp.heartbeat_interval"',
                **values,
            )
        else:
            yield self.ok(subject, f"a heartbeat every {told}, reaped after {effective.set_seconds(reap)}", **values)
