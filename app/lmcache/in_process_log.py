"""What LMCache inside an engine did, by its own log: transfers, look-ups, and the chunk size it decided on.

The in-process mode's counters reach ``/metrics`` only where PROMETHEUS_MULTIPROC_DIR was set before vLLM started; its
log lines are always there. Formats are those of LMCache 0.3.9 to 0.5.6. A log that holds several starts is read for its
last one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from app.wire import fields

MAX_LINES = 200_000
_MAX_LINE = 64 * 1024
#: LMCache divides by 2**30 and calls it GB.
_GIB = 1024**3
_COLOUR = re.compile(r"\x1b\[[0-9;]*m|\[(?:0|[0-9]{1,2};20|3)m")


@dataclass(frozen=True)
class Transfers:
    """Stored or retrieved tokens over all lines of one kind; `wanted_tokens` is what those lines asked for.

    `bytes` and `seconds` are sums over the `timed` lines only (layer by layer, older versions print neither).
    `slowest` and `fastest` are bytes per second of single lines.
    """

    lines: int = 0
    tokens: int = 0
    wanted_tokens: int = 0
    timed: int = 0
    bytes: float = 0.0
    seconds: float = 0.0
    slowest: float | None = None
    fastest: float | None = None

    @property
    def bytes_per_second(self) -> float | None:
        """Bytes over the time that moving them took; None where no line tells."""
        return self.bytes / self.seconds if self.seconds > 0 else None

    def add(self, tokens: int, wanted: int, size: float | None, milliseconds: float | None) -> Transfers:
        """One more line; `size` in GiB."""
        more = replace(
            self, lines=self.lines + 1, tokens=self.tokens + tokens, wanted_tokens=self.wanted_tokens + wanted
        )
        if size is None or milliseconds is None:
            return more
        moved, took = size * _GIB, milliseconds / 1000
        speed = moved / took if took > 0 and moved > 0 else None
        return replace(
            more,
            timed=more.timed + 1,
            bytes=more.bytes + moved,
            seconds=more.seconds + took,
            slowest=more.slowest if speed is None else min(speed, more.slowest or speed),
            fastest=more.fastest if speed is None else max(speed, more.fastest or speed),
        )


@dataclass(frozen=True)
class InProcessLog:
    """What the log says. Tokens over all look-ups: `prompt_tokens` asked about, `computed_tokens` the engine had,
    `hit_tokens` LMCache held, `needed_tokens` it was to load.

    `below_minimum`: look-ups that hit too little to be worth a load (`min_retrieve_tokens`). `chunk_size` in tokens is
    the one in force, `chunk_size_origin` the kind of line that says so. `multiproc_missing`: the log itself complains
    that PROMETHEUS_MULTIPROC_DIR is not set.
    """

    version: str | None = None
    stored: Transfers = field(default_factory=Transfers)
    retrieved: Transfers = field(default_factory=Transfers)
    lookups: int = 0
    prompt_tokens: int = 0
    computed_tokens: int = 0
    hit_tokens: int = 0
    needed_tokens: int = 0
    below_minimum: int = 0
    chunk_size: int | None = None
    chunk_size_origin: str | None = None
    multiproc_missing: bool = False
    starts: int = 0

    @property
    def seen(self) -> bool:
        """Whether the text held any line of an in-process LMCache."""
        return self != InProcessLog()

    @property
    def hit_rate(self) -> float | None:
        """Tokens that LMCache held of those asked about, 0..1; None before the first look-up."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else None


_N = r"(\d{1,12})"
_F = r"(\d{1,12}(?:\.\d{1,12})?)"
_COST = rf"[. ]+size: {_F} (?:GB|gb), +cost {_F} ms, +throughput: {_F} GB/s"
_STORED = re.compile(rf"\bStored {_N} out of total {_N} tokens(?:{_COST})?")
_RETRIEVED = re.compile(
    rf"\bRetrieved {_N} out of (?:{_N} required tokens \(from {_N} total tokens\)|{_N} out of total {_N} tokens"
    rf"|(?:total )?{_N} tokens)(?:{_COST})?"
)
_LOOKUP = re.compile(
    rf"\bTotal tokens {_N}, (?:(?:Inference Engine|vLLM) computed tokens: {_N}, )?"
    rf"LMCache hit tokens: {_N},(?: but)? need to load: (-?\d{{1,12}})( < min_retrieve)?"
)
_INITIALIZED = re.compile(r"LMCache initialized for role \S+ with version ([\w.+\-]{1,60})")
_SHAPE = re.compile(r"num_layer: \d{1,6}, chunk_size: (\d{1,9}), num_kv_head")
_CONFIGURED = re.compile(r"LMCache Configuration: \{.{0,20000}?'chunk_size': (\d{1,9})\b")
_MULTIPROC = re.compile(r"PROMETHEUS_MULTIPROC_DIR\b.{0,40}\b(?:not set|missing|unset|not been set)", re.IGNORECASE)


def parse_in_process_log(text: str) -> InProcessLog:
    """Read a log. Never raises; lines beyond the first 200,000 are left out (give the end of a longer log)."""
    found = InProcessLog()
    for line in text.split("\n", MAX_LINES)[:MAX_LINES]:
        if len(line) <= _MAX_LINE and (
            "tokens" in line or "LMCache" in line or "chunk_size" in line or "MULTIPROC" in line
        ):
            found = _line(found, _COLOUR.sub("", line) if "[" in line else line)
    return found


def _line(found: InProcessLog, line: str) -> InProcessLog:
    if match := _STORED.search(line):
        size, took = _number(match[3]), _number(match[4])
        return replace(found, stored=found.stored.add(int(match[1]), int(match[2]), size, took))
    if match := _RETRIEVED.search(line):
        wanted = int(match[2] or match[4] or match[6])
        return replace(
            found, retrieved=found.retrieved.add(int(match[1]), wanted, _number(match[7]), _number(match[8]))
        )
    if match := _LOOKUP.search(line):
        return replace(
            found,
            lookups=found.lookups + 1,
            prompt_tokens=found.prompt_tokens + int(match[1]),
            computed_tokens=found.computed_tokens + int(match[2] or 0),
            hit_tokens=found.hit_tokens + int(match[3]),
            needed_tokens=found.needed_tokens + max(0, int(match[4])),
            below_minimum=found.below_minimum + bool(match[5]),
        )
    if match := _CONFIGURED.search(line):
        # The first line of a start: what was counted before it is of another process.
        if found.starts and (found.stored.lines or found.retrieved.lines or found.lookups):
            found = InProcessLog(starts=found.starts)
        return replace(
            found, chunk_size=int(match[1]), chunk_size_origin="LMCache Configuration", starts=found.starts + 1
        )
    if match := _SHAPE.search(line):
        return replace(found, chunk_size=int(match[1]), chunk_size_origin="KV shape at start")
    if match := _INITIALIZED.search(line):
        return replace(found, version=fields.text(match[1], limit=60))
    if _MULTIPROC.search(line):
        return replace(found, multiproc_missing=True)
    return found


def _number(text: str | None) -> float | None:
    return None if text is None else float(text)
