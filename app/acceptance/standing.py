"""How the acceptance of every engine stands, for lists: a few queries, whatever the number of engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from app.acceptance import history
from app.acceptance.schemas import AcceptanceRunView, LatestView
from app.acceptance.tables import AcceptanceRun
from app.fleet.schemas import EngineView, ServerView


@dataclass(frozen=True)
class Known:
    """By engine row id. A triple is (newest ended run, newest pass, newest pass or fail) as run ids."""

    ids: Mapping[int, tuple[int | None, int | None, int | None]] = field(default_factory=dict)
    views: Mapping[int, AcceptanceRunView] = field(default_factory=dict)
    without_verdict: Mapping[int, int] = field(default_factory=dict)


def read(session: Session, views: Callable[[Sequence[AcceptanceRun]], list[AcceptanceRunView]]) -> Known:
    """What is stored about all engines that were ever tested; `views` makes the views of runs."""

    def newest(verdicts: Sequence[str]) -> Any:
        return func.max(case((AcceptanceRun.verdict.in_(verdicts), AcceptanceRun.id)))

    query = (
        select(AcceptanceRun.engine_id, func.max(AcceptanceRun.id), newest(history.PASSES), newest(history.DECIDING))
        .where(AcceptanceRun.finished_at.is_not(None), AcceptanceRun.engine_id.is_not(None))
        .group_by(AcceptanceRun.engine_id)
    )
    ids = {row[0]: (row[1], row[2], row[3]) for row in session.execute(query)}
    wanted = {ident for row in ids.values() for ident in row if ident is not None}
    rows = list(session.scalars(select(AcceptanceRun).where(AcceptanceRun.id.in_(wanted)))) if wanted else []
    by_id = {row.id: row for row in rows}
    return Known(
        ids,
        {row.id: view for row, view in zip(rows, views(rows), strict=True)} if rows else {},
        {
            engine_id: history.count_without_verdict(session, engine_id, by_id.get(decided or 0))
            for engine_id, (run, _, decided) in ids.items()
            if run != decided
        },
    )


def of_all(
    engines: Sequence[EngineView], known: Known, server_of: Callable[[EngineView], ServerView | None]
) -> dict[str, LatestView]:
    """The standing of each engine; a server is looked up once, and only where a pass is to be judged by it."""
    servers: dict[str, ServerView | None] = {}
    found: dict[str, LatestView] = {}
    for engine in engines:
        last = known.ids.get(int(engine.id), (None, None, None))
        server: ServerView | None = None
        if last[1] is not None and engine.server_id is not None:
            if engine.server_id not in servers:
                servers[engine.server_id] = server_of(engine)
            server = servers[engine.server_id]
        run, passed, verdict = (known.views.get(ident) if ident is not None else None for ident in last)
        without = known.without_verdict.get(int(engine.id), 0)
        found[engine.id] = history.latest(engine, server, run, passed, verdict, without)
    return found
