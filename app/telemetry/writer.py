"""Writes what polls found: one short write transaction for each batch, whatever the number of targets in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import structlog
from sqlalchemy import Table, func, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from app.database import Database, insert_ignore, upsert
from app.fleet.tables import Engine, HealthChange, Server, Store
from app.telemetry.health import Judgement, damp, polls_needed
from app.telemetry.observation import Observed, Span, extends
from app.telemetry.tables import Observation, SampleRaw, Series, Snapshot

log = structlog.get_logger()

Kind = Literal["server", "engine", "store"]
_TABLES: dict[Kind, type[Any]] = {"server": Server, "engine": Engine, "store": Store}
#: Polls that are kept while the database cannot be written: ten minutes of eighty targets, every ten seconds.
MOST_UNWRITTEN = 5000
_CHUNK = 400  # ids in one IN (…)


@dataclass(frozen=True)
class Polled:
    """One finished poll. `address` is where it was asked: a target that moved meanwhile gets nothing of it.

    `stale`: the poll before lies so far back that its state is no evidence any more; this one sets the state.
    """

    kind: Kind
    target_id: int
    address: str
    at: float
    scraped_at: float | None
    values: Mapping[str, Any]
    memory: Mapping[str, Any]
    samples: Mapping[str, float]
    judgement: Judgement | None = None
    observed: Observed | None = None
    stale: bool = False


@dataclass
class _LastRow:
    id: int
    span: Span


@dataclass
class Writer:
    """Holds what would otherwise be read at each batch: series ids, and the last observation row of each server."""

    db: Database
    interval: float
    _series: dict[tuple[str, int, str], int] = field(default_factory=dict)
    _last: dict[int, _LastRow] = field(default_factory=dict)
    _unwritten: list[Polled] = field(default_factory=list)

    def write_or_keep(self, batch: Sequence[Polled]) -> None:
        """Writes a batch, and before it what could not be written until now: a database that another holds for long
        loses no poll, unless it holds it for very long."""
        waiting = [*self._unwritten, *batch]
        self._unwritten = []
        try:
            self.write(waiting)
        except OperationalError as error:
            self._unwritten = waiting[-MOST_UNWRITTEN:]
            lost = len(waiting) - len(self._unwritten)
            log.warning("telemetry.write_waits", polls=len(self._unwritten), lost=lost, why=str(error.orig))

    def write(self, batch: Sequence[Polled]) -> list[tuple[Kind, int]]:
        """Writes a batch in one transaction; returns the targets whose health state changed."""
        if not batch:
            return []
        with self.db.write() as session:
            rows = [(p, row) for p, row in self._rows(session, batch) if row is not None]
            present = [p for p, _ in rows]
            changed = [
                (p.kind, p.target_id)
                for p, row in rows
                if isinstance(row, Server | Engine) and _apply_health(session, row, p)
            ]
            _write_snapshots(session, present)
            self._write_samples(session, present)
            self._write_observations(session, [p for p in present if p.observed is not None])
        return changed

    def _rows(self, session: Session, batch: Iterable[Polled]) -> list[tuple[Polled, Any]]:
        """Each poll with its target's row; None where the target is gone or has another address now."""
        found: dict[tuple[str, int], Any] = {}
        items = list(batch)
        for kind, table in _TABLES.items():
            ids = [p.target_id for p in items if p.kind == kind]
            for start in range(0, len(ids), _CHUNK):
                for row in session.scalars(select(table).where(table.id.in_(ids[start : start + _CHUNK]))):
                    found[kind, row.id] = row
        result: list[tuple[Polled, Any]] = []
        for p in items:
            row = found.get((p.kind, p.target_id))
            address = row.path if isinstance(row, Store) else getattr(row, "url", None)
            result.append((p, row if address == p.address else None))
        return result

    def _write_samples(self, session: Session, batch: Sequence[Polled]) -> None:
        wanted = {(p.kind, p.target_id, metric) for p in batch for metric in p.samples}
        missing = sorted(key for key in wanted if key not in self._series)
        if missing:
            self._find_series(session, missing)
        rows = [
            {"series_id": self._series[p.kind, p.target_id, metric], "at": round(p.at * 1000), "value": value}
            for p in batch
            for metric, value in p.samples.items()
        ]
        if rows:
            insert_ignore(session, _table(SampleRaw), rows)

    def _find_series(self, session: Session, missing: Sequence[tuple[str, int, str]]) -> None:
        insert_ignore(
            session,
            _table(Series),
            [{"target_kind": kind, "target_id": target_id, "metric": metric} for kind, target_id, metric in missing],
        )
        ids = sorted({target_id for _, target_id, _ in missing})
        for start in range(0, len(ids), _CHUNK):
            for row in session.execute(
                select(Series.id, Series.target_kind, Series.target_id, Series.metric).where(
                    Series.target_id.in_(ids[start : start + _CHUNK])
                )
            ):
                self._series[row.target_kind, row.target_id, row.metric] = row.id

    def _write_observations(self, session: Session, batch: Sequence[Polled]) -> None:
        self._refresh_last(session, [p.target_id for p in batch])
        for p in batch:
            observed = p.observed
            last = self._last.get(p.target_id)
            if observed is None:
                continue
            if last is not None and extends(last.span, observed, self.interval):
                row = session.get(Observation, last.id)
                if row is not None:
                    row.last_at, row.polls = observed.at, row.polls + 1
                    if observed.clock_offset is not None:
                        row.clock_offset = observed.clock_offset
                    last.span = Span(last.span.first_at, observed.at, last.span.observed)
                    continue
            row = _observation_row(p.target_id, observed)
            session.add(row)
            session.flush()
            self._last[p.target_id] = _LastRow(row.id, Span(observed.at, observed.at, observed))

    def _refresh_last(self, session: Session, server_ids: Sequence[int]) -> None:
        """Another process may have written since: the cache holds only while its row is the newest."""
        newest = dict(
            session.execute(
                select(Observation.server_id, func.max(Observation.id))
                .where(Observation.server_id.in_(server_ids))
                .group_by(Observation.server_id)
            ).all()
        )
        for server_id in server_ids:
            row_id = newest.get(server_id)
            known = self._last.get(server_id)
            if row_id is None:
                self._last.pop(server_id, None)
            elif known is None or known.id != row_id:
                row = session.get_one(Observation, row_id)
                self._last[server_id] = _LastRow(row_id, Span(row.first_at, row.last_at, _observed_of(row)))


def _apply_health(session: Session, row: Server | Engine, polled: Polled) -> bool:
    """Damps and applies one judgement; True when the state changed (one row of `health_change`)."""
    judgement = polled.judgement
    if judgement is None:
        return False
    old = row.health_state
    after = damp(
        old,  # type: ignore[arg-type]
        judgement.state,
        row.candidate_state,  # type: ignore[arg-type]
        row.candidate_count,
        needed=1 if polled.stale else polls_needed(judgement),
    )
    row.candidate_state, row.candidate_count = after.candidate, after.count
    if after.changed:
        session.add(
            HealthChange(
                target_kind=polled.kind,
                target_id=polled.target_id,
                old_state=old,
                new_state=after.state,
                reason=judgement.reason,
                at=polled.at,
            )
        )
        row.health_state, row.health_since = after.state, polled.at
    if after.state == judgement.state:
        row.health_reason = judgement.reason
    return after.changed


def _write_snapshots(session: Session, batch: Sequence[Polled]) -> None:
    rows = [
        {
            "target_kind": p.kind,
            "target_id": p.target_id,
            "polled_at": p.at,
            "scraped_at": p.scraped_at,
            "data": p.values,
            "memory": p.memory,
        }
        for p in batch
    ]
    if rows:
        upsert(
            session,
            _table(Snapshot),
            rows,
            key=["target_kind", "target_id"],
            update=["polled_at", "scraped_at", "data", "memory"],
        )


def _observation_row(server_id: int, observed: Observed) -> Observation:
    return Observation(
        server_id=server_id,
        first_at=observed.at,
        last_at=observed.at,
        polls=1,
        ok=observed.ok,
        reason=observed.reason,
        instance_id=observed.instance_id,
        process_start=observed.process_start,
        lmcache_version=observed.lmcache_version,
        contexts=dict(observed.contexts),
        engine_starts=dict(observed.engine_starts),
        engine_ids=None if observed.engine_ids is None else list(observed.engine_ids),
        drained=observed.drained,
        clock_offset=observed.clock_offset,
        reap_timeout_seconds=observed.reap_timeout_seconds,
    )


def _observed_of(row: Observation) -> Observed:
    return Observed(
        at=row.last_at,
        ok=row.ok,
        reason=row.reason,
        instance_id=row.instance_id,
        process_start=row.process_start,
        lmcache_version=row.lmcache_version,
        contexts=row.contexts,
        engine_starts=row.engine_starts,
        engine_ids=None if row.engine_ids is None else tuple(row.engine_ids),
        drained=row.drained,
        clock_offset=row.clock_offset,
        reap_timeout_seconds=row.reap_timeout_seconds,
    )


def _table(entity: type[Any]) -> Table:
    table: Table = entity.__table__
    return table
