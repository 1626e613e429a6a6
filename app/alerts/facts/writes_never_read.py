"""Records that are written to L2 and never read back."""

from __future__ import annotations

from app.alerts.inputs import Moment, ServerInput
from app.alerts.model import Fact


def writes_never_read(moment: Moment, server: ServerInput) -> Fact:
    """Rule: chunks loaded from L2 / chunks stored in L2, since the server started. Only where L1 has evicted something:
    as long as L1 holds everything, L2 need not be read."""
    last = server.trail.last
    window = moment.window(server, 60.0)
    if last is None or not window.known:
        return Fact("writes_never_read", server.subject, unknown=window.reason)
    if server.process_start is None:
        return Fact("writes_never_read", server.subject, unknown="the start of the server's process is not known")
    raw = last.raw.values
    written, read, looked = raw.get("l2_store_completed"), raw.get("l2_load_completed"), raw.get("l2_looked_up")
    evicted = raw.get("l1_evicted_chunks")
    if written is None or read is None or looked is None:
        return Fact("writes_never_read", server.subject, unknown="this version does not count stores and loads of L2")
    return Fact(
        "writes_never_read",
        server.subject,
        {
            "written": written,
            "read": read,
            "looked_up": looked,
            "evicted": evicted,
            "share": read / written if written else None,
            "uptime": max(0.0, moment.now - server.process_start),
        },
        quiet="nothing was written since the start"
        if not written
        else "L1 has evicted nothing: it holds all that is asked for"
        if not evicted
        else None,
    )
