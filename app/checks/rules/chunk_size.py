"""The chunk size must be a whole number of the engine's blocks."""

from __future__ import annotations

import math
from collections.abc import Iterable

from app.checks import effective
from app.checks.base import Check, Finding
from app.checks.facts import Facts


class ChunkSize(Check):
    id = "chunk_size_multiple"
    title = "The chunk size is a multiple of every model's block size"
    looks_at = "chunk_size of the server; the block size N of each model: layout, start-up log, engine metrics"
    why = (
        "A chunk that does not end on a block boundary cannot be cut out of the engine's KV cache: registration is "
        "refused, or nothing is ever stored. N differs between models (784 and 544 are other models' values), and one "
        "server has one chunk size for all of them."
    )
    source = "LMCache connector 0.5.6 (refuses at start); LMCache#4782"

    def check(self, facts: Facts) -> Iterable[Finding]:
        if facts.engine is None and not effective.layouts(facts):
            return
        chunk = effective.chunk_size(facts)
        blocks = effective.server_blocks(facts)
        subject = facts.pair_name
        if chunk is None:
            yield self.unknown(subject, "the server does not tell its chunk size", fix="let the panel read its /config")
            return
        if not blocks:
            yield self.unknown(
                subject,
                f"the chunk size is {chunk.value} ({chunk.origin}), but no block size of the engine is known",
                fix="give the engine's start-up log (its line about the attention block size), or the engine's address",
                effective=chunk.value,
                origin=chunk.origin,
            )
            return
        together = math.lcm(*blocks.values())
        told = ", ".join(f"{name}: N = {size}" for name, size in sorted(blocks.items()))
        own = effective.block_tokens(facts)
        origin = chunk.origin + (f"; N from {own.origin}" if own is not None else "")
        wrong = sorted(name for name, size in blocks.items() if chunk.value % size)
        if wrong:
            better = together * max(1, math.ceil(chunk.value / together))
            yield self.fail(
                subject,
                f"chunk size {chunk.value} is no multiple of the block size of {', '.join(wrong)} ({told}); the least "
                f"common multiple is {together}",
                title="The chunk size does not fit the engine's block size",
                fix=f"lmcache server --chunk-size {better} (any multiple of {together}); records of the old chunk size "
                "are not found again",
                configured=chunk.value,
                effective=told,
                origin=origin,
            )
            return
        yield self.ok(
            subject,
            f"chunk size {chunk.value} = {chunk.value // together} × {together} ({told})",
            configured=chunk.value,
            effective=told,
            origin=origin,
        )
