"""Epochs: layouts as servers showed them, and what operators declared or adopted."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.clock import parse_iso
from app.errors import Conflict, InvalidInput
from app.lmcache.layouts import KVLayout, Verdict, compare_layouts
from app.lmcache.object_keys import decode_model, encode_model
from app.records.epoch_views import differ, started
from app.records.history import Presence
from app.records.schemas import EpochInput
from app.records.tables import LayoutEpoch
from app.records.timeline import BEFORE_FIRST_SEEN, EARLIEST, NS, ModelTimeline, StoreTimeline

# A layout's last sight is written down this often.
_SIGHT_SECONDS = 60.0


def variant_of(layout: KVLayout) -> str:
    """A layout with all its fields, also those that decide no bytes."""
    return hashlib.sha256(layout.to_json().encode()).hexdigest()[:16]


class Observed(NamedTuple):
    """One layout of one (model, world size) as the timeline has it now."""

    model: str
    world_size: int
    layout: KVLayout
    spans: list[dict[str, Any]]
    live: bool


def observed(timeline: StoreTimeline) -> list[Observed]:
    """Every layout that servers showed, with when it could be written."""
    found: list[Observed] = []
    for (model, world_size), line in timeline.models.items():
        live = {line.layouts[number].fingerprint for number in line.live}
        by_layout: dict[KVLayout, list[Presence]] = {}
        for presence in line.presences:
            by_layout.setdefault(presence.layout, []).append(presence)
        listed = _listed_now(timeline, (model, world_size))
        for layout, presences in by_layout.items():
            is_live = layout in listed or (not listed and layout.fingerprint in live)
            found.append(Observed(model, world_size, layout, [_span(presence) for presence in presences], is_live))
    return found


def out_of_step(rows: Iterable[LayoutEpoch], timeline: StoreTimeline) -> bool:
    """Whether the stored epochs say something else than the timeline, but for a last sight a minute old."""
    stored = _by_variant(rows)
    items = observed(timeline)
    for item in items:
        row = stored.pop(_variant_key(item), None)
        if row is None or row.live != item.live or len(row.spans) != len(item.spans):
            return True
        for old, new in zip(row.spans, item.spans, strict=True):
            if {**old, "last_listed": 0} != {**new, "last_listed": 0}:
                return True
            if abs(old["last_listed"] - new["last_listed"]) > _SIGHT_SECONDS:
                return True
    return any(row.live or _open(row) or _heirs(row, items) for row in stored.values())


def sync_observed(session: Session, store_id: int, timeline: StoreTimeline, now: float) -> None:
    """Brings the observed epochs of a store in step with its timelines.

    What a later poll knew more of a context was true before (`polls.refined`): the row of the layout as it was known at
    first becomes the row of the layout as it is known now. What the timeline does not tell of any more stays, as past.
    """
    query = select(LayoutEpoch).where(LayoutEpoch.store_id == store_id, LayoutEpoch.kind == "observed")
    rows = _by_variant(session.scalars(query))
    items = observed(timeline)
    told = {_variant_key(item) for item in items}
    untold = [row for key, row in rows.items() if key not in told]
    for item in items:
        row = rows.get(_variant_key(item))
        if row is None:
            row = min(
                (old for old in untold if _heirs(old, [item])),
                key=lambda old: abs(started(old) - item.spans[0]["from"]),
                default=None,
            )
            if row is not None:
                untold.remove(row)
            else:
                row = LayoutEpoch(store_id=store_id, kind="observed", created_at=now)
                session.add(row)
            row.model_name, row.display_model, row.world_size = item.model, item.layout.model_name, item.world_size
            row.fingerprint, row.variant = item.layout.fingerprint, variant_of(item.layout)
            row.layout = item.layout.to_dict()
        row.spans, row.live = item.spans, item.live
    for row in untold:
        if _heirs(row, items):
            session.delete(row)
            continue
        row.live = False
        row.spans = [
            span if span["until"] is not None else {**span, "until": span["last_listed"]} for span in row.spans
        ]


_VariantKey = tuple[str, int | None, str | None]


def _variant_key(item: Observed) -> _VariantKey:
    return item.model, item.world_size, variant_of(item.layout)


def _by_variant(rows: Iterable[LayoutEpoch]) -> dict[_VariantKey, LayoutEpoch]:
    return {(row.model_name, row.world_size, row.variant): row for row in rows if row.kind == "observed"}


def _open(row: LayoutEpoch) -> bool:
    return any(span["until"] is None for span in row.spans)


def _heirs(row: LayoutEpoch, items: Iterable[Observed]) -> list[Observed]:
    """The layouts of its owner that differ from a row's in nothing that is known."""
    layout = KVLayout.from_json(row.layout)
    return [
        item
        for item in items
        if (item.model, item.world_size) == (row.model_name, row.world_size) and not differ(layout, item.layout)
    ]


def _listed_now(timeline: StoreTimeline, owner: tuple[str, int]) -> set[KVLayout]:
    return {
        layout
        for history in timeline.servers.values()
        if history.latest is not None
        for layout in history.latest.layouts.get(owner, ())
    }


def _span(presence: Presence) -> dict[str, Any]:
    return {
        "from": presence.start,
        "until": presence.end if math.isfinite(presence.end) else None,
        "first_listed": presence.first_listed,
        "last_listed": presence.last_listed,
    }


# ---- what operators say ----


def new_act(
    body: EpochInput, store_id: int, timeline: StoreTimeline, models: Iterable[str], *, actor: str, now: float
) -> LayoutEpoch:
    """The row of a declaration or adoption. `models`: those with records in the store, as in record names.

    Raises InvalidInput naming the field, or Conflict when there is nothing to adopt.
    """
    model = _model(body, timeline, models)
    at = _effective_at(body, now)
    row = LayoutEpoch(
        store_id=store_id,
        kind=body.kind,
        model_name=model,
        display_model=timeline.known_models().get(model) or decode_model(model),
        reason=body.reason,
        actor=actor,
        created_at=now,
    )
    if body.kind == "declare":
        row.effective_at = at if at is not None else _engines_start(timeline, model, now)
    else:
        row.layouts = _adopted(timeline, model, at)
        row.effective_at = max(float(item["until"]) for item in row.layouts)
    return row


def _model(body: EpochInput, timeline: StoreTimeline, models: Iterable[str]) -> str:
    known = sorted({*models, *timeline.known_models()})
    if body.model_name is not None:
        wanted = encode_model(body.model_name)
        if wanted not in known:
            shown = ", ".join(repr(decode_model(name)) for name in known) or "none"
            raise InvalidInput.field("model_name", f"{body.model_name!r} is not a model of this store; known: {shown}")
        return wanted
    if len(known) != 1:
        shown = ", ".join(repr(decode_model(name)) for name in known)
        raise InvalidInput.field(
            "model_name", f"say which model: {shown}" if known else "no model of this store is known yet; scan it first"
        )
    return known[0]


def _effective_at(body: EpochInput, now: float) -> float | None:
    if body.effective_at is None:
        return None
    try:
        at = parse_iso(body.effective_at)
    except ValueError as error:
        raise InvalidInput.field("effective_at", str(error)) from error
    if at > now:
        raise InvalidInput.field("effective_at", f"{body.effective_at} lies in the future; say it when it has happened")
    return at


def _engines_start(timeline: StoreTimeline, model: str, now: float) -> float:
    """The latest start of an engine that serves the model now; else the time the model's layout was first listed."""
    starts: list[float] = []
    for history in timeline.servers.values():
        latest = history.latest
        if latest is not None and any(owner[0] == model for owner in latest.layouts):
            starts += [start for start in latest.engine_starts.values() if start is not None]
    return min(now, max(starts)) if starts else now


def _adopted(timeline: StoreTimeline, model: str, at: float | None) -> list[dict[str, Any]]:
    """For each world size with one live layout: until when what is not known is taken as its own."""
    found: list[dict[str, Any]] = []
    for (name, world_size), line in timeline.models.items():
        if name != model or len(line.live) != 1:
            continue
        layout = line.layouts[line.live[0]]
        if not layout.proves_current:
            continue
        known_from = _first_known(line)
        polls = [history.latest.last_at for history in timeline.servers.values() if history.latest is not None]
        until = known_from if at is None else min([at, *polls])
        found.append(
            {
                "world_size": world_size,
                "layout": layout.to_dict(),
                "fingerprint": layout.fingerprint,
                "until": until,
                "same_as": sorted(
                    {
                        other.fingerprint
                        for other in line.layouts
                        if compare_layouts(other, layout).verdict is Verdict.UNKNOWN and other.proves_current
                    }
                ),
            }
        )
    if not found:
        raise Conflict(
            f"there is not exactly one live layout of {decode_model(model)!r} with known dtype and chunk size, so "
            "nothing can be adopted for it; start its engine, or enter the dtype on the engine"
        )
    if all(item["until"] <= EARLIEST / NS and not item["same_as"] for item in found):
        raise Conflict(f"nothing of {decode_model(model)!r} is unknown, so there is nothing to adopt")
    return found


def _first_known(line: ModelTimeline) -> float:
    """Where the stretch before the first certainty ends."""
    ends = [
        following.start
        for segment, following in zip(line.segments, line.segments[1:], strict=False)
        if segment.unknown == BEFORE_FIRST_SEEN and following.unknown != BEFORE_FIRST_SEEN
    ]
    return max(ends, default=EARLIEST) / NS
