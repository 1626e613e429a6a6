"""What was measured, for routes, pages and other rooms: samples, health changes, token flow, observations."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from app.clock import Clock, iso
from app.database import Database
from app.fleet.live import EngineLive, ServerLive, StoreLive
from app.fleet.service import FleetService
from app.fleet.tables import Engine, HealthChange, Server
from app.paging import decode_cursor, encode_cursor
from app.settings import Settings
from app.shapes import Page
from app.telemetry import history, live, rollup, window_sums
from app.telemetry.counted import Span, spans
from app.telemetry.extremes import extremes
from app.telemetry.flow_sums import RECENT_SECONDS, FlowSums
from app.telemetry.metrics import CATALOGUE
from app.telemetry.prometheus import Older, Prometheus, merged, query_of
from app.telemetry.restarts import Restart, restarts
from app.telemetry.schemas import HealthChangeView, OlderView, SamplesView, TokenFlowView
from app.telemetry.tables import Observation, Series, Snapshot
from app.telemetry.taken_apart import TakenApart
from app.telemetry.token_flow import token_flow

PolledKind = Literal["server", "engine", "store"]


@dataclass(frozen=True)
class TargetSnapshot:
    """The last poll of one target, good or not. Times are epoch seconds; `scraped_at` is when `values` were all true.

    `values` are view values (`server_reading`, `engine_reading`), `memory` what the poller remembers (`memory`).
    """

    target_kind: str
    target_id: int
    polled_at: float
    scraped_at: float | None
    values: Mapping[str, Any]
    memory: Mapping[str, Any]


class TelemetryService:
    """Reads what the poller wrote. Attaches itself to `fleet` as the source of live values."""

    def __init__(self, *, db: Database, clock: Clock, settings: Settings, fleet: FleetService) -> None:
        self._db = db
        self._clock = clock
        self._interval = settings.poll_seconds
        self._kept = rollup.Kept(
            settings.keep_raw_hours * 3600, settings.keep_5m_days * 86400, settings.keep_1h_days * 86400
        )
        token = settings.prometheus_token.get_secret_value() if settings.prometheus_token is not None else None
        self.prometheus = Prometheus(settings.prometheus_url, token) if settings.prometheus_url else None
        self._fleet = fleet
        self._servers = TakenApart("server", live.server_live)
        self._engines = TakenApart("engine", live.engine_live)
        self._flow_sums = FlowSums()
        fleet.attach_live(self)
        fleet.on_forget(_forget)
        fleet.on_moved(_drop_snapshot)

    # app.fleet.live.LiveSource

    def servers_live(self, ids: Collection[int]) -> Mapping[int, ServerLive]:
        with self._db.read() as session:
            return self._servers.of(session, ids)

    def engines_live(self, ids: Collection[int]) -> Mapping[int, EngineLive]:
        with self._db.read() as session:
            return self._engines.of(session, ids)

    def stores_live(self, ids: Collection[int]) -> Mapping[int, StoreLive]:
        with self._db.read() as session:
            rows = live.snapshots(session, "store", ids)
        return {ident: live.store_live(row) for ident, row in rows.items()}

    # reading

    def samples(
        self,
        target_kind: PolledKind,
        target_id: int,
        metric: str,
        *,
        start: float | None = None,
        end: float | None = None,
        step: float | None = None,
    ) -> SamplesView:
        """One metric over time (default: the last hour). Raises InvalidInput naming metric, from, to or step."""
        now = self._clock()
        request = history.plan(
            target_kind, metric, start=start, end=end, step=step, now=now, interval=self._interval, kept=self._kept
        )
        with self._db.read() as session:
            points = history.read(session, target_kind, target_id, request, self._interval)
            limits = extremes(session, target_kind, target_id, request)
            begins = history.oldest(session, target_kind, target_id, request) if self.prometheus is not None else None
        older = self._older(target_kind, target_id, metric, request, now if begins is None else begins)
        if older is not None:
            points = merged(points, older[1].points)
        return SamplesView(
            metric=metric,
            unit=request.metric.unit,
            step_seconds=request.step or self._interval,
            source=request.source,
            points=[(iso(at) or "", value) for at, value in points],
            lowest=limits[0] if limits is not None else None,
            highest=limits[1] if limits is not None else None,
            older=older[0] if older is not None else None,
        )

    def _older(
        self, kind: PolledKind, target_id: int, metric: str, request: history.Request, begins: float
    ) -> tuple[OlderView, Older] | None:
        """What a configured Prometheus says about the time before `begins`; None where it need not be asked."""
        step = request.step
        if self.prometheus is None or step == 0.0 or request.start >= begins:
            return None
        until = min(request.end, math.floor(begins / step) * step)
        start = math.floor(request.start / step) * step
        if start >= until:
            return None
        url, name = self._fleet.address(kind, target_id)
        query = query_of(kind, metric, url, name, step)
        if query is None:
            found = Older("nothing", reason="Prometheus has no series like it")
        else:
            found = self.prometheus.read(query, start, until, step)
        view = OlderView(state=found.state, until=iso(until) or "", reason=found.reason, query=found.query)
        return view, found

    def sparklines(
        self,
        target_kind: PolledKind,
        target_ids: Collection[int],
        metrics: Sequence[str],
        *,
        points: int = 60,
        seconds: float = 3600.0,
    ) -> list[dict[int, list[float | None]]]:
        """For each metric the last `seconds` of each target as `points` values, oldest first; None where nothing was
        known. All of them for the price of two queries or three."""
        now = self._clock()
        start, step = now - seconds, seconds / points
        requests = [
            # Of an interval of nothing: never value by value as polled, the database adds up what falls into a step.
            history.plan(target_kind, name, start=start, end=now, step=step, now=now, interval=0.0)
            for name in metrics
        ]
        with self._db.read() as session:
            found = history.read_many(session, target_kind, list(target_ids), requests, self._interval)
        return [
            {ident: history.spread(values, start, now, points) for ident, values in of_metric.items()}
            for of_metric in found
        ]

    def lately(
        self, target_kind: PolledKind, target_ids: Collection[int], metrics: Sequence[str], *, seconds: float
    ) -> list[dict[int, float | None]]:
        """For each metric its value over the last `seconds`, by target; None where it is not known."""
        now = self._clock()
        wanted = [CATALOGUE[target_kind][name] for name in metrics]
        with self._db.read() as session:
            return window_sums.totals(session, target_kind, list(target_ids), wanted, now - seconds, now)

    def health_changes(
        self, *, page_size: int, page_token: str | None, target_kind: str | None = None, target_id: int | None = None
    ) -> Page[HealthChangeView]:
        """Newest first."""
        list_name = f"health-changes|{target_kind}|{target_id}"
        query = select(HealthChange).order_by(HealthChange.id.desc()).limit(page_size + 1)
        if target_kind is not None:
            query = query.where(HealthChange.target_kind == target_kind)
        if target_id is not None:
            query = query.where(HealthChange.target_id == target_id)
        if page_token:
            query = query.where(HealthChange.id < decode_cursor(list_name, page_token)[0])
        with self._db.read() as session:
            rows = list(session.scalars(query))
            names = _names(session, rows)
        more = len(rows) > page_size
        rows = rows[:page_size]
        return Page(
            items=[_change_view(row, names) for row in rows],
            next_page_token=encode_cursor(list_name, [rows[-1].id]) if more else None,
        )

    def token_flow(self, server_id: int | None, window_seconds: float = RECENT_SECONDS) -> TokenFlowView:
        """Where prompt tokens came from, for one server's engines or (None) for all that belong to a server."""
        now = self._clock()
        with self._db.read() as session:
            engines = _linked_engines(session, server_id)
            of_engines, of_servers, slices = self._flow_sums.of(session, engines, window_seconds, now)
        return token_flow(
            None if server_id is None else str(server_id),
            window_seconds,
            list(of_engines.values()),
            list(of_servers.values()),
            registered_engines=len(engines),
            slices=slices,
        )

    def snapshot(self, target_kind: PolledKind, target_id: int) -> TargetSnapshot | None:
        """The last poll, good or not; None before the first one."""
        with self._db.read() as session:
            row = live.snapshots(session, target_kind, [target_id], memory=True).get(target_id)
        return None if row is None else _snapshot(row)

    def snapshots(self, target_kind: PolledKind, target_ids: Collection[int]) -> dict[int, TargetSnapshot]:
        """The last polls of these targets, good or not; one that was never polled is missing."""
        with self._db.read() as session:
            rows = live.snapshots(session, target_kind, target_ids, memory=True)
        return {ident: _snapshot(row) for ident, row in rows.items()}

    def counted(
        self, target_kind: PolledKind, target_ids: Collection[int], names: Sequence[str], *, since: float
    ) -> dict[int, list[Span]]:
        """What these increments were since then, by target, in spans whose holes show (`app.telemetry.counted`)."""
        with self._db.read() as session:
            return spans(session, target_kind, list(target_ids), names, since, self._clock())

    def observations(self, server_ids: Sequence[int], since: float | None = None) -> list[Observation]:
        """Observation rows of these servers that end at or after `since`, by (server, first_at), detached."""
        query = (
            select(Observation)
            .where(Observation.server_id.in_(list(server_ids)))
            .order_by(Observation.server_id, Observation.first_at, Observation.id)
        )
        if since is not None:
            query = query.where(Observation.last_at >= since)
        with self._db.read() as session:
            return list(session.scalars(query))

    def restarts(self, server_id: int, since: float) -> list[Restart]:
        """Restarts of a server and of the engines registered with it that began at or after `since`, oldest first."""
        with self._db.read() as session:
            return restarts(session, server_id, since)

    # upkeep, called by the scheduler

    def read_recent(self) -> None:
        """Reads what was polled since: a page that asks for it after a quiet hour would have to read all of it."""
        self.token_flow(None)

    def roll_up(self) -> int:
        """Brings the 5-minute and hourly tables up to now; returns how many buckets were written."""
        return rollup.roll_up(self._db, self._clock())

    def retire(self, *, batches: int = 20) -> bool:
        """Drops what is too old, at most so many batches; True while there is more."""
        return all(rollup.retire(self._db, self._clock(), self._kept) for _ in range(batches))


def _linked_engines(session: Session, server_id: int | None) -> dict[int, int | None]:
    """The server of each engine that belongs to this one, or to any: of a whole fleet only what the flow needs."""
    query = select(Engine.id, Engine.server_id).order_by(Engine.id)
    query = query.where(Engine.server_id.is_not(None) if server_id is None else Engine.server_id == server_id)
    return {row.id: row.server_id for row in session.execute(query)}


def _snapshot(row: Snapshot) -> TargetSnapshot:
    return TargetSnapshot(row.target_kind, row.target_id, row.polled_at, row.scraped_at, row.data, row.memory)


def _forget(session: Session, kind: str, target_id: int) -> None:
    """A target is deleted: its snapshot goes, its samples go later in batches."""
    _drop_snapshot(session, kind, target_id)
    session.execute(
        update(Series)
        .where(Series.target_kind == kind, Series.target_id == target_id)
        .values(target_kind=rollup.FORGOTTEN, target_id=Series.id)
    )


def _drop_snapshot(session: Session, kind: str, target_id: int) -> None:
    session.execute(delete(Snapshot).where(Snapshot.target_kind == kind, Snapshot.target_id == target_id))


def _names(session: Session, rows: Sequence[HealthChange]) -> dict[tuple[str, int], str]:
    names: dict[tuple[str, int], str] = {}
    for kind, table in (("server", Server), ("engine", Engine)):
        ids = {row.target_id for row in rows if row.target_kind == kind}
        for ident, name in session.execute(select(table.id, table.name).where(table.id.in_(ids))):
            names[kind, ident] = name
    return names


def _change_view(row: HealthChange, names: Mapping[tuple[str, int], str]) -> HealthChangeView:
    return HealthChangeView(
        id=str(row.id),
        target_kind="server" if row.target_kind == "server" else "engine",
        target_id=str(row.target_id),
        target_name=names.get((row.target_kind, row.target_id)),
        old_state=row.old_state,
        new_state=row.new_state,
        reason=row.reason,
        at=iso(row.at) or "",
        by=row.by,
    )
