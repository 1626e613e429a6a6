"""Bytes in sentences. One rule for pages, commands, alarms and checks: memory in GiB (2^30), disks in GB (10^9).

So a reader never sees one quantity in two units. Tables and tiles print more digits (app.web.formats).
"""

from __future__ import annotations

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL = ("B", "kB", "MB", "GB", "TB", "PB")


def memory_size(count: float) -> str:
    """``2.5 GiB``: L0, L1, and what a process holds."""
    return _said(count, 1024, _BINARY)


def disk_size(count: float) -> str:
    """``2.5 GB``: records, file systems, what a run removes."""
    return _said(count, 1000, _DECIMAL)


def _said(count: float, base: int, units: tuple[str, ...]) -> str:
    value, power = float(count), 0
    while round(abs(value), 1 if power else 0) >= base and power < len(units) - 1:
        value /= base
        power += 1
    return f"{value:.1f} {units[power]}" if power else f"{value:.0f} B"
