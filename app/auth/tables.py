"""Users, their sessions, API tokens, and failed sign-ins. Secrets are stored hashed only."""

from __future__ import annotations

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from app.database import Base


class User(Base):
    """A person who signs in with a password."""

    __tablename__ = "user_account"

    id: Mapped[int] = mapped_column(primary_key=True)
    username: Mapped[str] = mapped_column(unique=True)
    password_hash: Mapped[str]
    role: Mapped[str]
    created_at: Mapped[float]
    disabled: Mapped[bool] = mapped_column(default=False)


class UserSession(Base):
    """A signed-in browser. The cookie holds the token, the row its SHA-256."""

    __tablename__ = "user_session"

    token_hash: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("user_account.id", ondelete="CASCADE"), index=True)
    created_at: Mapped[float]
    last_seen_at: Mapped[float]
    address: Mapped[str | None] = mapped_column(default=None)


class ApiToken(Base):
    """A bearer token for programs."""

    __tablename__ = "api_token"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    token_hash: Mapped[str] = mapped_column(unique=True)
    role: Mapped[str]
    created_at: Mapped[float]
    created_by: Mapped[str]
    last_used_at: Mapped[float | None] = mapped_column(default=None)
    expires_at: Mapped[float | None] = mapped_column(default=None)


class LoginFailure(Base):
    """One failed sign-in; throttling counts the recent ones per user name and per address."""

    __tablename__ = "login_failure"

    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[float] = mapped_column(index=True)
    username: Mapped[str]
    address: Mapped[str | None] = mapped_column(default=None)
