"""Two servers on one directory."""

from __future__ import annotations

from collections.abc import Iterable

from app.checks.base import Check, Finding
from app.checks.facts import Facts


class SharedDirectory(Check):
    id = "shared_directory"
    title = "The directory belongs to one server"
    looks_at = "base_path of this server's adapters against those of all other servers of the panel"
    why = (
        "Servers on one directory reuse each other's records by name, and a name says nothing of dtype or chunk size: "
        "one server's records are another's wrong answers. An adapter that evicts counts only what it wrote itself, "
        "and two writers of one key use one temporary file."
    )
    source = "LMCache#2517, #2674, #1856"

    def check(self, facts: Facts) -> Iterable[Finding]:
        chunk = facts.server.config.chunk_size if facts.server is not None and facts.server.config is not None else None
        for store in facts.stores:
            if store.adapter.base_path is None:
                continue
            if not store.shared_with:
                yield self.ok(
                    store.subject,
                    "no other server of the panel names this directory",
                    configured=store.subject,
                    effective="one server",
                    origin="/config of the servers",
                )
                continue
            names = ", ".join(other.name for other in store.shared_with)
            values = {
                "configured": store.subject,
                "effective": f"shared with {names}",
                "origin": "/config of the servers",
            }
            different = [other for other in store.shared_with if other.chunk_size not in (None, chunk) and chunk]
            if different:
                told = ", ".join(f"{other.name}: {other.chunk_size}" for other in different)
                yield self.fail(
                    store.subject,
                    f"shared with servers of another chunk size ({told}; here {chunk}): records are taken for each "
                    "other",
                    title="Servers with different layouts share a directory",
                    fix="a base_path of its own for every server (the launch page offers one per layout)",
                    **values,
                )
            elif store.adapter.eviction or any(other.evicts for other in store.shared_with):
                yield self.fail(
                    store.subject,
                    f"shared with {names}, and an adapter evicts: it removes the others' records and counts only its "
                    "own",
                    title="An evicting adapter shares its directory",
                    fix="a base_path of its own for every server",
                    **values,
                )
            else:
                yield self.warn(
                    store.subject,
                    f"shared with {names}: right only while all of them keep one layout",
                    title="Servers share a directory",
                    fix="a base_path of its own for every server, unless sharing is meant",
                    **values,
                )
