"""A declared capacity bounds nothing by itself."""

from __future__ import annotations

from collections.abc import Iterable

from app.checks.base import Check, Finding
from app.checks.facts import Facts
from app.sizes import disk_size


class CapacityWithoutEviction(Check):
    id = "capacity_without_eviction"
    title = "A declared capacity comes with an eviction block"
    looks_at = "max_capacity_gb and eviction of each L2 adapter"
    why = (
        "max_capacity_gb alone is only used for reporting: with a limit of 4000 GB, 14 TB were on disk after two days. "
        "After a restart an adapter that evicts counts from zero again, so files from before are not seen."
    )
    source = "LMCache#4725, #4564; fs_native adapter of LMCache 0.5.6"

    def check(self, facts: Facts) -> Iterable[Finding]:
        for store in facts.stores:
            limit = store.adapter.max_capacity_bytes
            if limit is None:
                continue
            values = {"configured": disk_size(limit), "origin": "/config of the server"}
            over = store.total_bytes is not None and limit > store.total_bytes
            if store.adapter.eviction is None:
                yield self.unknown(store.subject, "the server does not tell whether this adapter evicts", **values)
            elif not store.adapter.eviction:
                yield self.fail(
                    store.subject,
                    f"max_capacity_gb declares {disk_size(limit)}, but there is no eviction block: nothing is bounded",
                    title="The declared capacity bounds nothing",
                    fix='"eviction": {"eviction_policy": "LRU"} in this --l2-adapter, or a cleanup policy here',
                    effective="no eviction",
                    **values,
                )
            elif over:
                yield self.fail(
                    store.subject,
                    f"{disk_size(limit)} is more than the file system has ({disk_size(store.total_bytes or 0)})",
                    title="The declared capacity is larger than the disk",
                    fix="a max_capacity_gb below the size of the file system",
                    effective=store.adapter.eviction_policy or "evicts",
                    **values,
                )
            else:
                yield self.ok(
                    store.subject,
                    f"{disk_size(limit)}, evicts by {store.adapter.eviction_policy or 'a policy'}",
                    effective=store.adapter.eviction_policy or "evicts",
                    **values,
                )
