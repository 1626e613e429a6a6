"""What LMCache inside the engine moved, by its log: the evidence where its counters do not reach /metrics."""

from __future__ import annotations

from collections.abc import Iterable

from app.checks.base import Check, Finding
from app.checks.facts import Facts
from app.lmcache.in_process_log import InProcessLog, Transfers

#: Look-ups before a log without a single hit says something.
ENOUGH_LOOKUPS = 20


class InProcessTransfers(Check):
    id = "in_process_transfers"
    title = "LMCache inside the engine stores and retrieves"
    looks_at = "log lines of the engine (Stored …, Retrieved …, LMCache hit tokens, chunk_size) from a path or pasted"
    why = (
        "LMCache inside vLLM counts on vLLM's /metrics only with PROMETHEUS_MULTIPROC_DIR set before its start. Log "
        "lines are always there: what was stored and retrieved, how fast, and the chunk size it decided on."
    )
    source = "log formats of LMCache 0.3.9 to 0.5.6 (cache_engine, vllm_v1_adapter)"

    def check(self, facts: Facts) -> Iterable[Finding]:
        engine = facts.engine
        told = engine.transfers if engine is not None else None
        if engine is None or told is None or not told.seen:
            return
        given = facts.in_process.number("chunk_size") if facts.in_process is not None else None
        values = {
            "configured": "chunk size not given" if given is None else f"chunk size {given:g}",
            "effective": _decided(told),
            "origin": "log of the engine",
        }
        if told.multiproc_missing:
            yield self.warn(
                engine.name,
                f"the log says that PROMETHEUS_MULTIPROC_DIR is missing; {_sentence(told)}",
                title="PROMETHEUS_MULTIPROC_DIR is missing",
                fix="PROMETHEUS_MULTIPROC_DIR=/some/local/dir in the engine's environment, emptied before each start",
                **values,
            )
        elif told.lookups >= ENOUGH_LOOKUPS and told.hit_tokens == 0:
            yield self.warn(
                engine.name,
                _sentence(told),
                title="Nothing is ever found in the in-process cache",
                fix="see whether prompts begin alike, whether chunk_size is above their common part, and whether a "
                "restart emptied the cache (CPU memory only)",
                **values,
            )
        elif not told.lookups and not told.stored.lines and not told.retrieved.lines:
            yield self.unknown(
                engine.name,
                f"{_sentence(told)}: the log holds the start only, or LMCACHE_LOG_LEVEL hides the lines",
                fix="give the end of the log, after some requests",
                **values,
            )
        else:
            yield self.ok(engine.name, _sentence(told), **values)


def _decided(told: InProcessLog) -> str:
    return "chunk size not logged" if told.chunk_size is None else f"chunk size {told.chunk_size}"


def _sentence(told: InProcessLog) -> str:
    parts = []
    if told.lookups:
        rate = told.hit_rate or 0.0
        parts.append(f"{told.lookups} look-ups found {rate:.1%} of {told.prompt_tokens} tokens")
        if told.below_minimum:
            parts.append(f"{told.below_minimum} of them too little to load (min_retrieve_tokens)")
    parts.append(_moved("stored", told.stored))
    parts.append(_moved("retrieved", told.retrieved))
    if told.chunk_size is not None:
        parts.append(f"chunk size {told.chunk_size} ({told.chunk_size_origin})")
    return "; ".join(parts)


def _moved(verb: str, what: Transfers) -> str:
    if not what.lines:
        return f"nothing {verb}"
    text = f"{verb} {what.tokens} of {what.wanted_tokens} tokens in {what.lines} line{'s' * (what.lines != 1)}"
    speed = what.bytes_per_second
    if speed is None:
        return text
    spread = ""
    if what.timed > 1 and what.slowest is not None and what.fastest is not None:
        spread = f", {what.slowest / 1e9:.2f} to {what.fastest / 1e9:.2f}"
    return f"{text} ({what.bytes / 1e9:.2f} GB in {what.seconds * 1000:.0f} ms: {speed / 1e9:.2f} GB/s{spread})"
