"""Reading the ledger: what holds now, what changed, runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import Select, func, or_, select
from sqlalchemy.orm import Session

from app.checks.base import SEVERITY
from app.checks.rules import ALL
from app.checks.schemas import ChangesView, ChangeView, CheckCounts, CheckPairView, CheckRunView, ChecksPage, CheckView
from app.checks.tables import CheckResult, CheckRun, CheckSetting
from app.clock import iso
from app.paging import decode_cursor, encode_cursor
from app.scheduling.work import SUCCEEDED
from app.shapes import Page, Progress

_PLACE = {rule.id: place for place, rule in enumerate(ALL)}
MOST_CHANGES = 500


def present(
    session: Session,
    *,
    server_id: int | None,
    engine_id: int | None,
    verdict: str | None,
    page_size: int,
    page_token: str | None,
) -> ChecksPage:
    """Findings in force, worst first. Filters combine."""
    query = _of_targets(select(CheckResult).where(CheckResult.ended_at.is_(None)), server_id, engine_id)
    rows = list(session.scalars(query))
    totals = CheckCounts(**_counts(row.verdict for row in rows))
    oldest = min((row.last_at for row in rows), default=None)
    if verdict is not None:
        rows = [row for row in rows if row.verdict == verdict]
    rows.sort(key=_order)
    name = f"checks|{server_id}|{engine_id}|{verdict}"
    if page_token:
        after = tuple(decode_cursor(name, page_token))
        rows = [row for row in rows if _order(row) > after]
    page, more = rows[:page_size], len(rows) > page_size
    return ChecksPage(
        items=[view_of(row) for row in page],
        next_page_token=encode_cursor(name, list(_order(page[-1]))) if more else None,
        checked_at=iso(oldest),
        counts=totals,
    )


def pairs(
    session: Session, *, server_id: int | None, engine_id: int | None, names: Mapping[tuple[str, int], str]
) -> list[CheckPairView]:
    """Every pair with findings in force, the worst first. `names` are the targets' names by (side, id)."""
    query = _of_targets(select(CheckResult).where(CheckResult.ended_at.is_(None)), server_id, engine_id)
    by_pair: dict[tuple[int | None, int | None], list[CheckResult]] = {}
    for row in session.scalars(query):
        by_pair.setdefault((row.server_id, row.engine_id), []).append(row)
    found = []
    for (server, engine), rows in by_pair.items():
        first = min(rows, key=_order)
        sides = [("server", server), ("engine", engine)]
        known = [names.get((side, ident), f"{side} {ident}") for side, ident in sides if ident is not None]
        found.append(
            CheckPairView(
                server_id=_text(server),
                engine_id=_text(engine),
                name=" · ".join(known),
                counts=CheckCounts(**_counts(row.verdict for row in rows)),
                worst=first.verdict,
                worst_title=first.title,
                checked_at=iso(min(row.last_at for row in rows)),
            )
        )
    return sorted(
        found, key=lambda view: (-view.counts.fail, -view.counts.warn, -view.counts.unknown, view.name.casefold())
    )


def history(
    session: Session,
    *,
    server_id: int | None,
    engine_id: int | None,
    check_id: str | None,
    page_size: int,
    page_token: str | None,
) -> Page[CheckView]:
    """All findings that ever held, newest first; `since` is when each began."""
    name = f"check-history|{server_id}|{engine_id}|{check_id}"
    query = _of_targets(select(CheckResult), server_id, engine_id).order_by(CheckResult.id.desc())
    if check_id is not None:
        query = query.where(CheckResult.check_id == check_id)
    if page_token:
        query = query.where(CheckResult.id < decode_cursor(name, page_token)[0])
    rows = list(session.scalars(query.limit(page_size + 1)))
    more, rows = len(rows) > page_size, rows[:page_size]
    return Page(
        items=[view_of(row) for row in rows],
        next_page_token=encode_cursor(name, [rows[-1].id]) if more else None,
    )


def last_good(session: Session, server_id: int | None, engine_id: int | None) -> float | None:
    """When the last run over these targets ended without a fail. None where there was none."""
    query = select(CheckRun).where(CheckRun.state == SUCCEEDED).order_by(CheckRun.id.desc()).limit(500)
    for run in session.scalars(query):
        covers = (run.server_id in (None, server_id)) and (run.engine_id in (None, engine_id))
        if covers and run.pairs and not run.counts.get("fail"):
            return run.finished_at
    return None


def changes(
    session: Session,
    *,
    server_id: int | None,
    engine_id: int | None,
    since: float,
    reason: str,
    names: Mapping[tuple[str, int], str],
) -> ChangesView:
    """What is different from `since`: verdicts and settings, newest first.

    A pair's first look is no change, also where it came after `since`: nobody knows how it was before. `names` are the
    targets' names by (side, id).
    """
    found: list[tuple[float, ChangeView]] = []
    query = _of_targets(select(CheckResult), server_id, engine_id).where(
        or_(CheckResult.first_at > since, CheckResult.ended_at > since)
    )
    rows = list(session.scalars(query.order_by(CheckResult.first_at)))
    looked = {(server, engine): at for server, engine, at in session.execute(_first_looks(server_id, engine_id))}
    before = {_key(row): row for row in rows if row.first_at <= since}
    for row in rows:
        if row.first_at > since:
            old = before.get(_key(row))
            first_look = row.first_at <= looked.get((row.server_id, row.engine_id), row.first_at)
            if old is not None or (row.verdict != "ok" and not first_look):
                found.append((row.first_at, _verdict_change(row, old)))
            before[_key(row)] = row
    found += list(_setting_changes(session, server_id, engine_id, since, names))
    found.sort(key=lambda pair: pair[0], reverse=True)
    if looked and (first := min(looked.values())) > since:
        reason = f"{reason}; first looked at {iso(first)}, what was before is not known"
    return ChangesView(since=iso(since), since_reason=reason, changes=[change for _, change in found[:MOST_CHANGES]])


def _first_looks(server_id: int | None, engine_id: int | None) -> Select[int | None, int | None, float]:
    """(server, engine, when it was looked at first) of every pair."""
    query = select(CheckResult.server_id, CheckResult.engine_id, func.min(CheckResult.first_at))
    if server_id is not None:
        query = query.where(CheckResult.server_id == server_id)
    if engine_id is not None:
        query = query.where(CheckResult.engine_id == engine_id)
    return query.group_by(CheckResult.server_id, CheckResult.engine_id)


def _setting_changes(
    session: Session,
    server_id: int | None,
    engine_id: int | None,
    since: float,
    names: Mapping[tuple[str, int], str],
) -> Iterable[tuple[float, ChangeView]]:
    sides = [("server", server_id)] if server_id is not None else []
    sides += [("engine", engine_id)] if engine_id is not None else []
    query = select(CheckSetting).where(or_(CheckSetting.first_at > since, CheckSetting.ended_at > since))
    if sides:
        query = query.where(
            or_(*((CheckSetting.side == side) & (CheckSetting.target_id == target) for side, target in sides))
        )
    old: dict[tuple[str, int, str], CheckSetting] = {}
    for row in session.scalars(query.order_by(CheckSetting.first_at, CheckSetting.id)):
        key = (row.side, row.target_id, row.name)
        earlier = old.get(key)
        if earlier is not None and row.first_at > since and earlier.value is not None:
            yield (
                row.first_at,
                ChangeView(
                    at=iso(row.first_at) or "",
                    kind="setting",
                    subject=names.get((row.side, row.target_id), f"{row.side} {row.target_id}"),
                    name=row.name,
                    old=earlier.value,
                    new=row.value,
                    server_id=str(row.target_id) if row.side == "server" else None,
                    engine_id=str(row.target_id) if row.side == "engine" else None,
                ),
            )
        old[key] = row


def _verdict_change(row: CheckResult, old: CheckResult | None) -> ChangeView:
    return ChangeView(
        at=iso(row.first_at) or "",
        kind="verdict",
        subject=row.subject,
        name=row.check_id,
        old=None if old is None else _short(old),
        new=_short(row),
        verdict=row.verdict,
        server_id=_text(row.server_id),
        engine_id=_text(row.engine_id),
    )


def _short(row: CheckResult) -> str:
    """A verdict with the values that decided it."""
    values = " / ".join(value for value in (row.configured, row.effective) if value)
    return f"{row.verdict}: {values}" if values else f"{row.verdict}: {row.title}"


def view_of(row: CheckResult) -> CheckView:
    return CheckView(
        id=row.check_id,
        verdict=row.verdict,
        subject=row.subject,
        title=row.title,
        evidence=row.evidence,
        fix=row.fix,
        source=row.source,
        why=row.why,
        configured=row.configured,
        effective=row.effective,
        origin=row.origin,
        server_id=_text(row.server_id),
        engine_id=_text(row.engine_id),
        since=iso(row.first_at),
        checked_at=iso(row.last_at),
    )


def run_view(row: CheckRun) -> CheckRunView:
    return CheckRunView(
        id=str(row.id),
        state=row.state,
        progress=Progress(done=row.progress_done, total=row.progress_total, unit=row.progress_unit),
        error=row.error,
        created_at=iso(row.created_at) or "",
        started_at=iso(row.started_at),
        finished_at=iso(row.finished_at),
        requested_by=row.requested_by,
        server_id=_text(row.server_id),
        engine_id=_text(row.engine_id),
        pairs=row.pairs,
        counts=CheckCounts(**{name: row.counts.get(name, 0) for name in ("ok", "warn", "fail", "unknown")}),
    )


def runs(session: Session, *, page_size: int, page_token: str | None) -> Page[CheckRunView]:
    """Newest first."""
    query = select(CheckRun).order_by(CheckRun.id.desc()).limit(page_size + 1)
    if page_token:
        query = query.where(CheckRun.id < decode_cursor("check-runs", page_token)[0])
    rows = list(session.scalars(query))
    more, rows = len(rows) > page_size, rows[:page_size]
    return Page(
        items=[run_view(row) for row in rows],
        next_page_token=encode_cursor("check-runs", [rows[-1].id]) if more else None,
    )


def _of_targets(query: Select[CheckResult], server_id: int | None, engine_id: int | None) -> Select[CheckResult]:
    if server_id is not None:
        query = query.where(CheckResult.server_id == server_id)
    if engine_id is not None:
        query = query.where(CheckResult.engine_id == engine_id)
    return query


def _order(row: CheckResult) -> tuple[int, int, int]:
    return SEVERITY.get(row.verdict, 9), _PLACE.get(row.check_id, 999), row.id


def _key(row: CheckResult) -> tuple[int | None, int | None, str, str]:
    return row.server_id, row.engine_id, row.check_id, row.subject


def _counts(verdicts: Iterable[str]) -> dict[str, int]:
    seen = {"ok": 0, "warn": 0, "fail": 0, "unknown": 0}
    for verdict in verdicts:
        seen[verdict] = seen.get(verdict, 0) + 1
    return seen


def _text(value: int | None) -> str | None:
    return None if value is None else str(value)


def worst(rows: Sequence[CheckView]) -> str | None:
    """The worst verdict of these, for a badge."""
    return min((row.verdict for row in rows), key=lambda verdict: SEVERITY[verdict], default=None)
