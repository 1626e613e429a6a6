"""A store at a glance, from its inventory's cohorts: it costs the same at ten thousand records and at a million."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from app.clock import iso, iso_ns
from app.lmcache.object_keys import decode_model
from app.records.facts import CLASSES
from app.records.inventory_file import Cohort, Inventory, Owner
from app.records.schemas import (
    AdapterView,
    Count,
    EvictionView,
    FilesystemSummary,
    ModelSummary,
    MountView,
    SummaryView,
)
from app.records.store_dir import MountFacts

_MIN_SPAN = 300.0


@dataclass(frozen=True)
class ScanFacts:
    """What the last scan left beside the inventory. Times are epoch seconds."""

    scan_id: str | None
    scanned_at: float
    allocated_bytes: int | None
    foreign: int
    foreign_bytes: int
    foreign_examples: Sequence[str] = ()
    unreadable: Sequence[str] = ()


@dataclass(frozen=True)
class Surroundings:
    """What a summary shows beside the records."""

    mount: MountView = field(default_factory=MountView)
    filesystem: FilesystemSummary = field(
        default_factory=lambda: FilesystemSummary(
            total_bytes=None, free_bytes=None, inodes_free=None, reason="not measured"
        )
    )
    #: (epoch seconds, bytes ever written as far as scans tell), oldest first.
    written: Sequence[tuple[float, float]] = ()
    vanished_records: int = 0
    vanished_bytes: int = 0
    vanished_since: float | None = None
    adapter_evicts: bool | None = None
    alarms: Sequence[str] = ()
    adapters: Sequence[AdapterView] = ()
    names: Mapping[str, str] = field(default_factory=dict)


def summarise(store_id: str, inventory: Inventory | None, facts: ScanFacts | None, around: Surroundings) -> SummaryView:
    """The summary of a store or directory; without an inventory everything a scan tells is null."""
    if inventory is None or facts is None:
        return _never(store_id, around)
    owners = inventory.owners()
    cohorts = [cohort for cohort in inventory.cohorts().values() if cohort.records > 0]
    # Every class is named: after a scan, none of a class is a known zero.
    by_class = {name: Count(records=0, bytes=0) for name in CLASSES}
    by_reason: dict[str, Count] = {}
    for cohort in cohorts:
        _add(by_class, cohort.cls, cohort)
        if cohort.reason is not None:
            _add(by_reason, cohort.reason, cohort)
    by_class["foreign"] = Count(records=facts.foreign, bytes=facts.foreign_bytes)
    growth, why = growth_per_hour(around.written)
    error = growth_error(around.written) if growth is not None else None
    free = around.filesystem.free_bytes
    meta = inventory.meta()
    return SummaryView(
        store_id=store_id,
        state="scanned",
        records=sum(cohort.records for cohort in cohorts),
        bytes=sum(cohort.bytes for cohort in cohorts),
        by_class=by_class,
        by_reason=by_reason,
        by_model=_models(cohorts, owners, around.names),
        filesystem=around.filesystem,
        mount=around.mount,
        growth_bytes_per_hour=growth,
        growth_reason=why,
        full_in_hours=_hours(free, growth),
        growth_error_bytes_per_hour=error,
        growth_scans=len(around.written),
        full_in_hours_soonest=_hours(free, growth + error) if growth is not None and error is not None else None,
        full_in_hours_latest=_hours(free, growth - error) if growth is not None and error is not None else None,
        scanned_at=iso(facts.scanned_at),
        scan_id=facts.scan_id,
        classified_at=iso(meta.get("judged_at")),
        allocated_bytes=facts.allocated_bytes,
        foreign_examples=list(facts.foreign_examples),
        unreadable=list(facts.unreadable),
        oldest_modified_at=iso_ns(min((cohort.min_mtime for cohort in cohorts), default=None)),
        newest_modified_at=iso_ns(max((cohort.max_mtime for cohort in cohorts), default=None)),
        eviction=eviction(around),
        alarms=list(around.alarms),
        adapters=list(around.adapters),
    )


def _never(store_id: str, around: Surroundings) -> SummaryView:
    return SummaryView(
        store_id=store_id,
        state="never_scanned",
        records=None,
        bytes=None,
        by_class={},
        by_reason={},
        by_model=[],
        filesystem=around.filesystem,
        mount=around.mount,
        growth_bytes_per_hour=None,
        growth_reason="never scanned",
        full_in_hours=None,
        scanned_at=None,
        scan_id=None,
        classified_at=None,
        allocated_bytes=None,
        foreign_examples=[],
        unreadable=[],
        oldest_modified_at=None,
        newest_modified_at=None,
        eviction=eviction(around),
        alarms=list(around.alarms),
        adapters=list(around.adapters),
    )


def _add(counts: dict[str, Count], name: str, cohort: Cohort) -> None:
    before = counts.get(name)
    counts[name] = Count(
        records=cohort.records + (before.records if before else 0), bytes=cohort.bytes + (before.bytes if before else 0)
    )


def _models(cohorts: Sequence[Cohort], owners: Mapping[int, Owner], names: Mapping[str, str]) -> list[ModelSummary]:
    found: dict[tuple[str, int], dict[str, Count]] = {}
    for cohort in cohorts:
        owner = owners[cohort.owner]
        key = (names.get(owner.model) or decode_model(owner.model), owner.judged.world_size)
        _add(found.setdefault(key, {}), cohort.cls, cohort)
    models = [
        ModelSummary(
            model_name=model,
            world_size=world_size,
            records=sum(count.records for count in classes.values()),
            bytes=sum(count.bytes for count in classes.values()),
            by_class=classes,
        )
        for (model, world_size), classes in found.items()
    ]
    return sorted(models, key=lambda model: (-model.bytes, model.model_name, model.world_size))


def growth_per_hour(written: Sequence[tuple[float, float]]) -> tuple[float | None, str | None]:
    """(bytes an hour, None) by least squares over (time, bytes) points, or (None, why not)."""
    if len(written) < 2:
        return None, "needs two scans"
    if written[-1][0] - written[0][0] < _MIN_SPAN:
        return None, f"needs two scans at least {_MIN_SPAN / 60:.0f} minutes apart"
    mean_x = sum(at for at, _ in written) / len(written)
    mean_y = sum(size for _, size in written) / len(written)
    spread = sum((at - mean_x) ** 2 for at, _ in written)
    slope = sum((at - mean_x) * (size - mean_y) for at, size in written) / spread
    return slope * 3600, None


def growth_error(written: Sequence[tuple[float, float]]) -> float | None:
    """Twice the standard error of `growth_per_hour`, bytes an hour: nearly always the truth lies within. Two points lie
    on any line, so they tell none."""
    count = len(written)
    if count < 3:
        return None
    mean_x = sum(at for at, _ in written) / count
    mean_y = sum(size for _, size in written) / count
    spread = sum((at - mean_x) ** 2 for at, _ in written)
    if spread == 0:
        return None
    slope = sum((at - mean_x) * (size - mean_y) for at, size in written) / spread
    rest = sum((size - mean_y - slope * (at - mean_x)) ** 2 for at, size in written)
    return 2 * math.sqrt(rest / (count - 2) / spread) * 3600


def _hours(free: int | None, growth: float | None) -> float | None:
    return free / growth if free is not None and growth is not None and growth > 0 else None


def eviction(around: Surroundings) -> EvictionView:
    """What the adapter claims beside what was seen."""
    claim = {
        True: "the adapter is configured to evict",
        False: "this adapter does not evict",
        None: "whether the adapter evicts is not known",
    }[around.adapter_evicts]
    if around.vanished_since is None:
        seen = "it takes two scans to see whether records vanish"
    elif around.vanished_records:
        seen = f"{around.vanished_records} records vanished between scans without a run of ours"
    else:
        seen = "no record vanished between scans without a run of ours"
    return EvictionView(
        vanished_records=around.vanished_records,
        vanished_bytes=around.vanished_bytes,
        since=iso(around.vanished_since),
        sentence=f"{claim}; {seen}",
    )


_NOTES = {
    "noatime": "this mount records no access times: when a record was last read cannot be told",
    "relatime": "access times move at most once a day here (relatime)",
    "unknown": "whether access times move here is not known",
}


def mount_view(mount: MountFacts) -> MountView:
    """The file system for people."""
    notes = [_NOTES[mount.access_times]] if mount.access_times in _NOTES else []
    if mount.access_times == "unknown" and mount.fs_type:
        notes = [
            f"{mount.fs_type}: whether a read moves the access time is up to what is behind it, and not known here"
        ]
    if mount.volatile:
        notes.append(f"{mount.fs_type}: records are lost when the host or the container restarts")
    if mount.read_only:
        notes.append("mounted read-only: nothing can be cleaned here")
    return MountView(
        fs_type=mount.fs_type,
        mount_point=mount.mount_point,
        access_times=mount.access_times,
        volatile=mount.volatile,
        read_only=mount.read_only,
        total_bytes=mount.total_bytes,
        free_bytes=mount.free_bytes,
        inodes_free=mount.inodes_free,
        block_size=mount.block_size,
        note="; ".join(notes) or None,
    )


def filesystem_summary(mount: MountFacts) -> FilesystemSummary:
    return FilesystemSummary(
        total_bytes=mount.total_bytes,
        free_bytes=mount.free_bytes,
        inodes_free=mount.inodes_free,
        reason=mount.reason,
        used_bytes=mount.used_bytes,
    )
