"""One pair checked without a database: what `tierkeeper check` does with plain addresses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.checks import host
from app.checks.assemble import facts_of
from app.checks.base import Finding
from app.checks.commands import read_commands
from app.checks.evaluate import evaluate
from app.checks.gather import EngineRequest, ServerRequest, gather


@dataclass(frozen=True)
class DirectResult:
    """The findings, worst first, and the names of targets that did not answer."""

    findings: Sequence[Finding]
    unreachable: tuple[str, ...]


def check_targets(
    server: ServerRequest | None,
    engine: EngineRequest | None,
    *,
    others: Sequence[ServerRequest] = (),
    commands: str = "",
    write_probe: bool = True,
) -> DirectResult:
    """Read and judge one pair. `others` are servers that may share its directories; their stores are not written to."""
    own = [server] if server is not None else []
    servers, engines = gather([*own, *others], [engine] if engine is not None else [], write_probe=write_probe)
    read = read_commands(commands)
    facts = facts_of(
        servers[0] if own else None,
        engines[0] if engines else None,
        memory=host.memory(),
        engines_of_server=engines if own else (),
        other_servers=servers[len(own) :],
        containers=read.containers,
        problems=read.problems,
    )
    sides = [(facts.server, server), (facts.engine, engine)]
    silent = tuple(
        side.name for side, _ in sides if side is not None and not side.reachable and side.mistaken_for is None
    )
    return DirectResult(evaluate(facts), silent)
