"""A scan of a directory that is no registered store: an inventory in a file, no database, nothing written there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from app.clock import Clock
from app.records.inventory_file import Inventory, remove_inventory
from app.records.knowledge_free import without_servers
from app.records.same_store import KnownDirectory, find_directory, identity_text, is_same, sample_of
from app.records.scan_work import ScanOutcome, inventory_lock, scan_directory
from app.records.schemas import SummaryView
from app.records.store_dir import StoreDirectory
from app.records.summary import ScanFacts, Surroundings, filesystem_summary, mount_view, summarise

_POINTS = 200


def scan_unregistered(
    directory: str,
    path: Path,
    *,
    clock: Clock,
    poll_seconds: float,
    gentle: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> tuple[SummaryView, ScanOutcome]:
    """Scans `directory` (resolved) into the inventory at `path` and returns its summary.

    Raises StoreError when the directory cannot be read, Conflict when it is being scanned by somebody else.
    """
    with StoreDirectory.open(directory) as opened:
        proven, replaced = _replaced(path, opened)
        outcome = scan_directory(
            opened,
            path,
            clock=clock,
            context_of=lambda _probe: without_servers(clock(), poll_seconds),
            temp_dirs=(),
            tick=on_progress or _silent,
            gentle=gentle,
            probe_clock=False,
            proven=proven,
        )
    totals = outcome.totals
    now = clock()
    with Inventory.require(path) as inventory:
        meta = inventory.meta()
        points = [*json.loads(meta.get("growth") or "[]"), [now, totals.bytes]][-_POINTS:]
        seen = json.loads(meta.get("vanished") or "[0, 0, null]")
        if outcome.rescan:
            seen = [seen[0] + totals.vanished, seen[1] + totals.vanished_bytes, seen[2] or points[0][0]]
        with inventory.write():
            inventory.set_meta(growth=json.dumps(points), vanished=json.dumps(seen), judged_at=now, path=directory)
        facts = ScanFacts(
            scan_id=None,
            scanned_at=now,
            allocated_bytes=totals.blocks * 512,
            foreign=totals.foreign,
            foreign_bytes=totals.foreign_bytes,
            foreign_examples=totals.examples,
            unreadable=outcome.unreadable,
        )
        around = Surroundings(
            mount=mount_view(outcome.mount),
            filesystem=filesystem_summary(outcome.mount),
            written=[(at, float(size)) for at, size in points],
            vanished_records=seen[0],
            vanished_bytes=seen[1],
            vanished_since=seen[2],
            alarms=replaced,
        )
        return summarise("", inventory, facts, around), outcome


def _replaced(path: Path, opened: StoreDirectory) -> tuple[bool, tuple[str, ...]]:
    """Whether the directory is proven to be the one scanned before, and that it is not, in a sentence: nothing is
    compared with that one then, its inventory goes. No mark is written, so a root is told by its records."""
    inventory = Inventory.open(path)
    if inventory is None:
        return False, ()
    with inventory:
        before = str(inventory.meta().get("directory"))
        known = KnownDirectory(before, None, None)
        if is_same(known, find_directory(opened, known, lambda: sample_of(inventory))):
            return True, ()
    with inventory_lock(path) as mine:
        if mine:  # else the scan says that another one is under way
            remove_inventory(path)
    now = identity_text(opened)
    what = f"device:inode {before}, now {now}" if before != now else f"other records under the same device:inode {now}"
    return False, (f"not the directory of the last scan ({what}): is its volume mounted?",)


def _silent(_files: int) -> None:
    return
