"""What the kernel says of mounts, and where a directory lies whatever path leads to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")


def mounts() -> Iterator[tuple[list[str], str]]:
    """(fields before the dash, kind of file system) of each mount, from /proc/self/mountinfo."""
    try:
        lines = MOUNTS.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return
    for line in lines:
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) >= 6 and kind:
            yield fields, kind[0]


def mount_of(path: str) -> tuple[list[str], str] | None:
    """The mount that holds a resolved path."""
    best: tuple[list[str], str] | None = None
    longest = -1
    for fields, kind in mounts():
        point = unescape(fields[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        # Of two mounts on one point the later hides the earlier.
        if inside and len(point) >= longest:
            longest = len(point)
            best = (fields, kind)
    return best


def place_of(path: str) -> tuple[str, str] | None:
    """(device, path inside its file system) of a resolved path: one place has one, wherever else it is bound."""
    found = mount_of(path)
    if found is None:
        return None
    fields, _ = found
    inside = path[len(unescape(fields[4]).rstrip("/")) :]
    return fields[2], unescape(fields[3]).rstrip("/") + inside or "/"


def unescape(text: str) -> str:
    """A path as it is, of a field."""
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text
