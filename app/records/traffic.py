"""What went into a store and what came back from it, by the counters of its servers and engines. Pure.

Two questions: how much of what was written was ever read back, and do requests leave as many records as their lengths
say? Counters are of a server, not of a directory: where one server has several stores, what was written to this one
cannot be told from them, but that a record was *not* read still can.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.telemetry.counted import Span, total, unbroken
from app.telemetry.metrics import REQUESTS

STORED, LOADED, STORED_BYTES = "l2_stored_records", "l2_loaded_records", "l2_store_bytes"
SERVER_NAMES = (STORED, LOADED, STORED_BYTES)
ENGINE_NAMES = (*REQUESTS, "recomputed_tokens")
#: Records per request are compared over this long, seconds.
REQUEST_WINDOW = 86_400.0


@dataclass(frozen=True)
class Flow:
    """Records and bytes written and read back in the spans that polls covered, from `start` to `end`.

    `covered`: seconds of them, of the server that was covered least. None: not known.
    """

    start: float | None
    end: float | None
    covered: float
    stored: float | None
    stored_bytes: float | None
    loaded: float | None


def flow(servers: Mapping[int, Sequence[Span]]) -> Flow:
    """All servers of a store together; a sum is known where every server tells its part."""
    # One stretch of time for all three, so that they can be compared.
    told = [[span for span in found if _tells(span)] or list(found) for found in servers.values()]
    known = [found for found in told if found]
    return Flow(
        start=min((found[0].start for found in known), default=None),
        end=max((found[-1].end for found in known), default=None),
        covered=min((sum(span.end - span.start for span in found) for found in told), default=0.0),
        stored=_sum([total(_telling(found, STORED), STORED) for found in told]),
        stored_bytes=_sum([total(_telling(found, STORED_BYTES), STORED_BYTES) for found in told]),
        loaded=_sum([total(_telling(found, LOADED), LOADED) for found in told]),
    )


def _tells(span: Span) -> bool:
    return span.values[STORED] is not None and span.values[LOADED] is not None


def _telling(found: Sequence[Span], name: str) -> list[Span]:
    """A counter that began to be told later (an upgrade of the panel or of LMCache) is known from then on."""
    first = next((number for number, span in enumerate(found) if span.values[name] is not None), len(found))
    return [span for span in found[first:] if span.values[name] is not None]


@dataclass(frozen=True)
class Quiet:
    """Since `since` every read of every server was counted: `loads` of them; the last at or before `last_load`, which
    is `since` where there was none."""

    since: float
    loads: float
    last_load: float


def quiet(servers: Mapping[int, Sequence[Span]], now: float, fresh_seconds: float) -> Quiet | str:
    """Up to now without a hole, or the reason why that cannot be said."""
    if not servers:
        return "no server is registered for this store"
    chains: list[list[Span]] = []
    for found in servers.values():
        chain = unbroken(found, LOADED)
        if not chain:
            return "a server of this store does not count what it reads back from L2"
        if now - chain[-1].end > fresh_seconds:
            return "a server of this store was not read just now, so what it reads back is not known"
        chains.append(chain)
    since = max(chain[0].start for chain in chains)
    seen = [span for chain in chains for span in chain if span.end > since]
    loads = sum(span.values[LOADED] or 0.0 for span in seen)
    return Quiet(since, loads, max((span.end for span in seen if span.values[LOADED]), default=since))


@dataclass(frozen=True)
class Bounds:
    """At least and at most so many."""

    least: float
    most: float

    def __add__(self, other: Bounds) -> Bounds:
        return Bounds(self.least + other.least, self.most + other.most)

    def times(self, factor: float) -> Bounds:
        return Bounds(self.least * factor, self.most * factor)


NOTHING = Bounds(0.0, 0.0)


@dataclass(frozen=True)
class Requests:
    """What engines say of the requests that ended in a window. Chunks are of the whole window, before groups and ranks.

    A sum over many requests tells their whole chunks only between two bounds: each may lose up to a chunk less one
    token to its end.
    """

    start: float
    end: float
    requests: float
    prompt_tokens: float
    generated_tokens: float
    computed_tokens: float | None
    prompt_chunks: Bounds
    output_chunks: Bounds


def begins(found: Sequence[Span], name: str) -> float | None:
    """Since when a counter is told."""
    return next((span.start for span in found if span.values[name] is not None), None)


def requests(engines: Mapping[int, Sequence[Span]], chunk: int, start: float, end: float) -> Requests | None:
    """None where no engine told of its requests in the window."""
    count = prompts = generated = 0.0
    computed: float | None = 0.0
    prompt_chunks = output_chunks = NOTHING
    told = False
    for found in engines.values():
        for span in found:
            ended, prompt, output = (span.values[name] for name in REQUESTS)
            if span.end <= start or span.start >= end or ended is None or prompt is None or output is None:
                continue
            told = True
            fresh = span.values["recomputed_tokens"]
            computed = None if computed is None or fresh is None else computed + fresh
            if ended:
                count, prompts, generated = count + ended, prompts + prompt, generated + output
                prompt_chunks += whole_chunks(prompt, ended, chunk)
                output_chunks += more_chunks(prompt, output, ended, chunk)
    if not told:
        return None
    return Requests(start, end, count, prompts, generated, computed, prompt_chunks, output_chunks)


def whole_chunks(tokens: float, ended: float, chunk: int) -> Bounds:
    """The whole chunks of `ended` requests that have so many tokens together; exact for one."""
    if ended == 1:
        return Bounds(tokens // chunk, tokens // chunk)
    least = -(-(tokens - ended * (chunk - 1)) // chunk)
    return Bounds(max(0.0, least), tokens // chunk)


def more_chunks(prompt: float, output: float, ended: float, chunk: int) -> Bounds:
    """The chunks that generated tokens complete beyond those of the prompts; exact for one request."""
    if ended == 1:
        more = (prompt + output) // chunk - prompt // chunk
        return Bounds(more, more)
    least = -(-(output - ended * (chunk - 1)) // chunk)
    # Each needs at least one generated token.
    return Bounds(max(0.0, least), min(output, (output + ended * (chunk - 1)) // chunk))


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
