"""May this directory be a store? Looking at it (thin), and the rules on what was seen (pure).

A wrong directory here ends in deleted files of somebody else, so the panel wants evidence before it believes a path:

1. Never: ``/``, the home directory or anything above it, system directories, the panel's own data directory, what lies
   inside another store or holds one, what is missing, unreadable or no directory.
2. Files, but none named like a record (of those looked at): refused. `confirm` does not help.
3. Records of a model that one of the store's servers is known to use: proven.
4. Records of other models only, while the servers' models are known: refused. Where `path` is the very directory that
   the server's configuration names (same path on this host), `confirm` vouches for it: the records may be older.
5. Where the servers' models are not known (server down, no engine yet, no server given): taken when `path` is
   `server_path`; where the two differ, `confirm` is needed, since nothing proves that they are one directory.
6. An empty directory: taken when `path` is `server_path`, else with `confirm` (the first scan after traffic shows it).
7. Directories that no file adapter makes and no record, or more other files than records, where no record is of a model
   its servers use: `confirm`, naming what was seen.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from app.errors import InvalidInput
from app.fleet.record_names import comparable, model_of_record

OWN_FOLDER = ".tierkeeper"
MAX_ENTRIES = 4000
MAX_FOLDERS = 64
_EXAMPLES = 3
#: Directories that a fresh file system or its snapshots bring along.
_OF_FILESYSTEMS = frozenset({"lost+found", ".snapshot", ".snapshots", ".zfs"})
_HASH_FOLDER = re.compile(r"^[0-9a-f]{1,8}$")
_SYSTEM = ("/proc", "/sys", "/dev", "/etc", "/boot", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/run/systemd")


@dataclass(frozen=True)
class Directory:
    """A directory that was looked at: `path` resolved, and what a sample of its names says."""

    path: str
    device: int
    inode: int
    files: int
    records: int
    models: Mapping[str, int]
    truncated: bool
    #: Directories at the top that no file adapter makes.
    folders: tuple[str, ...] = ()
    #: Some files that are not named like records.
    others: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        return self.files == 0


def look(path_text: str, temp_dir: str | None = None, *, field: str = "path") -> Directory:
    """Resolves a path and samples its names. Raises InvalidInput naming `field`."""
    path = resolve(path_text, field=field)
    try:
        facts = Path(path).stat()
        if not stat.S_ISDIR(facts.st_mode):
            raise InvalidInput.field(field, f"{path_text!r} is not a directory; give the directory of the records")
        strange: list[str] = []
        names = list(itertools.islice(_file_names(path, temp_dir, strange), MAX_ENTRIES + 1))
    except OSError as error:
        raise _unusable(field, path_text, error) from error
    models: Counter[str] = Counter()
    others: list[str] = []
    for name in names[:MAX_ENTRIES]:
        model = model_of_record(name)
        if model is not None:
            models[model] += 1
        elif len(others) < _EXAMPLES:
            others.append(name)
    return Directory(
        path=path,
        device=facts.st_dev,
        inode=facts.st_ino,
        files=min(len(names), MAX_ENTRIES),
        records=sum(models.values()),
        models=models,
        truncated=len(names) > MAX_ENTRIES,
        folders=tuple(strange),
        others=tuple(others),
    )


def resolve(path_text: str, *, field: str = "path") -> str:
    """The real path, symbolic links followed. Raises InvalidInput naming `field`."""
    if "\0" in path_text or "\n" in path_text:
        raise InvalidInput.field(field, "has a NUL or a line break in it")
    if not path_text.startswith("/"):
        raise InvalidInput.field(field, f"{path_text!r} is not absolute; write the whole path, such as /srv/kv/l2")
    try:
        return os.path.realpath(path_text, strict=True)
    except (OSError, ValueError) as error:
        raise _unusable(field, path_text, error) from error


def refuse_places(path: str, *, data_dir: Path, home: Path, field: str = "path") -> None:
    """Rule 1, as far as it needs no other store. `path` is resolved."""
    if path == "/":
        raise InvalidInput.field(field, "'/' cannot be a store; give the directory of the records")
    if is_inside(str(home), path):
        raise InvalidInput.field(
            field, f"{path!r} is the home directory or holds it; give the directory of the records itself"
        )
    if any(is_inside(path, root) for root in _SYSTEM) and not is_inside(path, "/dev/shm"):  # noqa: S108
        raise InvalidInput.field(field, f"{path!r} is a system directory and cannot be a store")
    own = os.path.realpath(data_dir)
    # The sandbox keeps the records of its simulated server there.
    sandbox = f"{own}/sandbox"
    if is_inside(own, path) or (is_inside(path, own) and not (is_inside(path, sandbox) and path != sandbox)):
        raise InvalidInput.field(field, f"{path!r} is the panel's own data directory (or lies in it, or holds it)")


def is_inside(path: str, root: str) -> bool:
    """Whether `path` is `root` or lies below it. Both are resolved."""
    return path == root or path.startswith(root.rstrip("/") + "/")


def same_directory(path: str, server_path: str) -> bool:
    """Whether the servers' name of the directory leads this host to it."""
    if path == server_path.rstrip("/"):
        return True
    try:
        return os.path.realpath(server_path, strict=True) == path
    except (OSError, ValueError):
        return False


def refuse_unproven(
    directory: Directory, *, same: bool, server_path: str, known_models: Collection[str], confirm: bool
) -> None:
    """Rules 2 to 7. Raises InvalidInput naming ``path`` or ``confirm``, with the way out."""
    path = directory.path
    if not directory.empty and directory.records == 0:
        raise InvalidInput.field(
            "path",
            f"none of the {directory.files} files in {path!r} is named like an LMCache record "
            "(model@0x…@…@hash.data); give the directory that the server's file adapter writes",
        )
    known = comparable(known_models)
    if known & set(directory.models):
        return
    if directory.records and known:
        if same and confirm:
            return
        found, wanted = _listed(directory.models), _listed(known)
        way_out = (
            "if they are older records of this server, send confirm: true"
            if same
            else f"check that it is the directory the server calls {server_path!r}"
        )
        raise InvalidInput.field("path", f"the records in {path!r} are of {found}, its servers use {wanted}; {way_out}")
    if not confirm:
        _refuse_foreign_ground(directory)
    if same or confirm:
        return
    why = "is empty" if directory.empty else "cannot be compared: no model of its servers is known yet"
    raise InvalidInput.field(
        "confirm",
        f"{path!r} is to be what the servers call {server_path!r}, and it {why}; "
        "if you are sure that they are the same directory, send confirm: true",
    )


def _refuse_foreign_ground(directory: Directory) -> None:
    """Rule 7. Nothing proves that a cache server writes here, and something says that others do."""
    path = directory.path
    shown = ", ".join(repr(name) for name in (*directory.folders, *directory.others)[:_EXAMPLES])
    if directory.records == 0 and directory.folders:
        raise InvalidInput.field(
            "confirm",
            f"{path!r} holds no record but directories that no file adapter makes ({shown}); give the directory that "
            "the server writes, or, if it is to write beside them, send confirm: true",
        )
    foreign = directory.files - directory.records
    if foreign > directory.records:
        raise InvalidInput.field(
            "confirm",
            f"most files in {path!r} are not named like LMCache records ({foreign} of the {directory.files} looked at, "
            f"such as {shown}); if its server writes there all the same, send confirm: true",
        )


def check_temp_dir(temp_dir: str) -> str:
    """The adapter's relative_tmp_dir as stored. Raises InvalidInput naming ``temp_dir``."""
    cleaned = os.path.normpath(temp_dir.strip())
    if "\0" in cleaned or cleaned.startswith(("/", "../")) or cleaned in (".", ".."):
        raise InvalidInput.field("temp_dir", f"{temp_dir!r} must be a folder inside the store, such as .tmp")
    return cleaned


def check_server_path(server_path: str) -> str:
    """What the servers call the directory, as stored. Raises InvalidInput naming ``server_path``."""
    if "\0" in server_path or not server_path.startswith("/"):
        raise InvalidInput.field("server_path", f"{server_path!r} is not an absolute path of the server's host")
    return os.path.normpath(server_path)


def _file_names(path: str, temp_dir: str | None, strange: list[str]) -> Iterator[str]:
    """Names of files at the top, in hash folders (two levels) and in the temporary directory.

    `strange` takes in some names of directories that are none of these.
    """
    with os.scandir(path) as entries:
        folders: list[str] = []
        for entry in entries:
            if entry.name == OWN_FOLDER:
                continue
            if not entry.is_dir(follow_symlinks=False):
                yield entry.name
            elif _HASH_FOLDER.match(entry.name) or entry.name in (".tmp", temp_dir):
                folders.append(entry.path)
            elif entry.name not in _OF_FILESYSTEMS and len(strange) < _EXAMPLES:
                strange.append(entry.name)
    for folder in folders[:MAX_FOLDERS]:
        yield from _names_below(folder, levels=1)


def _names_below(folder: str, levels: int) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            for entry in itertools.islice(entries, MAX_ENTRIES):
                if not entry.is_dir(follow_symlinks=False):
                    yield entry.name
                elif levels > 0 and _HASH_FOLDER.match(entry.name):
                    yield from _names_below(entry.path, levels - 1)
    except FileNotFoundError:
        return  # removed while we looked


def _unusable(field: str, path_text: str, error: Exception) -> InvalidInput:
    if isinstance(error, FileNotFoundError):
        why = "does not exist on the panel's host; if the panel runs in a container, mount it there"
    elif isinstance(error, NotADirectoryError):
        why = "is not a directory"
    elif isinstance(error, PermissionError):
        why = "cannot be read by the panel's user; give it read and search permission"
    else:
        why = f"cannot be used ({getattr(error, 'strerror', None) or error})"
    return InvalidInput.field(field, f"{path_text!r} {why}")


def _listed(models: Iterable[str]) -> str:
    names = sorted(models)
    shown = ", ".join(repr(name) for name in names[:3])
    return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "")
