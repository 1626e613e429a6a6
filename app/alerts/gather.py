"""Reads rows and snapshots into a `Moment`. Short read sessions, no network; the disk only after a scan of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.alerts import gather_rows as rows
from app.alerts.inputs import (
    Adapter,
    EngineInput,
    LiveLayout,
    Moment,
    ServerInput,
    StoreInput,
)
from app.alerts.layout_log import LayoutLog
from app.alerts.scan_facts import ScanFacts, ScanFactsCache, blind_stores, newest_scans
from app.alerts.trail import Trail
from app.clock import Clock
from app.database import Database
from app.errors import TargetError
from app.fleet.tables import Engine, Server, Store, StoreServer
from app.lmcache.layouts import KVLayout
from app.records.service import RecordsService
from app.telemetry.rates import CounterPoint
from app.telemetry.service import PolledKind, TargetSnapshot, TelemetryService
from app.telemetry.tables import Observation

#: Changes of layouts are looked for this far back when the panel starts.
OBSERVED_SECONDS = 30 * 86400.0
#: A server whose last good poll is older than so many intervals (and 5 s) says nothing of now.
GAP_INTERVALS = 3.0
#: Snapshots that are read at once.
_AT_ONCE = 25
_T = TypeVar("_T", Server, Engine, Store)


@dataclass
class _Rows:
    servers: list[Server] = field(default_factory=list)
    engines: list[Engine] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    joined: dict[int, list[int]] = field(default_factory=dict)  # store id -> server ids


class Gatherer:
    """Keeps from one moment to the next what cannot be read anew each time: trails, layout logs, facts of scans."""

    def __init__(
        self, *, db: Database, clock: Clock, interval: float, telemetry: TelemetryService, records: RecordsService
    ) -> None:
        self._db = db
        self._clock = clock
        self._interval = interval
        self._telemetry = telemetry
        self._scans = ScanFactsCache(records, interval)
        self._trails: dict[tuple[str, int, str], Trail] = {}
        self._logs: dict[int, LayoutLog] = defaultdict(LayoutLog)
        self._shown: dict[int, Mapping[str, Any]] = {}  # the contexts fed last
        self._observed: int | None = None  # id of the last observation that was read

    def moment(self) -> Moment:
        """Everything, now."""
        now = self._clock()
        self._scans.begin()
        with self._db.read() as session:
            found = _targets(session)
            self._observe(session, now)
            others = rows.read(session)
            scans = newest_scans(session)
            names = {row.id: row.name for row in found.servers}
            blind = blind_stores(session, found.joined, names, now, GAP_INTERVALS * self._interval + 5.0)
        self._forget(found)
        engines = {r.id: self._engine(r, snapshot) for r, snapshot in self._seen("engine", found.engines)}
        by_server: dict[int, list[EngineInput]] = defaultdict(list)
        for engine in engines.values():
            if engine.server_id is not None:
                by_server[engine.server_id].append(engine)
        servers = {
            r.id: self._server(r, snapshot, by_server.get(r.id, []))
            for r, snapshot in self._seen("server", found.servers)
        }
        stores = {
            r.id: self._store(
                r,
                snapshot,
                tuple(found.joined.get(r.id, ())),
                self._scans.of(
                    r.id,
                    scans.get(r.id),
                    look=_usable(snapshot) is True,
                    now=now,
                    blind=blind.get(r.id),
                    cleaned_at=max((c.finished_at for c in others.cleanups if c.store_id == r.id), default=0.0),
                ),
            )
            for r, snapshot in self._seen("store", found.stores)
        }
        return Moment(
            now=now,
            interval=self._interval,
            servers=servers,
            engines=engines,
            stores=stores,
            cleanups=others.cleanups,
            tests=others.tests,
            canaries=others.canaries,
            schedules=others.schedules,
            notifiers=others.notifiers,
        )

    def _seen(self, kind: PolledKind, targets: Sequence[_T]) -> Iterator[tuple[_T, TargetSnapshot | None]]:
        """Each target with its last poll. A few at a time: snapshots of a whole fleet, taken apart, are 40 MB."""
        for start in range(0, len(targets), _AT_ONCE):
            some = targets[start : start + _AT_ONCE]
            snapshots = self._telemetry.snapshots(kind, [target.id for target in some])
            yield from ((target, snapshots.get(target.id)) for target in some)

    def _forget(self, found: _Rows) -> None:
        """Drops what was kept of targets that are gone, or have another address."""
        here = {("server", r.id, r.url) for r in found.servers} | {("engine", r.id, r.url) for r in found.engines}
        self._trails = {key: trail for key, trail in self._trails.items() if key in here}
        servers = {r.id for r in found.servers}
        for ident in [ident for ident in self._logs if ident not in servers]:
            del self._logs[ident]
            self._shown.pop(ident, None)

    def _trail(self, kind: str, row: Server | Engine, snapshot: TargetSnapshot | None) -> Trail:
        trail = self._trails.setdefault((kind, row.id, row.url), Trail())
        point = counter_point(snapshot.memory.get("counters")) if snapshot is not None else None
        if point is not None:
            trail.add(point, self._interval)
        return trail

    def _observe(self, session: Session, now: float) -> None:
        """Feeds what polls showed since the last moment. A row that is still extended is read once: its layouts are
        what it began with."""
        query = select(Observation.id, Observation.server_id, Observation.first_at, Observation.contexts).where(
            Observation.ok
        )
        if self._observed is None:
            query = query.where(Observation.first_at >= now - OBSERVED_SECONDS)
        else:
            query = query.where(Observation.id > self._observed)
        for row in session.execute(query.order_by(Observation.id)):
            if self._shown.get(row.server_id) != row.contexts:  # most rows are about something else
                self._shown[row.server_id] = row.contexts
                self._logs[row.server_id].feed(row.first_at, layouts_of(row.contexts))
            self._observed = max(self._observed or 0, row.id)
        self._observed = self._observed or 0

    def _engine(self, row: Engine, snapshot: TargetSnapshot | None) -> EngineInput:
        values: Mapping[str, Any] = snapshot.values if snapshot is not None else {}
        memory: Mapping[str, Any] = snapshot.memory if snapshot is not None else {}
        names = [*(values.get("model_names") or ()), *(values.get("model_roots") or ()), *(memory.get("models") or ())]
        return EngineInput(
            **_common(row, snapshot, values),
            process_start=number(memory.get("process_start")),
            trail=self._trail("engine", row, snapshot),
            server_id=row.server_id,
            model_names=frozenset(str(name) for name in names),
            running=number(values.get("running")),
            waiting=number(values.get("waiting")),
            connector=boolean(values.get("connector")),
            in_process=mapping(values.get("in_process")) or None,
        )

    def _server(self, row: Server, snapshot: TargetSnapshot | None, engines: list[EngineInput]) -> ServerInput:
        values: Mapping[str, Any] = snapshot.values if snapshot is not None else {}
        memory: Mapping[str, Any] = snapshot.memory if snapshot is not None else {}
        l1, queue = mapping(values.get("l1")), mapping(values.get("store_queue"))
        waiting = [number(queue.get(name)) for name in ("pending", "in_flight")]
        contexts, load = mapping(memory.get("contexts")), mapping(values.get("load"))
        registered = number(values.get("engines_registered"))
        return ServerInput(
            **_common(row, snapshot, values),
            process_start=number(values.get("process_start")),
            trail=self._trail("server", row, snapshot),
            engine_up=boolean(values.get("engine_up")),
            engines_registered=None if registered is None else round(registered),
            hash_algorithm=values.get("hash_algorithm"),
            restarted_at=number(values.get("restarted_at")),
            l1_usage_ratio=number(l1.get("usage_ratio")),
            l1_trigger_watermark=number(l1.get("trigger_watermark")),
            l1_object_count=number(l1.get("object_count")),
            adapters=[
                Adapter(str(item.get("adapter") or "unknown"), item.get("base_path"))
                for item in values.get("l2") or ()
                if isinstance(item, dict)
            ],
            queue=None if None in waiting else sum(value or 0.0 for value in waiting),
            layouts=[
                LiveLayout(layout, 1)
                for layout in layouts_of({ident: item[0] for ident, item in contexts.items() if item})
            ],
            model_names=frozenset(str(name) for name in values.get("model_names") or ()),
            reap_timeout=number(values.get("reap_timeout_seconds")),
            last_change=self._logs[row.id].last_change if row.id in self._logs else None,
            data_path_proven_at=row.data_path_proven_at,
            shares_host=boolean(load.get("shares_host")),
            resident_bytes=number(load.get("resident_bytes")),
            engines=engines,
        )

    def _store(
        self, row: Store, snapshot: TargetSnapshot | None, server_ids: tuple[int, ...], scan: ScanFacts | None
    ) -> StoreInput:
        values: Mapping[str, Any] = snapshot.values if snapshot is not None else {}
        room = mapping(values.get("filesystem"))
        scan = scan or ScanFacts()
        return StoreInput(
            id=row.id,
            name=row.name,
            path=row.path,
            server_path=row.server_path,
            server_ids=server_ids,
            labels=row.labels,
            created_at=row.created_at,
            usable=_usable(snapshot),
            usable_reason=values.get("usable_reason"),
            checked_at=snapshot.polled_at if snapshot is not None else None,
            total_bytes=number(room.get("total_bytes")),
            free_bytes=number(room.get("free_bytes")),
            used_bytes=number(room.get("used_bytes")),
            inodes_free=number(room.get("inodes_free")),
            disk=mapping(values.get("disk")) or None,
            scanned_at=scan.scanned_at,
            records=scan.records,
            wrong=scan.wrong,
            derived=scan.derived,
            corrupt=scan.corrupt,
            blind=scan.blind,
            known_at=scan.known_at,
            stale_temporaries=scan.stale_temporaries,
            growth_per_hour=scan.growth_per_hour,
            growth_reason=scan.growth_reason,
        )


def _targets(session: Session) -> _Rows:
    found = _Rows(
        servers=list(session.scalars(select(Server))),
        engines=list(session.scalars(select(Engine))),
        stores=list(session.scalars(select(Store))),
    )
    for store_id, server_id in session.execute(select(StoreServer.store_id, StoreServer.server_id)):
        found.joined.setdefault(store_id, []).append(server_id)
    return found


def _common(row: Server | Engine, snapshot: TargetSnapshot | None, values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": row.id,
        "name": row.name,
        "url": row.url,
        "labels": row.labels,
        "created_at": row.created_at,
        "health_state": row.health_state,
        "health_reason": row.health_reason,
        "health_since": row.health_since,
        "polled_at": snapshot.polled_at if snapshot is not None else None,
        "scraped_at": snapshot.scraped_at if snapshot is not None else None,
        "http_up": boolean(values.get("http_up")),
    }


def counter_point(stored: object) -> CounterPoint | None:
    """The counters of a snapshot's memory; None for anything that is not what telemetry stores."""
    if not isinstance(stored, dict):
        return None
    try:
        process = stored["process"]
        values = {str(name): number(value) for name, value in stored["values"].items()}
        return CounterPoint(float(stored["at"]), (process[0], process[1]), values)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        return None


def _usable(snapshot: TargetSnapshot | None) -> bool | None:
    return boolean(snapshot.values.get("usable")) if snapshot is not None else None


def layouts_of(contexts: Mapping[str, Any]) -> list[KVLayout]:
    """The layouts of stored contexts; one that cannot be read is left out."""
    found = []
    for stored in contexts.values():
        try:
            found.append(KVLayout.from_json(stored))
        except (TargetError, TypeError, ValueError):
            continue
    return found


def number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def boolean(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
