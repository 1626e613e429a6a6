"""Silences and maintenance windows: alarms go on, messages do not."""

from __future__ import annotations

from typing import Any, Literal

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.alerts.evaluation import quiet_of_window
from app.alerts.matcher_input import check_matcher, matcher_view
from app.alerts.schemas import SilenceInput, SilenceView, WindowInput, WindowPatch, WindowView
from app.alerts.tables import MaintenanceWindow, Silence
from app.audit.service import AuditService
from app.clock import Clock, iso, parse_iso
from app.database import Database
from app.errors import Conflict, InvalidInput, NotFound
from app.paging import decode_cursor, encode_cursor
from app.scheduling.cron import next_firings, validate_cron, validate_timezone
from app.shapes import Page


class Quietness:
    """Silences and maintenance windows."""

    def __init__(self, *, db: Database, clock: Clock, audit: AuditService) -> None:
        self._db = db
        self._clock = clock
        self._audit = audit

    # silences

    def list_silences(
        self, *, page_size: int, page_token: str | None, state: Literal["waiting", "active", "over"] | None = None
    ) -> Page[SilenceView]:
        """Newest first."""
        now = self._clock()
        name = f"silences|{state}"
        query = select(Silence).order_by(Silence.id.desc()).limit(page_size + 1)
        if page_token:
            query = query.where(Silence.id < decode_cursor(name, page_token)[0])
        if state == "waiting":
            query = query.where(Silence.starts_at > now)
        elif state == "active":
            query = query.where(Silence.starts_at <= now, Silence.ends_at > now)
        elif state == "over":
            query = query.where(Silence.ends_at <= now)
        with self._db.read() as session:
            rows = list(session.scalars(query))
            items = [self._silence_view(session, row) for row in rows[:page_size]]
        token = encode_cursor(name, [rows[page_size - 1].id]) if len(rows) > page_size else None
        return Page(items=items, next_page_token=token)

    def get_silence(self, silence_id: int) -> SilenceView:
        """Raises NotFound."""
        with self._db.read() as session:
            return self._silence_view(session, _found(session, Silence, "silence", silence_id))

    def create_silence(self, body: SilenceInput, *, actor: str) -> SilenceView:
        """Raises InvalidInput naming the field."""
        now = self._clock()
        starts = _time(body.starts_at, "starts_at") if body.starts_at is not None else now
        if (body.ends_at is None) == (body.seconds is None):
            raise InvalidInput.field("ends_at", "give either ends_at or seconds")
        ends = _time(body.ends_at, "ends_at") if body.ends_at is not None else starts + (body.seconds or 0.0)
        if ends <= max(starts, now):
            raise InvalidInput.field("ends_at", "must lie after its start, and after now")
        with self._db.write() as session:
            row = Silence(
                matcher=check_matcher(session, body.matcher),
                comment=body.comment,
                starts_at=starts,
                ends_at=ends,
                created_at=now,
                created_by=actor,
            )
            session.add(row)
            session.flush()
            self._record(session, actor, "silence.create", "silence", row.id, body.model_dump(exclude_none=True))
            return self._silence_view(session, row)

    def end_silence(self, silence_id: int, *, actor: str) -> None:
        """Ends it now; the row stays as history. One that is over stays as it is. Raises NotFound."""
        now = self._clock()
        with self._db.write() as session:
            row = _found(session, Silence, "silence", silence_id)
            if row.ends_at > now:
                row.starts_at, row.ends_at = min(row.starts_at, now), now
                self._record(session, actor, "silence.end", "silence", silence_id, {})

    def _silence_view(self, session: Session, row: Silence) -> SilenceView:
        now = self._clock()
        return SilenceView(
            id=str(row.id),
            state="over" if row.ends_at <= now else "waiting" if row.starts_at > now else "active",
            matcher=matcher_view(session, row.matcher),
            comment=row.comment,
            starts_at=iso(row.starts_at) or "",
            ends_at=iso(row.ends_at) or "",
            created_at=iso(row.created_at) or "",
            created_by=row.created_by,
        )

    # maintenance windows

    def list_windows(self, *, page_size: int, page_token: str | None) -> Page[WindowView]:
        """By name."""
        query = select(MaintenanceWindow).order_by(MaintenanceWindow.name).limit(page_size + 1)
        if page_token:
            query = query.where(MaintenanceWindow.name > decode_cursor("windows", page_token)[0])
        with self._db.read() as session:
            rows = list(session.scalars(query))
            items = [self._window_view(session, row) for row in rows[:page_size]]
        token = encode_cursor("windows", [rows[page_size - 1].name]) if len(rows) > page_size else None
        return Page(items=items, next_page_token=token)

    def get_window(self, window_id: int) -> WindowView:
        """Raises NotFound."""
        with self._db.read() as session:
            row = _found(session, MaintenanceWindow, "maintenance window", window_id)
            return self._window_view(session, row)

    def create_window(self, body: WindowInput, *, actor: str) -> WindowView:
        """Raises InvalidInput naming the field, Conflict for a name that is taken."""
        row = MaintenanceWindow(
            name=body.name,
            enabled=body.enabled,
            comment=body.comment,
            starts_at=None if body.starts_at is None else _time(body.starts_at, "starts_at"),
            ends_at=None if body.ends_at is None else _time(body.ends_at, "ends_at"),
            cron=body.cron,
            timezone=body.timezone,
            duration_seconds=body.duration_seconds,
            created_at=self._clock(),
            created_by=actor,
        )
        _check_window(row)
        try:
            with self._db.write() as session:
                row.matcher = check_matcher(session, body.matcher)
                session.add(row)
                session.flush()
                detail = body.model_dump(exclude_none=True)
                self._record(session, actor, "maintenance_window.create", "maintenance_window", row.id, detail)
        except IntegrityError as error:
            raise _taken(body.name) from error
        return self.get_window(row.id)

    def patch_window(self, window_id: int, body: WindowPatch, *, actor: str) -> WindowView:
        """Changes what is sent. Raises NotFound, InvalidInput, Conflict."""
        sent = body.model_fields_set
        for name in ("name", "enabled", "matcher", "comment", "timezone"):
            if name in sent and getattr(body, name) is None:
                raise InvalidInput.field(name, "cannot be null; leave it out to keep it as it is")
        try:
            with self._db.write() as session:
                row = _found(session, MaintenanceWindow, "maintenance window", window_id)
                for name in ("name", "enabled", "comment", "cron", "timezone", "duration_seconds"):
                    if name in sent:
                        setattr(row, name, getattr(body, name))
                for name in ("starts_at", "ends_at"):
                    if name in sent:
                        text = getattr(body, name)
                        setattr(row, name, None if text is None else _time(text, name))
                if body.matcher is not None:
                    row.matcher = check_matcher(session, body.matcher)
                _check_window(row)
                detail = body.model_dump(exclude_unset=True)
                self._record(session, actor, "maintenance_window.update", "maintenance_window", window_id, detail)
        except IntegrityError as error:
            raise _taken(body.name or "") from error
        return self.get_window(window_id)

    def delete_window(self, window_id: int, *, actor: str) -> None:
        """Raises NotFound."""
        with self._db.write() as session:
            row = _found(session, MaintenanceWindow, "maintenance window", window_id)
            detail = {"name": row.name}
            self._record(session, actor, "maintenance_window.delete", "maintenance_window", window_id, detail)
            session.delete(row)

    def _window_view(self, session: Session, row: MaintenanceWindow) -> WindowView:
        now = self._clock()
        starts = []
        if row.cron is not None and row.enabled:
            starts = [t for t in next_firings(row.cron, row.timezone, now) if row.ends_at is None or t < row.ends_at]
        elif row.cron is None and row.enabled and row.starts_at is not None and row.starts_at > now:
            starts = [row.starts_at]
        return WindowView(
            id=str(row.id),
            name=row.name,
            enabled=row.enabled,
            active=row.enabled and quiet_of_window(row).in_force(now),
            matcher=matcher_view(session, row.matcher),
            comment=row.comment,
            starts_at=iso(row.starts_at),
            ends_at=iso(row.ends_at),
            cron=row.cron,
            timezone=row.timezone,
            duration_seconds=row.duration_seconds,
            next_starts=[iso(t) or "" for t in starts],
            created_at=iso(row.created_at) or "",
            created_by=row.created_by,
        )

    def _record(self, session: Session, actor: str, action: str, kind: str, ident: int, detail: dict[str, Any]) -> None:
        self._audit.record(session, actor=actor, action=action, target_kind=kind, target_id=ident, detail=detail)


def _check_window(row: MaintenanceWindow) -> None:
    """Once or by cron, and all that it takes. Raises InvalidInput naming the field."""
    row.timezone = validate_timezone(row.timezone)
    if row.cron is not None:
        row.cron = validate_cron(row.cron)
        if row.duration_seconds is None:
            raise InvalidInput.field("duration_seconds", "is needed with cron: how long it lasts each time")
    else:
        if row.duration_seconds is not None:
            raise InvalidInput.field("duration_seconds", "goes with cron; without it give starts_at and ends_at")
        if row.starts_at is None or row.ends_at is None:
            raise InvalidInput.field("starts_at", "give starts_at and ends_at, or cron and duration_seconds")
    if row.starts_at is not None and row.ends_at is not None and row.ends_at <= row.starts_at:
        raise InvalidInput.field("ends_at", "must lie after starts_at")


def _time(text: str, field: str) -> float:
    try:
        return parse_iso(text)
    except ValueError as error:
        raise InvalidInput.field(field, str(error)) from None


def _taken(name: str) -> Conflict:
    return Conflict(f"name: another maintenance window is already called {name!r}")


def _found(session: Session, table: type[Any], kind: str, ident: int) -> Any:
    row = session.get(table, ident)
    if row is None:
        raise NotFound.of(kind, ident)
    return row
