"""Answers kept for Idempotency-Key."""

from __future__ import annotations

from sqlalchemy import LargeBinary
from sqlalchemy.orm import Mapped, mapped_column

from app.database import Base


class IdempotentAnswer(Base):
    """The first answer to a POST with this key by this caller; replayed for a day."""

    __tablename__ = "idempotent_answer"

    key_hash: Mapped[str] = mapped_column(primary_key=True)  # sha256 of caller and key
    request_hash: Mapped[str]  # sha256 of path and body
    created_at: Mapped[float] = mapped_column(index=True)
    status: Mapped[int | None] = mapped_column(default=None)  # null while the first request runs
    location: Mapped[str | None] = mapped_column(default=None)
    content_type: Mapped[str | None] = mapped_column(default=None)
    body: Mapped[bytes | None] = mapped_column(LargeBinary, default=None)
