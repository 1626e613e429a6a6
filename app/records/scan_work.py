"""One scan of one directory, from the open descriptor to a judged inventory. No database session is open here."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from app.clock import Clock
from app.errors import Conflict
from app.records.classify import Context
from app.records.inventory_file import Inventory
from app.records.judging import judge_inventory, measure_cohorts
from app.records.owners import OwnerBook
from app.records.same_store import identity_text
from app.records.scanner import BATCH, Tick, Totals, drop_doubles, full_scan, re_scan
from app.records.schemas import ANOTHER_SCAN
from app.records.store_dir import ClockProbe, Entries, MountFacts, StoreDirectory
from app.records.timeline import NS

# Between two batches of a gentle scan it rests for this many times as long as the batch took.
_GENTLE_REST = 1.0
_DEFAULT_BLOCK = 4096
# Files written this long before a walk began may be listed twice by it (coarse clocks, network file systems).
_DOUBLE_SLACK = 60.0


log = structlog.get_logger()


@dataclass
class ScanOutcome:
    """What a scan did. `unreadable`: sub-directories with the reason; `context` is what the inventory is judged by."""

    totals: Totals
    rescan: bool
    context: Context
    mount: MountFacts
    probe: ClockProbe
    walk_seconds: float
    unreadable: list[str] = field(default_factory=list)


@contextmanager
def inventory_lock(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """The right to change an inventory, among all processes of the data directory; False when somebody has it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(fd)


def scan_directory(
    directory: StoreDirectory,
    path: Path,
    *,
    clock: Clock,
    context_of: Callable[[ClockProbe], Context],
    temp_dirs: tuple[str, ...],
    tick: Tick,
    gentle: bool = False,
    probe_clock: bool = True,
    proven: bool = False,
    rest: Callable[[float], None] = time.sleep,
) -> ScanOutcome:
    """Brings the inventory at `path` in step with the directory.

    `context_of` is asked before the walk (to place records) and after it (to judge them: polls went on meanwhile).
    `tick` may raise to stop; a first scan that is stopped leaves nothing, a re-scan what it had done. `probe_clock`
    False: nothing is written into the directory. `proven`: the directory is the one the inventory is of, though its
    device or inode may have other numbers now; else an inventory of other numbers is made anew. Raises StoreError when
    the directory cannot be read, Conflict when another process is at the inventory.
    """
    with inventory_lock(path) as mine:
        if not mine:
            raise Conflict(ANOTHER_SCAN)
        probe = directory.clock_probe(clock) if probe_clock else ClockProbe(0.0, measured=False)
        mount = directory.mount()
        unreadable: dict[bytes, str] = {}

        def walk() -> Iterator[tuple[str, Entries]]:
            unreadable.clear()
            return _paced(directory.walk_entries(batch=BATCH, on_unreadable=unreadable.__setitem__), gentle, rest)

        began = clock()
        watch = time.monotonic()
        before = context_of(probe)
        totals = None
        inventory = _usable(path, directory, proven)
        if inventory is not None:
            try:
                with inventory:
                    judge_inventory(inventory, before, alignments(inventory))
                    totals = re_scan(walk(), inventory, OwnerBook(inventory, before, temp_dirs), tick, unreadable)
            except sqlite3.OperationalError:
                raise
            except sqlite3.DatabaseError as error:
                log.warning("records.inventory_damaged", path=str(path), error=str(error))
        rescan = totals is not None
        if totals is None:
            totals = _build(path, walk(), before, temp_dirs, tick, directory)
        walked = time.monotonic() - watch
        after = context_of(probe)
        with Inventory.require(path) as inventory:
            if not rescan:
                measure_cohorts(inventory)
            drop_doubles(inventory, round((began - _DOUBLE_SLACK + min(0.0, probe.difference)) * NS))
            with inventory.write():
                inventory.set_meta(scanned_at=clock(), block_size=mount.block_size, **_whose(directory))
            judged = judge_inventory(inventory, after, alignments(inventory))
    return ScanOutcome(
        totals=totals,
        rescan=rescan,
        context=judged,
        mount=mount,
        probe=probe,
        walk_seconds=walked,
        unreadable=[f"{os.fsdecode(name)!r} {why}" for name, why in sorted(unreadable.items())],
    )


def alignments(inventory: Inventory) -> tuple[int, ...]:
    """Block sizes that an adapter may round record sizes up to (C6), as the last scan found them."""
    return tuple(sorted({_DEFAULT_BLOCK, int(inventory.meta().get("block_size") or _DEFAULT_BLOCK)}))


def _whose(directory: StoreDirectory) -> dict[str, str]:
    """Which directory an inventory is of."""
    return {"directory": identity_text(directory), "device": str(directory.device)}


def _usable(path: Path, directory: StoreDirectory, proven: bool) -> Inventory | None:
    """The inventory to compare with, if it is of this very directory."""
    inventory = Inventory.open(path)
    if inventory is None:
        return None
    if proven or inventory.meta().get("directory") == identity_text(directory):
        return inventory
    # Another directory under the same path: what was there says nothing of what vanished or changed.
    inventory.close()
    return None


def _build(
    path: Path,
    walk: Iterator[tuple[str, Entries]],
    context: Context,
    temp_dirs: tuple[str, ...],
    tick: Tick,
    directory: StoreDirectory,
) -> Totals:
    inventory = Inventory.build(path)
    try:
        totals = full_scan(walk, inventory, OwnerBook(inventory, context, temp_dirs), tick)
        inventory.set_meta(made_at=context.now, **_whose(directory))
        inventory.finish_build()
    except BaseException:
        inventory.abandon_build()
        raise
    return totals


def _paced(
    walk: Iterator[tuple[str, Entries]], gentle: bool, rest: Callable[[float], None]
) -> Iterator[tuple[str, Entries]]:
    if not gentle:
        yield from walk
        return
    began = time.monotonic()
    for batch in walk:
        yield batch
        rest(min(1.0, _GENTLE_REST * (time.monotonic() - began)))
        began = time.monotonic()
