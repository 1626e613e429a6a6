"""How full L1 gets before anything is evicted."""

from __future__ import annotations

from collections.abc import Iterable

from app.checks.base import Check, Finding
from app.checks.facts import Facts

DEFAULT = 0.8


class EvictionWatermark(Check):
    id = "eviction_watermark"
    title = "L1 is evicted before it is full"
    looks_at = "--eviction-trigger-watermark of the server"
    why = (
        "At 1.0 eviction starts when nothing can be stored any more, since a store needs room while the eviction "
        "thread still works. A low mark leaves memory unused that was paid for."
    )
    source = "lmcache server --help (default 0.8)"

    def check(self, facts: Facts) -> Iterable[Finding]:
        server = facts.server
        if server is None:
            return
        mark = server.status.trigger_watermark if server.status is not None else None
        asked = server.config.trigger_watermark if server.config is not None else None
        if mark is None:
            mark = asked
        if mark is None:
            yield self.unknown(server.name, "the server does not tell its watermark")
            return
        values = {
            "configured": f"{mark if asked is None else asked:g}",
            "effective": f"{mark:g}",
            "origin": "command line"
            if server.planned
            else "/config and /status of the server"
            if server.status is not None
            else "/config of the server",
        }
        fix = f"lmcache server --eviction-trigger-watermark {DEFAULT:g}"
        if mark >= 1:
            yield self.fail(
                server.name,
                f"{mark:g}: eviction starts only when L1 is full, so stores fail first",
                title="L1 is evicted too late",
                fix=fix,
                **values,
            )
        elif mark > 0.95:
            yield self.warn(
                server.name,
                f"{mark:g} leaves {100 * (1 - mark):.1f} % for what is stored meanwhile; the default is {DEFAULT:g}",
                title="L1 is evicted late",
                fix=fix,
                **values,
            )
        elif mark < 0.5:
            yield self.warn(
                server.name,
                f"{mark:g}: {100 * (1 - mark):.0f} % of L1 is never used; the default is {DEFAULT:g}",
                title="Much of L1 is never used",
                fix=fix,
                **values,
            )
        else:
            yield self.ok(server.name, f"{mark:g} (default {DEFAULT:g})", **values)
