"""Real files for tests: records of a store, made quickly."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from app.lmcache.object_keys import ObjectKey, format_name
from app.records.classify import Context
from app.records.timeline import build_timeline

MODEL = "/models/tiny"
RANK = 0x01000100
NOW = 1_796_000_000.0
NS = 1_000_000_000


def key(number: int, *, model: str = MODEL, rank: int = RANK, group: int | None = 0, salt: str = "") -> ObjectKey:
    return ObjectKey(model, rank, group, hashlib.sha256(str(number).encode()).digest(), salt)


def write(root: Path, name: str, size: int = 32768, *, mtime: float = NOW - 3600, atime: float | None = None) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)
    os.utime(path, ns=(round((mtime if atime is None else atime) * NS), round(mtime * NS)))
    return path


def record(root: Path, number: int, size: int = 32768, *, mtime: float = NOW - 3600, **options: object) -> Path:
    return write(root, format_name(key(number, **options)), size, mtime=mtime)  # type: ignore[arg-type]


def blind(now: float = NOW) -> Context:
    """The context of a directory without servers."""
    return Context(round(now * NS), 12 * NS, build_timeline({}, now=now, poll_seconds=10), fresh=False)
