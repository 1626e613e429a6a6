"""Removing one file by the rules R1 and R2, and putting one back. System calls only: no session, no network.

Every step is relative to descriptors. A file is opened without following links (O_PATH: no effect on fifos or devices,
no access time moved), compared with the frozen facts, renamed into quarantine, and compared again through its new name;
a difference puts it back without overwriting anything. Deletion goes the same way and then unlinks.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

from app.cleanup.disk import LOOK, StoreRoot, signed
from app.cleanup.items import ItemRow
from app.cleanup.openers import open_elsewhere

_NO_LINKS_HERE = frozenset({errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EINVAL})
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR})
_RENAME_NOREPLACE = 1
_KIND = stat.S_IFMT(0o177777)
#: State of a file that was not to go but lies in quarantine all the same; its facts are not those of its item.
LEFT_BEHIND = "left_behind"


class Outcome(NamedTuple):
    """What became of one item: a state of `plan_item`, and for `failed` the errno and a sentence."""

    seq: int
    state: str
    errno: int | None = None
    detail: str | None = None


#: As `Outcome(…)`, without a call of Python's own for each record.
_outcome = cast("Callable[[tuple[Any, ...]], Outcome]", partial(tuple.__new__, Outcome))


def remove(root: StoreRoot, quarantine: bytes, item: ItemRow) -> Outcome:
    """Moves one file into the quarantine folder (relative name), or deletes it by way of it.

    Never raises OSError; StoreError where a rename finds that the folder is not at its path any more.
    """
    seq = item.seq
    try:
        parent, leaf = root.place(item.name)
        fd = os.open(leaf, LOOK, dir_fd=parent)
    except OSError as error:
        return _no_entry(seq, error)
    try:
        why_not = difference(os.fstat(fd), item, root.device)
        if why_not is not None:
            return Outcome(seq, why_not)
        if item.cls == "temporary" and open_elsewhere(fd):
            return Outcome(seq, "open", None, "a process holds it open")
        inside, _ = root.place(item.name, quarantine, create=True)
        os.rename(leaf, leaf, src_dir_fd=parent, dst_dir_fd=inside)
    except OSError as error:
        if error.errno in _ABSENT:
            return _not_moved(root, parent, leaf, seq, error)
        return _no_entry(seq, error)
    finally:
        os.close(fd)
    return _settle_moved(parent, inside, leaf, item, root.device)


def _not_moved(root: StoreRoot, parent: int, leaf: bytes, seq: int, error: OSError) -> Outcome:
    """A rename that found one of its two ends absent: which? Raises StoreError where our own folder is gone."""
    try:
        os.stat(leaf, dir_fd=parent, follow_symlinks=False)
    except OSError as gone:
        return _no_entry(seq, gone)
    root.verify()
    return Outcome(seq, "failed", error.errno, "it is in place; a folder in quarantine that it was to go to is gone")


def _settle_moved(
    parent: int, inside: int, leaf: bytes, item: ItemRow, device: int, *, lay_there: bool = False
) -> Outcome:
    """After the rename: what arrived must be what was meant, else it goes back.

    `lay_there`: the rename was some time ago, and people or backups may have read the file since.
    """
    seq = item.seq
    try:
        found = os.stat(leaf, dir_fd=inside, follow_symlinks=False)
        why_not = difference(found, item, device, moved=True)
        if why_not == "used" and lay_there and found.st_atime_ns > found.st_ctime_ns:
            why_not = None  # no engine looks into the quarantine: what counts is use until the rename, which set ctime
        if why_not is None:
            if item.action != "delete":
                return _outcome((seq, "quarantined", None, None))
            os.unlink(leaf, dir_fd=inside)
            return _outcome((seq, "deleted", None, None))
    except FileNotFoundError:
        return Outcome(seq, "vanished", None, "somebody else deleted it from quarantine")
    except OSError as error:
        return Outcome(seq, LEFT_BEHIND, error.errno, f"in quarantine: {error.strerror}")
    try:
        put_back(inside, parent, leaf)
    except FileExistsError:
        # The writer was faster and has put a newer file under this name; what was moved is an older state of it.
        return Outcome(seq, LEFT_BEHIND, errno.EEXIST, "in quarantine: a newer file has its name")
    except OSError as error:
        return Outcome(seq, LEFT_BEHIND, error.errno, f"in quarantine: could not be put back ({error.strerror})")
    return Outcome(seq, why_not)


def difference(found: os.stat_result, item: ItemRow, device: int, *, moved: bool = False) -> str | None:
    """Why a file is not (or no longer) the one that was planned; None when it is. A rename changes ctime: `moved`."""
    mode, inode, at, links, _, _, size = found[:7]
    _, _, planned_size, mtime_ns, ctime_ns, atime_ns, planned_inode, planned_device = item[:8]
    if mode & _KIND != stat.S_IFREG:
        return "not_regular"
    if links != 1:
        return "linked"
    if at != device or device != planned_device:
        return "other_device"
    if size != planned_size or found.st_mtime_ns != mtime_ns:
        return "changed"
    if inode != planned_inode and signed(inode) != planned_inode:
        return "changed"
    if not moved and found.st_ctime_ns != ctime_ns:
        return "changed"
    if found.st_atime_ns > atime_ns and item.respects_use:
        return "used"
    return None


def same_file(found: os.stat_result, item: ItemRow) -> bool:
    """Whether this is the planned file, whatever its ctime and access time."""
    return (
        stat.S_ISREG(found.st_mode)
        and found.st_size == item.size
        and found.st_mtime_ns == item.mtime_ns
        and signed(found.st_ino) == item.inode
    )


def look(root: StoreRoot, name: bytes, below: bytes = b"") -> os.stat_result | None:
    """A file's facts without following links; None when it is not there. Raises OSError."""
    try:
        parent, leaf = root.place(name, below)
        return os.stat(leaf, dir_fd=parent, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None


def put_back(inside: int, parent: int, leaf: bytes) -> None:
    """Moves a file from quarantine to its name, never over an existing one.

    Raises FileExistsError (nothing changed) or another OSError.
    """
    try:
        os.link(leaf, leaf, src_dir_fd=inside, dst_dir_fd=parent, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in _NO_LINKS_HERE:
            raise
        # File systems without hard links, directories, and files of another owner (fs.protected_hardlinks).
        _rename_without_overwriting(inside, parent, leaf)
        return
    os.unlink(leaf, dir_fd=inside)


def _rename_without_overwriting(inside: int, parent: int, leaf: bytes) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(inside, leaf, parent, leaf, _RENAME_NOREPLACE) == 0:
        return
    code = ctypes.get_errno()
    raise OSError(code, os.strerror(code))


def restore(root: StoreRoot, quarantine: bytes, item: ItemRow, *, checked: bool = True) -> Outcome:
    """Puts one quarantined file back: `restored`, `exists`, `vanished`, `changed` or `failed`. Never raises OSError;
    StoreError where the quarantine is not at its path any more.

    `checked`: only if it is still the file that was put there (not so for LEFT_BEHIND ones).
    """
    try:
        found = look(root, item.name, quarantine)
        present = look(root, item.name)
        if found is None:
            # A power cut can undo a rename that the journal took for done: then it never left.
            there = present is not None and same_file(present, item)
            root.verify()  # a folder that was taken away meanwhile says nothing of its files
            return Outcome(item.seq, "restored" if there else "vanished")
        if checked and not same_file(found, item):
            return Outcome(item.seq, "changed", None, "what lies in quarantine is not what was put there")
        inside, leaf = root.place(item.name, quarantine)
        parent, _ = root.place(item.name, create=True)
        if present is not None and (present.st_dev, present.st_ino) == (found.st_dev, found.st_ino):
            os.unlink(leaf, dir_fd=inside)  # the second half of a restore that was cut off
            return Outcome(item.seq, "restored")
        put_back(inside, parent, leaf)
    except FileExistsError:
        return Outcome(item.seq, "exists", errno.EEXIST, "another file has its name now; it stays in quarantine")
    except OSError as error:
        return Outcome(item.seq, "failed", error.errno, error.strerror)
    return Outcome(item.seq, "restored")


def purge(root: StoreRoot, quarantine: bytes, item: ItemRow, *, checked: bool = True) -> Outcome:
    """Deletes one quarantined file: `purged`, `vanished`, `changed` or `failed`. Never raises OSError; StoreError where
    the quarantine is not at its path any more."""
    try:
        found = look(root, item.name, quarantine)
        if found is None:
            root.verify()
            return Outcome(item.seq, "vanished")
        if checked and not same_file(found, item):
            return Outcome(item.seq, "changed", None, "what lies in quarantine is not what was put there")
        inside, leaf = root.place(item.name, quarantine)
        os.unlink(leaf, dir_fd=inside)
    except OSError as error:
        return Outcome(item.seq, "failed", error.errno, error.strerror)
    return Outcome(item.seq, "purged")


def settle(root: StoreRoot, quarantine: bytes, item: ItemRow) -> Outcome:
    """What the disk says about a removal that was cut off, finishing its second half where it was half done.

    `in_place`, `vanished`, or a state of `remove`. Raises OSError when the disk cannot be asked.
    """
    present = look(root, item.name)
    found = look(root, item.name, quarantine)
    if found is not None:
        inside, leaf = root.place(item.name, quarantine)
        if present is not None and (present.st_dev, present.st_ino) == (found.st_dev, found.st_ino):
            os.unlink(leaf, dir_fd=inside)  # it was being put back
            return Outcome(item.seq, "in_place")
        parent, _ = root.place(item.name, create=True)
        return _settle_moved(parent, inside, leaf, item, root.device, lay_there=True)
    if present is not None:
        return Outcome(item.seq, "in_place" if same_file(present, item) else "changed")
    return Outcome(item.seq, "deleted" if item.action == "delete" else "vanished")


def sync_directory(fd: int) -> None:
    """Makes renames in a directory survive a power cut, where its file system can."""
    with contextlib.suppress(OSError):
        os.fsync(fd)


def _no_entry(seq: int, error: OSError) -> Outcome:
    if error.errno in _ABSENT:
        return Outcome(seq, "vanished")
    if error.errno == errno.ELOOP:
        return Outcome(seq, "not_regular", error.errno, "a part of its path is a symbolic link")
    return Outcome(seq, "failed", error.errno, error.strerror)
