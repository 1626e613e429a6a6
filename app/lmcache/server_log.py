"""The lines of a cache server's start-up log that tell what ``/config`` does not: what was switched off, what it uses.

A log that holds several starts is read for its last one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from app.wire import fields

MAX_LINES = 200_000
_MAX_LINE = 16 * 1024
_COLOUR = re.compile(r"\x1b\[[0-9;]*m|\[(?:0|[0-9]{1,2};20|3)m")


@dataclass(frozen=True)
class ServerLogFacts:
    """None is what the log does not say.

    `hash_function` is what the server really loaded (``builtin`` after a failed import), `hash_seed_missing` its
    warning about PYTHONHASHSEED. `lazy_disabled`: the L1 is allocated whole although lazy was asked for.
    `shm_refused`: /dev/shm is smaller than the L1, so engine-driven transfers copy through pickles. `odirect_unaligned`
    and `odirect_failed` are real I/O lines. `debug`: lines of level DEBUG. `problem`: the line it died with.
    """

    version: str | None = None
    transfer_mode: str | None = None
    hash_function: str | None = None
    hash_seed_missing: bool | None = None
    chunk_size: int | None = None
    lazy_disabled: bool | None = None
    shm_refused: bool | None = None
    odirect_unaligned: int = 0
    odirect_failed: int = 0
    capacity_unbounded: bool = False
    debug: bool = False
    problem: str | None = None
    starts: int = 0

    @property
    def seen(self) -> bool:
        """Whether the text held any line of a cache server."""
        return self != ServerLogFacts()


_VERSION = re.compile(r"LMCache v(\d[\w.+\-]{0,40})")
_MODE = re.compile(r"Supported transfer mode: (\w{1,40})")
_HASHER = re.compile(r"TokenHasher initialized: chunk_size=(\d{1,9}), hash_algorithm=(\w{1,40})")
_LOADED = re.compile(r"(?:Using (blake3) hash function|Loaded '(\w{1,40})' from)")
_DEBUG = re.compile(r"LMCache DEBUG:")
_DEATH = re.compile(r"^(ValueError|RuntimeError|OSError|PermissionError|AssertionError|MemoryError): (.+)")
_USAGE = re.compile(r"^lmcache server: error: (.+)")


def parse_server_log(text: str) -> ServerLogFacts:
    """Read a log. Never raises; lines beyond the first 200,000 are left out."""
    found = ServerLogFacts()
    for raw in text.split("\n", MAX_LINES)[:MAX_LINES]:
        if len(raw) <= _MAX_LINE:
            found = _line(found, _COLOUR.sub("", raw) if "[" in raw else raw)
    return found


def _line(found: ServerLogFacts, line: str) -> ServerLogFacts:
    if "Starting LMCache HTTP server on" in line:
        # banner and command line are read before this line; everything else is of the start before
        return ServerLogFacts(version=found.version, lazy_disabled=found.lazy_disabled, starts=found.starts + 1)
    if match := _VERSION.search(line):
        return replace(found, version=match[1])
    if match := _MODE.search(line):
        return replace(found, transfer_mode=match[1])
    if match := _HASHER.search(line):
        return replace(found, chunk_size=int(match[1]), hash_function=found.hash_function or match[2])
    if match := _LOADED.search(line):
        return replace(found, hash_function=match[1] or match[2])
    if "Using builtin hash" in line:
        missing = True if "without PYTHONHASHSEED" in line else found.hash_seed_missing
        return replace(found, hash_function="builtin", hash_seed_missing=missing)
    if "Disabling l1-use-lazy" in line:
        return replace(found, lazy_disabled=True)
    if "Insufficient /dev/shm capacity" in line or "Cannot verify /dev/shm capacity" in line:
        return replace(found, shm_refused=True)
    if "Cannot use O_DIRECT for" in line:
        return replace(found, odirect_unaligned=found.odirect_unaligned + 1)
    if "Failed to O_DIRECT" in line:
        return replace(found, odirect_failed=found.odirect_failed + 1)
    if "no 'eviction' block is configured" in line:
        return replace(found, capacity_unbounded=True)
    if match := _DEATH.search(line) or _USAGE.search(line):
        return replace(found, problem=fields.clean_text(match[0][:300]))
    if not found.debug and _DEBUG.search(line):
        return replace(found, debug=True)
    return found
