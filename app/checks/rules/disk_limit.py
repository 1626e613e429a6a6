"""The in-process disk limit is per rank."""

from __future__ import annotations

from collections.abc import Iterable

from app.checks.base import Check, Finding
from app.checks.facts import Facts


class DiskLimit(Check):
    id = "disk_limit_per_rank"
    title = "The in-process disk limit holds for all ranks together"
    looks_at = "LMCACHE_MAX_LOCAL_DISK_SIZE and LMCACHE_LOCAL_DISK against the ranks of the engine (in-process mode)"
    why = "The limit is per worker: 640 GiB on an engine of eight ranks are 5 TiB; the container was evicted."
    source = "LMCache#1399"

    def check(self, facts: Facts) -> Iterable[Finding]:
        own = facts.in_process
        if own is None or facts.server is not None or "local_disk" not in own.values:
            return
        subject = facts.engine_name
        limit = own.number("max_local_disk_size")
        values = {"configured": f"{limit:g} GB" if limit else "no limit", "origin": own.origin}
        if not limit:
            yield self.fail(
                subject,
                "local_disk is set, but max_local_disk_size is 0: nothing is stored on disk",
                title="The disk tier has no room",
                fix="LMCACHE_MAX_LOCAL_DISK_SIZE with the gigabytes per rank",
                effective="nothing on disk",
                **values,
            )
            return
        told = facts.engine.facts if facts.engine is not None else None
        ranks = (told.tensor_parallel_size or 1) * (told.pipeline_parallel_size or 1) if told is not None else None
        if ranks is None:
            yield self.unknown(subject, f"{limit:g} GB per rank; how many ranks there are is not known", **values)
        elif ranks > 1:
            yield self.warn(
                subject,
                f"{limit:g} GB × {ranks} ranks = {limit * ranks:g} GB on disk",
                title="The disk limit counts per rank",
                fix=f"LMCACHE_MAX_LOCAL_DISK_SIZE={limit / ranks:g} for {limit:g} GB in all",
                effective=f"{limit * ranks:g} GB",
                **values,
            )
        else:
            yield self.ok(subject, f"{limit:g} GB, one rank", effective=f"{limit:g} GB", **values)
