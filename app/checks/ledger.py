"""Writing what a run found: unchanged findings and settings only move their `last_at`, changed ones begin a row.

All of one run is one unit of work. Findings of pairs that a run did not look at are left alone; findings of a pair that
no longer appear end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

from sqlalchemy import ColumnElement, delete, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.checks.base import Finding
from app.checks.facts import EngineSide, Facts, ServerSide
from app.checks.tables import CheckResult, CheckRun, CheckSetting
from app.lmcache.settings import server_settings as settings_of_server

KEPT_RUNS = 500
KEPT_ROWS_SECONDS = 400 * 86400.0
#: Of a configuration, what is no setting: new with every boot.
_NO_SETTINGS = ("instance_id", "engine_id", "adapters", "connector_options")

Pair = tuple[int | None, int | None]


@dataclass(frozen=True)
class PairResult:
    """One pair's facts and findings."""

    pair: Pair
    facts: Facts
    findings: Sequence[Finding]


def write(session: Session, results: Iterable[PairResult], run_id: int, now: float) -> None:
    """Brings the ledger up to `results`."""
    for result in results:
        _findings(session, result, run_id, now)
        server_id, engine_id = result.pair
        if server_id is not None and result.facts.server is not None and result.facts.server.reachable:
            _settings(session, "server", server_id, server_settings(result.facts.server), now)
        if engine_id is not None and result.facts.engine is not None and result.facts.engine.reachable:
            _settings(session, "engine", engine_id, engine_settings(result.facts.engine), now)


def _findings(session: Session, result: PairResult, run_id: int, now: float) -> None:
    server_id, engine_id = result.pair
    query = select(CheckResult).where(CheckResult.ended_at.is_(None))
    query = query.where(_is(CheckResult.server_id, server_id), _is(CheckResult.engine_id, engine_id))
    present = {(row.check_id, row.subject): row for row in session.scalars(query)}
    for finding in result.findings:
        row = present.pop((finding.check_id, finding.subject), None)
        if row is not None and _same(row, finding):
            row.last_at, row.last_run_id = now, run_id
            row.title, row.evidence, row.fix = finding.title, finding.evidence, finding.fix
            row.source, row.why, row.origin = finding.source, finding.why, finding.origin
            continue
        if row is not None:
            row.ended_at = now
        session.add(
            CheckResult(
                server_id=server_id,
                engine_id=engine_id,
                check_id=finding.check_id,
                subject=finding.subject[:1000],
                verdict=str(finding.verdict),
                title=finding.title,
                evidence=finding.evidence[:4000],
                fix=finding.fix[:2000],
                source=finding.source,
                why=finding.why,
                configured=finding.configured,
                effective=finding.effective,
                origin=finding.origin,
                first_at=now,
                last_at=now,
                last_run_id=run_id,
            )
        )
    for gone in present.values():
        gone.ended_at = now


def _same(row: CheckResult, finding: Finding) -> bool:
    return (row.verdict, row.configured, row.effective) == (
        str(finding.verdict),
        finding.configured,
        finding.effective,
    )


def _settings(session: Session, side: str, target_id: int, values: Mapping[str, str | None], now: float) -> None:
    query = select(CheckSetting).where(
        CheckSetting.side == side, CheckSetting.target_id == target_id, CheckSetting.ended_at.is_(None)
    )
    present = {row.name: row for row in session.scalars(query)}
    for name, value in values.items():
        row = present.pop(name, None)
        if row is not None and row.value == value:
            row.last_at = now
            continue
        if row is not None:
            if value is None:
                continue  # not told this time: that is no change
            row.ended_at = now
        session.add(CheckSetting(side=side, target_id=target_id, name=name, value=value, first_at=now, last_at=now))
    for gone in present.values():
        gone.ended_at = now


def server_settings(server: ServerSide) -> dict[str, str | None]:
    """Every setting of a server by name, as text."""
    values: dict[str, str | None] = {"version": server.version}
    if server.config is not None:
        values |= _plain(server.config)
        values |= {name: _as_text(value) for name, value in settings_of_server(server.config).items()}
    return values


def engine_settings(engine: EngineSide) -> dict[str, str | None]:
    """Every setting of an engine by name, as text."""
    values: dict[str, str | None] = {"version": engine.version}
    if engine.facts is not None:
        values |= _plain(engine.facts)
        for name, value in engine.facts.connector_options.items():
            values[f"kv_connector_extra_config.{name}"] = _as_text(value)
    return values


def _plain(config: object) -> dict[str, str | None]:
    names = (item.name for item in fields(config))  # type: ignore[arg-type]
    return {name: _as_text(getattr(config, name)) for name in names if name not in _NO_SETTINGS}


def _as_text(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)[:1000]


def retire(session: Session, now: float) -> None:
    """Drops what is old: all but the last runs, and rows that ended long ago."""
    oldest = session.scalar(select(CheckRun.id).order_by(CheckRun.id.desc()).offset(KEPT_RUNS).limit(1))
    if oldest is not None:
        session.execute(delete(CheckRun).where(CheckRun.id <= oldest))
    session.execute(delete(CheckResult).where(CheckResult.ended_at < now - KEPT_ROWS_SECONDS))
    session.execute(delete(CheckSetting).where(CheckSetting.ended_at < now - KEPT_ROWS_SECONDS))


def end_pairs(session: Session, keep: Iterable[Pair], now: float) -> None:
    """After a run over everything: findings of pairs that exist no longer end."""
    known = set(keep)
    rows = session.execute(
        select(CheckResult.server_id, CheckResult.engine_id).where(CheckResult.ended_at.is_(None)).distinct()
    )
    for server_id, engine_id in rows:
        if (server_id, engine_id) not in known:
            session.execute(
                update(CheckResult)
                .where(_is(CheckResult.server_id, server_id), _is(CheckResult.engine_id, engine_id))
                .where(CheckResult.ended_at.is_(None))
                .values(ended_at=now)
            )


def _is(column: InstrumentedAttribute[int | None], value: int | None) -> ColumnElement[bool]:
    return column.is_(None) if value is None else column == value
