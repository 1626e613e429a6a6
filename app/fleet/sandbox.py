"""The simulated targets of `tierkeeper demo`: known by a label, forgotten together."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import select

from app.fleet.context import TABLES, FleetContext, TargetKind
from app.fleet.tables import Engine, Server, Store

SANDBOX_LABEL = {"origin": "sandbox"}
#: Engines first, so that none is left without its server for a moment.
_ORDER: tuple[TargetKind, ...] = ("engine", "store", "server")


class SandboxTarget(NamedTuple):
    """One simulated target."""

    kind: TargetKind
    id: int
    name: str


def sandbox_targets(context: FleetContext) -> list[SandboxTarget]:
    """Every target with the label, in the order in which they are forgotten."""
    wanted = SANDBOX_LABEL.items()
    found: list[SandboxTarget] = []
    with context.db.read() as session:
        for kind in _ORDER:
            table = TABLES[kind]
            rows = session.execute(select(table.id, table.name, table.labels).order_by(table.id))
            found += [SandboxTarget(kind, ident, name) for ident, name, labels in rows if wanted <= labels.items()]
    return found


def forget_sandbox(context: FleetContext, *, actor: str) -> list[SandboxTarget]:
    """Forgets them all and returns them. Raises Conflict where work on one still runs."""
    targets = sandbox_targets(context)
    for target in targets:
        context.forget(target.kind, target.id, actor=actor)
    return targets


def addresses(context: FleetContext) -> frozenset[str]:
    """Every address and directory that is registered."""
    with context.db.read() as session:
        found = [session.scalars(select(column)) for column in (Server.url, Engine.url, Store.path)]
        return frozenset(text for column in found for text in column)
