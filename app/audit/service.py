"""Writing and reading the audit trail. `record` runs inside the caller's unit of work: no change without its row."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.audit.tables import AuditEvent
from app.clock import Clock, iso
from app.database import Database
from app.paging import decode_cursor, encode_cursor
from app.shapes import ApiModel, Page

#: Address of the client of the request being served, set by the web layer.
client_address: ContextVar[str | None] = ContextVar("client_address", default=None)

# Values under these names never reach the trail.
_SECRET_WORDS = ("password", "api_key", "token", "secret", "authorization")


class AuditView(ApiModel):
    """One entry of the trail."""

    id: str
    at: str
    actor: str
    address: str | None
    action: str
    target_kind: str
    target_id: str
    detail: dict[str, Any]


class AuditService:
    """The audit trail."""

    def __init__(self, *, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    def record(
        self,
        session: Session,
        *,
        actor: str,
        action: str,
        target_kind: str,
        target_id: object,
        detail: Mapping[str, Any] | None = None,
        by_request: bool = True,
    ) -> None:
        """Adds one row to the caller's unit of work; secret-looking values are replaced by ``"(hidden)"``.

        `by_request` False: work of the actor's that ends in somebody's request, whose address is not the actor's.
        """
        session.add(
            AuditEvent(
                at=self._clock(),
                actor=actor,
                address=client_address.get() if by_request else None,
                action=action,
                target_kind=target_kind,
                target_id=str(target_id),
                detail=_without_secrets(dict(detail or {})),
            )
        )

    def list_events(
        self,
        *,
        page_size: int,
        page_token: str | None,
        target_kind: str | None = None,
        target_id: str | None = None,
        action: str | None = None,
    ) -> Page[AuditView]:
        """Newest first. Filters combine."""
        name = f"audit|{target_kind}|{target_id}|{action}"
        query = select(AuditEvent).order_by(AuditEvent.id.desc()).limit(page_size + 1)
        if page_token:
            query = query.where(AuditEvent.id < decode_cursor(name, page_token)[0])
        if target_kind:
            query = query.where(AuditEvent.target_kind == target_kind)
        if target_id:
            query = query.where(AuditEvent.target_id == target_id)
        if action:
            query = query.where(AuditEvent.action == action)
        with self._db.read() as session:
            rows = list(session.scalars(query))
        more = len(rows) > page_size
        rows = rows[:page_size]
        return Page(
            items=[_view(row) for row in rows],
            next_page_token=encode_cursor(name, [rows[-1].id]) if more else None,
        )


def _view(row: AuditEvent) -> AuditView:
    return AuditView(
        id=str(row.id),
        at=iso(row.at) or "",
        actor=row.actor,
        address=row.address,
        action=row.action,
        target_kind=row.target_kind,
        target_id=row.target_id,
        detail=row.detail,
    )


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            k: "(hidden)" if v and any(w in str(k).lower() for w in _SECRET_WORDS) else _without_secrets(v)
            for k, v in value.items()
        }
    if isinstance(value, list | tuple):
        return [_without_secrets(v) for v in value]
    return value
