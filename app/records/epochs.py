"""Epochs: layouts as servers showed them, and what operators declared or adopted."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.clock import iso, iso_ns, parse_iso
from app.errors import Conflict, InvalidInput
from app.lmcache.layouts import FieldKind, KVLayout, Verdict, compare_layouts, expected_object_bytes
from app.lmcache.object_keys import decode_model, encode_model
from app.records.epoch_counts import EpochCount, EpochKey
from app.records.history import Presence
from app.records.schemas import EpochInput, EpochView
from app.records.tables import LayoutEpoch
from app.records.timeline import BEFORE_FIRST_SEEN, EARLIEST, NS, ModelTimeline, StoreTimeline

_MEANING = {
    FieldKind.HARD: "decides bytes",
    FieldKind.LABEL: "LMCache's name for the layout; decides only under one LMCache version",
    FieldKind.SOFT: "test again",
}

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
    stored = {(row.model_name, row.world_size, row.variant): row for row in rows if row.kind == "observed"}
    for item in observed(timeline):
        row = stored.get((item.model, item.world_size, variant_of(item.layout)))
        if row is None or row.live != item.live or len(row.spans) != len(item.spans):
            return True
        for old, new in zip(row.spans, item.spans, strict=True):
            if {**old, "last_listed": 0} != {**new, "last_listed": 0}:
                return True
            if abs(old["last_listed"] - new["last_listed"]) > _SIGHT_SECONDS:
                return True
    return False


def sync_observed(session: Session, store_id: int, timeline: StoreTimeline, now: float) -> None:
    """Brings the observed epochs of a store in step with its timelines; rows are never removed."""
    rows = {
        (row.model_name, row.world_size, row.variant): row
        for row in session.scalars(
            select(LayoutEpoch).where(LayoutEpoch.store_id == store_id, LayoutEpoch.kind == "observed")
        )
    }
    for item in observed(timeline):
        variant = variant_of(item.layout)
        row = rows.get((item.model, item.world_size, variant))
        if row is None:
            row = LayoutEpoch(
                store_id=store_id,
                kind="observed",
                model_name=item.model,
                display_model=item.layout.model_name,
                world_size=item.world_size,
                fingerprint=item.layout.fingerprint,
                variant=variant,
                layout=item.layout.to_dict(),
                created_at=now,
            )
            session.add(row)
        row.spans, row.live = item.spans, item.live


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


def epoch_views(
    rows: Sequence[LayoutEpoch], counts: Mapping[tuple[str, int, str], EpochCount] | None
) -> list[EpochView]:
    """Newest first. `counts`: records by (model, world size, fingerprint); None before the first scan."""
    observed = sorted((row for row in rows if row.kind == "observed"), key=_started)
    newest: dict[tuple[str, int | None, str | None], int] = {}
    changes: dict[int, list[dict[str, Any]]] = {}
    spans = {row.id: list(row.spans) for row in observed}
    folded: set[int] = set()
    for row in observed:
        newest[row.model_name, row.world_size, row.fingerprint] = row.id
        previous = _before(row, observed)
        changes[row.id] = _changes(previous, row)
        if previous is not None and previous.fingerprint == row.fingerprint and not changes[row.id]:
            # The same layout, of which more was known from then on: no epoch of its own.
            changes[row.id] = changes[previous.id]
            spans[row.id] = [*spans[previous.id], *row.spans]
            folded.add(previous.id)
    views: list[EpochView] = []
    for row in rows:
        if row.id in folded:
            continue
        count = None
        # Two variants with one fingerprint write the same bytes: the newest stands for both.
        if row.kind == "observed" and newest[row.model_name, row.world_size, row.fingerprint] == row.id:
            count = (counts or {}).get((row.model_name, row.world_size or 0, row.fingerprint or ""))
        views.append(_view(row, spans.get(row.id, []), changes.get(row.id, []), count, scanned=counts is not None))
    return sorted(views, key=lambda view: view.possible_from or view.effective_at or view.created_at, reverse=True)


def _started(row: LayoutEpoch) -> float:
    return min((float(span["from"]) for span in row.spans), default=row.created_at)


def _before(row: LayoutEpoch, observed: Sequence[LayoutEpoch]) -> LayoutEpoch | None:
    """The layout of the same owner that came last before this one first did; after A → B → A → C that is A, not B."""
    start = _started(row)
    earlier = [
        (max(float(span["from"]) for span in other.spans if float(span["from"]) < start), other)
        for other in observed
        if (other.model_name, other.world_size) == (row.model_name, row.world_size)
        and any(float(span["from"]) < start for span in other.spans)
    ]
    return max(earlier, key=lambda item: item[0])[1] if earlier else None


def _changes(old: LayoutEpoch | None, new: LayoutEpoch) -> list[dict[str, Any]]:
    if old is None:
        return []
    found = compare_layouts(KVLayout.from_json(old.layout), KVLayout.from_json(new.layout))
    return [
        {
            "field": item.field,
            "old": item.old,
            "new": item.new,
            "kind": str(item.kind),
            "meaning": _MEANING[item.kind]
            if item.kind is not FieldKind.LABEL or found.verdict is not Verdict.DIFFERENT
            else "decides bytes",
        }
        for item in found.differences
    ]


def _record_bytes(row: LayoutEpoch) -> list[int] | None:
    """What the layout says one record holds, by object group in ascending order; None where it does not say."""
    if not row.layout:
        return None
    layout = KVLayout.from_json(row.layout)
    sizes = [expected_object_bytes(layout, group.index) for group in layout.groups]
    known = [size for size in sizes if size is not None]
    return known if known and len(known) == len(sizes) else None


def _view(
    row: LayoutEpoch,
    spans: list[dict[str, Any]],
    changes: list[dict[str, Any]],
    count: EpochCount | None,
    *,
    scanned: bool,
) -> EpochView:
    ended = [span["until"] for span in spans]
    return EpochView(
        id=str(row.id),
        kind=row.kind,
        model_name=row.display_model,
        world_size=row.world_size,
        fingerprint=row.fingerprint,
        layout=row.layout or None,
        live=row.live,
        possible_from=iso(min(span["from"] for span in spans)) if spans else None,
        certain_from=iso(min(span["first_listed"] for span in spans)) if spans else None,
        ended_at=iso(max(ended)) if spans and None not in ended else None,
        spans=[{name: iso(value) for name, value in span.items()} for span in spans],
        changes=changes,
        records=count.records if count else 0 if scanned else None,
        bytes=count.bytes if count else 0 if scanned else None,
        mean_record_bytes=round(count.bytes / count.records) if count else None,
        layout_record_bytes=_record_bytes(row),
        first_written_at=iso_ns(count.first_written) if count else None,
        last_written_at=iso_ns(count.last_written) if count else None,
        effective_at=iso(row.effective_at),
        reason=row.reason,
        actor=row.actor,
        created_at=iso(row.created_at) or "",
    )


def epoch_ids(rows: Iterable[Any]) -> dict[EpochKey, int]:
    """The newest observed epoch of each, of rows of `LayoutEpoch` or of columns of it; two models may well have layouts
    of one fingerprint."""
    observed = sorted((row for row in rows if row.kind == "observed" and row.fingerprint), key=_started)
    return {(row.model_name, row.world_size or 0, str(row.fingerprint)): row.id for row in observed}


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
