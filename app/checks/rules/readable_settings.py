"""Settings that cannot be read."""

from __future__ import annotations

from collections.abc import Iterable

from app.checks.base import Check, Finding
from app.checks.facts import Facts


class ReadableSettings(Check):
    id = "readable_settings"
    title = "All settings can be read"
    looks_at = "LMCACHE_EXTRA_CONFIG, YAML, --kv-transfer-config and --l2-adapter: JSON and YAML that must parse"
    why = "Invalid JSON in a variable is often only logged: the engine then runs without the setting."
    source = "LMCache configuration; vLLM engine arguments"

    def check(self, facts: Facts) -> Iterable[Finding]:
        problems = [*facts.problems, *(facts.in_process.problems if facts.in_process is not None else ())]
        subject = facts.engine_name if facts.server is None else facts.pair_name
        for number, problem in enumerate(problems[:20]):
            yield self.fail(
                subject if number == 0 else f"{subject} ({number + 1})",
                problem,
                title="A setting cannot be read",
                fix="correct it; in a shell put JSON into single quotes",
                configured=problem,
                effective="not read",
                origin=facts.in_process.origin if facts.in_process is not None else "command line",
            )
        if not problems and facts.in_process is not None:
            names = ", ".join(sorted(facts.in_process.set_names)[:6])
            yield self.ok(
                subject,
                "JSON and YAML parse",
                configured=names or "nothing of the in-process mode",
                effective="read",
                origin=facts.in_process.origin,
            )
