"""The summary of a registered store: its inventory, its scans, its file system, what its servers say of eviction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.clock import iso
from app.database import Database
from app.errors import StoreError
from app.fleet.live import ServerLive
from app.fleet.schemas import L2View
from app.fleet.targets import StoreTarget
from app.records.inventory_file import Inventory
from app.records.schemas import AdapterView, Count, FilesystemSummary, GrowthPointView, MountView, SummaryView
from app.records.store_dir import open_store
from app.records.summary import ScanFacts, Surroundings, filesystem_summary, mount_view, summarise
from app.records.tables import GrowthPoint, Scan
from app.scheduling.work import SUCCEEDED
from app.telemetry.service import TelemetryService

_GROWTH_SECONDS = 7 * 86400.0
_GROWTH_SCANS = 200


def store_summary(
    store: StoreTarget,
    path: Path,
    *,
    db: Database,
    telemetry: TelemetryService,
    alarms: Sequence[str],
    names: Mapping[str, str],
) -> SummaryView:
    """Reads rows, the inventory's cohorts and the file system's room; walks nothing."""
    with db.read() as session:
        last = session.scalar(
            select(Scan).where(Scan.store_id == store.id, Scan.state == SUCCEEDED).order_by(Scan.id.desc()).limit(1)
        )
        written = _written(session, store.id)
        vanished = session.execute(
            select(func.sum(Scan.vanished), func.sum(Scan.vanished_bytes), func.min(Scan.finished_at)).where(
                Scan.store_id == store.id, Scan.state == SUCCEEDED, Scan.rescan
            )
        ).one()
    filesystem, mount = _room(store, telemetry)
    servers = telemetry.servers_live(store.server_ids)
    around = Surroundings(
        mount=mount,
        filesystem=filesystem,
        written=written,
        vanished_records=int(vanished[0] or 0),
        vanished_bytes=int(vanished[1] or 0),
        vanished_since=vanished[2],
        adapter_evicts=_evicts(store, servers),
        adapters=_adapters(store, servers),
        alarms=alarms,
        names=names,
    )
    facts = None
    if last is not None and last.finished_at is not None:
        facts = ScanFacts(
            scan_id=str(last.id),
            scanned_at=last.finished_at,
            allocated_bytes=last.allocated_bytes,
            foreign=last.foreign,
            foreign_bytes=last.foreign_bytes,
            foreign_examples=last.foreign_examples,
            unreadable=last.unreadable,
        )
    inventory = Inventory.open(path)
    if inventory is None:
        return summarise(str(store.id), None, None, around)
    with inventory:
        return summarise(str(store.id), inventory, facts, around)


def _written(session: Session, store_id: int) -> list[tuple[float, float]]:
    """(time, bytes ever there): what our runs took out is counted in, so that cleaning is not shrinking."""
    rows = session.execute(
        select(Scan.finished_at, Scan.bytes, Scan.removed_by_runs_bytes)
        .where(Scan.store_id == store_id, Scan.state == SUCCEEDED)
        .order_by(Scan.id.desc())
        .limit(_GROWTH_SCANS)
    ).all()
    points: list[tuple[float, float]] = []
    removed = 0
    for at, size, taken in reversed(rows):
        removed += taken
        if at is not None:
            points.append((at, float(size + removed)))
    newest = points[-1][0] if points else 0.0
    return [point for point in points if point[0] >= newest - _GROWTH_SECONDS]


def _room(store: StoreTarget, telemetry: TelemetryService) -> tuple[FilesystemSummary, MountView]:
    """Measured now where the store's directory can be opened; else what the poller saw last, with the reason."""
    try:
        with open_store(store) as directory:
            mount = directory.mount()
        return filesystem_summary(mount), mount_view(mount)
    except StoreError as error:
        live = telemetry.stores_live([store.id]).get(store.id)
        seen = live.filesystem if live is not None else None
        return (
            FilesystemSummary(
                total_bytes=seen.total_bytes if seen else None,
                free_bytes=seen.free_bytes if seen else None,
                inodes_free=seen.inodes_free if seen else None,
                reason=error.detail,
                used_bytes=seen.used_bytes if seen else None,
            ),
            MountView(note=error.detail),
        )


def access_times_of(store: StoreTarget) -> str:
    """How the mount keeps access times; "unknown" where the directory cannot be opened."""
    try:
        with open_store(store) as directory:
            return directory.mount().access_times
    except StoreError:
        return "unknown"


def adapters_here(store: StoreTarget, telemetry: TelemetryService) -> list[L2View]:
    """The adapters that write into this directory, as their servers tell of them."""
    return _here(store, telemetry.servers_live(store.server_ids))


def _here(store: StoreTarget, servers: Mapping[int, ServerLive]) -> list[L2View]:
    return [
        adapter
        for _, live in sorted(servers.items())
        for adapter in live.l2
        if adapter.base_path in (store.server_path, store.path)
    ]


def _evicts(store: StoreTarget, servers: Mapping[int, ServerLive]) -> bool | None:
    """Whether the adapter of this directory evicts, as far as all its servers' configurations agree."""
    found = {adapter.evicts for adapter in _here(store, servers)}
    return found.pop() if len(found) == 1 else None


def adapters_of(store: StoreTarget, telemetry: TelemetryService) -> list[AdapterView]:
    """Every L2 adapter of the store's servers, those whose records cannot be listed here with the reason."""
    return _adapters(store, telemetry.servers_live(store.server_ids))


def _adapters(store: StoreTarget, servers: Mapping[int, ServerLive]) -> list[AdapterView]:
    found: list[AdapterView] = []
    for server_id, live in sorted(servers.items()):
        for adapter in live.l2:
            listed = adapter.base_path in (store.server_path, store.path)
            found.append(
                AdapterView(
                    server_id=str(server_id),
                    adapter=adapter.adapter,
                    base_path=adapter.base_path,
                    usage_bytes=adapter.usage_bytes,
                    usage_reason=adapter.usage_reason,
                    max_capacity_bytes=adapter.max_capacity_bytes,
                    evicts=adapter.evicts,
                    listed=listed,
                    reason=None if listed else _why_not_listed(adapter),
                )
            )
    return found


def _why_not_listed(adapter: L2View) -> str:
    if adapter.base_path:
        return f"it writes {adapter.base_path}, which is another directory: a store of its own where it is registered"
    return f"records of the adapter {adapter.adapter} are no files of a directory: they cannot be listed from here"


def growth_points(db: Database, store_id: int, points: int) -> list[GrowthPointView]:
    """Bytes by class at the end of each of the last scans, oldest first."""
    with db.read() as session:
        # A scan's rows are of one time: the index over times tells the last ones without a look at the rest.
        ends = session.scalars(
            select(GrowthPoint.at)
            .where(GrowthPoint.store_id == store_id)
            .distinct()
            .order_by(GrowthPoint.at.desc())
            .limit(points)
        ).all()
        if not ends:
            return []
        columns = GrowthPoint.scan_id, GrowthPoint.at, GrowthPoint.cls, GrowthPoint.records, GrowthPoint.bytes
        rows = session.execute(
            select(*columns)
            .where(GrowthPoint.store_id == store_id, GrowthPoint.at >= ends[-1])
            .order_by(GrowthPoint.at, GrowthPoint.scan_id)
        ).all()
    found: dict[int, GrowthPointView] = {}
    for scan_id, at, cls, records, size in rows:
        view = found.get(scan_id)
        if view is None:
            view = found[scan_id] = GrowthPointView(at=iso(at) or "", scan_id=str(scan_id), by_class={})
        view.by_class[cls] = Count.model_construct(records=records, bytes=size)
    return list(found.values())
