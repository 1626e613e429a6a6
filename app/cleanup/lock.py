"""One at a time on a store (R7): `flock` on `<store>/.tierkeeper/lock`, which says who holds it and since when.

The kernel lets go of it when its process dies, however it dies. Two panels with two databases meet here; two threads of
one panel too (each opens the file anew).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from app.cleanup.disk import FULL, MAKE_ROOM, OWN, StoreRoot
from app.clock import Clock, iso
from app.errors import Conflict, StoreError

_NAME = b"lock"
_PATH = OWN + b"/" + _NAME
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_MAX_BYTES = 4096


@dataclass(frozen=True)
class LockOwner:
    """What the lock file says. `work` is for people: ``cleanup run 12``."""

    owner: str
    work: str
    since: str
    heartbeat: str


class StoreLocked(Conflict):
    """Somebody else works on this store just now."""

    code = "store_locked"


class StoreLock:
    """Context manager. Raises StoreLocked when somebody else holds it, StoreError when it cannot be written.

    `make_room` is called once the lock is ours and before anything is written: on a full disk it gives up a reserve.
    """

    def __init__(
        self,
        root: StoreRoot,
        *,
        owner: str,
        work: str,
        clock: Clock,
        make_room: Callable[[], object] = lambda: None,
    ) -> None:
        self._root = root
        self._owner = owner
        self._work = work
        self._clock = clock
        self._make_room = make_room
        self._since = clock()
        self._fd = -1

    def __enter__(self) -> Self:
        folder = self._root.own()
        # Somebody may remove the file between our open and our lock: the lock counts only on the file that is there.
        for _ in range(10):
            try:
                fd = os.open(_NAME, _FLAGS, 0o644, dir_fd=folder)
            except OSError as error:
                raise StoreError(_cannot_write(self._root.path, error)) from error
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = _read(fd)
                os.close(fd)
                raise StoreLocked(_held_by(self._root.path, holder)) from None
            except OSError as error:
                os.close(fd)
                raise StoreError(f"{self._root.path} cannot be locked: {error.strerror}") from error
            if _is_there(folder, fd):
                self._fd = fd
                break
            os.close(fd)
        else:
            raise StoreError(f"the lock file in {self._root.path} is removed as fast as it is made")
        try:
            self._make_room()
            self.beat()
        except OSError as error:
            os.close(self._fd)
            self._fd = -1
            # A run that cannot even say that it runs has no business moving files.
            raise StoreError(_cannot_write(self._root.path, error)) from error
        self._root.footing.hold(OWN, folder)
        self._root.footing.hold(_PATH, self._fd)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fd >= 0:
            self._root.footing.let_go(OWN)
            # The text stays, so that its block stays ours on a disk that fills up; the kernel's lock is what counts.
            with contextlib.suppress(OSError):
                self._write(released=iso(self._clock()))
            os.close(self._fd)
            self._fd = -1

    def beat(self) -> int:
        """Writes who holds the lock and that it lives; returns the file system's own time, nanoseconds.

        Raises OSError.
        """
        self._write()
        return os.fstat(self._fd).st_mtime_ns

    def _write(self, **more: str | None) -> None:
        said = {
            "owner": self._owner,
            "work": self._work,
            "since": iso(self._since),
            "heartbeat": iso(self._clock()),
            **more,
        }
        body = json.dumps(said).encode() + b"\n"
        os.pwrite(self._fd, body, 0)
        os.ftruncate(self._fd, len(body))


def _cannot_write(path: str, error: OSError) -> str:
    if error.errno in FULL:
        return f"the lock in {path} cannot be written: no space is left, not even for it; {MAKE_ROOM}"
    return f"the lock in {path} cannot be written: {error.strerror}"


def _is_there(folder: int, fd: int) -> bool:
    try:
        found = os.stat(_NAME, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    mine = os.fstat(fd)
    return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)


def _read(fd: int) -> LockOwner | None:
    try:
        said = json.loads(os.pread(fd, _MAX_BYTES, 0))
        return LockOwner(*(str(said[name])[:200] for name in ("owner", "work", "since", "heartbeat")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _held_by(path: str, holder: LockOwner | None) -> str:
    if holder is None:
        return f"another panel or command works in {path} just now; try again when it is done"
    return (
        f"{holder.work} of {holder.owner} works in {path} since {holder.since} "
        f"(last sign of life {holder.heartbeat}); try again when it is done"
    )
