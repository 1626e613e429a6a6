"""What the panel's own host tells of pressure: time lost for want of memory, and what a block device does.

Only for targets that share the host with the panel. Counters are cumulative since the host's start; the poller takes
differences. Every function returns a reason instead of a value where the kernel does not tell.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROC = Path("/proc")
_SECTOR = 512
_NUMBERS = 10  # of a line of /proc/diskstats after the device's name, as far as they are used here


@dataclass(frozen=True)
class DiskCounters:
    """One block device since the host's start. Bytes and seconds; `read_seconds` is the time that reads took, summed
    over reads that ran side by side, `busy_seconds` the time in which any request was under way."""

    device: str
    reads: float
    read_bytes: float
    read_seconds: float
    writes: float
    written_bytes: float
    write_seconds: float
    busy_seconds: float


@dataclass(frozen=True)
class DiskRates:
    """A device between two looks; latencies are means of the requests in between, None where there were none."""

    device: str
    seconds: float
    read_bytes_per_second: float
    write_bytes_per_second: float
    read_latency_seconds: float | None
    write_latency_seconds: float | None
    requests: float
    busy_ratio: float
    grown: DiskCounters = field(repr=False)

    def values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "grown"}

    def increments(self) -> dict[str, float | None]:
        """What is stored: the counters' growth; those of reads and of writes only where there were any."""
        more = self.grown
        found: dict[str, float | None] = {
            "disk_read_bytes": more.read_bytes,
            "disk_written_bytes": more.written_bytes,
            "disk_busy_seconds": min(more.busy_seconds, self.seconds),
        }
        if more.reads:
            found |= {"disk_reads": more.reads, "disk_read_seconds": more.read_seconds}
        if more.writes:
            found |= {"disk_writes": more.writes, "disk_write_seconds": more.write_seconds}
        return found


def memory_stalled_seconds(proc: Path = PROC) -> tuple[float | None, str | None]:
    """Seconds in which some task waited for memory, since the host's start (PSI `some`), or the reason why not."""
    try:
        for line in (proc / "pressure" / "memory").read_text("ascii", "replace").splitlines():
            kind, _, rest = line.partition(" ")
            fields = dict(part.partition("=")[::2] for part in rest.split())
            if kind == "some" and fields.get("total", "").isdigit():
                return int(fields["total"]) / 1e6, None
    except FileNotFoundError:
        return None, "this host's kernel tells no memory pressure (PSI is off, or not in this container)"
    except OSError as error:
        return None, f"memory pressure cannot be read: {error.strerror or error}"
    return None, "memory pressure cannot be read: no line `some … total=` in /proc/pressure/memory"


def disk_counters(path: str, proc: Path = PROC) -> tuple[DiskCounters | None, str | None]:
    """The device below a directory. May block as long as its file system does. Raises OSError where there is none."""
    number = Path(path).stat().st_dev
    wanted = os.major(number), os.minor(number)
    try:
        lines = (proc / "diskstats").read_text("ascii", "replace").splitlines()
    except OSError as error:
        return None, f"/proc/diskstats cannot be read: {error.strerror or error}"
    for line in lines:
        parts = line.split()
        if len(parts) < 3 + _NUMBERS or (parts[0], parts[1]) != (str(wanted[0]), str(wanted[1])):
            continue
        try:
            numbers = [int(part) for part in parts[3 : 3 + _NUMBERS]]
        except ValueError:
            break
        return (
            DiskCounters(
                device=parts[2],
                reads=float(numbers[0]),
                read_bytes=float(numbers[2] * _SECTOR),
                read_seconds=numbers[3] / 1000,
                writes=float(numbers[4]),
                written_bytes=float(numbers[6] * _SECTOR),
                write_seconds=numbers[7] / 1000,
                busy_seconds=numbers[9] / 1000,
            ),
            None,
        )
    return None, "no block device of this host is below it (a network, overlay or memory file system)"


def disk_rates(before: DiskCounters, after: DiskCounters, seconds: float) -> DiskRates | None:
    """What happened between two looks; None where it is another device, or the counters fell."""
    grown = {
        name: getattr(after, name) - getattr(before, name)
        for name in DiskCounters.__dataclass_fields__
        if name != "device"
    }
    if before.device != after.device or seconds <= 0 or min(grown.values()) < 0:
        return None
    return DiskRates(
        device=after.device,
        seconds=seconds,
        read_bytes_per_second=grown["read_bytes"] / seconds,
        write_bytes_per_second=grown["written_bytes"] / seconds,
        read_latency_seconds=grown["read_seconds"] / grown["reads"] if grown["reads"] else None,
        write_latency_seconds=grown["write_seconds"] / grown["writes"] if grown["writes"] else None,
        requests=grown["reads"] + grown["writes"],
        busy_ratio=min(1.0, grown["busy_seconds"] / seconds),
        grown=DiskCounters(device=after.device, **grown),
    )


@dataclass
class Disks:
    """The counters of the last look at each store, and what came of the next one."""

    _last: dict[int, tuple[float, DiskCounters]] = field(default_factory=dict)

    def take(self, store_id: int, now: float, counters: DiskCounters | None, longest: float) -> DiskRates | None:
        """Rates since the last look, None for the first one and after more than `longest` seconds without any."""
        before = self._last.pop(store_id, None)
        if counters is None:
            return None
        self._last[store_id] = now, counters
        if before is None or not 0 < now - before[0] <= longest:
            return None
        return disk_rates(before[1], counters, now - before[0])
