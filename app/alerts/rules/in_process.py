"""What LMCache inside an engine says of itself."""

from __future__ import annotations

from app.alerts.model import Fact, Limit, Verdict, percent, said, span
from app.alerts.rules.base import ENGINE_GONE, Cause, Limits, Rule


def _unwell(fact: Fact, _: Limits) -> Verdict:
    healthy = fact.number("healthy")
    sentence = f"LMCache inside {fact.subject.name} says that it is {'healthy' if healthy else 'not healthy'}"
    return Verdict(healthy == 0, sentence, healthy, 1.0)


def _low(fact: Fact, limits: Limits) -> Verdict:
    rate, requested = fact.number("rate"), fact.number("requested")
    busy = requested >= limits["requested_tokens"]
    sentence = (
        f"{percent(rate)} of {said(requested)} tokens that LMCache inside {fact.subject.name} looked up in "
        f"{span(fact.number('window'))} were found"
    )
    return Verdict(busy and rate < limits["floor"], sentence, rate, limits["floor"])


RULES = (
    Rule(
        id="in_process_unhealthy",
        title="LMCache inside an engine is not healthy",
        fact="in_process_health",
        subject="engine",
        severity="critical",
        for_seconds=60,
        judge=_unwell,
        causes=ENGINE_GONE,
        means="The engine answers and computes everything itself: its LMCache gave up (lmcache:lmcache_is_healthy is "
        "0). /health of the engine stays 200.",
        action="Read the engine's log for the first LMCache error; with a remote backend see whether that answers. "
        "Restart the engine when it does not come back.",
    ),
    Rule(
        id="in_process_hit_rate_low",
        title="The hit rate of LMCache inside an engine is low",
        fact="in_process_hit_rate",
        subject="engine",
        severity="warning",
        for_seconds=900,
        judge=_low,
        limits={
            "floor": Limit(0.3, "ratio", "less than this part of the tokens looked up was found", 0, 1),
            "requested_tokens": Limit(100_000, "tokens", "looked up within fifteen minutes at least", 0, 1e12),
        },
        causes=(*ENGINE_GONE, Cause("in_process_unhealthy")),
        means="Prompts share less with each other than before, its memory or disk tier is too small for them, or a "
        "change (model, chunk size, prompt template, hash seed) made what it holds unreachable.",
        action="Compare what it holds with max_local_cpu_size and max_local_disk_size; see what changed in the "
        "prompts' beginnings; set PYTHONHASHSEED where several engines share a tier.",
    ),
)
