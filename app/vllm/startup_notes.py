"""More of an engine's start-up log than `startup_log`: what it died with, what it warned of, its memory.

Kept apart because these lines judge a start, while `startup_log` tells the facts of one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from app.wire import fields

MAX_LINES = 200_000
_MAX_LINE = 64 * 1024
_COLOUR = re.compile(r"\x1b\[[0-9;]*m|\[(?:0|[0-9]{1,2};20|3)m")
GIB = 2**30


@dataclass(frozen=True)
class StartupNotes:
    """None is what the log does not say. Bytes, tokens, requests.

    `mamba_blocks_short`: (max_num_seqs, available blocks) of the error that says so. `problem` is the last error line.
    `server_unreachable`: the connector could not reach the cache server. `degraded`: the connector stopped caching.
    `development_endpoints`: dev mode is on. `waiting_for_workers`: minutes of "No available shared memory broadcast
    block", which is what a hanging registration looks like.
    """

    mamba_blocks_short: tuple[int, int] | None = None
    max_num_batched_tokens: int | None = None
    mamba_cache_mode: str | None = None
    prefix_caching_disabled: bool | None = None
    weights_bytes: int | None = None
    kv_cache_bytes: int | None = None
    attention_backend: str | None = None
    ssl_or_key_warning: bool = False
    development_endpoints: bool = False
    server_unreachable: bool = False
    degraded: bool = False
    chunk_mismatch: str | None = None
    waiting_for_workers: int = 0
    ready: bool = False
    debug: bool = False
    image_inputs: bool = False
    problem: str | None = None

    @property
    def seen(self) -> bool:
        return self != StartupNotes()


_MAMBA_SHORT = re.compile(r"max_num_seqs \((\d{1,9})\) exceeds available Mamba cache blocks \((\d{1,9})\)")
_BATCHED = re.compile(r"max_num_batched_tokens[=: ']{1,4}(\d{1,9})")
_MODE = re.compile(r"'mamba_cache_mode': '(\w{1,20})'")
_WEIGHTS = re.compile(r"Model loading took ([\d.]{1,12}) GiB")
_KV = re.compile(r"(?:Available KV cache memory: |KV cache memory: )([\d.]{1,12}) GiB")
_BACKEND = re.compile(r"Using (?:AttentionBackendEnum\.)?([A-Z][A-Z0-9_]{2,40}) (?:attention )?backend")
_CHUNK = re.compile(r"(LMCache chunk size \d{1,9} must be .{1,200})")
_DEATH = re.compile(r"\b(?:Value|Runtime|Connection|Assertion|NotImplemented|torch\.OutOfMemory)Error: (.+)")


def parse_startup_notes(text: str) -> StartupNotes:
    """Read a log. Never raises."""
    found = StartupNotes()
    for raw in text.split("\n", MAX_LINES)[:MAX_LINES]:
        if len(raw) <= _MAX_LINE:
            found = _line(found, _COLOUR.sub("", raw) if "[" in raw else raw)
    return found


def _line(found: StartupNotes, line: str) -> StartupNotes:
    if "non-default args: {" in line:
        return _arguments(line)  # a new start: what was noted before is of another one
    if match := _MAMBA_SHORT.search(line):
        return replace(found, mamba_blocks_short=(int(match[1]), int(match[2])), problem=fields.clean_text(match[0]))
    if match := _WEIGHTS.search(line):
        return replace(found, weights_bytes=_gib(match[1]))
    if match := _KV.search(line):
        return replace(found, kv_cache_bytes=_gib(match[1]))
    if "Cannot reach the LMCache MP server" in line:
        return replace(found, server_unreachable=True)
    if "degraded mode" in line:
        return replace(found, degraded=True)
    if "Development endpoints are enabled" in line:
        return replace(found, development_endpoints=True)
    if "No available shared memory broadcast block" in line:
        return replace(found, waiting_for_workers=found.waiting_for_workers + 1)
    if "Application startup complete" in line:
        return replace(found, ready=True)
    if match := _CHUNK.search(line):
        return replace(found, chunk_mismatch=fields.clean_text(match[1]), problem=fields.clean_text(match[1]))
    if match := _BACKEND.search(line):
        return replace(found, attention_backend=match[1])
    if "Chunked prefill is enabled with max_num_batched_tokens" in line and (match := _BATCHED.search(line)):
        return replace(found, max_num_batched_tokens=int(match[1]))
    if match := _DEATH.search(line):
        return replace(found, problem=fields.clean_text(match[0][:300]))
    if not found.debug and re.search(r"\bDEBUG \d\d-\d\d ", line):
        return replace(found, debug=True)
    return found


def _arguments(line: str) -> StartupNotes:
    batched = re.search(r"'max_num_batched_tokens': (\d{1,9})", line)
    mode = _MODE.search(line)
    return StartupNotes(
        max_num_batched_tokens=int(batched[1]) if batched else None,
        mamba_cache_mode=mode[1] if mode else None,
        prefix_caching_disabled="'enable_prefix_caching': False" in line or None,
        image_inputs="'limit_mm_per_prompt'" in line,
    )


def _gib(text: str) -> int | None:
    try:
        return int(float(text) * GIB)
    except ValueError:
        return None
