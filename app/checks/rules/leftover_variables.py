"""LMCACHE_ variables of the other mode."""

from __future__ import annotations

from collections.abc import Iterable

from app.checks.base import Check, Finding
from app.checks.facts import Facts
from app.lmcache.in_process import InProcessConfig, from_variables


class LeftoverVariables(Check):
    id = "leftover_variables"
    title = "No settings of the in-process mode are left over"
    looks_at = "LMCACHE_* variables and LMCACHE_CONFIG_FILE of server and engine (container, pasted text)"
    why = (
        "The cache server and its connector read none of the in-process settings. Left over they promise a disk limit "
        "or a chunk size that nobody keeps, and the next person tunes the wrong knob."
    )
    source = "LMCache 0.5.6: settings of the two modes"

    def check(self, facts: Facts) -> Iterable[Finding]:
        for subject, settings in _sides(facts):
            names = [f"LMCACHE_{name.upper()}" for name in settings.set_names]
            if "LMCACHE_CONFIG_FILE" in settings.variables:
                names.append("LMCACHE_CONFIG_FILE")
            if facts.server is not None and names:
                yield self.warn(
                    subject,
                    f"set, but read by nobody in this mode: {_listed(names)}",
                    title="Settings of the in-process mode are left over",
                    fix=f"unset {' '.join(sorted(names)[:6])}; use the options of lmcache server instead",
                    configured=_listed(names),
                    effective="read by nobody",
                    origin=settings.origin,
                )
            elif settings.unknown:
                yield self.warn(
                    subject,
                    f"LMCache knows no such setting: {_listed(settings.unknown)}",
                    title="Unknown settings",
                    fix="correct the names (docs of LMCache: configuration) or remove them",
                    configured=_listed(settings.unknown),
                    effective="read by nobody",
                    origin=settings.origin,
                )
            else:
                yield self.ok(
                    subject,
                    "none",
                    configured=_listed(names) or "none of the in-process mode",
                    effective="as set" if names else "none",
                    origin=settings.origin,
                )


def _sides(facts: Facts) -> Iterable[tuple[str, InProcessConfig]]:
    if facts.in_process is not None:
        yield facts.engine_name, facts.in_process
    elif facts.engine is not None and facts.engine.environment:
        yield facts.engine_name, from_variables(facts.engine.environment)
    if facts.server is not None and facts.server.environment:
        yield facts.server.name, from_variables(facts.server.environment)


def _listed(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:6]) + (f" and {len(ordered) - 6} more" if len(ordered) > 6 else "")
