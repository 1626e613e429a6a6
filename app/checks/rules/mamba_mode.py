"""The state of a hybrid model must be kept at block boundaries."""

from __future__ import annotations

from collections.abc import Iterable

from app.checks import effective
from app.checks.base import Check, Finding
from app.checks.facts import Facts


class MambaMode(Check):
    id = "mamba_cache_mode"
    title = "The hybrid model's state is kept at block boundaries"
    looks_at = "--mamba-cache-mode of the engine (hybrid models only)"
    why = (
        "Without `align` no state is kept at block boundaries: there is nothing that LMCache could restore, or only "
        "the attention part, which gave garbled answers in the past. vLLM calls the mode experimental."
    )
    source = "LMCache recipes for hybrid models; LMCache#2863"

    def check(self, facts: Facts) -> Iterable[Finding]:
        is_hybrid = effective.hybrid(facts)
        if is_hybrid is None or not is_hybrid.value:
            return
        subject = facts.engine_name
        mode = effective.mamba_mode(facts)
        fix = "vllm serve --mamba-cache-mode align --enable-prefix-caching"
        if mode is None:
            yield self.unknown(subject, f"a hybrid model ({is_hybrid.origin}) whose cache mode is not known", fix=fix)
        elif mode.value == "align":
            yield self.ok(
                subject,
                "align, which vLLM calls experimental: run an acceptance test after every upgrade",
                configured=_asked(facts) or mode.value,
                effective=mode.value,
                origin=mode.origin,
            )
        else:
            yield self.fail(
                subject,
                f"the mode is {mode.value!r}: gated delta nets and Mamba layers keep no state at block boundaries",
                title="The hybrid model's state cannot be restored",
                fix=fix,
                configured=_asked(facts) or mode.value,
                effective=mode.value,
                origin=mode.origin,
            )


def _asked(facts: Facts) -> str | None:
    told = facts.engine.facts if facts.engine is not None else None
    return told.mamba_cache_mode if told is not None else None
