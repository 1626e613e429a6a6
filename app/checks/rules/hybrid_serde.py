"""Lossy or re-computing ways of storing KV, and what they do to hybrid models."""

from __future__ import annotations

from collections.abc import Iterable

from app.checks import effective
from app.checks.base import Check, Finding
from app.checks.facts import Facts
from app.lmcache.layouts import NO_SERDE

_PLAIN = (NO_SERDE, "naive", "")


class HybridSerde(Check):
    id = "serde_and_blending"
    title = "Records are stored as they are, and only whole prefixes are reused"
    looks_at = "serde of each L2 adapter, --engine-type, LMCACHE_REMOTE_SERDE, LMCACHE_ENABLE_BLENDING"
    why = (
        "CacheGen and fp8 records are lossy: answers change a little for an ordinary model, and a recurrent state is "
        "no list of tokens that could be quantised or blended: hybrid layouts are not supported by either."
    )
    source = "LMCache#717, #3193; LMCache documentation of CacheGen and CacheBlend"

    def check(self, facts: Facts) -> Iterable[Finding]:
        is_hybrid = effective.hybrid(facts)
        hybrid = is_hybrid is not None and is_hybrid.value
        used = list(_lossy(facts))
        if not used:
            if facts.server is not None and facts.server.config is not None:
                yield self.ok(
                    facts.server_name,
                    "no serde and no blending",
                    configured="none",
                    effective="records are exact",
                    origin="/config of the server",
                )
            return
        for subject, what, fix, origin in used:
            if hybrid:
                yield self.fail(
                    subject,
                    f"{what} with a hybrid model ({is_hybrid.origin if is_hybrid else ''})",
                    title="Not possible with a hybrid model",
                    fix=fix,
                    configured=what,
                    effective="answers cannot be trusted",
                    origin=origin,
                )
            else:
                yield self.warn(
                    subject,
                    f"{what}: what comes back is not what was computed; judge it by scores, not by equal text",
                    title="Records are not exact",
                    fix=f"{fix}, or run acceptance tests in the mode `score`",
                    configured=what,
                    effective="records are not exact",
                    origin=origin,
                )


def _lossy(facts: Facts) -> Iterable[tuple[str, str, str, str]]:
    config = facts.server.config if facts.server is not None else None
    if config is not None and config.engine_type == "blend":
        yield facts.server_name, "CacheBlend", "lmcache server --engine-type default", "/config of the server"
    for store in facts.stores:
        serde = store.adapter.serde
        if serde is not None and serde not in _PLAIN:
            yield store.subject, f"serde {serde}", 'no "serde" in this --l2-adapter', "/config of the server"
    own = facts.in_process
    if own is not None:
        serde = own.values.get("remote_serde", "")
        if serde not in _PLAIN:
            yield facts.engine_name, f"remote serde {serde}", "LMCACHE_REMOTE_SERDE=naive", own.origin
        if own.flag("enable_blending"):
            yield facts.engine_name, "CacheBlend", "LMCACHE_ENABLE_BLENDING=False", own.origin
