"""The records of one run on disk, known by their salt: finding them, naming their keys, checksums between the arms.

Reads only. The directory is walked through `app.records.store_dir`: no link is followed, nothing outside is touched.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from app.acceptance.evidence import RecordsEvidence
from app.errors import StoreError
from app.fleet.targets import StoreTarget
from app.lmcache.object_keys import ObjectKey, parse_name
from app.records.store_dir import StoreDirectory, open_store

#: Contents are read up to this many bytes a look; beyond it only sizes are compared, and the evidence says so.
CHECKSUM_LIMIT = 512 * 2**20
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class OwnRecord:
    """One record file of a run. `sha256` is None where the contents were not read."""

    store_id: int
    name: str
    key: ObjectKey
    size: int
    sha256: str | None = None


@dataclass(frozen=True)
class OwnRecords:
    """What one look found."""

    records: tuple[OwnRecord, ...]
    checksums: bool = False

    @property
    def bytes(self) -> int:
        return sum(r.size for r in self.records)

    def chunks_of(self, salt: str) -> int:
        """Whole chunks of this salt that are on disk: distinct hashes, whatever the number of ranks and groups."""
        return len({r.key.chunk_hash for r in self.records if r.key.cache_salt == salt})

    def of(self, salts: Iterable[str]) -> OwnRecords:
        """Only the records of these salts."""
        wanted = set(salts)
        return OwnRecords(tuple(r for r in self.records if r.key.cache_salt in wanted), self.checksums)

    def keys(self, salts: Iterable[str] | None = None) -> list[ObjectKey]:
        """The keys of these salts (of all without)."""
        wanted = None if salts is None else set(salts)
        return [r.key for r in self.records if wanted is None or r.key.cache_salt in wanted]


def find(stores: Sequence[StoreTarget], salt_prefix: str, *, stop: Callable[[], bool] = lambda: False) -> OwnRecords:
    """Every finished record of the stores whose salt starts with `salt_prefix`.

    Raises StoreError when a directory cannot be read or is not the store's. Walks the whole directory: call it in a
    thread, and not often; when `stop` says so it gives up, and what it returns is incomplete.
    """
    found: list[OwnRecord] = []
    for store in stores:
        temp_dirs = (store.temp_dir,) if store.temp_dir else ()
        marker = f"@{salt_prefix}"
        with open_store(store) as directory:
            for folder, entries in directory.walk_entries():
                if stop():
                    break
                for name, facts in entries:
                    # Parsing costs more than looking: only names that hold our salt are parsed.
                    if marker not in name or not stat.S_ISREG(facts.st_mode):
                        continue
                    relative = f"{folder}/{name}" if folder else name
                    parsed = parse_name(relative, temp_dirs)
                    if parsed is None or parsed.temporary or not parsed.cache_salt.startswith(salt_prefix):
                        continue
                    found.append(OwnRecord(store.id, relative, parsed.key, facts.st_size))
    found.sort(key=lambda r: (r.store_id, r.name))
    return OwnRecords(tuple(found))


def with_checksums(
    stores: Sequence[StoreTarget],
    looked: OwnRecords,
    *,
    limit: int = CHECKSUM_LIMIT,
    stop: Callable[[], bool] = lambda: False,
) -> OwnRecords:
    """The same records with their SHA-256, where together they are not too large; gone ones keep None.

    Raises StoreError when a directory cannot be opened.
    """
    if looked.bytes > limit:
        return looked
    summed: list[OwnRecord] = []
    for store in {s.id: s for s in stores}.values():
        with open_store(store) as directory:
            for record in looked.records:
                if record.store_id == store.id:
                    digest = None if stop() else _digest(directory, os.fsencode(record.name))
                    summed.append(OwnRecord(store.id, record.name, record.key, record.size, digest))
    return OwnRecords(tuple(summed), checksums=True)


def _digest(directory: StoreDirectory, name: bytes) -> str | None:
    try:
        with directory.parent(name) as (fd, base):
            handle = _open_unnoticed(base, fd)
    except OSError:
        return None
    try:
        digest = hashlib.sha256()
        while piece := os.read(handle, _PIECE):
            digest.update(piece)
    except OSError:
        return None
    finally:
        os.close(handle)
    return digest.hexdigest()


def _open_unnoticed(base: bytes, dir_fd: int) -> int:
    """For reading, without moving the access time where the kernel lets us (owner or root): our look is no use."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(base, flags | os.O_NOATIME, dir_fd=dir_fd)
    except PermissionError:
        return os.open(base, flags, dir_fd=dir_fd)


def compare_looks(before: OwnRecords, after: OwnRecords) -> RecordsEvidence:
    """What became of the records between two looks. New ones are no finding: answers are stored too."""
    now = {(r.store_id, r.name): r for r in after.records}
    lost: list[str] = []
    changed: list[str] = []
    for record in before.records:
        later = now.get((record.store_id, record.name))
        if later is None:
            lost.append(record.name)
        elif later.size != record.size or (
            record.sha256 is not None and later.sha256 is not None and record.sha256 != later.sha256
        ):
            changed.append(record.name)
    return RecordsEvidence(
        files=len(before.records),
        bytes=before.bytes,
        lost=tuple(lost),
        changed=tuple(changed),
        checksums=before.checksums and after.checksums,
    )


def try_find(
    stores: Sequence[StoreTarget], salt_prefix: str, stop: Callable[[], bool] = lambda: False
) -> tuple[OwnRecords | None, str]:
    """`find`, or None with the sentence why the directories cannot be looked at."""
    if not stores:
        return None, "no store with a directory is registered for this server"
    try:
        return find(stores, salt_prefix, stop=stop), ""
    except StoreError as error:
        return None, error.detail
