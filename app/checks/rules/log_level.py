"""DEBUG logging left on."""

from __future__ import annotations

from collections.abc import Iterable

from app.checks.base import Check, Finding
from app.checks.facts import Facts


class LogLevel(Check):
    id = "log_level"
    title = "Log levels are those of production"
    looks_at = "log level of the engine (/server_info), LMCACHE_LOG_LEVEL and VLLM_LOGGING_LEVEL, start-up logs"
    why = "At DEBUG both write lines for every chunk: gigabytes a day, slower transfers, and prompts in log files."
    source = "LMCache and vLLM environment variables"

    def check(self, facts: Facts) -> Iterable[Finding]:
        for subject, level, origin, variable in _levels(facts):
            if level in ("DEBUG", "TRACE", "NOTSET"):
                yield self.warn(
                    subject,
                    f"{level} ({origin})",
                    title="DEBUG logging was left on",
                    fix=f"{variable}=INFO, and restart",
                    configured=level,
                    effective=level,
                    origin=origin,
                )
            else:
                yield self.ok(subject, f"{level} ({origin})", configured=level, effective=level, origin=origin)


def _levels(facts: Facts) -> Iterable[tuple[str, str, str, str]]:
    server, engine = facts.server, facts.engine
    if server is not None:
        said = server.environment.get("LMCACHE_LOG_LEVEL", "").upper()
        if server.log is not None and server.log.debug:
            yield server.name, "DEBUG", "start-up log of the server", "LMCACHE_LOG_LEVEL"
        elif said:
            yield server.name, said, "LMCACHE_LOG_LEVEL of the server", "LMCACHE_LOG_LEVEL"
        elif server.log is not None:
            yield server.name, "INFO", "start-up log of the server", "LMCACHE_LOG_LEVEL"
    if engine is not None:
        said = engine.environment.get("VLLM_LOGGING_LEVEL", "").upper()
        level = engine.facts.log_level if engine.facts is not None else None
        if engine.notes is not None and engine.notes.debug:
            yield engine.name, "DEBUG", "start-up log of the engine", "VLLM_LOGGING_LEVEL"
        elif level:
            yield engine.name, level.upper(), "/server_info of the engine", "VLLM_LOGGING_LEVEL"
        elif said:
            yield engine.name, said, "VLLM_LOGGING_LEVEL of the engine", "VLLM_LOGGING_LEVEL"
