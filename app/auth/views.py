"""Rows of people and tokens as they are shown, and what is stored in place of a token."""

from __future__ import annotations

import hashlib

from sqlalchemy.exc import IntegrityError

from app.auth.schemas import SessionView, TokenView, UserView
from app.auth.tables import ApiToken, User, UserSession
from app.clock import iso
from app.errors import Conflict


class unique:
    """Turns a violated unique constraint into a Conflict that names the field."""

    def __init__(self, field: str, value: str, kind: str) -> None:
        self._message = f"{field}: another {kind} is already called {value!r}; choose another name"

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, IntegrityError):
            raise Conflict(self._message) from error


def digest(token: str) -> str:
    """What is stored of a session or token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def user_view(row: User) -> UserView:
    return UserView(
        id=str(row.id),
        username=row.username,
        role=row.role,
        disabled=row.disabled,
        created_at=iso(row.created_at) or "",
    )


def session_view(row: UserSession) -> SessionView:
    return SessionView(
        created_at=iso(row.created_at) or "", last_seen_at=iso(row.last_seen_at) or "", address=row.address
    )


def token_view(row: ApiToken) -> TokenView:
    return TokenView(
        id=str(row.id),
        name=row.name,
        role=row.role,
        created_at=iso(row.created_at) or "",
        created_by=row.created_by,
        last_used_at=iso(row.last_used_at),
        expires_at=iso(row.expires_at),
    )
