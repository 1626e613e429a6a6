"""Gathers what classes depend on: polls, what operators declared, what cleanups cleared, the state of the servers."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.clock import Clock
from app.database import Database
from app.fleet.service import FleetService
from app.fleet.tables import Server, StoreServer
from app.fleet.targets import StoreTarget
from app.lmcache.layouts import KVLayout
from app.records import history as histories
from app.records.alarms import layout_alarms
from app.records.classify import Context, ServerState
from app.records.history import ServerHistory, build_history
from app.records.hits import HitMemory, HitSamples
from app.records.polls import PollSpan, span_of
from app.records.store_dir import ClockProbe
from app.records.tables import ClearedEpisode, LayoutEpoch, Scan
from app.records.tables import ServerHistory as ServerHistoryRow
from app.records.timeline import NS, Adoption, Cleared, Declaration, StoreTimeline, build_timeline
from app.scheduling.work import SUCCEEDED
from app.settings import Settings
from app.telemetry.service import TelemetryService
from app.telemetry.tables import Observation

#: An engine that is away for longer, in polled time, is gone (C3).
ABSENT_FOR = 7 * 86400.0
_GAP_INTERVALS = 3.0
#: How long the list of former servers waits for another writer, seconds.
_KEEPING_PATIENCE = 0.2
_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")


@dataclass(frozen=True)
class Knowledge:
    """One store's context at one time. `newest_poll`: the oldest of its servers' last good polls, None without one."""

    context: Context
    temp_dirs: tuple[str, ...]
    newest_poll: float | None
    built_at: float
    alarms: tuple[str, ...] = ()

    @property
    def timeline(self) -> StoreTimeline:
        return self.context.timeline

    @property
    def margin_seconds(self) -> float:
        return self.context.margin / NS


class Stand(NamedTuple):
    """Up to where knowledge of a store reaches: the oldest of its servers' last good polls, and what people said."""

    poll: float | None
    acts: str


class KnowledgeSource:
    """Loads `Knowledge` of stores; rows already turned into values are kept."""

    def __init__(
        self, *, db: Database, clock: Clock, settings: Settings, fleet: FleetService, telemetry: TelemetryService
    ) -> None:
        self._db = db
        self._clock = clock
        self._poll_seconds = settings.poll_seconds
        self._fleet = fleet
        self._telemetry = telemetry
        self._spans: dict[int, tuple[float, PollSpan]] = {}
        self._recent: dict[int, tuple[Stand, tuple[int, ...], Knowledge]] = {}
        self._hits = HitMemory()
        self._lock = threading.Lock()

    def recent(self, store: StoreTarget, stand: Stand) -> Knowledge:
        """What `load` said since the last poll and the last word of somebody (`stand`): pages ask at every look.

        Its times are those of that load, at most `fresh_seconds` ago.
        """
        with self._lock:
            kept = self._recent.get(store.id)
        if (
            kept is not None
            and kept[:2] == (stand, tuple(store.server_ids))
            and 0 <= self._clock() - kept[2].built_at <= self.fresh_seconds
        ):
            return kept[2]
        return self.load_at(store, stand)

    def load_at(self, store: StoreTarget, stand: Stand) -> Knowledge:
        """`load`, kept for `recent`. `stand` was read before: what comes meanwhile only makes it load again."""
        found = self.load(store)
        with self._lock:
            self._recent[store.id] = (stand, tuple(store.server_ids), found)
        return found

    def load(self, store: StoreTarget, probe: ClockProbe | None = None) -> Knowledge:
        """What is known now. `probe`: the file system's clock just measured; else the last scan's."""
        now = self._clock()
        servers = {ident: self._history(ident) for ident in store.server_ids}
        with self._db.read() as session:
            acts = list(session.scalars(select(LayoutEpoch).where(LayoutEpoch.store_id == store.id)))
            cleared = list(session.scalars(select(ClearedEpisode).where(ClearedEpisode.store_id == store.id)))
            states = self._states(session, store, servers, now)
            if probe is None:
                probe = _last_probe(session, store.id)
        timeline = build_timeline(
            servers,
            now=now,
            poll_seconds=self._poll_seconds,
            former=self._former(store, now),
            declarations=[
                Declaration(a.model_name, a.effective_at) for a in acts if a.kind == "declare" and a.effective_at
            ],
            adoptions=[adoption for act in acts if act.kind == "adopt" for adoption in _adoptions(act)],
            cleared=[Cleared(row.model_name, row.world_size, row.at, row.reopened) for row in cleared],
            hits=HitSamples(self._db, store.server_ids, self._hits),
            absent_for=ABSENT_FOR,
        )
        context = Context(
            now=round(now * NS),
            margin=round((self._poll_seconds + _rounded(probe.margin)) * NS),
            timeline=timeline,
            servers=states,
            fresh=timeline.fresh(now, self.fresh_seconds),
            absent_for=ABSENT_FOR,
        )
        polls = [h.latest.last_at for h in servers.values() if h.latest is not None]
        return Knowledge(
            context=context,
            temp_dirs=self.temp_dirs(store),
            newest_poll=min(polls) if polls and len(polls) == len(servers) else None,
            built_at=now,
            alarms=(
                *layout_alarms(timeline, now=now, poll_seconds=self._poll_seconds),
                *self._blind_spots(store, servers),
            ),
        )

    @property
    def fresh_seconds(self) -> float:
        """A last poll older than this says nothing of now."""
        return _GAP_INTERVALS * self._poll_seconds + 5.0

    def latest_poll(self, store: StoreTarget) -> float | None:
        """When the least recently polled server of a store was last polled well; cheap. None: one never was."""
        with self._db.read() as session:
            return _latest_poll(session, store)

    def stand(self, store: StoreTarget) -> Stand:
        """What decides whether something new is known; cheap."""
        with self._db.read() as session:
            return Stand(_latest_poll(session, store), _acts_version(session, store.id))

    def forget_server(self, session: Session, server_id: int) -> None:
        """Before a server's row goes: keeps what its polls said for the stores it used (fleet's forget hook)."""
        stores = session.scalars(select(StoreServer.store_id).where(StoreServer.server_id == server_id)).all()
        former = session.scalars(select(ServerHistoryRow).where(ServerHistoryRow.server_id == server_id)).all()
        told = {row.store_id: row for row in former}
        rows = session.scalars(select(Observation).where(Observation.server_id == server_id)).all()
        kept = histories.to_json(self._built(rows))
        now = self._clock()
        self._hits.forget(server_id)
        for store_id in {*stores, *told}:
            row = told.get(store_id)
            if row is None:
                row = ServerHistoryRow(store_id=store_id, server_id=server_id, covered_until=now)
                session.add(row)
            row.history, row.covered_until = kept, now
            row.left_at = row.left_at if row.left_at is not None else now

    def acts_version(self, store_id: int) -> str:
        """Changes whenever an operator or a cleanup said something that decides classes."""
        with self._db.read() as session:
            return _acts_version(session, store_id)

    # servers

    def _history(self, server_id: int) -> ServerHistory:
        return self._built(self._telemetry.observations([server_id]))

    def _built(self, rows: Iterable[Observation]) -> ServerHistory:
        spans = [self._span(row) for row in rows]
        return build_history(spans, gap_limit=max(_GAP_INTERVALS * self._poll_seconds, 5.0))

    def _span(self, row: Observation) -> PollSpan:
        with self._lock:
            known = self._spans.get(row.id)
            if known is not None and known[0] == row.last_at:
                return known[1]
            if len(self._spans) > 20_000:
                self._spans.clear()
            span = span_of(row)
            self._spans[row.id] = (row.last_at, span)
            return span

    def _former(self, store: StoreTarget, now: float) -> list[ServerHistory]:
        """Histories of servers that used the store once; also keeps the list of them."""
        with self._db.read() as session:
            rows = list(session.scalars(select(ServerHistoryRow).where(ServerHistoryRow.store_id == store.id)))
        known = {row.server_id for row in rows}
        news = [ident for ident in store.server_ids if ident not in known]
        back = [row.server_id for row in rows if row.left_at is not None and row.server_id in store.server_ids]
        left = [row.server_id for row in rows if row.left_at is None and row.server_id not in store.server_ids]
        if news or back or left:

            def keep(session: Session) -> None:
                for ident in news:
                    session.merge(ServerHistoryRow(store_id=store.id, server_id=ident, history={}, covered_until=now))
                for ident, left_at in [*((ident, None) for ident in back), *((ident, now) for ident in left)]:
                    row = session.get(ServerHistoryRow, (store.id, ident))
                    if row is not None:
                        row.left_at = left_at

            # What follows does not need it, and whoever asks next finds the same news: no page waits for a writer.
            self._db.write_if_free(keep, patience=_KEEPING_PATIENCE)
        found: list[ServerHistory] = []
        for row in rows:
            if row.server_id in store.server_ids:
                continue
            left_at = row.left_at if row.left_at is not None else now
            stored = row.history or histories.to_json(self._history(row.server_id))
            found.append(histories.from_json(stored, left_at))
        return found

    def _blind_spots(self, store: StoreTarget, servers: Mapping[int, ServerHistory]) -> list[str]:
        """Why no record of the store can be judged by its layout, where that is so."""
        if not servers:
            return ["no server is registered for this store, so the layouts of its records are not known"]
        names = {target.id: target.name for target in self._fleet.server_targets()}
        return [
            f"the server {names.get(ident, ident)} was never read, so what it wrote into this store cannot be told "
            "from the rest; check its address, or take it off the store"
            for ident, history in servers.items()
            if not history.seen
        ]

    def _states(
        self, session: Session, store: StoreTarget, servers: Mapping[int, ServerHistory], now: float
    ) -> dict[int, ServerState]:
        query = select(Server.id, Server.health_state).where(Server.id.in_(store.server_ids))
        healthy = {int(ident): str(state) for ident, state in session.execute(query)}
        return {
            ident: ServerState(
                healthy=healthy.get(ident) == "healthy",
                polled_now=history.last_poll_ok
                and history.last_poll_at is not None
                and now - history.last_poll_at <= self.fresh_seconds,
                version=parse_version(history.latest.lmcache_version if history.latest else None),
                process_start=history.latest.process_start if history.latest else None,
            )
            for ident, history in servers.items()
        }

    def temp_dirs(self, store: StoreTarget) -> tuple[str, ...]:
        """The adapter's temporary directories, entered or told by the servers for this directory."""
        found = [store.temp_dir] if store.temp_dir else []
        for live in self._telemetry.servers_live(store.server_ids).values():
            found += [
                adapter.relative_tmp_dir
                for adapter in live.l2
                if adapter.relative_tmp_dir and adapter.base_path in (store.server_path, store.path)
            ]
        return tuple(dict.fromkeys(name.strip("/") for name in found if name.strip("/")))


def _latest_poll(session: Session, store: StoreTarget) -> float | None:
    last = select(Observation.last_at).where(Observation.ok).order_by(Observation.id.desc()).limit(1)
    found = [session.scalar(last.where(Observation.server_id == ident)) for ident in store.server_ids]
    known = [at for at in found if at is not None]
    return min(known) if known and len(known) == len(found) else None


def _acts_version(session: Session, store_id: int) -> str:
    said = LayoutEpoch.store_id == store_id, LayoutEpoch.kind != "observed"
    cleared = select(func.max(ClearedEpisode.id)).where(ClearedEpisode.store_id == store_id).scalar_subquery()
    row = session.execute(select(func.count(), func.max(LayoutEpoch.id), cleared).where(*said)).one()
    return f"{row[0]}.{row[1]}.{row[2]}"


def parse_version(text: str | None) -> tuple[int, ...] | None:
    """``0.5.6`` as (0, 5, 6); None for what is not known."""
    match = _VERSION.match(text) if text else None
    return tuple(int(part or 0) for part in match.groups()) if match else None


def _adoptions(act: LayoutEpoch) -> Iterable[Adoption]:
    for item in act.layouts:
        yield Adoption(
            act.model_name,
            int(item["world_size"]),
            KVLayout.from_json(item["layout"]),
            float(item["until"]),
            frozenset(item.get("same_as", ())),
        )


def _last_probe(session: Session, store_id: int) -> ClockProbe:
    row = session.execute(
        select(Scan.clock_difference, Scan.clock_measured)
        .where(Scan.store_id == store_id, Scan.state == SUCCEEDED)
        .order_by(Scan.id.desc())
        .limit(1)
    ).one_or_none()
    if row is None or row[0] is None:
        return ClockProbe(0.0, measured=False)
    return ClockProbe(row[0], measured=row[1])


def _rounded(margin: float) -> float:
    """Up to half seconds: a margin that trembles from scan to scan would move every boundary a little each time."""
    return math.ceil(margin * 2) / 2 if margin > 0.01 else 0.0
