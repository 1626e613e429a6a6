"""Does the memory of the host hold what was promised to L1 and to everything beside it?"""

from __future__ import annotations

from collections.abc import Iterable

from app.checks.base import Check, Finding
from app.checks.effective import human_bytes
from app.checks.facts import Facts
from app.checks.memory import Budget, l1_bytes, resident_of_engines


class HostMemory(Check):
    id = "l1_host_memory"
    title = "The host's memory holds L1 and everything beside it"
    looks_at = "L1 size of the server, resident memory of server and engines, memory of the host or container"
    why = (
        "L1 is pinned memory: it cannot be swapped. On GPU hosts it grows to its size over days (lazy allocation), so "
        "a size that does not fit kills a process long after the start that looked fine."
    )
    source = "LMCache memory configuration; GPUStack#3377"

    def check(self, facts: Facts) -> Iterable[Finding]:
        server = facts.server
        if server is None:
            return
        l1 = l1_bytes(server)
        if l1 is None:
            yield self.unknown(server.name, "the server does not tell the size of L1")
            return
        values = {
            "configured": human_bytes(l1),
            "origin": "command line" if server.planned else "/config of the server",
        }
        if facts.memory is None or not (server.local or server.planned):
            yield self.unknown(
                server.name,
                f"L1 is {human_bytes(l1)}; the server runs on another host, whose memory cannot be seen from here",
                fix="run `tierkeeper check` on the server's host",
                **values,
            )
            return
        memory = facts.memory
        held = min(int(server.metrics.resident_bytes or 0), l1) if server.metrics is not None else 0
        engines = resident_of_engines(facts)
        budget = Budget(
            total=memory.usable_bytes,
            parts={"L1": l1, "engines on this host": engines},
        )
        room = memory.available_bytes + held
        fix = f"lmcache server --l1-size-gb {max(0.25, budget.room_for('L1') / 2**30):.2f} or less"
        told = f"{budget.sentence}; available now {human_bytes(memory.available_bytes)}"
        if l1 > memory.usable_bytes or l1 > room + budget.reserve:
            yield self.fail(
                server.name,
                f"L1 of {human_bytes(l1)} does not fit: {told}",
                title="L1 is larger than the memory that is left",
                fix=fix,
                effective="does not fit",
                **values,
            )
        elif budget.left < 0 or l1 > room:
            yield self.warn(
                server.name,
                f"L1 of {human_bytes(l1)} leaves no reserve: {told}",
                title="L1 leaves no reserve",
                fix=fix,
                effective="fits without a reserve",
                **values,
            )
        else:
            yield self.ok(server.name, told, effective="fits", **values)
