"""Names of records must be the same after a restart."""

from __future__ import annotations

from collections.abc import Iterable

from app.checks import effective
from app.checks.base import Check, Finding
from app.checks.facts import Facts

_STABLE = ("blake3",)


class HashSeed(Check):
    id = "hash_algorithm"
    title = "Record names are the same after a restart"
    looks_at = "--hash-algorithm of the server, PYTHONHASHSEED, lmcache.mp.hash_algorithm of the engine"
    why = (
        "A record's name is a hash of its tokens. Python's own hash, and the sha256 variants without a fixed "
        "PYTHONHASHSEED, start from a random value in each process: after a restart nothing on disk is found again, "
        "and everything is written a second time."
    )
    source = "token hasher of LMCache 0.5.6; LMCache#1788, #2273"

    def check(self, facts: Facts) -> Iterable[Finding]:
        yield from self._server(facts)
        yield from self._in_process(facts)

    def _server(self, facts: Facts) -> Iterable[Finding]:
        server = facts.server
        if server is None:
            return
        name = server.config.hash_algorithm if server.config is not None else None
        name = name or (server.status.hash_algorithm if server.status is not None else None)
        if name is None:
            yield self.unknown(server.name, "the server does not tell its hash algorithm")
            return
        loaded = server.log.hash_function if server.log is not None else None
        seed = server.environment.get("PYTHONHASHSEED")
        values = {
            "configured": name,
            "effective": loaded or name,
            "origin": "start-up log of the server" if loaded else "/config of the server",
        }
        fix = "lmcache server --hash-algorithm blake3 (records under other names are not found again)"
        own = effective.connector_option(facts, "hash_algorithm")
        if own is not None and str(own.value) != name and not own.origin.startswith("default"):
            yield self.fail(
                facts.pair_name,
                f"the server names records by {name}, the connector announces them by {own.value}",
                title="Server and connector use different hashes",
                fix=f'"lmcache.mp.hash_algorithm": "{name}" at the engine',
                configured=name,
                effective=own.value,
                origin=own.origin,
            )
        elif (loaded or name) in _STABLE:
            yield self.ok(server.name, f"{name}, which does not depend on PYTHONHASHSEED", **values)
        elif (loaded or name) == "builtin":
            missing = "" if loaded is None or loaded == name else f" ({name} could not be loaded)"
            yield self.fail(
                server.name,
                f"Python's own hash{missing}: it is not made to be stable between processes",
                title="Records are not found again after a restart",
                fix=fix,
                **values,
            )
        elif seed is None or seed == "random":
            known = "is not known here" if server.log is None and not server.environment else "is not set"
            yield self.warn(
                server.name,
                f"{name} needs a fixed PYTHONHASHSEED, which {known}",
                title="Record names may change with every restart",
                fix=f"PYTHONHASHSEED=0 in the environment of every server and engine, or {fix}",
                **values,
            )
        else:
            yield self.ok(server.name, f"{name} with PYTHONHASHSEED={seed}", **values)

    def _in_process(self, facts: Facts) -> Iterable[Finding]:
        own = facts.in_process
        if own is None or facts.server is not None or not own.set_names:
            return
        name = own.values.get("pre_caching_hash_algorithm", "builtin")
        seed = own.variables.get("PYTHONHASHSEED")
        values = {"configured": name, "effective": f"PYTHONHASHSEED {seed or 'not set'}", "origin": own.origin}
        if name == "builtin" and seed in (None, "", "random"):
            yield self.fail(
                facts.engine_name,
                "the in-process mode hashes with Python's own hash, and PYTHONHASHSEED is not set",
                title="Records are not found again after a restart",
                fix="PYTHONHASHSEED=0, the same for every process that shares records",
                **values,
            )
        else:
            yield self.ok(facts.engine_name, f"{name}, PYTHONHASHSEED={seed or 'not set'}", **values)
