"""What `token_flow` adds up, out of the samples: of a whole fleet a quarter of an hour is hundreds of thousands, so
that none is read twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.fleet.targets import EngineTarget
from app.telemetry import history, rollup
from app.telemetry.tables import Series
from app.telemetry.token_flow import ENGINE_SERIES, SERVER_SERIES, TierSlice

Sums = Mapping[int, Mapping[str, float]]
#: In the order of `TierSlice`; the first is the engines', the others are their server's.
_BY_MINUTE = ("external_tokens", "l1_hit_tokens", "l2_hit_tokens")


def flow_sums(
    session: Session, engines: Sequence[EngineTarget], server_ids: Sequence[int], start: float, now: float
) -> tuple[Sums, Sums, list[TierSlice]]:
    """The sums of each engine and each server in [start, now), and each server with its engines minute by minute (none
    for windows whose minutes are gone). A series without any sample there is missing."""
    engine_ids = [engine.id for engine in engines]
    if now - start > rollup.DEFAULT_KEPT.raw / 4:
        of_engines = history.sums(session, "engine", engine_ids, ENGINE_SERIES, start, now, now)
        return of_engines, history.sums(session, "server", server_ids, SERVER_SERIES, start, now, now), []
    others = [name for name in ENGINE_SERIES if name not in _BY_MINUTE]
    found = history.sums(session, "engine", engine_ids, others, start, now, now)
    of_servers: dict[int, dict[str, float]] = defaultdict(dict)
    cells: dict[tuple[int | None, int], list[float]] = {}
    server_of = {("engine", e.id): e.server_id for e in engines} | {("server", i): i for i in server_ids}
    rows = session.execute(
        select(Series.id, Series.target_kind, Series.target_id, Series.metric).where(Series.metric.in_(_BY_MINUTE))
    )
    series = {row[0]: row[1:] for row in rows if (row[1], row[2]) in server_of}
    for ident, at, total in history.minute_sums(session, list(series), start, now):
        kind, target, metric = series[ident]
        own = (found if kind == "engine" else of_servers)[target]
        own[metric] = own.get(metric, 0.0) + total
        cells.setdefault((server_of[kind, target], at), [0.0, 0.0, 0.0])[_BY_MINUTE.index(metric)] += total
    # Servers that tell hits without their tiers (LMCache before 0.5.5) must be known as such.
    bare = [i for i in server_ids if len(of_servers.get(i, ())) < len(_BY_MINUTE) - 1]
    for ident, told in history.sums(session, "server", bare, SERVER_SERIES, start, now, now).items() if bare else ():
        of_servers[ident].update(told)
    return found, of_servers, [TierSlice(*cell) for cell in cells.values()]
