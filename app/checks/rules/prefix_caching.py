"""vLLM's own prefix caching must be on."""

from __future__ import annotations

from collections.abc import Iterable

from app.checks import effective
from app.checks.base import Check, Finding
from app.checks.facts import Facts


class PrefixCaching(Check):
    id = "prefix_caching"
    title = "The engine's own prefix caching is on"
    looks_at = "--enable-prefix-caching of the engine"
    why = (
        "vLLM switches it on by itself for ordinary models only; for hybrid models it is opt-in and the decision is "
        "logged at debug level: the engine attaches to the cache and never hits. Without it every request also asks "
        "the cache server for what the GPU still holds."
    )
    source = "vLLM engine arguments; LMCache recipes for hybrid models"

    def check(self, facts: Facts) -> Iterable[Finding]:
        if facts.engine is None:
            return
        subject = facts.engine_name
        on, is_hybrid = effective.prefix_caching(facts), effective.hybrid(facts)
        hybrid = is_hybrid is not None and is_hybrid.value
        told = facts.engine.facts.enable_prefix_caching if facts.engine.facts is not None else None
        asked = told if told is not None else on.value if on is not None else None
        fix = "vllm serve --enable-prefix-caching"
        if on is None:
            if facts.engine.planned and not hybrid:
                return  # vLLM's default for ordinary models
            yield self.unknown(subject, "the engine does not tell whether prefix caching is on", fix=fix)
        elif on.value:
            yield self.ok(subject, "on", configured=asked, effective=True, origin=on.origin)
        elif hybrid:
            yield self.fail(
                subject,
                "off for a hybrid model: nothing is ever found again",
                title="Prefix caching is off",
                fix=fix,
                configured=asked,
                effective=False,
                origin=on.origin,
            )
        else:
            yield self.warn(
                subject,
                "off: the GPU reuses nothing by itself, every hit costs a load from the cache server",
                title="Prefix caching is off",
                fix=fix,
                configured=asked,
                effective=False,
                origin=on.origin,
            )
