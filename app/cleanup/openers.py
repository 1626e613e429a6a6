"""Whether somebody writes a file right now, as far as this machine can tell.

The kernel refuses a read lease on a file that anybody has open for writing, in whatever container; that needs to own
the file (or CAP_LEASE) and a local file system. Where it cannot tell, `/proc` is searched for processes that have the
file open. A writer on another machine is seen by neither: therefore unfinished writes also have to be old and not
growing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path


def open_elsewhere(fd: int) -> bool:
    """Whether another process writes the file behind an O_PATH descriptor. False where nothing can be told."""
    by_lease = _writer_by_lease(fd)
    return _opened_by_proc(fd) if by_lease is None else by_lease


def _writer_by_lease(fd: int) -> bool | None:
    try:
        # Opening through /proc gives the very inode that was looked at, whatever has its name meanwhile.
        reading = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOATIME)
    except OSError:
        return None
    try:
        fcntl.fcntl(reading, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(reading, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return True if error.errno == errno.EAGAIN else None
    finally:
        os.close(reading)
    return False


def _opened_by_proc(fd: int) -> bool:
    wanted = os.fstat(fd)
    me = str(os.getpid())
    for process in os.listdir("/proc"):
        if not process.isdecimal() or process == me:
            continue
        with contextlib.suppress(OSError):
            for opened in os.listdir(f"/proc/{process}/fd"):
                with contextlib.suppress(OSError):
                    found = Path(f"/proc/{process}/fd/{opened}").stat()
                    if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                        return True
    return False
