"""A store's directory held open while files are moved in it: every name is reached through a kept descriptor.

On top of `app.records.store_dir` (no link is followed, no other device entered) this keeps the directories open that
are used again and again, and knows where the quarantine lies: folders are bytes relative to the store.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from app.cleanup.footing import Footing
from app.cleanup.ports import Inventory
from app.errors import StoreError
from app.fleet.targets import StoreTarget
from app.lmcache.object_keys import OWN_FOLDER
from app.records.facts import display_name
from app.records.same_store import ROOT_INODES
from app.records.store_dir import StoreDirectory

OWN = OWN_FOLDER.encode()
QUARANTINE = OWN + b"/quarantine"
_OWN_PREFIX = OWN + b"/"
_NO_NAMES = frozenset({b"", b".", b"..", OWN})
#: O_PATH opens anything (also fifos and devices) without any effect on it, and never follows the last component.
LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
#: Errors of a disk, or of a share of it, that is full, and the way out of them.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
MAKE_ROOM = "free a few kilobytes by hand, then run again"
_KEPT_FOLDERS = 64
# A file that is given up when the disk is full, so that folder, lock and manifest of a run can still be written.
_RESERVE = b"reserve"
_RESERVE_BYTES = 2**20
_TIGHT_BYTES, _AMPLE_BYTES = 16 * 2**20, 256 * 2**20


@dataclass(frozen=True, slots=True)
class Space:
    """A file system as `df` counts it, in bytes."""

    total: int
    used: int
    free: int
    block_size: int


class StoreRoot:
    """One open store. Context manager; for one thread.

    `check` looks at the directory before anything else is done with it, and raises where it is not the store.
    """

    def __init__(self, path: str, check: Callable[[StoreDirectory], None] | None = None) -> None:
        self.path = path
        self._check = check
        self.device = 0
        self._directory: StoreDirectory | None = None
        self._footing: Footing | None = None
        self._folders: OrderedDict[bytes, int] = OrderedDict()

    def __enter__(self) -> Self:
        self._directory = StoreDirectory.open(self.path)
        try:
            if self._check is not None:
                self._check(self._directory)
        except BaseException:
            self._directory.close()
            raise
        self.device = self._directory.device
        self._footing = Footing(self.path, self._directory.fd)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.forget_folders()
        self.footing.let_go()
        self.directory.close()

    @property
    def directory(self) -> StoreDirectory:
        if self._directory is None:
            raise RuntimeError("use StoreRoot as a context manager")
        return self._directory

    @property
    def footing(self) -> Footing:
        """What is held of our own in the store, and looked for again by `verify`."""
        if self._footing is None:
            raise RuntimeError("use StoreRoot as a context manager")
        return self._footing

    @property
    def inode(self) -> int:
        """Signed, as the database holds it."""
        return signed(self.directory.inode)

    def verify(self) -> None:
        """Raises StoreError when the path no longer leads to the directory that was opened, or (FootingLost) what is
        held of our own in it is not there any more."""
        if not self.directory.still_there():
            raise StoreError(
                f"the store's directory {self.path} is not there any more, or another one is in its place "
                "(replaced, unmounted or mounted over); nothing else was touched"
            )
        self.footing.check()

    def space(self) -> Space:
        """Of the file system below. Raises OSError."""
        found = os.fstatvfs(self.directory.fd)
        unit = found.f_frsize
        return Space(found.f_blocks * unit, (found.f_blocks - found.f_bfree) * unit, found.f_bavail * unit, unit)

    def free_bytes(self) -> int | None:
        """Free bytes, None when they cannot be measured."""
        try:
            return self.space().free
        except OSError:
            return None

    def access_times(self) -> str:
        """strict, relatime, noatime or unknown."""
        return self.directory.mount().access_times

    def folder(self, relative: bytes, *, create: bool = False) -> int:
        """Descriptor of a directory below the store, kept open. Raises OSError (see StoreDirectory.open_folder)."""
        known = self._folders.get(relative)
        if known is None:
            start, rest = self.footing.nearest(relative)
            known = self.directory.open_folder(rest, create=create, start=start)
            self._folders[relative] = known
            if len(self._folders) > _KEPT_FOLDERS:
                _, oldest = self._folders.popitem(last=False)
                os.close(oldest)
        return known

    def place(self, name: bytes, below: bytes = b"", *, create: bool = False) -> tuple[int, bytes]:
        """Descriptor of the directory that holds `name` (in the folder `below`), and the name's last part.

        Raises OSError; EINVAL for a name that would leave the store or, without `below`, enter our own folder.
        """
        if b"/" not in name and name not in _NO_NAMES:  # the usual case: one flat directory
            known = self._folders.get(below)
            return self.folder(below, create=create) if known is None else known, name
        folder, _, leaf = name.rpartition(b"/")
        if leaf in _NO_NAMES or name.startswith(_OWN_PREFIX):
            raise OSError(errno.EINVAL, "is not a name of a record")
        if below:
            folder = below + b"/" + folder if folder else below
        known = self._folders.get(folder)
        return self.folder(folder, create=create) if known is None else known, leaf

    def forget_folders(self) -> None:
        """Closes the directories kept open; a path through them is walked anew."""
        for fd in self._folders.values():
            os.close(fd)
        self._folders.clear()

    def own(self, *, create: bool = True) -> int:
        """Descriptor of `.tierkeeper`. Raises StoreError where it cannot be used."""
        try:
            return self.folder(OWN, create=create)
        except OSError as error:
            raise StoreError(cannot_use(self, OWN, error)) from error

    def quarantine(self, *, create: bool = True) -> int:
        """Descriptor of `.tierkeeper/quarantine`. Raises StoreError where it cannot be used."""
        try:
            return self.folder(QUARANTINE, create=create)
        except OSError as error:
            raise StoreError(cannot_use(self, QUARANTINE, error)) from error


def check_still_that_store(root: StoreRoot, folder: bytes, device: int | None, inode: int | None) -> None:
    """Raises StoreError where the quarantine folder of a run is not there because the directory is another one.

    A store that is not mounted, or another in its place, would say of every record that it has vanished. `device` and
    `inode` are of the directory the run worked in (None: not known); the first changes when devices are found in
    another order.
    """
    if inode == root.inode and (device == root.device or inode > ROOT_INODES):
        return
    try:
        root.folder(folder)
    except FileNotFoundError:
        raise StoreError(
            f"{root.path} holds no {os.fsdecode(folder)} and is not the directory that was cleaned: is its file system "
            "mounted? Nothing was touched. If what waited there is really gone, make that folder, and it is counted so"
        ) from None
    except OSError as error:
        raise StoreError(cannot_use(root, folder, error)) from error


def hold_quarantine(root: StoreRoot, folder: bytes) -> bool:
    """Holds a run's folder and the quarantine it lies in (see `app.cleanup.footing`). False where it is not there.

    Raises StoreError where something else has its name: files behind a link are not for us to judge.
    """
    for part in (QUARANTINE, folder):
        try:
            root.footing.hold(part, root.folder(part))
        except FileNotFoundError:
            root.verify()  # not there any more, or never: what is held tells
            return False
        except OSError as error:
            raise StoreError(cannot_use(root, part, error)) from error
    return True


def release_reserve(root: StoreRoot) -> bool:
    """On a full disk: gives up the reserve. True when there was one to give up."""
    free = root.free_bytes()
    if free is None or free > _TIGHT_BYTES:
        return False
    try:
        os.unlink(_RESERVE, dir_fd=root.folder(OWN))
    except OSError:
        return False
    return True


def keep_reserve(root: StoreRoot) -> None:
    """Where there is room: lays the reserve up for a day without."""
    free = root.free_bytes()
    if root.footing.lost or free is None or free < _AMPLE_BYTES:
        return
    with contextlib.suppress(OSError):
        fd = os.open(_RESERVE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=root.folder(OWN))
        try:
            os.posix_fallocate(fd, 0, _RESERVE_BYTES)
        finally:
            os.close(fd)


def cannot_use(root: StoreRoot, folder: bytes, error: OSError) -> str:
    """Why one of our own folders cannot be used, by its full path: what was found there, and the way out."""
    path = root.path
    where = folder.decode()
    if error.errno == errno.EXDEV:
        return f"{path}/{where} is on another device, where a rename cannot reach; unmount it, then try again"
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        part, found = _in_the_way(root, folder)
        return (
            f"{path}/{part} is {found}, and the panel keeps its lock and its quarantine only in a directory of its own "
            f"there; nothing was touched. Look at what it is, move it away (mv {path}/{part} somewhere else), then try "
            "again: the panel makes the directory itself"
        )
    if error.errno in FULL:
        return f"{path}/{where} cannot be made: no space is left, not even for the journal; {MAKE_ROOM}"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{path}/{where} cannot be written ({error.strerror}); give the panel's user write permission"
    return f"{path}/{where} cannot be used: {error.strerror}"


def _in_the_way(root: StoreRoot, folder: bytes) -> tuple[str, str]:
    """The first part of a folder's path that is no directory, and what it is instead."""
    parts = folder.split(b"/")
    for end in range(1, len(parts) + 1):
        part = b"/".join(parts[:end])
        try:
            mode = os.stat(part, dir_fd=root.directory.fd, follow_symlinks=False).st_mode
            if stat.S_ISLNK(mode):
                target = os.readlink(part, dir_fd=root.directory.fd)
                return part.decode(), f"a symbolic link to {display_name(target)!r}"
        except OSError:
            break
        if not stat.S_ISDIR(mode):
            return part.decode(), "a file" if stat.S_ISREG(mode) else "no directory (a fifo, a socket or a device)"
    return folder.decode(), "not a directory"


def signed(inode: int) -> int:
    """An inode number as the database's signed 64 bit integer holds it."""
    return inode - 2**64 if inode >= 2**63 else inode


def store_root(inventory: Inventory, store: StoreTarget) -> StoreRoot:
    """A registered store: opened only where its directory is the one that the last scan knew."""
    return StoreRoot(store.path, lambda directory: inventory.check_directory(store.id, directory))
