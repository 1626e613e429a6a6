"""A store on a file system that lives in memory: its directory begins anew with each restart of host or pod.

What was there is gone with its mount, so nothing can be lost by following it; to ask a person each time would only
teach them to say yes. It is followed only where all of this holds:

- the last scan knew a tmpfs or ramfs, and one lies there now (told by the device of the open directory: the mount point
  of a volume that is away mostly lies on another kind of file system);
- a mount of a whole file system begins at the path now, and the known directory was a root too or lay on another device
  (a folder that was renamed within one tmpfs, or the mount point in another tmpfs, says nothing of what was there);
- nothing of ours is in it: no mark, no quarantine;
- the directory and all that is in it changed after that scan, so it is no older directory that lies there instead (the
  mount point of a tmpfs that is away, in another tmpfs).

Besides, nobody follows while the panel knows of work on the store or of records that wait in its quarantine
(`store_directories.py`), and only a scan does.

An overlay, such as that of a container, is not told from one that is merely another container's: it stays refused.
"""

from __future__ import annotations

import os

from app.errors import StoreError
from app.records.same_store import KnownDirectory
from app.records.store_dir import StoreDirectory
from app.records.timeline import NS

#: Content that ends with its mount.
VOLATILE = frozenset({"tmpfs", "ramfs"})
#: The root's inode where the kernel numbers each tmpfs on its own; no other directory has it there.
_ROOT = 1
#: So many entries are looked at; a person decides where there are more.
_MOST_ENTRIES = 100_000


def began_anew(directory: StoreDirectory, known: KnownDirectory) -> bool:
    """Whether the directory, which is not the known one, may be followed without asking anybody. Writes nothing."""
    if known.fs_type not in VOLATILE or directory.fs_type() not in VOLATILE:
        return False
    if not (directory.is_mount_root() and _was_another_mount(directory, known)):
        return False
    return not directory.has_own_folder() and _is_fresh(directory, round(known.seen_at * NS))


def _was_another_mount(directory: StoreDirectory, known: KnownDirectory) -> bool:
    """Whether the known directory belonged to a mount that is gone. Two that live at once never share a device, but the
    number passes on to the next: the root that has the number of a known root is its successor, or the same one."""
    device, _, inode = known.identity.partition(":")
    if directory.inode == _ROOT:
        return inode == str(_ROOT)
    return device != str(directory.device)


def _is_fresh(directory: StoreDirectory, since: int) -> bool:
    # The time of change cannot be set by who copies or touches files.
    unreadable: list[bytes] = []
    looked = 0
    try:
        if os.fstat(directory.fd).st_ctime_ns <= since:
            return False
        for _, entries in directory.walk_entries(on_unreadable=lambda folder, _why: unreadable.append(folder)):
            looked += len(entries)
            if looked > _MOST_ENTRIES or any(facts.st_ctime_ns <= since for _, facts in entries):
                return False
    except (OSError, StoreError):
        return False
    return not unreadable
