"""Something must keep the directory from growing until the disk is full."""

from __future__ import annotations

from collections.abc import Iterable

from app.checks.base import Check, Finding
from app.checks.facts import Facts, StoreSide
from app.sizes import disk_size

_LOW = 0.10


class NeverEvicts(Check):
    id = "growth_bounded"
    title = "Something keeps the store from filling the disk"
    looks_at = "whether each file adapter evicts, whether a cleanup policy here bounds the store, free space"
    why = (
        "The `fs` adapter never removes anything: the directory grows until the device is full, then every store fails "
        "without a metric moving."
    )
    source = "LMCache#3859; FSL2Adapter of LMCache 0.5.6 (no capacity, no eviction)"

    def check(self, facts: Facts) -> Iterable[Finding]:
        for store in facts.stores:
            if store.adapter.base_path is None:
                continue
            kind = store.adapter.type or "this adapter"
            evicts = store.adapter.eviction is True and kind != "fs"
            if evicts:
                yield self.ok(
                    store.subject,
                    f"{kind} evicts by itself ({store.adapter.eviction_policy or 'policy not told'})",
                    configured=f"{kind}, eviction on",
                    effective="evicts",
                    origin="/config of the server",
                )
            elif store.policies:
                names = ", ".join(store.policies)
                yield self.ok(
                    store.subject,
                    f"{kind} never evicts; bounded here by {names}",
                    configured=f"{kind}, no eviction",
                    effective=names,
                    origin="cleanup policies of the panel",
                )
            else:
                yield self._unbounded(store, kind)

    def _unbounded(self, store: StoreSide, kind: str) -> Finding:
        known = "no enabled cleanup policy removes by age, capacity or free space"
        if not store.policies_known:
            known = "and no panel was asked whether a cleanup policy bounds it"
        elif store.policies is None:
            known = "and no store of the panel stands for this directory"
        free = store.free_bytes
        share = free / store.total_bytes if free is not None and store.total_bytes else None
        left = "" if free is None else f"; {disk_size(free)} free"
        judge = self.fail if share is not None and share < _LOW else self.warn
        return judge(
            store.subject,
            f"{kind} never evicts, {known}{left}",
            title="Nothing keeps the store from growing",
            fix="add a cleanup policy with capacity or free_space (preset: keep the disk from filling)",
            configured=f"{kind}, no eviction",
            effective="never evicts",
            origin="/config of the server",
        )
