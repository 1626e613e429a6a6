"""When nobody can say what a store's servers wrote: before they were first read, and the gaps since. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from app.clock import iso
from app.records.history import BEFORE, GAP, ServerHistory
from app.records.schemas import UnwatchedView

#: The latest that are told.
_TOLD = 12


def unwatched(servers: Mapping[int, ServerHistory], names: Mapping[int, str]) -> list[UnwatchedView]:
    """Stretches of time of the servers that were ever read, the latest first. A gap that was closed afterwards (by the
    same process with the same contexts, or process starts that reach back) is none."""
    found: dict[tuple[int, str, float, float], None] = {}
    for ident, history in servers.items():
        for span in history.unknowns:
            if history.seen and span.kind in (BEFORE, GAP) and math.isfinite(span.end) and span.start < span.end:
                found[ident, span.kind, span.start, span.end] = None
    latest = sorted(found, key=lambda item: item[3], reverse=True)[:_TOLD]
    return [
        UnwatchedView(
            server_id=str(ident),
            server_name=names.get(ident, str(ident)),
            kind="before" if kind == BEFORE else "gap",
            from_at=iso(start) if math.isfinite(start) else None,
            until=iso(end) or "",
        )
        for ident, kind, start, end in latest
    ]
