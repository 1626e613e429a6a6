"""What a run stands on: our own folders and files of a store, and whether they are still what lies at their path.

A descriptor outlives its name. `.tierkeeper` can be deleted, moved or replaced while a run goes on; files would then
go into a folder that is nowhere, or outside of the store, with the lock gone too. So everything of ours that is open is
held here with its name, and looked for again, each part in the one before, before more is done there.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from app.errors import StoreError
from app.records.facts import display_name

_DELETED = " (deleted)"


class FootingLost(StoreError):
    """One of our own folders or files is not what lies at its path any more."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One held folder or file. A copy of a folder's descriptor is ours to close; a file is kept open by its owner.

    As long as it is open no other file can get its inode.
    """

    device: int
    inode: int
    folder: int | None


class Footing:
    """The held parts of one store, outermost first; `top` is the descriptor of its directory. For one thread."""

    def __init__(self, path: str, top: int) -> None:
        self._path = path
        self._top = top
        self._parts: dict[bytes, _Part] = {}
        self._lost: FootingLost | None = None

    @property
    def lost(self) -> bool:
        """Whether a part was once found not to be at its path: nothing may be written there any more."""
        return self._lost is not None

    def folder(self, name: bytes) -> int | None:
        """The descriptor of a held folder; it stays ours."""
        part = self._parts.get(name)
        return None if part is None else part.folder

    def hold(self, name: bytes, fd: int) -> None:
        """From now on `name` (relative to the store) has to be what `fd` is. Hold what it lies in before."""
        if name in self._parts:
            return
        found = os.fstat(fd)
        self._parts[name] = _Part(found.st_dev, found.st_ino, os.dup(fd) if stat.S_ISDIR(found.st_mode) else None)

    def let_go(self, name: bytes = b"") -> None:
        """Of `name` and all that lies in it; of everything without a name."""
        for held in [n for n in self._parts if not name or n == name or n.startswith(name + b"/")]:
            folder = self._parts.pop(held).folder
            if folder is not None:
                os.close(folder)

    def nearest(self, name: bytes) -> tuple[int, bytes]:
        """The held folder that `name` is or lies deepest in (the store's own if none), and what is left of `name`."""
        end = len(name)
        while end > 0:
            part = self._parts.get(name[:end])
            if part is not None and part.folder is not None:
                return part.folder, name[end + 1 :]
            end = name.rfind(b"/", 0, end)
        return self._top, name

    def where(self, name: bytes) -> str | None:
        """The path of a held folder as of now, wherever it was moved; None where it is deleted or not held."""
        part = self._parts.get(name)
        if part is None or part.folder is None or os.fstat(part.folder).st_nlink == 0:
            return None
        try:
            path = str(Path(f"/proc/self/fd/{part.folder}").readlink())
        except OSError:
            return None
        return None if path.endswith(_DELETED) else path

    def check(self) -> None:
        """Raises FootingLost naming the first part that is not at its path, now or at an earlier check; StoreError
        where one cannot be looked at.

        A look at each part, in the folder held before it: no link is followed.
        """
        if self._lost is not None:
            raise self._lost
        for name, part in self._parts.items():
            folder, _, leaf = name.rpartition(b"/")
            try:
                found = os.stat(leaf, dir_fd=self.nearest(folder)[0], follow_symlinks=False)
            except (FileNotFoundError, NotADirectoryError):
                raise self._lose(name, self._fate(name)) from None
            except OSError as error:
                where = f"{self._path}/{display_name(name)}"
                raise StoreError(f"{where} cannot be looked at ({error.strerror}): the panel stopped there") from error
            if (found.st_dev, found.st_ino) != (part.device, part.inode):
                raise self._lose(name, f"was replaced by {_kind(found.st_mode)}")

    def _fate(self, name: bytes) -> str:
        where = self.where(name)
        return "is gone" if where is None else f"was moved to {where}"

    def _lose(self, name: bytes, what: str) -> FootingLost:
        self._lost = FootingLost(
            f"{self._path}/{display_name(name)} {what} while the panel worked there: it stopped at once, and touched "
            "nothing else"
        )
        return self._lost


def _kind(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    if stat.S_ISDIR(mode):
        return "another directory"
    return "another file" if stat.S_ISREG(mode) else "something else (a fifo, a socket or a device)"
