"""The data directory: made private, and held by at most one `serve`."""

from __future__ import annotations

import errno
import fcntl
import os
import re
from pathlib import Path
from typing import IO

from app.errors import Conflict, InvalidInput


def prepare(path: Path) -> None:
    """Makes the directory (mode 0700). Raises InvalidInput when that is not possible."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = path / ".write-probe"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise InvalidInput.field("TIERKEEPER_DATA_DIR", f"{str(path)!r} {_why(error)}") from error


def _why(error: OSError) -> str:
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return "is a file, or lies below one; give a directory"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"cannot be written ({error.strerror}); free space there, or choose another directory"
    return (
        f"cannot be written ({error.strerror}); give this user write permission there (a mount must not be read-only), "
        "or choose another directory"
    )


class ServeLock:
    """Held for the life of a `serve`; the kernel frees it when the process dies, however it dies."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / "serve.lock"
        self._handle: IO[str] | None = None

    def acquire(self, url: str) -> None:
        """Raises Conflict that says which process holds it."""
        handle = self._path.open("a+")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            handle.seek(0)
            holder = handle.read().strip() or "another process"
            handle.close()
            raise Conflict(
                f"a panel already serves this data directory: {holder}; stop it first, or set TIERKEEPER_DATA_DIR"
            ) from None
        handle.truncate(0)
        handle.write(f"process {os.getpid()} at {url}")
        handle.flush()
        self._handle = handle

    def release(self) -> None:
        if self._handle is not None:
            self._handle.close()
            self._handle = None


#: As `ServeLock.acquire` writes it.
_HOLDER = re.compile(r"process (\d+) at (\S+)")


def serving_at(data_dir: Path) -> str | None:
    """The address at which a panel serves a data directory, as it wrote it down; None where none does.

    The lock itself is not tried: whoever starts a panel at that moment would be refused.
    """
    try:
        holder = _HOLDER.fullmatch((data_dir / "serve.lock").read_text("utf-8").strip())
    except (OSError, ValueError):
        return None
    return holder[2] if holder is not None and _lives(int(holder[1])) else None


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True  # somebody else's, but there
    except (OSError, OverflowError):
        return False
    return True
