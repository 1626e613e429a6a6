"""Stored snapshots as fleet's views want them. A value that an older panel stored in another form counts as unknown."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session, undefer

from app.clock import iso
from app.fleet.live import EngineLive, ServerLive, StoreLive
from app.fleet.load_schemas import DiskView, EngineLoadView, InProcessView, ServerLoadView
from app.fleet.schemas import (
    CrossCheckView,
    EngineFactsView,
    FilesystemView,
    HitRateView,
    L0View,
    L1View,
    L2View,
    LayoutView,
    LightView,
    PrefixCacheView,
)
from app.telemetry.tables import Snapshot

M = TypeVar("M", bound=BaseModel)
_CHUNK = 400


def snapshots(session: Session, kind: str, ids: Collection[int], *, memory: bool = False) -> dict[int, Snapshot]:
    """The snapshots of these targets, by id; with their `memory` where that is wanted, else it cannot be read."""
    wanted = list(ids)
    found: dict[int, Snapshot] = {}
    for start in range(0, len(wanted), _CHUNK):
        query = select(Snapshot).where(
            Snapshot.target_kind == kind, Snapshot.target_id.in_(wanted[start : start + _CHUNK])
        )
        if memory:
            query = query.options(undefer(Snapshot.memory))
        found.update({row.target_id: row for row in session.scalars(query)})
    return found


def server_live(snapshot: Snapshot) -> ServerLive:
    """One server's snapshot as live values."""
    values = _values(snapshot)
    layouts = [_layout(item) for item in values.get("layouts") or ()]
    names = {layout.model_name for layout in layouts if layout is not None}
    live_names = frozenset(values.get("model_names") or ())
    return ServerLive(
        polled_at=snapshot.polled_at,
        scraped_at=snapshot.scraped_at,
        last_error=values.get("last_error"),
        http_up=values.get("http_up"),
        engine_up=values.get("engine_up"),
        engines_registered=values.get("engines_registered"),
        lights=_lights(values.get("lights")),
        version=values.get("version"),
        instance_id=values.get("instance_id"),
        process_start=values.get("process_start"),
        restarted_at=values.get("restarted_at"),
        chunk_size=values.get("chunk_size"),
        settings=values["settings"] if isinstance(values.get("settings"), dict) else {},
        l1=_view(L1View, values.get("l1"), "not read yet"),
        hit_rate=_view(HitRateView, values.get("hit_rate"), "not read yet"),
        hit_rate_check=_view(CrossCheckView, values.get("hit_rate_check")),
        layouts=tuple(layout for layout in layouts if layout is not None),
        l2=tuple(_view(L2View, item) for item in values.get("l2") or ()),
        warnings=tuple(values.get("warnings") or ()),
        load=ServerLoadView.shown(values.get("load")),
        model_names=frozenset(names) | live_names,
        live_model_names=live_names,
    )


def engine_live(snapshot: Snapshot) -> EngineLive:
    """One engine's snapshot as live values."""
    values = _values(snapshot)
    return EngineLive(
        polled_at=snapshot.polled_at,
        scraped_at=snapshot.scraped_at,
        last_error=values.get("last_error"),
        http_up=values.get("http_up"),
        version=values.get("version"),
        process_start=values.get("process_start"),
        model_names=tuple(values.get("model_names") or ()),
        model_roots=tuple(values.get("model_roots") or ()),
        max_model_len=values.get("max_model_len"),
        l0=_view(L0View, values.get("l0"), "not read yet"),
        running=values.get("running"),
        waiting=values.get("waiting"),
        preemptions=values.get("preemptions"),
        prefix_cache=_view(PrefixCacheView, values.get("prefix_cache"), "not read yet"),
        reset_available=values.get("reset_available"),
        reset_reason=values.get("reset_reason"),
        connector=values.get("connector"),
        facts=_view(EngineFactsView, values.get("facts")),
        warnings=tuple(values.get("warnings") or ()),
        load=EngineLoadView.shown(values.get("load")),
        in_process=InProcessView.shown(values["in_process"]) if values.get("in_process") else None,
    )


def store_live(snapshot: Snapshot) -> StoreLive:
    """One store's snapshot as live values."""
    values = _values(snapshot)
    return StoreLive(
        checked_at=snapshot.polled_at,
        usable=values.get("usable"),
        usable_reason=values.get("usable_reason"),
        filesystem=_view(FilesystemView, values.get("filesystem")),
        disk=DiskView.shown(values.get("disk")),
    )


def _values(snapshot: Snapshot) -> Mapping[str, Any]:
    return snapshot.data if isinstance(snapshot.data, dict) else {}


def _view(model: type[M], stored: object, reason: str | None = None) -> M:
    try:
        return model.model_validate(stored)
    except ValidationError:
        return model.model_validate({} if reason is None else {"reason": reason})


def _lights(stored: object) -> tuple[LightView, ...]:
    found = []
    for name, light in stored.items() if isinstance(stored, dict) else ():
        try:
            found.append(LightView.model_validate({**light, "name": name, "since": iso(light.get("since"))}))
        except (ValidationError, TypeError, AttributeError):
            continue
    return tuple(found)


def _layout(stored: object) -> LayoutView | None:
    if not isinstance(stored, dict):
        return None
    try:
        times = {name: iso(stored.get(name)) for name in ("first_seen", "last_seen")}
        return LayoutView.model_validate({**stored, **times})
    except (ValidationError, TypeError):
        return None
