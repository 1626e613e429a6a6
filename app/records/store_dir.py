"""The only way the product touches a store's files: everything relative to one descriptor, no link ever followed.

A `StoreDirectory` is opened once (no-follow) and stays that directory whatever happens to its path. Names are bytes
relative to it; each component is opened with O_NOFOLLOW, so a directory swapped for a link under us is an error, not a
way out. Walks do not enter ``.tierkeeper``, do not leave the device, and survive files that vanish.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from app.clock import Clock
from app.errors import StoreError
from app.fleet import mounts
from app.fleet.targets import StoreTarget
from app.lmcache.object_keys import OWN_FOLDER
from app.records.facts import FileFact, display_name

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OWN = OWN_FOLDER.encode()
_VOLATILE = {"tmpfs", "ramfs", "overlay"}
# Whether a read moves the access time there is up to the server or the daemon behind it, whatever the mount's options.
_ELSEWHERE = ("nfs", "cifs", "smb", "9p", "virtiofs", "fuse", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "afs")
# RULES.md C3: what is allowed for where the file system's clock cannot be measured.
UNMEASURED_ALLOWANCE = 2.0
#: Told of a sub-directory that could not be read: (relative name, sentence).
OnUnreadable = Callable[[bytes, str], None]
Entries = list[tuple[str, os.stat_result]]


@dataclass(frozen=True)
class ClockProbe:
    """File system clock minus panel clock, seconds. `measured` False: not known, `margin` is the allowance."""

    difference: float
    measured: bool

    @property
    def margin(self) -> float:
        """What the window of C3 grows by."""
        return abs(self.difference) if self.measured else UNMEASURED_ALLOWANCE


@dataclass(frozen=True)
class MountFacts:
    """The file system of a directory, measured now. `access_times`: strict, relatime, noatime or unknown."""

    fs_type: str | None
    mount_point: str | None
    access_times: str
    read_only: bool
    total_bytes: int | None
    free_bytes: int | None
    inodes_free: int | None
    block_size: int | None
    reason: str | None = None
    used_bytes: int | None = None

    @property
    def volatile(self) -> bool:
        """Whether records are gone after a restart of the host or the container."""
        return self.fs_type in _VOLATILE


class StoreDirectory:
    """An open directory of records. Close it, or use it as a context manager."""

    def __init__(self, path: str, fd: int) -> None:
        found = os.fstat(fd)
        self.path = path
        self.fd = fd
        self.device = found.st_dev
        self.inode = found.st_ino

    @classmethod
    def open(cls, path: str, *, expected: tuple[int, int] | None = None) -> StoreDirectory:
        """Opens a resolved path. `expected` is the (device, inode) it must be.

        Raises StoreError when it is missing, unreadable, a link, no directory, or another directory than expected.
        """
        try:
            fd = os.open(path, _DIRECTORY)
        except OSError as error:
            raise StoreError(f"the directory {path!r} {_why(error)}") from error
        directory = cls(path, fd)
        if expected is not None and directory.identity != expected:
            directory.close()
            raise StoreError(f"{path!r} is another directory than before (it was replaced or remounted); scan it again")
        return directory

    @property
    def identity(self) -> tuple[int, int]:
        """(device, inode): what a plan is bound to."""
        return self.device, self.inode

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> StoreDirectory:
        return self

    def __exit__(self, _t: type[BaseException] | None, _e: BaseException | None, _tb: TracebackType | None) -> None:
        self.close()

    def still_there(self) -> bool:
        """Whether the path still leads to this very directory."""
        try:
            found = Path(self.path).lstat()
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self.identity

    # single names

    def open_folder(self, relative: bytes, *, create: bool = False, start: int | None = None) -> int:
        """A descriptor of a sub-directory (``b""`` is the directory itself); the caller closes it.

        Raises OSError (ELOOP or ENOTDIR for a link, EXDEV for another device, EINVAL for ``..``). `create` makes what
        is missing, for the owner alone. `start`: an open folder of this directory that `relative` begins at.
        """
        fd = os.open(b".", _DIRECTORY, dir_fd=self.fd if start is None else start)
        try:
            for part in relative.split(b"/") if relative else ():
                if part in (b"", b".", b".."):
                    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), display_name(relative))
                if create:
                    with suppress(FileExistsError):
                        os.mkdir(part, 0o700, dir_fd=fd)
                inner = os.open(part, _DIRECTORY, dir_fd=fd)
                os.close(fd)
                fd = inner
            if os.fstat(fd).st_dev != self.device:
                raise OSError(errno.EXDEV, "lies on another device", display_name(relative))
        except BaseException:
            os.close(fd)
            raise
        return fd

    @contextmanager
    def parent(self, name: bytes) -> Iterator[tuple[int, bytes]]:
        """(descriptor of the directory that holds `name`, last component). Raises OSError as `open_folder`."""
        folder, _, base = name.rpartition(b"/")
        if base in (b"", b".", b".."):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), display_name(name))
        fd = self.open_folder(folder)
        try:
            yield fd, base
        finally:
            os.close(fd)

    def stat(self, name: bytes) -> FileFact | None:
        """The facts of one file now, without following a link; None when there is nothing. Raises OSError otherwise."""
        try:
            with self.parent(name) as (fd, base):
                return FileFact.of(name, os.stat(base, dir_fd=fd, follow_symlinks=False))
        except FileNotFoundError:
            return None

    # walking

    def walk(self, *, batch: int = 4096, on_unreadable: OnUnreadable | None = None) -> Iterator[list[FileFact]]:
        """Facts of everything that is not a directory, in batches of one directory each."""
        for folder, entries in self.walk_entries(batch=batch, on_unreadable=on_unreadable):
            prefix = os.fsencode(folder) + b"/" if folder else b""
            yield [FileFact.of(prefix + os.fsencode(name), found) for name, found in entries]

    def walk_entries(
        self, *, batch: int = 4096, on_unreadable: OnUnreadable | None = None
    ) -> Iterator[tuple[str, Entries]]:
        """(sub-directory or ``""``, [(name, stat result)]) as texts of `os.fsdecode`: the quick form, for scans.

        Raises StoreError when the directory itself cannot be read.
        """
        pending = [""]
        while pending:
            folder = pending.pop()
            try:
                fd = self.open_folder(os.fsencode(folder))
            except OSError as error:
                self._unreadable(folder, error, on_unreadable)
                continue
            try:
                for entries, folders in _listing(fd, self.device, batch):
                    pending += [f"{folder}/{name}" if folder else name for name in folders]
                    if entries:
                        yield folder, entries
            except OSError as error:
                self._unreadable(folder, error, on_unreadable)
            finally:
                os.close(fd)

    def _unreadable(self, folder: str, error: OSError, told: OnUnreadable | None) -> None:
        if not folder:
            raise StoreError(f"the directory {self.path!r} {_why(error)}") from error
        # Removed while we walked: nothing is missing.
        if error.errno != errno.ENOENT and told is not None:
            told(os.fsencode(folder), _why(error))

    # our own folder

    def own_folder(self) -> int:
        """A descriptor of ``.tierkeeper``, made when missing; the caller closes it. Raises OSError."""
        return self.open_folder(_OWN, create=True)

    def has_own_folder(self) -> bool:
        """Whether anything lies at ``.tierkeeper``, or it cannot be told."""
        try:
            os.stat(_OWN, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return True

    def clock_probe(self, clock: Clock) -> ClockProbe:
        """Measures the file system's clock by writing a file in our own folder (RULES.md C3)."""
        try:
            folder = self.own_folder()
        except OSError:
            return ClockProbe(0.0, measured=False)
        name = f"clock-probe-{os.getpid()}".encode()
        try:
            before = clock()
            fd = os.open(name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW, 0o600, dir_fd=folder)
            try:
                os.write(fd, b"t")
                os.fsync(fd)
                written = os.fstat(fd).st_mtime
            finally:
                os.close(fd)
                os.unlink(name, dir_fd=folder)
            after = clock()
        except OSError:
            return ClockProbe(0.0, measured=False)
        finally:
            os.close(folder)
        # The write happened somewhere between the two readings: only what lies outside them is a difference.
        difference = written - after if written > after else min(0.0, written - before)
        return ClockProbe(difference, measured=True)

    def fs_type(self) -> str | None:
        """The kind of the file system that is open here, whatever was mounted over it since; None where not told."""
        device = f"{os.major(self.device)}:{os.minor(self.device)}"
        kinds = {kind for fields, kind in mounts.mounts() if fields[2] == device}
        return kinds.pop() if len(kinds) == 1 else None

    def is_mount_root(self) -> bool:
        """Whether a mount of a whole file system begins here now; a folder of one that is bound here is none."""
        device = f"{os.major(self.device)}:{os.minor(self.device)}"
        return any(
            fields[2:4] == [device, "/"] and mounts.unescape(fields[4]) == self.path for fields, _ in mounts.mounts()
        )

    def mount(self) -> MountFacts:
        """Kind, options and room of the file system now."""
        fs_type, mount_point, options = _mount_entry(self.path)
        try:
            room = os.fstatvfs(self.fd)
        except OSError as error:
            return MountFacts(fs_type, mount_point, "unknown", False, None, None, None, None, _why(error))
        return MountFacts(
            fs_type=fs_type,
            mount_point=mount_point,
            access_times=_access_times(fs_type, options),
            read_only=bool(room.f_flag & os.ST_RDONLY),
            total_bytes=room.f_blocks * room.f_frsize,
            free_bytes=room.f_bavail * room.f_frsize,
            # File systems that make inodes as they go (btrfs) say 0 of 0: that is no number.
            inodes_free=room.f_favail if room.f_files else None,
            block_size=room.f_bsize,
            used_bytes=(room.f_blocks - room.f_bfree) * room.f_frsize,
        )


def open_store(store: StoreTarget) -> StoreDirectory:
    """A registered store's directory: looked at before anything in it is read or written, and refused where it is not
    the one that the last scan knew. Raises StoreError as `StoreDirectory.open`, and AnotherDirectory.
    """
    directory = StoreDirectory.open(store.path)
    try:
        if store.check is not None:
            store.check(directory)
    except BaseException:
        directory.close()
        raise
    return directory


def _listing(fd: int, device: int, batch: int) -> Iterator[tuple[Entries, list[str]]]:
    """One directory in batches: (files with their facts, names of sub-directories)."""
    entries: Entries = []
    folders: list[str] = []
    append = entries.append
    with os.scandir(fd) as listing:
        for entry in listing:
            try:
                found = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_IFMT(found.st_mode) == stat.S_IFDIR:
                if entry.name != OWN_FOLDER and found.st_dev == device:
                    folders.append(entry.name)
                continue
            append((entry.name, found))
            if len(entries) >= batch:
                yield entries, folders
                entries, folders = [], []
                append = entries.append
    yield entries, folders


def _access_times(fs_type: str | None, options: frozenset[str] | None) -> str:
    if options is None:
        return "unknown"
    if "noatime" in options:
        return "noatime"
    if fs_type is not None and fs_type.startswith(_ELSEWHERE):
        return "unknown"
    return "relatime" if "relatime" in options else "strict"


def _mount_entry(path: str) -> tuple[str | None, str | None, frozenset[str] | None]:
    """(type, mount point, options) of the mount that holds a resolved path."""
    found = mounts.mount_of(path)
    if found is None:
        return None, None, None
    fields, kind = found
    return kind, mounts.unescape(fields[4]), frozenset(fields[5].split(","))


def _why(error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return "does not exist on the panel's host; if the panel runs in a container, mount it there"
    if error.errno == errno.ELOOP:
        return "is a symbolic link; give the directory it leads to"
    if error.errno == errno.ENOTDIR:
        return "is not a directory (symbolic links are not followed)"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "cannot be read by the panel's user; give it read and search permission"
    return f"cannot be read ({os.strerror(error.errno) if error.errno else error})"
