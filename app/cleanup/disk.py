"""A store's directory held open while files are moved in it: every name is reached through a kept descriptor.

On top of `app.records.store_dir` (no link is followed, no other device entered) this keeps the directories open that
are used again and again, and knows where the quarantine lies: folders are bytes relative to the store.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import OrderedDict
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from app.errors import StoreError
from app.lmcache.object_keys import OWN_FOLDER
from app.records.store_dir import StoreDirectory

OWN = OWN_FOLDER.encode()
QUARANTINE = OWN + b"/quarantine"
_OWN_PREFIX = OWN + b"/"
_NO_NAMES = frozenset({b"", b".", b"..", OWN})
#: O_PATH opens anything (also fifos and devices) without any effect on it, and never follows the last component.
LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
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
    """One open store. Context manager; for one thread."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.device = 0
        self._directory: StoreDirectory | None = None
        self._folders: OrderedDict[bytes, int] = OrderedDict()

    def __enter__(self) -> Self:
        self._directory = StoreDirectory.open(self.path)
        self.device = self._directory.device
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.forget_folders()
        self.directory.close()

    @property
    def directory(self) -> StoreDirectory:
        if self._directory is None:
            raise RuntimeError("use StoreRoot as a context manager")
        return self._directory

    @property
    def inode(self) -> int:
        """Signed, as the database holds it."""
        return signed(self.directory.inode)

    def verify(self) -> None:
        """Raises StoreError when the path no longer leads to the directory that was opened."""
        if not self.directory.still_there():
            raise StoreError(
                f"the store's directory {self.path} is not there any more, or another one is in its place "
                "(replaced, unmounted or mounted over); nothing else was touched"
            )

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
            known = self.directory.open_folder(relative, create=create)
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
            raise StoreError(_cannot_use(OWN, self.path, error)) from error

    def quarantine(self, *, create: bool = True) -> int:
        """Descriptor of `.tierkeeper/quarantine`. Raises StoreError where it cannot be used."""
        try:
            return self.folder(QUARANTINE, create=create)
        except OSError as error:
            raise StoreError(_cannot_use(QUARANTINE, self.path, error)) from error


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
    if free is None or free < _AMPLE_BYTES:
        return
    with contextlib.suppress(OSError):
        fd = os.open(_RESERVE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=root.folder(OWN))
        try:
            os.posix_fallocate(fd, 0, _RESERVE_BYTES)
        finally:
            os.close(fd)


def _cannot_use(folder: bytes, path: str, error: OSError) -> str:
    where = folder.decode()
    if error.errno == errno.EXDEV:
        return f"{where} in {path} is on another device, where a rename cannot reach; unmount it"
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return f"{where} in {path} is not a directory of ours (a link or a file); move it away"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"{where} in {path} cannot be made: no space is left, not even for the journal; free a few kilobytes by "
            "hand, then run again"
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{where} in {path} cannot be written ({error.strerror}); give the panel's user write permission"
    return f"{where} in {path} cannot be used: {error.strerror}"


def signed(inode: int) -> int:
    """An inode number as the database's signed 64 bit integer holds it."""
    return inode - 2**64 if inode >= 2**63 else inode
