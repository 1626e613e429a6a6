"""Which processes of this database live: each holds one byte of a lock file while it runs long work.

The kernel lets go of the byte when its process dies, however it dies. That is the truth for every process that reaches
the file, whatever its host is called now and whatever its pid is: a container that is made anew has another host name
and pid 1 again. Ranges of one file need no room and leave nothing to tidy up, so they are there on a full disk too.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import socket
import struct
import threading
import weakref
from pathlib import Path

from app.database import Database

#: Beside the database file, so that the rows and the locks behind them are always found together.
LOCK_FILE = "work.lock"
_IN_MEMORY = (None, "", ":memory:")
# struct flock of 64-bit Linux: type, whence, start, length, pid (0 for locks that belong to an open file).
_FLOCK = struct.Struct("hhqqi4x")


class Owners:
    """Names this process in rows of work, and tells whether the process behind such a name still lives."""

    def __init__(self, db: Database) -> None:
        file = db.url.database
        self._path = Path(str(file)).parent / LOCK_FILE if db.is_sqlite and file not in _IN_MEMORY else None
        self._number = secrets.randbits(60)
        self._guard = threading.Lock()
        self._release: weakref.finalize[..., Owners] | None = None
        self._held: tuple[int, int] | None = None  # device and inode of the file that holds our byte
        self._plain = process_identity(os.getpid())
        self.me = f"{self._plain}#{self._number}"

    def hold(self) -> None:
        """Takes this process's byte; call it before a row is claimed. Cheap when it is held already.

        Where the file cannot be made or locked (a file system without locks), rows name the process by host and pid.
        """
        with self._guard:
            if self._path is not None and self._held is not None and _identity(self._path) == self._held:
                return
            self._let_go()
            self.me = f"{self._plain}#{self._number}" if self._take() else self._plain

    def let_go(self) -> None:
        """This process runs nothing any more."""
        with self._guard:
            self._let_go()

    def alive(self, owner: str | None) -> bool:
        """Whether the process behind the `owner` of a row still runs."""
        if not owner:
            return False
        if owner == self.me:
            return True
        plain, _, number = owner.partition("#")
        if number.isdecimal() and self._path is not None:
            return self._locked(int(number))
        host, pid, start = plain.rsplit(":", 2)
        if host != socket.gethostname():
            # Written without a lock. Whoever shares a database file shares its locks: it can only be from before.
            return self._path is None
        return _start_ticks(int(pid)) == start

    def _take(self) -> bool:
        if self._path is None:
            return False
        try:
            # For reading: a command of another user must be able to hold its byte beside a panel's.
            fd = os.open(self._path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError:
            return False
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, self._number, 1, 0))
            found = os.fstat(fd)
        except OSError:
            os.close(fd)
            return False
        self._release = weakref.finalize(self, os.close, fd)
        self._held = (found.st_dev, found.st_ino)
        return True

    def _let_go(self) -> None:
        if self._release is not None:
            self._release()
            self._release = None
        self._held = None

    def _locked(self, number: int) -> bool:
        assert self._path is not None
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError:
            return True  # not known: a row is rather waited for than taken from a process that lives
        try:
            asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0)
            return bool(_FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))[0] != fcntl.F_UNLCK)
        except OSError:
            return True
        finally:
            os.close(fd)


def process_identity(pid: int) -> str:
    """``host:pid:start`` where start (clock ticks since boot) tells a reused pid from the same process."""
    return f"{socket.gethostname()}:{pid}:{_start_ticks(pid)}"


def _identity(path: Path) -> tuple[int, int] | None:
    with contextlib.suppress(OSError):
        found = path.stat()
        return found.st_dev, found.st_ino
    return None


def _start_ticks(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "gone"
    # The command name may hold spaces and parentheses: fields count from the last ')'.
    return stat[stat.rindex(")") + 2 :].split()[19]
