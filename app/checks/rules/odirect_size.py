"""O_DIRECT needs whole blocks: of the record and of the memory it comes from."""

from __future__ import annotations

from collections.abc import Iterable

from app.checks.base import Check, Finding
from app.checks.effective import human_bytes
from app.checks.facts import Facts, StoreSide


class ODirectSize(Check):
    id = "odirect_alignment"
    title = "Records are whole blocks of the file system, as O_DIRECT needs"
    looks_at = "use_odirect of each L2 adapter; record sizes; L1 alignment; block size of the file system; server log"
    why = (
        "An open with O_DIRECT succeeds everywhere, the write then fails for a size or an address that is no multiple "
        "of the block size: `fs` falls back to buffered writes with a log line each, others stored nothing (57 write "
        "failures, 0 files, /health 200)."
    )
    source = "FSL2Adapter of LMCache 0.5.6; LMCache#4364, #4375"

    def check(self, facts: Facts) -> Iterable[Finding]:
        align = (
            facts.server.config.align_bytes if facts.server is not None and facts.server.config is not None else None
        )
        log = facts.server.log if facts.server is not None else None
        for store in facts.stores:
            if not store.adapter.use_odirect:
                continue
            if log is not None and (log.odirect_failed or log.odirect_unaligned):
                yield self.fail(
                    store.subject,
                    f"the server logged {log.odirect_failed} failed and {log.odirect_unaligned} unaligned O_DIRECT "
                    "accesses",
                    title="O_DIRECT fails in practice",
                    fix='"use_odirect": false in this --l2-adapter, or a chunk size whose records are whole blocks',
                    configured="use_odirect",
                    effective="refused by the file system",
                    origin="start-up log of the server",
                )
                continue
            yield self._one(store, align)

    def _one(self, store: StoreSide, align: int | None) -> Finding:
        block = store.block_size
        if block is None:
            why = store.unseen_reason or "the block size of the file system is not known"
            return self.unknown(store.subject, why, configured="use_odirect")
        values = {"configured": "use_odirect", "effective": f"blocks of {block} B", "origin": "/config; statvfs"}
        if align is not None and align % block:
            return self.fail(
                store.subject,
                f"L1 aligns objects to {align} B, the file system wants {block} B: writes fail with EINVAL",
                title="L1 is aligned too finely for O_DIRECT here",
                fix=f"lmcache server --l1-align-bytes {block}",
                **values,
            )
        uneven = [size for size in store.record_sizes if size % block]
        if uneven:
            shown = ", ".join(human_bytes(size) for size in uneven[:3])
            native = store.adapter.type not in (None, "fs")
            judge = self.fail if native else self.warn
            effect = "their writes fail" if native else "they are written buffered, each with a warning in the log"
            return judge(
                store.subject,
                f"records of {shown} are no multiple of {block} B: {effect}",
                title="Records are no whole blocks",
                fix="a chunk size whose records are whole blocks, or " + '"use_odirect": false',
                **values,
            )
        if not store.record_sizes:
            return self.unknown(
                store.subject,
                f"no record size is known yet (no engine registered); the file system has blocks of {block} B",
                **values,
            )
        shown = ", ".join(human_bytes(size) for size in store.record_sizes[:3])
        return self.ok(store.subject, f"records of {shown}, blocks of {block} B", **values)
