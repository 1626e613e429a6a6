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
            if server.mistaken_for is not None:
                yield self._mistaken(facts, server.name, server.mistaken_for, wanted="cache server")
            elif not server.reachable:
                yield self.fail(
                    server.name,
                    (server.status_reason or server.config_reason or "no answer")
                    + _last_words(server.log.problem if server.log is not None else None),
                    title="The cache server does not answer",
                    fix="start it, or correct its address (HTTP port, 8080 by default)",
                    configured=server.url,
                    effective="no answer",
                    origin=self.source,
                )
            else:
                yield self.ok(server.name, "answers", configured=server.url, effective="answers", origin=self.source)
        if engine is not None and not engine.planned:
            if engine.mistaken_for is not None:
                yield self._mistaken(facts, engine.name, engine.mistaken_for, wanted="engine")
            elif not engine.reachable:
                yield self.fail(
                    engine.name,
                    (engine.metrics_reason or engine.facts_reason or "no answer")
                    + _last_words(engine.notes.problem if engine.notes is not None else None),
                    title="The engine does not answer",
                    fix="start it, or correct its address (API port, 8000 by default)",
                    configured=engine.url,
                    effective="no answer",
                    origin=self.source,
                )
            else:
                yield self.ok(engine.name, "answers", configured=engine.url, effective="answers", origin=self.source)

    def _mistaken(self, facts: Facts, subject: str, found: str, *, wanted: str) -> Finding:
        sides = (facts.server, facts.engine)
        both = all(side is not None and side.mistaken_for is not None for side in sides)
        port = "its HTTP port, 8080 by default" if wanted == "cache server" else "its API port, 8000 by default"
        return self.fail(
            subject,
            f"{found} answers there, no {wanted}",
            title=f"The address of the {wanted} is that of {found}",
            fix="swap the two addresses" if both else f"give the {wanted}'s own address ({port})",
            configured=subject,
            effective=found,
            origin="what answers there",
        )


def _last_words(problem: str | None) -> str:
    return f"; its log ends with: {problem}" if problem else ""
