"""How many tokens of a request came from a cache."""

from __future__ import annotations

from collections.abc import Iterable

from app.checks.base import Check, Finding
from app.checks.facts import Facts


class PromptTokensDetails(Check):
    id = "prompt_tokens_details"
    title = "Answers say how many prompt tokens were cached"
    looks_at = "--enable-prompt-tokens-details of the engine (start-up log or command line)"
    why = (
        "Without it `usage.prompt_tokens_details.cached_tokens` is missing: clients, benchmarks and acceptance tests "
        "cannot tell a hit of one request, only counters over all."
    )
    source = "vLLM server arguments"

    def check(self, facts: Facts) -> Iterable[Finding]:
        engine = facts.engine
        if engine is None:
            return
        on = engine.log.prompt_tokens_details if engine.log is not None else None
        origin = "start-up log of the engine"
        if on is None and engine.planned:
            on, origin = engine.arguments.get("enable_prompt_tokens_details") == "true", "command line of the engine"
        fix = "vllm serve --enable-prompt-tokens-details"
        if on is None:
            yield self.unknown(
                engine.name,
                "no endpoint tells it",
                fix=f"give the engine's start-up log (--log FILE, or paste it on the checks page), or {fix}",
            )
        elif on:
            yield self.ok(engine.name, "on", configured=True, effective=True, origin=origin)
        else:
            yield self.warn(
                engine.name,
                "off",
                title="Answers do not say what was cached",
                fix=fix,
                configured=False,
                effective=False,
                origin=origin,
            )
