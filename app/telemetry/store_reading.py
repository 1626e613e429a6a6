"""One look at a store's directory: is it there, can it be read, how full is its file system."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.fleet.load_schemas import DiskView
from app.telemetry import host
from app.telemetry.host import DiskCounters, DiskRates
from app.telemetry.metrics import INTERVAL


@dataclass(frozen=True)
class StoreLook:
    """`usable` is None where the file system did not answer in time. Sizes in bytes."""

    usable: bool | None
    reason: str | None
    total_bytes: int | None = None
    free_bytes: int | None = None
    used_bytes: int | None = None
    inodes_free: int | None = None
    disk: DiskCounters | None = None
    disk_reason: str | None = None
    device: int | None = None

    def values(self, rates: DiskRates | None = None) -> dict[str, Any]:
        disk: dict[str, Any] = {"reason": self.disk_reason or "a rate needs two looks"}
        if rates is not None:
            disk = rates.values() | {"reason": None}
        return {
            "disk": DiskView.stored(disk),
            "usable": self.usable,
            "usable_reason": self.reason,
            "filesystem": {
                "total_bytes": self.total_bytes,
                "free_bytes": self.free_bytes,
                "used_bytes": self.used_bytes,
                "inodes_free": self.inodes_free,
                "device": self.device,
            },
        }

    def samples(self, rates: DiskRates | None = None) -> dict[str, float]:
        values: dict[str, float | None] = {
            "up": None if self.usable is None else float(self.usable),
            "free_bytes": self.free_bytes,
        }
        values["inodes_free"] = self.inodes_free
        if rates is not None:
            values |= {INTERVAL: rates.seconds, **rates.increments()}
        return {name: float(value) for name, value in values.items() if value is not None}


def look_at_store(path: str) -> StoreLook:
    """Looks once; may block as long as the file system does. Never raises for what is wrong with the directory."""
    try:
        if not Path(path).is_dir():
            Path(path).stat()
            return StoreLook(False, "it is not a directory any more")
        with os.scandir(path) as entries:
            next(entries, None)
        facts = os.statvfs(path)
        device = Path(path).stat().st_dev
    except FileNotFoundError:
        return StoreLook(False, "the directory is gone (or its mount is)")
    except PermissionError:
        return StoreLook(False, "the panel's user may not read it")
    except OSError as error:
        return StoreLook(False, f"it cannot be read: {error.strerror or error}")
    disk, why = host.disk_counters(path)
    return StoreLook(
        True,
        None,
        disk=disk,
        disk_reason=why,
        total_bytes=facts.f_blocks * facts.f_frsize,
        free_bytes=facts.f_bavail * facts.f_frsize,  # what a plain user may still write
        used_bytes=(facts.f_blocks - facts.f_bfree) * facts.f_frsize,
        inodes_free=facts.f_favail if facts.f_files else None,
        device=device,
    )
