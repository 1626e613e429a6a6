"""One row for every change anybody or anything made."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, Index
from sqlalchemy.orm import Mapped, mapped_column

from app.database import Base


class AuditEvent(Base):
    """Who did what to which thing, from where, when."""

    __tablename__ = "audit_event"
    __table_args__ = (Index("ix_audit_event_target", "target_kind", "target_id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[float] = mapped_column(index=True)
    actor: Mapped[str]  # user:admin, token:ci, schedule:3, system
    address: Mapped[str | None] = mapped_column(default=None)
    action: Mapped[str]  # store.create, policy.update, cleanup_run.start …
    target_kind: Mapped[str]
    target_id: Mapped[str]
    detail: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
