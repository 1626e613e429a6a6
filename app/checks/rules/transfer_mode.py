"""Who moves the data must be agreed between server and engine."""

from __future__ import annotations

from collections.abc import Iterable

from app.checks import effective
from app.checks.base import Check, Finding
from app.checks.facts import Facts


class TransferMode(Check):
    id = "transfer_mode"
    title = "Server and engine agree on who moves the data"
    looks_at = "--supported-transfer-mode of the server; lmcache.mp.mp_transfer_mode of the engine, auto resolved"
    why = (
        "A server that knows only one mode never answers a registration in the other: the engine hangs at start for "
        "mq_timeout (300 s), without an error. On CPU engines `auto` means engine_driven."
    )
    source = "measured with LMCache 0.5.6 and vLLM 0.32; lmcache server --help"

    def check(self, facts: Facts) -> Iterable[Finding]:
        server, engine = facts.server, facts.engine
        if server is None or engine is None or server.config is None:
            return
        connector = effective.connector(facts)
        if connector is not None and connector.value != effective.MP_CONNECTOR:
            return
        theirs = server.config.supported_transfer_mode
        subject = facts.pair_name
        own = effective.engine_mode(facts)
        if theirs is None:
            yield self.unknown(subject, "the server does not tell its transfer mode")
            return
        if theirs == "auto":
            mode = own.value if own is not None else "either"
            yield self.ok(
                subject, "the server takes both", configured="auto", effective=mode, origin="/config of the server"
            )
            return
        if own is None:
            yield self.unknown(
                subject,
                f"the server wants {theirs}; the engine does not tell its mode",
                fix=effective.how_to_see(facts.engine),
                configured=theirs,
            )
            return
        values = {"configured": theirs, "effective": own.value, "origin": f"/config of the server; {own.origin}"}
        option = '"lmcache.mp.mp_transfer_mode": "' + theirs + '"'
        if own.value not in (theirs, "auto"):
            yield self.fail(
                subject,
                f"the server knows only {theirs}, the engine works {own.value} ({own.origin})",
                title="Server and engine do not agree on who moves the data",
                fix=f"kv_connector_extra_config {{{option}}}, or lmcache server --supported-transfer-mode auto",
                **values,
            )
        elif theirs == "engine_driven" and _through_pickles(facts):
            yield self.warn(
                subject,
                "engine_driven without shared memory: every byte is copied through a pickle",
                title="Transfers do not use shared memory",
                fix="lmcache server --shm-name lmcache_l1, with a /dev/shm at least as large as L1",
                **values,
            )
        else:
            yield self.ok(subject, f"both {theirs}", **values)


def _through_pickles(facts: Facts) -> bool:
    server = facts.server
    if server is None:
        return False
    refused = server.log is not None and bool(server.log.shm_refused)
    return refused or (server.config is not None and server.config.shm_name == "")
