"""`tierkeeper scan STORE|DIRECTORY`: works without a running panel, and beside one.

A directory's inventory is kept in the data directory, so that a second scan is a re-scan; nothing is written into the
directory itself, and without servers to ask only names, ages and empty files can be judged.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.clock import system_clock
from app.disk_room import Room, room
from app.errors import InvalidInput, NotFound, TierkeeperError
from app.printable import say
from app.settings import Settings, load_settings
from app.sizes import disk_size

if TYPE_CHECKING:
    from app.services import Services


def scan_command(target: str, *, as_json: bool = False, gentle: bool = False, accept_directory: bool = False) -> int:
    """Scans and prints the summary; returns the exit status (0 succeeded, 3 otherwise).

    A target with a ``/`` (or that starts with ``.``) is a directory; else a store's name or id, and only where there is
    no such store a directory of the working directory. Raises InvalidInput for what is neither.
    """
    if not target.strip():
        raise InvalidInput.field("STORE|DIRECTORY", "is empty (an unset variable?); name a store or a directory")
    if "/" in target or target.startswith("."):
        _refuse_accepting(target, accept_directory)
        return _directory(target, as_json=as_json, gentle=gentle)
    from app.commands.context import NoDatabase

    try:
        return _store(target, as_json=as_json, gentle=gentle, accept_directory=accept_directory)
    except (NotFound, NoDatabase) as error:
        if Path(target).is_dir():
            _refuse_accepting(target, accept_directory)
            return _directory(target, as_json=as_json, gentle=gentle)
        more = f" ({error.detail})" if isinstance(error, NoDatabase) else ""
        raise InvalidInput.field(
            "STORE|DIRECTORY", f"{target!r} is neither a store (by name or id) nor a directory here{more}"
        ) from None


def _refuse_accepting(target: str, accept_directory: bool) -> None:
    if accept_directory:
        raise InvalidInput.field(
            "--accept-directory", f"{target!r} is a directory; only a registered store is bound to one: name the store"
        )


def _store(target: str, *, as_json: bool, gentle: bool, accept_directory: bool) -> int:
    from app.commands.context import COMMAND_PRINCIPAL, command_services
    from app.scheduling.work import ACTIVE_STATES, SUCCEEDED

    with command_services() as services:
        store_id = services.fleet.find("store", target)
        if accept_directory:
            _accept(services, store_id)
        scan = services.records.start_scan(store_id, actor=COMMAND_PRINCIPAL.actor, gentle=gentle)
        while scan.state in ACTIVE_STATES:
            time.sleep(0.2)  # a running panel may have claimed it first
            scan = services.records.get_scan(int(scan.id))
        if scan.state != SUCCEEDED:
            raise TierkeeperError(f"the scan ended {scan.state}: {scan.error or 'no reason given'}")
        summary = services.records.summary(store_id).model_dump(mode="json", by_alias=True)
    _print(summary, as_json, title=target, seconds=scan.seconds, files=scan.files_seen)
    return 0


def _accept(services: Services, store_id: int) -> None:
    from app.commands.context import COMMAND_PRINCIPAL

    before = services.records.directories.view(store_id)
    if before.state != "another":
        say("nothing to accept: no other directory lies at the store's path", file=sys.stderr)
        return
    services.records.directories.accept(store_id, before.found, actor=COMMAND_PRINCIPAL.actor)
    say(f"accepted: the store is {before.found} now (device:inode), no longer {before.known}", file=sys.stderr)


def _directory(target: str, *, as_json: bool, gentle: bool) -> int:
    from app.records.directory_scan import scan_unregistered

    settings = load_settings()
    path = _resolved(target)
    summary, outcome = scan_unregistered(
        path,
        inventory_path(settings, path),
        clock=system_clock,
        poll_seconds=settings.poll_seconds,
        gentle=gentle,
        on_progress=None if as_json or not sys.stderr.isatty() else _progress,
    )
    shown = summary.model_dump(mode="json", by_alias=True)
    _print(shown, as_json, title=path, seconds=outcome.walk_seconds, files=outcome.totals.files)
    return 0


def inventory_path(settings: Settings, path: str) -> Path:
    """Where the inventory of a directory is kept."""
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:32]
    return settings.data_dir.resolve() / "directories" / f"{name}.db"


def _resolved(target: str) -> str:
    try:
        path = os.path.realpath(target, strict=True)
        is_directory = stat.S_ISDIR(Path(path).stat().st_mode)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidInput.field("DIRECTORY", f"{target!r} cannot be used ({reason})") from error
    if path == "/":
        raise InvalidInput.field("DIRECTORY", "'/' is the whole machine, no store; give the directory of the records")
    if not is_directory:
        raise InvalidInput.field("DIRECTORY", f"{target!r} is not a directory; give the directory of the records")
    return path


def _progress(files: int) -> None:
    print(f"\r{files:,} files", end="", file=sys.stderr, flush=True)


def _print(summary: dict[str, Any], as_json: bool, *, title: str, seconds: float | None, files: int) -> None:
    if as_json:
        print(json.dumps(summary))
        return
    if sys.stderr.isatty():
        print("\r", end="", file=sys.stderr)
    took = f" in {seconds:.1f} s" if seconds is not None else ""
    say(f"{title}: {summary['records']:,} records, {_size(summary['bytes'])} ({files:,} files seen{took})")
    rows = [(cls, count) for cls, count in summary["by_class"].items() if count["records"]]
    for cls, count in sorted(rows, key=lambda row: -row[1]["bytes"]):
        say(f"  {cls:<14}{count['records']:>12,}  {_size(count['bytes']):>10}")
    for reason, count in sorted(summary["by_reason"].items(), key=lambda row: -row[1]["records"]):
        say(f"    {reason:<20}{count['records']:>12,}  {_size(count['bytes']):>10}")
    from app.records.schemas import FilesystemSummary

    found = room(FilesystemSummary.model_validate(summary["filesystem"]))
    if found is not None:
        say(f"  {_room(found)}")
    for line in [*summary["alarms"], *(f"not readable: {name}" for name in summary["unreadable"])]:
        say(f"  ! {line}")


def _room(found: Room) -> str:
    """The file system in the words of the pages: what is used of what can be used, and what is free."""
    kept = f"; {_size(found.reserved)} more are reserved by the file system" if found.reserved else ""
    share = "" if found.ratio is None else f", {found.ratio:.0%} used"
    return f"{_size(found.used)} of {_size(found.whole)}{share}, {_size(found.free)} free, as df counts{kept}"


def _size(size: int | None) -> str:
    return "?" if size is None else disk_size(size)
