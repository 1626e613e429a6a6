"""Is the directory at a store's path still the store? Looking (thin) and the rule on what was seen (pure).

A volume that is not mounted leaves an empty mount point at its path: taken for the store, it would look like one that
lost every record, and a scan or a cleanup would write into the disk below. So a directory counts as the store that the
last scan knew only where something proves it:

1. Both have a mark, a random text in ``.tierkeeper/store`` that the first scan writes: equal marks prove it (also after
   a reboot that numbered devices anew, and for a copy), different ones disprove it.
2. Device and inode are the same. The root of a file system has the same small inode on each, and a device number passes
   from one volume to the next, so of a root without both marks the third proof decides.
3. At least half of a sample of the known records lie there with the size and the time of writing they had. Names alone
   prove nothing: a server that goes on writing into the mount point makes the same names again. Where the inventory
   knew of no record, a root's numbers are believed, as nothing can be compared; an inventory that is lost is no proof.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from app.lmcache.object_keys import OWN_FOLDER
from app.records.inventory_file import Inventory
from app.records.store_dir import StoreDirectory
from app.records.timeline import NS

#: The mark's file in our own folder.
MARK = b"store"
_MARK_FORM = re.compile(rb"[0-9a-f]{32}\n?\Z")
#: Roots of file systems have inode numbers up to this (ext4 2, xfs 128, btrfs 256).
ROOT_INODES = 256
_SAMPLE = 64
_MOST_ENTRIES = 10_000
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class KnownDirectory:
    """The directory that the last scan found, at `seen_at`. `identity` is ``device:inode``; `mark` None: it could not
    be marked."""

    identity: str
    mark: str | None
    fs_type: str | None
    seen_at: float = 0.0


@dataclass(frozen=True)
class FoundDirectory:
    """The directory that lies there now. `alike`: (records of the sample that are there unchanged, sample), where that
    had to be looked at; None: it had to, and the inventory to compare with is lost."""

    identity: str
    inode: int
    mark: str | None
    alike: tuple[int, int] | None = (0, 0)


@dataclass(frozen=True)
class Sampled:
    """What the inventory knows of one record."""

    name: bytes
    size: int
    mtime_ns: int


def is_same(known: KnownDirectory, found: FoundDirectory) -> bool:
    """Whether the directory is proven to be the known one."""
    if known.mark is not None and found.mark is not None:
        return known.mark == found.mark
    there, looked = found.alike or (0, 0)
    if looked > 0 and 2 * there >= looked:
        return True
    if known.identity != found.identity:
        return False
    return not _may_be_any_root(found) or found.alike == (0, 0)


def find_directory(
    directory: StoreDirectory, known: KnownDirectory, sample: Callable[[], Sequence[Sampled] | None]
) -> FoundDirectory:
    """What lies there now; writes nothing. The sample (None: lost) is looked at only where nothing else decides."""
    found = FoundDirectory(identity_text(directory), directory.inode, read_mark(directory))
    if known.mark is not None and found.mark is not None:
        return found
    if known.identity == found.identity and not _may_be_any_root(found):
        return found
    records = sample()
    return replace(found, alike=None if records is None else _alike(directory, records))


def _may_be_any_root(found: FoundDirectory) -> bool:
    """Whether equal numbers prove nothing, where there are not both marks: each file system's root has this inode."""
    return found.inode <= ROOT_INODES


def identity_text(directory: StoreDirectory) -> str:
    """Which directory it is (numbers may exceed what SQLite holds)."""
    return f"{directory.device}:{directory.inode}"


def sample_of(inventory: Inventory) -> list[Sampled]:
    """Up to 64 records from all over an inventory."""
    db = inventory.db
    first, last = db.execute("SELECT min(id), max(id) FROM record").fetchone()
    if first is None:
        return []
    owners = inventory.owners()
    found: dict[int, Sampled] = {}
    for part in range(_SAMPLE):
        row = db.execute(
            "SELECT id, owner, salt, hash, size, mtime FROM record WHERE id>=? ORDER BY id LIMIT 1",
            (first + (last - first) * part // (_SAMPLE - 1),),
        ).fetchone()
        if row is not None and row[0] not in found:
            name = owners[row[1]].name(row[3], inventory.salt_text(row[2]))
            found[row[0]] = Sampled(os.fsencode(name), row[4], row[5])
    return list(found.values())


def count_entries(directory: StoreDirectory) -> str:
    """What lies at the top, for people; our own folder is not counted."""
    try:
        with os.scandir(directory.fd) as entries:
            count = 0
            for entry in entries:
                count += entry.name not in (OWN_FOLDER, "lost+found")
                if count > _MOST_ENTRIES:
                    return f"more than {_MOST_ENTRIES:,} entries"
    except OSError as error:
        return f"entries that cannot be read ({error.strerror})"
    return "empty" if count == 0 else "1 entry" if count == 1 else f"{count:,} entries"


def read_mark(directory: StoreDirectory) -> str | None:
    """The mark of a directory; None where there is none that can be read."""
    try:
        folder = directory.open_folder(OWN_FOLDER.encode())
    except OSError:
        return None
    try:
        return _read(folder)
    finally:
        os.close(folder)


def set_mark(directory: StoreDirectory) -> str | None:
    """The mark of a directory that is the store, made where there is none; None where it cannot be written.

    Two panels may do this at once: the mark is put in place whole and never over another, so that both have one.
    """
    try:
        folder = directory.own_folder()
    except OSError:
        return None
    try:
        there = _read(folder)
        return there if there is not None else _make(folder)
    except OSError:
        return None
    finally:
        os.close(folder)


def _read(folder: int) -> str | None:
    try:
        fd = os.open(MARK, _READ, dir_fd=folder)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        text = os.read(fd, 64)
    except OSError:
        return None
    finally:
        os.close(fd)
    return text[:32].decode() if _MARK_FORM.match(text) else None


def _make(folder: int) -> str | None:
    text = secrets.token_hex(16).encode()
    draft = b"store-" + text
    try:
        _write(folder, draft, text)
        with contextlib.suppress(FileExistsError):
            _put(folder, draft, text)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(draft, dir_fd=folder)
    return _read(folder)


def _put(folder: int, draft: bytes, text: bytes) -> None:
    """Raises FileExistsError where another panel was first."""
    try:
        os.link(draft, MARK, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        _write(folder, MARK, text)


def _write(folder: int, name: bytes, text: bytes) -> None:
    fd = os.open(name, _WRITE, 0o644, dir_fd=folder)
    try:
        os.write(fd, text + b"\n")
        os.fsync(fd)
    finally:
        os.close(fd)


def _alike(directory: StoreDirectory, sample: Sequence[Sampled]) -> tuple[int, int]:
    there = 0
    for record in sample:
        try:
            found = directory.stat(record.name)
        except OSError:
            continue
        # A copy may have lost the parts of a second; what was written anew has another time altogether.
        if found is not None and found.size == record.size and abs(found.mtime_ns - record.mtime_ns) < NS:
            there += 1
    return there, len(sample)
