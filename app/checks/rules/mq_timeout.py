"""How long the engine waits for the server, against how long a load from L2 may take."""

from __future__ import annotations

from collections.abc import Iterable

from app.checks import effective
from app.checks.base import Check, Finding
from app.checks.facts import Facts


class MqTimeout(Check):
    id = "mq_timeout"
    title = "The engine waits longer than a load from L2 may take"
    looks_at = "lmcache.mp.mq_timeout of the engine against --l2-prefetch-load-timeout of the server"
    why = (
        "The load timeout lets a slow L2 give up and recompute over a healthy connection. If the engine's own timeout "
        "ends first, the transport breaks instead and the engine runs without the cache until it recovers."
    )
    source = "LMCache design of the L2 prefetch load deadline; connector options of LMCache 0.5.6"

    def check(self, facts: Facts) -> Iterable[Finding]:
        if facts.engine is None or facts.server is None:
            return
        connector = effective.connector(facts)
        if connector is not None and connector.value != effective.MP_CONNECTOR:
            return
        wait = effective.option_number(facts, "mq_timeout")
        load = facts.server.config.prefetch_load_timeout_seconds if facts.server.config is not None else None
        subject = facts.pair_name
        if wait is None:
            yield self.unknown(
                subject,
                "the engine does not tell its mq_timeout",
                fix=effective.how_to_see(facts.engine),
            )
            return
        told = effective.set_seconds(wait.value)
        values = {
            "configured": effective.set_seconds(wait.value),
            "effective": "no load timeout" if load is None else f"load timeout {effective.set_seconds(load)}",
            "origin": f"{wait.origin}; /config of the server",
        }
        if load is not None and wait.value <= load:
            yield self.fail(
                subject,
                f"mq_timeout {told} ends before the load timeout of {effective.set_seconds(load)}",
                title="The engine gives up before L2 may",
                fix=f'"lmcache.mp.mq_timeout": {max(60, int(load * 3))} at the engine, or a shorter '
                "--l2-prefetch-load-timeout",
                **values,
            )
        elif load is not None and wait.value < 2 * load:
            yield self.warn(
                subject,
                f"mq_timeout {told} is less than twice the load timeout of {effective.set_seconds(load)}",
                title="The two timeouts are close together",
                fix=f'"lmcache.mp.mq_timeout": {int(load * 3)} at the engine',
                **values,
            )
        elif wait.value < 10:
            yield self.warn(
                subject,
                f"mq_timeout {told}: registering a large KV cache takes longer on a busy host",
                title="The engine gives up early",
                fix='"lmcache.mp.mq_timeout": 60 at the engine',
                **values,
            )
        else:
            stuck = "" if load is not None else "; a stuck L2 holds a request that long"
            yield self.ok(subject, f"mq_timeout {told}, {values['effective']}{stuck}", **values)
