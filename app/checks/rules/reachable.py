"""Targets that do not answer cannot be checked."""

from __future__ import annotations

from collections.abc import Iterable

from app.checks.base import Check, Finding
from app.checks.facts import Facts


class Reachable(Check):
    id = "reachable"
    title = "Server and engine answer"
    looks_at = "whether the registered addresses answer"
    why = "What does not answer cannot be checked; the findings that need it are missing or say unknown."
    source = "the panel's own requests"

    def check(self, facts: Facts) -> Iterable[Finding]:
        server, engine = facts.server, facts.engine
        if server is not None and not server.planned:
            if not server.reachable:
                yield self.fail(
                    server.name,
                    (server.status_reason or server.config_reason or "no answer")
                    + _last_words(server.log.problem if server.log is not None else None),
                    title="The cache server does not answer",
                    fix="start it, or correct its address (HTTP port, 8080 by default)",
                    effective="no answer",
                )
            else:
                yield self.ok(server.name, "answers", effective="answers")
        if engine is not None and not engine.planned:
            if not engine.reachable:
                yield self.fail(
                    engine.name,
                    (engine.metrics_reason or engine.facts_reason or "no answer")
                    + _last_words(engine.notes.problem if engine.notes is not None else None),
                    title="The engine does not answer",
                    fix="start it, or correct its address (API port, 8000 by default)",
                    effective="no answer",
                )
            else:
                yield self.ok(engine.name, "answers", effective="answers")


def _last_words(problem: str | None) -> str:
    return f"; its log ends with: {problem}" if problem else ""
