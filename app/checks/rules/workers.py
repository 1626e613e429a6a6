"""Transfers of several engines should not wait for each other in one thread."""

from __future__ import annotations

from collections.abc import Iterable

from app.checks.base import Check, Finding
from app.checks.facts import Facts


class Workers(Check):
    id = "workers"
    title = "There is a transfer thread for every engine worker"
    looks_at = "--max-workers / --max-gpu-workers of the server against the engine workers registered at it"
    why = (
        "Stores and retrieves of one engine worker are bound to one thread of the server. With fewer threads than "
        "workers (engines × tensor parallel ranks) they share: a long store of one engine delays the loads of another."
    )
    source = "AffinityThreadPool of LMCache 0.5.6; lmcache server --help"

    def check(self, facts: Facts) -> Iterable[Finding]:
        server = facts.server
        if server is None or server.config is None:
            return
        threads = server.config.max_gpu_workers or server.config.max_workers
        if threads is None:
            yield self.unknown(server.name, "the server does not tell its worker threads")
            return
        expected = facts.engines_of_server or (1 if facts.engine is not None else 0)
        ranks = 1
        if facts.engine is not None and facts.engine.facts is not None:
            told = facts.engine.facts
            ranks = (told.tensor_parallel_size or 1) * (told.pipeline_parallel_size or 1)
        registered = server.status.workers_registered if server.status is not None else None
        workers = max(registered or 0, expected * ranks)
        if not workers:
            return
        where = "registered" if registered and registered >= expected * ranks else "expected"
        told_text = f"{threads} threads, {workers} engine workers {where}"
        values = {
            "configured": threads,
            "effective": f"{workers} workers",
            "origin": "/config and /status of the server",
        }
        if threads < workers:
            yield self.warn(
                server.name,
                told_text,
                title="Engine workers share transfer threads",
                fix=f"lmcache server --max-workers {workers}",
                **values,
            )
        else:
            yield self.ok(server.name, told_text, **values)
