"""Observation rows: what one poll says about the layouts of a server, and when that begins a new row. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: A row is extended by a poll that follows within this many poll intervals.
GAP_INTERVALS = 3.0


@dataclass(frozen=True)
class Observed:
    """One poll, as a row of ``layout_observation`` keeps it (field meanings: `app.telemetry.tables.Observation`)."""

    at: float
    ok: bool
    reason: str | None = None
    instance_id: str | None = None
    process_start: float | None = None
    lmcache_version: str | None = None
    contexts: Mapping[str, Any] = field(default_factory=dict)
    engine_starts: Mapping[str, float | None] = field(default_factory=dict)
    engine_ids: tuple[str, ...] | None = ()
    drained: bool | None = None
    clock_offset: float | None = None
    reap_timeout_seconds: float | None = None


@dataclass(frozen=True)
class Span:
    """The last row of a server, as far as deciding needs it."""

    first_at: float
    last_at: float
    observed: Observed


def extends(span: Span, new: Observed, interval: float) -> bool:
    """Whether the poll belongs to the row: nothing that decides a timeline changed, and no gap lies between."""
    old = span.observed
    if not 0 <= new.at - span.last_at <= max(GAP_INTERVALS * interval, 5.0):
        return False
    if not old.ok and not new.ok:
        return True
    same = (old.ok, old.instance_id, old.process_start, old.lmcache_version, old.reap_timeout_seconds) == (
        new.ok,
        new.instance_id,
        new.process_start,
        new.lmcache_version,
        new.reap_timeout_seconds,
    )
    same = same and old.contexts == new.contexts and old.engine_starts == new.engine_starts
    same = same and old.engine_ids == new.engine_ids
    # A queue that has drained ends the layouts that are gone (C2): that is worth a row; filling again is not.
    return same and (old.drained == new.drained or old.drained is True)
