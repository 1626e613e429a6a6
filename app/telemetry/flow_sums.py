"""What `token_flow` adds up, out of the samples: those of the last quarter of an hour are read once (`recent`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.telemetry import rollup, window_sums
from app.telemetry.metrics import INTERVAL
from app.telemetry.recent import Minutes, Recent
from app.telemetry.tables import Series
from app.telemetry.token_flow import ENGINE_SERIES, SERVER_SERIES, TierSlice

Sums = Mapping[int, Mapping[str, float]]
#: {target: {series: {minute: sum}}}
ByMinute = Mapping[int, Mapping[str, Minutes]]
#: What pages ask for: the flow of the last quarter of an hour.
RECENT_SECONDS = 900.0
_NOTHING: Minutes = {}


class FlowSums:
    """The sums of engines and servers in [now - window, now), and of each server with its engines minute by minute."""

    def __init__(self) -> None:
        self._engines = Recent("engine", (*ENGINE_SERIES, INTERVAL), RECENT_SECONDS)
        self._servers = Recent("server", SERVER_SERIES, RECENT_SECONDS)

    def of(
        self, session: Session, engines: Mapping[int, int | None], window: float, now: float
    ) -> tuple[Sums, Sums, list[TierSlice]]:
        """`engines`: id and server. No slices for windows whose minutes are gone. A series without any sample is
        missing."""
        servers = sorted({server for server in engines.values() if server is not None})
        if window > rollup.DEFAULT_KEPT.raw / 4:
            start = now - window
            of_engines = window_sums.sums(session, "engine", list(engines), ENGINE_SERIES, start, now, now)
            return of_engines, window_sums.sums(session, "server", servers, SERVER_SERIES, start, now, now), []
        found: tuple[ByMinute, ByMinute]
        if window == RECENT_SECONDS:
            found = self._engines.of(session, engines, now), self._servers.of(session, servers, now)
        else:
            names = (*ENGINE_SERIES, INTERVAL)
            found = (
                _by_minute(session, "engine", engines, names, now - window, now),
                _by_minute(session, "server", servers, SERVER_SERIES, now - window, now),
            )
        return _totals(found[0]), _totals(found[1]), _slices(engines, *found)


def _by_minute(
    session: Session, kind: str, ids: Collection[int], names: Sequence[str], start: float, now: float
) -> ByMinute:
    query = select(Series.id, Series.target_id, Series.metric).where(
        Series.target_kind == kind, Series.target_id.in_(ids), Series.metric.in_(names)
    )
    series = {row.id: (row.target_id, row.metric) for row in session.execute(query)}
    found: dict[int, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for ident, minute, total in window_sums.minute_sums(session, list(series), start, now):
        target, metric = series[ident]
        found[target][metric][minute] = total
    return found


def _totals(found: ByMinute) -> Sums:
    return {target: {name: sum(minutes.values()) for name, minutes in own.items()} for target, own in found.items()}


def _slices(engines: Mapping[int, int | None], of_engines: ByMinute, of_servers: ByMinute) -> list[TierSlice]:
    external: dict[int, list[Minutes]] = defaultdict(list)
    for engine, server in engines.items():
        told = of_engines.get(engine, {}).get("external_tokens")
        if server is not None and told is not None:
            external[server].append(told)
    slices = []
    for server in external.keys() | of_servers.keys():
        own = of_servers.get(server, {})
        l1, l2 = own.get("l1_hit_tokens", _NOTHING), own.get("l2_hit_tokens", _NOTHING)
        loads = external.get(server, [])
        for minute in l1.keys() | l2.keys() | set().union(*loads):
            from_server = sum([load.get(minute, 0.0) for load in loads])
            slices.append(TierSlice(from_server, l1.get(minute, 0.0), l2.get(minute, 0.0)))
    return slices
