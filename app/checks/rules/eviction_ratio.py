"""How much of L1 one eviction frees."""

from __future__ import annotations

from collections.abc import Iterable

from app.checks.base import Check, Finding
from app.checks.facts import Facts

DEFAULT = 0.2


class EvictionRatio(Check):
    id = "eviction_ratio"
    title = "One eviction frees a small part of L1"
    looks_at = "--eviction-ratio and --eviction-policy of the server"
    why = (
        "With 0.99, an experiment's value that is copied around, each eviction empties nearly the whole L1: the hit "
        "rate falls to what L2 gives. Far below the default, evictions run all the time. With `noop` nothing is ever "
        "freed."
    )
    source = "lmcache server --help (default 0.2)"

    def check(self, facts: Facts) -> Iterable[Finding]:
        server = facts.server
        if server is None:
            return
        status, config = server.status, server.config
        ratio = _first(status.eviction_ratio if status else None, config.eviction_ratio if config else None)
        policy = (status.eviction_policy if status else None) or (config.eviction_policy if config else None)
        if ratio is None:
            yield self.unknown(server.name, "the server does not tell its eviction ratio")
            return
        origin = "/config and /status of the server" if status is not None else "/config of the server"
        if server.planned:
            origin = "command line of the server"
        asked = _first(config.eviction_ratio if config else None, ratio)
        asked_policy = (config.eviction_policy if config else None) or policy
        values = {
            "configured": f"{asked_policy or 'policy not told'}, {asked:g}",
            "effective": f"{policy or 'policy not told'}, {ratio:g}",
            "origin": origin,
        }
        if policy == "noop" and (config is None or config.store_policy != "skip_l1"):
            yield self.fail(
                server.name,
                "the policy is noop: L1 fills once, then every store fails",
                title="L1 never frees anything",
                fix="lmcache server --eviction-policy LRU (noop only together with --l2-store-policy skip_l1)",
                **values,
            )
        elif policy == "IsolatedLRU":
            yield self.warn(
                server.name,
                "IsolatedLRU gives a cache salt without a quota the limit 0: its records leave L1 at once",
                title="Salts without a quota are not kept",
                fix="set quotas for every cache_salt in use, or --eviction-policy LRU",
                **values,
            )
        elif ratio > 0.5:
            yield self.warn(
                server.name,
                f"{ratio:g} of L1 is dropped at once; the default is {DEFAULT:g}",
                title="One eviction empties most of L1",
                fix=f"lmcache server --eviction-ratio {DEFAULT:g}",
                **values,
            )
        elif ratio < 0.02:
            yield self.warn(
                server.name,
                f"{ratio:g} frees so little that evictions run without pause; the default is {DEFAULT:g}",
                title="One eviction frees next to nothing",
                fix=f"lmcache server --eviction-ratio {DEFAULT:g}",
                **values,
            )
        else:
            yield self.ok(server.name, f"{ratio:g} (default {DEFAULT:g})", **values)


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
