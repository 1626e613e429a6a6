"""Versions of LMCache and vLLM that are known to work together, or not to."""

from __future__ import annotations

import re
from collections.abc import Iterable

from app.checks.base import Check, Finding
from app.checks.facts import Facts

Version = tuple[int, ...]

#: (LMCache, vLLM, what was seen). Prefixes: (0, 32) covers every 0.32.x.
KNOWN_GOOD: tuple[tuple[Version, Version, str], ...] = (
    ((0, 5, 6), (0, 32, 0), "stores, loads from L1 and L2, restarts and layouts were measured with this pair"),
)
#: (LMCache from, LMCache to (inclusive), vLLM prefix, what happens, source).
KNOWN_BAD: tuple[tuple[Version, Version, Version, str, str], ...] = (
    (
        (0, 0),
        (0, 5, 2),
        (0, 26),
        "vLLM 0.26 changed the layout of its KV cache: records come back as garbage with HTTP 200",
        "LMCache#4247; dynamo#14416",
    ),
    ((0, 0), (0, 3, 8), (0, 15), "the connector of vLLM 0.15 needs LMCache 0.3.9 or newer", "vllm#33440"),
    ((0, 3, 1), (0, 3, 1), (0, 9, 2), "the engine crashes with its first request", "LMCache#1003"),
)


class VersionPair(Check):
    id = "version_pair"
    title = "This pair of versions is known to work"
    looks_at = "/version of the server and of the engine (else the start-up logs)"
    why = (
        "Both projects change the layout of the KV cache and the protocol between them; a wrong pair answers with HTTP "
        "200 and garbage. An unknown pair is no fault: an acceptance test decides."
    )
    source = "LMCache#4247, #4711, #4719"

    def check(self, facts: Facts) -> Iterable[Finding]:
        server, engine = facts.server, facts.engine
        if server is None or engine is None:
            return
        cache = server.version or (server.log.version if server.log is not None else None)
        serving = engine.version or (engine.log.version if engine.log is not None else None)
        subject = facts.pair_name
        if cache is None or serving is None:
            if not (server.planned or engine.planned):
                missing = server.name if cache is None else engine.name
                yield self.unknown(subject, f"the version of {missing} is not known")
            return
        values = {"configured": f"LMCache {cache}, vLLM {serving}", "origin": "/version of both"}
        ours, theirs = parse_version(cache), parse_version(serving)
        for first, last, prefix, effect, source in KNOWN_BAD:
            if first <= ours and ours[: len(last)] <= last and theirs[: len(prefix)] == prefix:
                yield self.fail(
                    subject,
                    f"LMCache {cache} with vLLM {serving}: {effect}",
                    title="This pair of versions is known to be bad",
                    fix="upgrade LMCache (server and engine's connector together), then run an acceptance test",
                    source=source,
                    effective="known to be bad",
                    **values,
                )
                return
        good = next((text for a, b, text in KNOWN_GOOD if ours[: len(a)] == a and theirs[: len(b)] == b), None)
        if good is not None:
            yield self.ok(subject, f"LMCache {cache} with vLLM {serving}: {good}", effective="known to work", **values)
        else:
            yield self.warn(
                subject,
                f"LMCache {cache} with vLLM {serving}: nothing is known of this pair here",
                title="This pair of versions is unknown",
                fix="run an acceptance test with this pair (thorough, with a restart of the engine)",
                effective="nothing is known",
                **values,
            )


def parse_version(text: str) -> Version:
    """``0.5.6-g3e11e108`` -> (0, 5, 6); what is no number ends it."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", text.strip())
    return tuple(int(part) for part in match[1].split(".")[:4]) if match else ()
