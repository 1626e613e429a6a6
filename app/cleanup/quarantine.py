"""The quarantine of a store on its disk: `.tierkeeper/quarantine/<run>/<relative name>` with a manifest.

The manifest (`manifest.jsonl`) is written before files are moved, so that a panel with another database can tell what
lies there and put it back. Its first line describes the run, each further line is the list of one batch of records:
``[name, size, mtime_ns, ctime_ns, atime_ns, inode, class, reason, why]``; a name that is not UTF-8 is ``{"hex": …}``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.cleanup.disk import QUARANTINE, StoreRoot, cannot_use, hold_quarantine
from app.cleanup.items import ItemRow
from app.errors import StoreError

MANIFEST = b"manifest.jsonl"
VERSION = 1
_FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_LONGEST_LINE = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Entry:
    """One record as the manifest tells it; all facts are from before it was moved."""

    name: bytes
    size: int
    mtime_ns: int
    ctime_ns: int
    atime_ns: int
    inode: int
    cls: str
    reason: str | None
    why: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """One folder of the quarantine as measured: its files, and what its manifest says of the run."""

    folder: str
    records: int
    bytes: int
    header: dict[str, Any] | None
    reason: str | None


def folder_path(folder: str) -> bytes:
    """The folder relative to the store. Raises StoreError for a name that is none of ours."""
    if not _FOLDER_NAME.fullmatch(folder):
        raise StoreError(f"{folder!r} is not a quarantine folder")
    return QUARANTINE + b"/" + folder.encode()


class Manifest:
    """Appends to a run's manifest. Raises OSError."""

    def __init__(self, root: StoreRoot, folder: bytes, header: dict[str, Any]) -> None:
        root.quarantine()
        self._folder = root.folder(folder, create=True)
        hold_quarantine(root, folder)
        self._footing, self._name = root.footing, folder + b"/" + MANIFEST
        self._fd = os.open(MANIFEST, _WRITE, 0o644, dir_fd=self._folder)
        self._footing.hold(self._name, self._fd)
        try:
            self._append(json.dumps({"tierkeeper_quarantine": VERSION, **header}))
            os.fsync(self._folder)
        except OSError:
            self.close()
            raise

    def add(self, items: Sequence[ItemRow]) -> None:
        """Durable when this returns."""
        if items:
            names = _names_out([item.name for item in items])
            records = [(name, *i[2:7], *i[8:11]) for name, i in zip(names, items, strict=True)]
            self._append(json.dumps(records, separators=(",", ":")))

    def _append(self, line: str) -> None:
        body = memoryview((line + "\n").encode())
        while body:
            body = body[os.write(self._fd, body) :]
        os.fdatasync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            self._footing.let_go(self._name)
            os.close(self._fd)
            self._fd = -1


def read_manifest(root: StoreRoot, folder: bytes) -> tuple[dict[str, Any], Iterator[Entry]]:
    """The header and the records of a folder's manifest; a line cut off by a crash is left out.

    Raises StoreError when there is none that can be read. Use up (or drop) the iterator before the root is closed.
    """
    try:
        fd = os.open(MANIFEST, _READ, dir_fd=root.folder(folder))
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise StoreError(f"the manifest in {os.fsdecode(folder)} is not a file")
    except OSError as error:
        raise StoreError(f"{os.fsdecode(folder)} has no manifest that can be read: {error.strerror}") from error
    lines = _lines(fd)
    header = _json(next(lines, b""))
    if not isinstance(header, dict) or header.get("tierkeeper_quarantine") != VERSION:
        lines.close()
        raise StoreError(f"the manifest in {os.fsdecode(folder)} was not written by a panel that this one understands")
    return header, _entries(lines)


def _lines(fd: int) -> Generator[bytes]:
    with os.fdopen(fd, "rb") as file:
        while line := file.readline(_LONGEST_LINE):
            if line.endswith(b"\n"):
                yield line


def _entries(lines: Iterator[bytes]) -> Iterator[Entry]:
    for line in lines:
        records = _json(line)
        for value in records if isinstance(records, list) else []:
            entry = _entry(value)
            if entry is not None:
                yield entry


def _entry(value: object) -> Entry | None:
    if not isinstance(value, list) or len(value) != 9:
        return None
    name = _name_in(value[0])
    size, mtime, ctime, atime, inode = value[1:6]
    if name is None or not all(isinstance(n, int) and -(2**63) <= n < 2**63 for n in value[1:6]):
        return None
    cls, reason, why = (v if v is None else str(v)[:40] for v in value[6:])
    return Entry(name, size, mtime, ctime, atime, inode, cls or "unverified", reason, why or "filter")


def _json(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _names_out(names: list[bytes]) -> Sequence[str | dict[str, str]]:
    try:
        return b"\0".join(names).decode("utf-8").split("\0")  # no name holds a zero byte: all of them in one go
    except UnicodeDecodeError:
        return [_name_out(name) for name in names]


def _name_out(name: bytes) -> str | dict[str, str]:
    try:
        return name.decode("utf-8")
    except UnicodeDecodeError:
        return {"hex": name.hex()}


def _name_in(value: object) -> bytes | None:
    """A relative name that stays below its folder, or None."""
    try:
        if isinstance(value, dict):
            name = bytes.fromhex(str(value.get("hex")))
        elif isinstance(value, str):
            name = value.encode("utf-8")
        else:
            return None
    except ValueError:
        return None
    parts = name.split(b"/")
    return None if b"\0" in name or any(part in (b"", b".", b"..") for part in parts) else name


def list_folders(root: StoreRoot) -> list[str]:
    """Names of all folders in the quarantine, oldest first; [] when there is none. Raises StoreError."""
    try:
        found = root.folder(QUARANTINE)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(cannot_use(root, QUARANTINE, error)) from error
    return sorted(name for name in os.listdir(found) if _FOLDER_NAME.fullmatch(name))


def measure(root: StoreRoot, folder: str) -> Waiting:
    """Counts the files of one folder on the disk and reads its manifest's first line."""
    records = size = 0
    reason: str | None = None
    header: dict[str, Any] | None = None
    path = folder_path(folder)
    try:
        for found in _files(root, path):
            records += 1
            size += found.st_size
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
    try:
        header, entries = read_manifest(root, path)
        del entries
    except StoreError as error:
        reason = reason or error.detail
    return Waiting(folder, records, size, header, reason)


def _files(root: StoreRoot, folder: bytes) -> Iterator[os.stat_result]:
    pending = [folder]
    while pending:
        current = pending.pop()
        fd = root.directory.open_folder(current)
        try:
            with os.scandir(fd) as listing:
                for entry in listing:
                    with contextlib.suppress(FileNotFoundError):
                        found = entry.stat(follow_symlinks=False)
                        name = os.fsencode(entry.name)
                        if stat.S_ISDIR(found.st_mode):
                            pending.append(current + b"/" + name)
                        elif current != folder or name != MANIFEST:
                            yield found
        finally:
            os.close(fd)


def remove_if_empty(root: StoreRoot, folder: str) -> bool:
    """Takes a folder away that holds nothing but its manifest. True when it is gone."""
    path = folder_path(folder)
    root.forget_folders()
    if root.footing.lost:
        return False  # whatever lies at its path now is not what we made
    try:
        if any(True for _ in _files(root, path)):
            return False
        root.footing.let_go(path)
        _remove_directories(root, path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(MANIFEST, dir_fd=root.folder(path))
        os.rmdir(folder.encode(), dir_fd=root.folder(QUARANTINE))
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _remove_directories(root: StoreRoot, path: bytes) -> None:
    fd = root.directory.open_folder(path)
    try:
        for name in os.listdir(fd):
            inner = path + b"/" + os.fsencode(name)
            if stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                _remove_directories(root, inner)
                os.rmdir(name, dir_fd=fd)
    finally:
        os.close(fd)


def quarantined_bytes(root: StoreRoot, known: Mapping[str, int]) -> int:
    """Bytes of everything that waits, of whatever run; `known` are those of this panel's runs, by folder."""
    return sum(known[folder] if folder in known else measure(root, folder).bytes for folder in list_folders(root))
