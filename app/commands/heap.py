"""What C code frees goes back to the system: the memory of a panel that runs for weeks is what it holds, not its peak.

Answers of servers, SQLite's pages and dictionaries are malloc's. glibc keeps what is freed between pieces still in
use, and after the first large answer takes everything up to 32 MB from there instead of mapping it: 400 targets left 50
to 120 MB of holes within ten minutes. A fixed threshold and a look once a minute keep that below a few megabytes.
Elsewhere (musl, macOS) nothing is done.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

#: Numbers of `mallopt`, from glibc's malloc.h.
_MMAP_THRESHOLD, _ARENA_MAX = -3, -8
#: Pieces from this size on are mapped on their own, and unmapped when freed.
MAPPED_BYTES = 256 * 1024
#: Heaps for threads that allocate at the same moment. The interpreter's lock lets few do that.
ARENAS = 2
EVERY_SECONDS = 60.0


def _function(name: str) -> Callable[..., int] | None:
    try:
        found: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError):
        return None
    return found


def settle() -> bool:
    """Fixes how malloc takes and returns memory; call it before threads are made. False where that cannot be set."""
    mallopt = _function("mallopt")
    if mallopt is None:
        return False
    return all([mallopt(_MMAP_THRESHOLD, MAPPED_BYTES), mallopt(_ARENA_MAX, ARENAS)])


def give_back() -> bool:
    """Returns free pages of the heap to the system; some milliseconds, without the interpreter's lock. Whether any
    were returned."""
    trim = _function("malloc_trim")
    return trim is not None and bool(trim(ctypes.c_size_t(0)))


def keep_small(stop: threading.Event, every: float = EVERY_SECONDS) -> None:
    """Gives back now and then, until `stop` is set; the body of a thread."""
    while not stop.wait(every):
        give_back()
