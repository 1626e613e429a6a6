"""What this host shows of itself: memory, addresses, and the file system below a store, with one real write.

Every function copes with hosts where the source is missing (no /proc, no cgroup): then the value is unknown.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from app.checks.facts import HostMemory, WriteProbe
from app.errors import StoreError
from app.records.store_dir import StoreDirectory

_MAX_PROBE = 16 * 2**20
_PATTERN = b"tierkeeper write probe\n"
_SYSTEM = ("/proc", "/sys", "/dev", "/etc", "/boot", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/run")
_UNIFIED = ("gb10", "dgx spark", "grace", "jetson", "gh200", "gb200", "apple")


@dataclass(frozen=True)
class StoreFacts:
    """What is below one directory. None is what could not be told."""

    path: str
    fs_type: str | None
    mount_point: str | None
    device: str | None
    is_root: bool
    block_size: int | None
    total_bytes: int | None
    free_bytes: int | None
    temp_same_device: bool | None


def memory(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> HostMemory | None:
    """Memory of this host, with this container's limit where there is one."""
    values: dict[str, int] = {}
    try:
        for line in (proc / "meminfo").read_text("ascii", "replace").splitlines():
            name, _, rest = line.partition(":")
            parts = rest.split()
            if parts and parts[0].isdigit():
                values[name] = int(parts[0]) * 1024
    except OSError:
        return None
    if "MemTotal" not in values:
        return None
    limit = None
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            found = int((cgroup / name).read_text().strip())
            limit = found if found < values["MemTotal"] else None
            break
    return HostMemory(
        total_bytes=values["MemTotal"],
        available_bytes=values.get("MemAvailable", values.get("MemFree", 0)),
        limit_bytes=limit,
        unified=_unified(),
    )


def _unified() -> bool | None:
    """Whether CPU and GPU share one memory, by the machine's own name."""
    for path in ("/proc/device-tree/model", "/sys/class/dmi/id/product_name", "/sys/class/dmi/id/board_name"):
        with suppress(OSError):
            name = Path(path).read_bytes()[:200].decode("utf-8", "replace").lower()
            if any(word in name for word in _UNIFIED):
                return True
    return None


def usable_directory(path: str) -> str | None:
    """Why nothing may be looked at there, None when it may: a real directory outside the system's own."""
    if not path.startswith("/") or "\0" in path or path != os.path.normpath(path):
        return f"{path!r} is not an absolute path in its plain form"
    ours = path.startswith("/dev/shm/")  # noqa: S108
    if not ours and (path == "/" or any(path == root or path.startswith(f"{root}/") for root in _SYSTEM)):
        return f"{path!r} is a directory of the system"
    try:
        found = os.lstat(path)
    except OSError as error:
        missing = error.errno == errno.ENOENT
        return "the directory is not on this host" if missing else f"the directory cannot be seen ({error.strerror})"
    if not stat.S_ISDIR(found.st_mode):
        return f"{path!r} is no directory"
    return None


def store_facts(directory: StoreDirectory, temp_dir: str | None) -> StoreFacts:
    """Mount, blocks and room of a directory."""
    mount = directory.mount()
    same: bool | None = None
    if temp_dir is not None and not temp_dir.startswith("/") and ".." not in temp_dir.split("/"):
        with suppress(OSError):
            same = os.stat(temp_dir, dir_fd=directory.fd, follow_symlinks=False).st_dev == directory.device
    return StoreFacts(
        path=directory.path,
        fs_type=mount.fs_type,
        mount_point=mount.mount_point,
        device=_device(mount.mount_point),
        is_root=mount.mount_point == "/",
        block_size=mount.block_size,
        total_bytes=mount.total_bytes,
        free_bytes=mount.free_bytes,
        temp_same_device=same,
    )


def _device(mount_point: str | None) -> str | None:
    """The source of a mount (``/dev/nvme1n1``, ``nas:/export``)."""
    found = None
    with suppress(OSError):
        for line in Path("/proc/self/mounts").read_text("utf-8", "surrogateescape").splitlines():
            parts = line.split()
            if len(parts) > 1 and parts[1].replace("\\040", " ") == mount_point:
                found = parts[0].replace("\\040", " ")
    return found


def write_probe(
    directory: StoreDirectory, temp_dir: str | None, *, direct: bool, size: int, block_size: int | None
) -> WriteProbe:
    """Write, sync and read back a file that has no name, where the adapter would write. Never raises.

    `size` is rounded up to whole blocks and capped at 16 MiB.
    """
    block = block_size or mmap.PAGESIZE
    wanted = max(1, min(size, _MAX_PROBE))
    length = -(-wanted // block) * block
    try:
        folder = _folder(directory, temp_dir)
        try:
            fd = _nameless(folder, directory)
        finally:
            os.close(folder)
        try:
            return _write(fd, length, direct)
        finally:
            os.close(fd)
    except StoreError as error:
        return WriteProbe("not_tried", error.detail, direct, length)
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "EIO")
        return WriteProbe("refused", f"{name}: {os.strerror(error.errno or errno.EIO)}", direct, length, name)


def _folder(directory: StoreDirectory, temp_dir: str | None) -> int:
    """Where unfinished writes go, else the store itself. The caller closes it."""
    if temp_dir and not temp_dir.startswith("/") and ".." not in temp_dir.split("/"):
        with suppress(OSError):
            return directory.open_folder(os.fsencode(temp_dir))
    return directory.open_folder(b"")


def _nameless(folder: int, directory: StoreDirectory) -> int:
    """An open file without a name: O_TMPFILE, else made in our own folder and unlinked before anything is written."""
    try:
        return os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL, errno.ENOSYS):
            raise
    own = directory.own_folder()
    try:
        name = f"write-probe-{os.getpid()}-{os.urandom(4).hex()}"
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=own)
        os.unlink(name, dir_fd=own)
        return fd
    finally:
        os.close(own)


def _write(fd: int, length: int, direct: bool) -> WriteProbe:
    if direct:
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_DIRECT)
    # anonymous maps begin on a page: O_DIRECT wants the address aligned too
    with mmap.mmap(-1, length) as sent, mmap.mmap(-1, length) as back:
        sent.write((_PATTERN * (length // len(_PATTERN) + 1))[:length])
        written = os.pwrite(fd, sent, 0)
        if written != length:
            return WriteProbe("refused", f"ENOSPC: room for {written} of {length} bytes", direct, length, "ENOSPC")
        os.fsync(fd)
        got = os.preadv(fd, [back], 0)
        if got != length or back[:] != sent[:]:
            return WriteProbe("refused", f"EIO: {got} of {length} bytes came back as written", direct, length, "EIO")
    return WriteProbe("written", "written, synced and read back", direct, length)


def read_log(path: Path, marker: bytes, *, most: int = 4 * 2**20) -> str:
    """The last start in a log file: from a little before the last `marker`, at most `most` bytes; of a longer one the
    beginning and the end.

    Raises OSError. A log without the marker is read from its beginning.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "is no regular file", str(path))
        start = max(0, _last_offset(file, marker) - 64 * 1024)
        file.seek(start)
        text = file.read(most)
        end = file.seek(0, os.SEEK_END)
        if end - start > most:
            file.seek(end - most // 2)
            text = text[: most // 2] + b"\n" + file.read(most // 2).partition(b"\n")[2]
        return text.decode("utf-8", "replace")


def _last_offset(file: BinaryIO, marker: bytes, *, block: int = 2**20, furthest: int = 2**30) -> int:
    seek, read, tell = file.seek, file.read, file.tell
    seek(0, os.SEEK_END)
    end = int(tell())
    position = end
    tail = b""
    while position > 0 and end - position < furthest:
        step = min(block, position)
        position -= step
        seek(position)
        data = read(step) + tail
        found = data.rfind(marker)
        if found >= 0:
            return position + found
        tail = data[: len(marker)]
    return 0
