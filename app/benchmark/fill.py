"""Empty record files for the lookup form: written into a store under the run's own salt, and taken away again.

They hold 0 bytes, so that they use no space and every cleanup preset knows them as corrupt should a crash leave some.
Only files of exactly these names, empty, regular and with one link, are ever removed.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass

from app.errors import StoreError
from app.fleet.targets import StoreTarget
from app.lmcache.object_keys import ObjectKey, format_name, parse_name
from app.records.store_dir import StoreDirectory, open_store

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LOOK_AT_CANCEL = 500


@dataclass
class Filler:
    """Fills one store directory. Every method blocks; call it in a thread. Raises StoreError, also where another
    directory than the store's lies there: nothing is written into that one.

    `stop` is looked at while files are written; then the filling ends early.
    """

    store: StoreTarget
    model_name: str
    kv_rank: int
    salt: str
    stop: Callable[[], bool] = lambda: False
    written: int = 0

    def count(self) -> int:
        """Regular files in the directory, whatever they are: what a lookup has to find its way through."""
        with open_store(self.store) as directory:
            return sum(stat.S_ISREG(facts.st_mode) for _, entries in directory.walk_entries() for _, facts in entries)

    def short_of(self, total: int) -> int:
        """How many inodes the file system lacks for `total` files of ours; 0 where they suffice or it does not tell."""
        with open_store(self.store) as directory:
            room = os.fstatvfs(directory.fd)
        # File systems that make inodes as they go say 0 of 0.
        return max(0, total - self.written - room.f_favail) if room.f_files else 0

    def fill(self, total: int) -> None:
        """Makes `total` files of ours in all; those that are there already stay."""
        with open_store(self.store) as directory:
            for number in range(self.written, total):
                if number % _LOOK_AT_CANCEL == 0 and self.stop():
                    return
                try:
                    os.close(os.open(self._name(number), _FLAGS, 0o600, dir_fd=directory.fd))
                except OSError as error:
                    raise StoreError(
                        f"no more empty records can be written to {self.store.path!r}: {error.strerror}"
                    ) from error
                self.written = number + 1

    def remove(self) -> int:
        """Takes away what this process wrote."""
        gone = 0
        with open_store(self.store) as directory:
            for number in range(self.written):
                gone += _unlink(directory, self._name(number))
        self.written = 0
        return gone

    def _name(self, number: int) -> str:
        digest = hashlib.blake2b(f"{self.salt} {number}".encode(), digest_size=32).digest()
        return format_name(ObjectKey(self.model_name, self.kv_rank, 0, digest, self.salt))


def sweep(store: StoreTarget, salt: str) -> int:
    """Takes away what a process that is gone left under a fill salt. Raises StoreError."""
    gone = 0
    with open_store(store) as directory:
        for folder, entries in directory.walk_entries():
            for name, facts in entries:
                if folder or facts.st_size or salt not in name:
                    continue
                parsed = parse_name(name)
                if parsed is not None and parsed.cache_salt == salt:
                    gone += _unlink(directory, name)
    return gone


def _unlink(directory: StoreDirectory, name: str) -> bool:
    """Removes one of our files, if it is still what we wrote: empty, regular, with one link."""
    try:
        found = os.stat(name, dir_fd=directory.fd, follow_symlinks=False)
        if not stat.S_ISREG(found.st_mode) or found.st_size or found.st_nlink != 1:
            return False
        os.unlink(name, dir_fd=directory.fd)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StoreError(f"an empty record cannot be removed from {directory.path!r}: {error.strerror}") from error
    return True
