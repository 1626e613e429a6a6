"""Notifiers, their test button, and the outbox as operators see it. Addresses go in and never come out."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.alerts import outbox
from app.alerts.delivery import Destination, Sender
from app.alerts.matcher_input import check_matcher, matcher_view
from app.alerts.messages import test_message
from app.alerts.schemas import NotificationView, NotifierInput, NotifierPatch, NotifierView, TestResult
from app.alerts.tables import Notification, Notifier
from app.audit.service import AuditService
from app.clock import Clock, iso
from app.database import Database
from app.errors import Conflict, InvalidInput, NotFound
from app.fleet.naming import check_headers
from app.paging import decode_cursor, encode_cursor
from app.shapes import Page


class Notifiers:
    """Where messages go."""

    def __init__(
        self, *, db: Database, clock: Clock, audit: AuditService, sender: Sender, base_url: str | None
    ) -> None:
        self._db = db
        self._clock = clock
        self._audit = audit
        self._sender = sender
        self._base_url = base_url

    def list_notifiers(self, *, page_size: int, page_token: str | None) -> Page[NotifierView]:
        """By name."""
        query = select(Notifier).order_by(Notifier.name).limit(page_size + 1)
        if page_token:
            query = query.where(Notifier.name > decode_cursor("notifiers", page_token)[0])
        with self._db.read() as session:
            rows = list(session.scalars(query))
            items = [self._view(session, row) for row in rows[:page_size]]
        token = encode_cursor("notifiers", [rows[page_size - 1].name]) if len(rows) > page_size else None
        return Page(items=items, next_page_token=token)

    def get(self, notifier_id: int) -> NotifierView:
        """Raises NotFound."""
        with self._db.read() as session:
            return self._view(session, _found(session, notifier_id))

    def create(self, body: NotifierInput, *, actor: str) -> NotifierView:
        """Checks the address without calling it. Raises InvalidInput naming the field, Conflict for a taken name."""
        headers = _headers(body.kind, body.headers)
        service = self._sender.check(Destination(body.kind, body.url, headers))
        row = Notifier(
            name=body.name,
            kind=body.kind,
            url=body.url,
            service=service,
            headers=headers,
            enabled=body.enabled,
            min_severity=body.min_severity,
            send_resolved=body.send_resolved,
            created_at=self._clock(),
        )
        try:
            with self._db.write() as session:
                row.matcher = check_matcher(session, body.matcher)
                session.add(row)
                session.flush()
                self._record(session, actor, "notifier.create", row, _shown(body.model_dump(), service))
        except IntegrityError as error:
            raise _taken(body.name) from error
        return self.get(row.id)

    def patch(self, notifier_id: int, body: NotifierPatch, *, actor: str) -> NotifierView:
        """Changes what is sent; switching off drops what waits. Raises NotFound, InvalidInput, Conflict."""
        sent = body.model_fields_set
        for name in sent:
            if getattr(body, name) is None:
                raise InvalidInput.field(name, "cannot be null; leave it out to keep it as it is")
        with self._db.read() as session:
            row = _found(session, notifier_id)
            kind, url = row.kind, body.url if body.url is not None else row.url
            headers = dict(row.headers) if body.headers is None else _headers(kind, body.headers)
        # Looks at the resolver: not inside the unit of work.
        service = self._sender.check(Destination(kind, url, headers)) if body.url is not None else None
        try:
            with self._db.write() as session:
                row = _found(session, notifier_id)
                for name in ("name", "enabled", "min_severity", "send_resolved"):
                    if name in sent:
                        setattr(row, name, getattr(body, name))
                if body.matcher is not None:
                    row.matcher = check_matcher(session, body.matcher)
                if service is not None:
                    row.url, row.service = url, service
                    row.last_error, row.last_error_at = None, None
                if body.headers is not None:
                    row.headers = headers
                if body.enabled is False:
                    outbox.drop_waiting(session, notifier_id, self._clock(), "the notifier was switched off")
                row.revision += 1
                session.flush()
                self._record(
                    session, actor, "notifier.update", row, _shown(body.model_dump(exclude_unset=True), service)
                )
        except IntegrityError as error:
            raise _taken(body.name or "") from error
        return self.get(notifier_id)

    def delete(self, notifier_id: int, *, actor: str) -> None:
        """Forgets it with all its messages. Raises NotFound."""
        with self._db.write() as session:
            row = _found(session, notifier_id)
            self._record(session, actor, "notifier.delete", row, {"name": row.name})
            session.delete(row)

    def test(self, notifier_id: int, *, actor: str) -> TestResult:
        """Sends one message now, past the outbox, and says what came of it. Network: call it in a worker thread."""
        with self._db.read() as session:
            row = _found(session, notifier_id)
            destination = Destination(row.kind, row.url, dict(row.headers))
            name = row.name
        began = time.perf_counter()
        result = self._sender.send(destination, [test_message(name, self._base_url)])
        seconds = time.perf_counter() - began
        now = self._clock()
        with self._db.write() as session:
            tested = session.get(Notifier, notifier_id)
            if tested is not None:  # it may have been forgotten meanwhile
                tested.last_error, tested.last_error_at = (None, None) if result.ok else (result.detail, now)
                tested.last_sent_at = now if result.ok else tested.last_sent_at
                self._record(session, actor, "notifier.test", tested, {"delivered": result.ok, "detail": result.detail})
        return TestResult(delivered=result.ok, detail=result.detail, seconds=round(seconds, 3))

    def list_messages(
        self,
        *,
        page_size: int,
        page_token: str | None,
        notifier_id: int | None = None,
        alert_id: int | None = None,
        state: str | None = None,
    ) -> Page[NotificationView]:
        """The outbox, newest first."""
        name = f"notifications|{notifier_id}|{alert_id}|{state}"
        query = select(Notification).order_by(Notification.id.desc()).limit(page_size + 1)
        if page_token:
            query = query.where(Notification.id < decode_cursor(name, page_token)[0])
        for column, value in (
            (Notification.notifier_id, notifier_id),
            (Notification.alert_id, alert_id),
            (Notification.state, state),
        ):
            if value is not None:
                query = query.where(column == value)
        with self._db.read() as session:
            rows = list(session.scalars(query))
            items = [message_view(session, row) for row in rows[:page_size]]
        token = encode_cursor(name, [rows[page_size - 1].id]) if len(rows) > page_size else None
        return Page(items=items, next_page_token=token)

    def _view(self, session: Session, row: Notifier) -> NotifierView:
        waiting = session.scalar(
            select(func.count())
            .select_from(Notification)
            .where(Notification.notifier_id == row.id, Notification.state.in_(("waiting", "sending")))
        )
        return NotifierView(
            id=str(row.id),
            name=row.name,
            kind=row.kind,
            service=row.service,
            header_names=sorted(row.headers),
            enabled=row.enabled,
            min_severity=row.min_severity,
            matcher=matcher_view(session, row.matcher),
            send_resolved=row.send_resolved,
            revision=row.revision,
            created_at=iso(row.created_at) or "",
            last_sent_at=iso(row.last_sent_at),
            last_error=row.last_error,
            last_error_at=iso(row.last_error_at),
            waiting=waiting or 0,
        )

    def _record(self, session: Session, actor: str, action: str, row: Notifier, detail: dict[str, Any]) -> None:
        self._audit.record(session, actor=actor, action=action, target_kind="notifier", target_id=row.id, detail=detail)


def message_view(session: Session, row: Notification) -> NotificationView:
    """One message of the outbox."""
    return NotificationView(
        id=str(row.id),
        notifier_id=str(row.notifier_id),
        notifier_name=session.scalar(select(Notifier.name).where(Notifier.id == row.notifier_id)),
        alert_id=None if row.alert_id is None else str(row.alert_id),
        event=row.event,
        title=str(row.message.get("title", "")),
        state=row.state,
        attempts=row.attempts,
        next_attempt_at=iso(row.next_attempt_at) if row.state == "waiting" else None,
        last_error=row.last_error,
        created_at=iso(row.created_at) or "",
        finished_at=iso(row.finished_at),
    )


def _headers(kind: str, headers: dict[str, str]) -> dict[str, str]:
    if headers and kind != "webhook":
        raise InvalidInput.field("headers", "go with kind webhook; an Apprise address holds its own secrets")
    return check_headers(headers)


def _shown(body: dict[str, Any], service: str | None) -> dict[str, Any]:
    """For the audit trail: what an address is of, never the address; header names, never their values."""
    shown = {name: value for name, value in body.items() if name != "url" and value is not None}
    if "headers" in shown:
        shown["headers"] = sorted(shown["headers"])
    return {**shown, **({"service": service} if service is not None else {})}


def _taken(name: str) -> Conflict:
    return Conflict(f"name: another notifier is already called {name!r}")


def _found(session: Session, notifier_id: int) -> Notifier:
    row = session.get(Notifier, notifier_id)
    if row is None:
        raise NotFound.of("notifier", notifier_id)
    return row
