"""Polls of one server as timelines read them: rows of ``layout_observation`` as plain values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from app.errors import TargetError
from app.lmcache.layouts import KVLayout, Verdict, compare_layouts
from app.lmcache.object_keys import encode_model

#: (model as record names hold it, world size): whose timeline.
Owner = tuple[str, int]
# Two process start times that differ by less are one start: exporters round.
_SAME_START_SECONDS = 2.0
# The offset comes from a Date header of whole seconds: a start is taken as that much later than it seems.
_OFFSET_ERROR = 0.5


@dataclass(frozen=True)
class PollSpan:
    """A run of equal polls of one server, all at panel time (epoch seconds).

    `process_start` and `engine_starts` are of the panel's clock, None where unknown; `raw_start` is the server's own
    figure, which tells one process from another. `engine_ids` None: the metrics could not be read.
    """

    first_at: float
    last_at: float
    ok: bool = True
    instance_id: str | None = None
    raw_start: float | None = None
    process_start: float | None = None
    lmcache_version: str | None = None
    contexts: Mapping[str, KVLayout] = field(default_factory=dict)
    engine_starts: Mapping[str, float | None] = field(default_factory=dict)
    engine_ids: frozenset[str] | None = frozenset()
    drained: bool | None = None
    reap_timeout: float | None = None

    @property
    def layouts(self) -> dict[Owner, frozenset[KVLayout]]:
        """The layouts registered, by whose they are."""
        found: dict[Owner, set[KVLayout]] = {}
        for layout in self.contexts.values():
            found.setdefault(owner_of(layout), set()).add(layout)
        return {owner: frozenset(layouts) for owner, layouts in found.items()}


def owner_of(layout: KVLayout) -> Owner:
    """Whose timeline a layout belongs to."""
    return encode_model(layout.model_name), layout.world_size


def span_of(row: Any) -> PollSpan:
    """From an `app.telemetry.tables.Observation`.

    Process starts are the target's own clock; `clock_offset` (panel minus server) brings them to the panel's. Without
    it they are unknown: a start that may lie anywhere proves nothing.
    """
    offset = row.clock_offset
    starts = dict(row.engine_starts or {})
    return PollSpan(
        first_at=row.first_at,
        last_at=row.last_at,
        ok=row.ok,
        instance_id=row.instance_id,
        raw_start=row.process_start,
        process_start=_moved(row.process_start, offset),
        lmcache_version=row.lmcache_version,
        contexts=_contexts(json.dumps(row.contexts or {}, sort_keys=True)),
        engine_starts={name: _moved(start, offset) for name, start in starts.items()},
        engine_ids=None if row.engine_ids is None else frozenset(row.engine_ids),
        drained=row.drained,
        reap_timeout=row.reap_timeout_seconds,
    )


def _moved(start: float | None, offset: float | None) -> float | None:
    return None if start is None or offset is None else start + offset + _OFFSET_ERROR


@lru_cache(maxsize=4096)
def _contexts(stored: str) -> Mapping[str, KVLayout]:
    found: dict[str, KVLayout] = {}
    for ident, layout in json.loads(stored).items():
        try:
            found[ident] = KVLayout.from_json(layout)
        except TargetError:
            continue
    return found


def same_process(old: PollSpan, new: PollSpan) -> bool | None:
    """Whether two polls met one server process; None = cannot be told.

    The instance id may be fixed by a flag and outlive a restart, so a known start time must agree as well.
    """
    starts_differ = None
    if old.raw_start is not None and new.raw_start is not None:
        starts_differ = abs(old.raw_start - new.raw_start) >= _SAME_START_SECONDS
    if old.instance_id is not None and new.instance_id is not None:
        if old.instance_id != new.instance_id:
            return False
        return not starts_differ
    if starts_differ is None:
        return None
    return not starts_differ


def refined(spans: Sequence[PollSpan]) -> list[PollSpan]:
    """The good polls in order, each context with all that was ever learned of it while its server process ran.

    A running process cannot change its layout, so what a later poll knows more of a context (its engine was read
    meanwhile) was true before. A context id whose later layout is *different* is another one and is left alone.
    """
    good = sorted((span for span in spans if span.ok), key=lambda span: span.first_at)
    result: list[PollSpan] = []
    learned: dict[str, KVLayout] = {}
    later: PollSpan | None = None
    for span in reversed(good):
        if later is None or same_process(span, later) is not True:
            learned = {}
        contexts = {}
        for ident, layout in span.contexts.items():
            known = learned.get(ident)
            if known is not None and _continues(layout, known):
                layout = known
            contexts[ident] = learned[ident] = layout
        result.append(span if contexts == span.contexts else replace(span, contexts=contexts))
        later = span
    result.reverse()
    return result


def _continues(old: KVLayout, new: KVLayout) -> bool:
    return owner_of(old) == owner_of(new) and compare_layouts(old, new).verdict is not Verdict.DIFFERENT
