"""The three tiers, without any server around them: L0 blocks, L1 memory, L2 files.

L2 is a real directory with the name forms and the habits of the `fs` adapter: raw bytes, no header, a temporary file
that is renamed, stores that skip an existing path, loads that read exactly the expected number of bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.sandbox.model import Block


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """One KV object: what a record's name encodes. `chunk_hash` is lower-case hex."""

    model_name: str
    kv_rank: int
    object_group: int
    chunk_hash: str
    salt: str = ""

    def stem(self) -> str:
        """The file name without its suffix."""
        head = f"{self.model_name.replace('/', '-SEP-')}@0x{self.kv_rank:08x}@{self.object_group:x}@{self.chunk_hash}"
        return f"{head}@{self.salt}" if self.salt else head

    def file_name(self) -> str:
        """E.g. ``-SEP-models-SEP-tiny-llama@0x01000100@0@<64 hex>@salt.data``."""
        return self.stem() + ".data"


def chunk_hashes(tokens: Sequence[int], chunk_size: int) -> list[str]:
    """Hex hashes of the whole chunks, each over its tokens and the hash before it.

    The salt is not part of it (records of two salts share the hash), nor is the model.
    """
    hashes = []
    parent = hashlib.blake2b(b"none", digest_size=32).digest()
    for start in range(0, len(tokens) - chunk_size + 1, chunk_size):
        data = array("I", tokens[start : start + chunk_size]).tobytes()
        parent = hashlib.blake2b(parent + data, digest_size=32).digest()
        hashes.append(parent.hex())
    return hashes


def block_hashes(tokens: Sequence[int], block_size: int, salt: str) -> list[bytes]:
    """Hashes of the whole blocks for the engine's own prefix cache, where the salt does count."""
    hashes = []
    parent = hashlib.blake2b(salt.encode(), digest_size=16).digest()
    for start in range(0, len(tokens) - block_size + 1, block_size):
        data = array("I", tokens[start : start + block_size]).tobytes()
        parent = hashlib.blake2b(parent + data, digest_size=16).digest()
        hashes.append(parent)
    return hashes


@dataclass(slots=True)
class _Entry:
    block: Block
    stored_at: float
    used_at: float


@dataclass(frozen=True, slots=True)
class Evicted:
    """What left a tier: ages in seconds, for the sampled histograms."""

    lifetime: float
    idle: float


class PrefixCache:
    """L0: an engine's GPU blocks, least recently used first out."""

    def __init__(self, capacity_blocks: int) -> None:
        self.capacity = capacity_blocks
        self._blocks: OrderedDict[bytes, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def match(self, hashes: Iterable[bytes], now: float) -> list[Block]:
        """The longest known prefix; what is found counts as used."""
        found = []
        for key in hashes:
            entry = self._blocks.get(key)
            if entry is None:
                break
            entry.used_at = now
            self._blocks.move_to_end(key)
            found.append(entry.block)
        return found

    def put(self, key: bytes, block: Block, now: float) -> list[Evicted]:
        """Keep a block (the first one for a hash stays); returns what had to go for it."""
        if key in self._blocks or self.capacity <= 0:
            return []
        gone = []
        while len(self._blocks) >= self.capacity:
            _, old = self._blocks.popitem(last=False)
            gone.append(Evicted(now - old.stored_at, now - old.used_at))
        self._blocks[key] = _Entry(block, now, now)
        return gone

    def clear(self) -> None:
        self._blocks.clear()


@dataclass(slots=True)
class _Held:
    data: bytes
    size: int
    stored_at: float
    used_at: float


class Memory:
    """L1: a fixed amount of memory; sizes are rounded up to `align_bytes`."""

    def __init__(self, capacity_bytes: int, align_bytes: int) -> None:
        self.capacity = capacity_bytes
        self._align = max(1, align_bytes)
        self.used = 0
        self._objects: OrderedDict[ObjectKey, _Held] = OrderedDict()

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, key: ObjectKey) -> bool:
        return key in self._objects

    def __iter__(self) -> Iterator[ObjectKey]:
        return iter(self._objects)

    def aligned(self, size: int) -> int:
        return -(-size // self._align) * self._align

    def fits(self, sizes: Iterable[int]) -> bool:
        return self.used + sum(self.aligned(size) for size in sizes) <= self.capacity

    def get(self, key: ObjectKey, now: float) -> tuple[bytes, float] | None:
        """The bytes and the seconds since their last use; counts as a use."""
        held = self._objects.get(key)
        if held is None:
            return None
        gap, held.used_at = now - held.used_at, now
        self._objects.move_to_end(key)
        return held.data, gap

    def put(self, key: ObjectKey, data: bytes, now: float) -> None:
        """Store or overwrite; the caller has asked `fits` before."""
        self.delete(key, now)
        size = self.aligned(len(data))
        self._objects[key] = _Held(data, size, now, now)
        self.used += size

    def delete(self, key: ObjectKey, now: float) -> Evicted | None:
        held = self._objects.pop(key, None)
        if held is None:
            return None
        self.used -= held.size
        return Evicted(now - held.stored_at, now - held.used_at)

    def oldest(self, count: int) -> list[ObjectKey]:
        """The least recently used keys."""
        keys = list(self._objects)
        return keys[:count]

    def bytes_by_salt(self) -> dict[str, int]:
        usage: dict[str, int] = {}
        for key, held in self._objects.items():
            usage[key.salt] = usage.get(key.salt, 0) + held.size
        return usage


class Directory:
    """L2: the `fs` adapter. Never evicts, never repairs, never looks into a file before it is asked to load it."""

    def __init__(self, path: Path, relative_tmp_dir: str | None) -> None:
        self.path = path
        self._tmp = relative_tmp_dir

    def prepare(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        if self._tmp is not None:
            (self.path / self._tmp).mkdir(parents=True, exist_ok=True)

    def exists(self, key: ObjectKey) -> bool:
        return (self.path / key.file_name()).exists()

    def load(self, key: ObjectKey, size: int) -> bytes | None:
        """Exactly `size` bytes, of a longer file its beginning; None for a shorter or absent one."""
        try:
            with (self.path / key.file_name()).open("rb") as file:
                data = file.read(size)
        except OSError:
            return None
        return data if len(data) == size else None

    def store(self, key: ObjectKey, data: bytes, now: float) -> int:
        """Bytes written: 0 where the path exists already. Raises `OSError` (disk full, no permission).

        The file's times are `now`, so that they agree with a clock that was injected.
        """
        final = self.path / key.file_name()
        if final.exists():
            return 0
        temporary = self.temporary_path(key)
        try:
            temporary.write_bytes(data)
            os.utime(temporary, (now, now))
            temporary.replace(final)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        return len(data)

    def temporary_path(self, key: ObjectKey) -> Path:
        """Where a store writes first; one fixed name per key, left behind by a crash."""
        if self._tmp is not None:
            return self.path / self._tmp / key.file_name()
        return self.path / (key.stem() + ".tmp")

    def delete(self, key: ObjectKey) -> int:
        """Bytes freed; 0 where there was nothing."""
        path = self.path / key.file_name()
        try:
            size = os.stat(path, follow_symlinks=False).st_size  # noqa: PTH116
            path.unlink()
        except OSError:
            return 0
        return size
