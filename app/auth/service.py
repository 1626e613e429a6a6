"""Who is asking, and may they. Passwords by argon2, sessions and tokens as SHA-256 of 256 random bits."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import structlog
from pwdlib import PasswordHash
from pwdlib.hashers.argon2 import Argon2Hasher
from sqlalchemy import Update, delete, func, or_, select, update
from sqlalchemy.orm import Session

from app.audit.service import AuditService
from app.auth.schemas import RANK, NewTokenView, SessionView, TokenInput, TokenView, UserInput, UserPatch, UserView
from app.auth.tables import ApiToken, LoginFailure, User, UserSession
from app.auth.views import digest, session_view, token_view, unique, user_view
from app.clock import Clock
from app.database import Database
from app.errors import Conflict, InvalidInput, NotFound, NotSignedIn, TooManyRequests
from app.settings import Settings
from app.shapes import Page

TOKEN_PREFIX = "tk_"  # noqa: S105  (recognisable in logs and by secret scanners)
MAX_PASSWORD = 1024
# Throttle: failures in the window per user name, and per address over all names.
FAILURE_WINDOW_SECONDS = 300.0
FAILURES_PER_NAME = 10
FAILURES_PER_ADDRESS = 30
# `last_seen_at` and `last_used_at` are written at most this often: reading pages must not mean writing.
TOUCH_SECONDS = 60.0
# After a database that could not be written, none of them is tried for so long.
UNWRITTEN_SECONDS = 10.0
MAX_FORWARDED_NAME = 128

log = structlog.get_logger()


@dataclass(frozen=True)
class Principal:
    """Who asks. kind: user (a session), token, proxy (a name a proxy vouches for), system (a command)."""

    name: str
    role: str
    kind: str
    address: str | None = None

    @property
    def actor(self) -> str:
        """How the audit trail names it."""
        return f"{self.kind}:{self.name}"

    def may(self, role: str) -> bool:
        """Whether this principal has at least `role`."""
        return RANK[self.role] >= RANK[role]


class AuthService:
    """Users, sessions, tokens."""

    def __init__(
        self, *, db: Database, clock: Clock, settings: Settings, audit: AuditService, hasher: PasswordHash | None = None
    ) -> None:
        self._db = db
        self._clock = clock
        self._settings = settings
        self._audit = audit
        self._hasher = hasher or PasswordHash((Argon2Hasher(),))
        self._dummy_hash = self._hasher.hash("nobody")
        self._unwritten_at: float | None = None

    # first run

    def ensure_admin(self) -> str | None:
        """Makes the user admin, or sets its password to ADMIN_PASSWORD; returns a made-up password to print once."""
        wanted = self._settings.admin_password.get_secret_value() if self._settings.admin_password else None
        if wanted is not None and not 1 <= len(wanted) <= MAX_PASSWORD:
            raise InvalidInput.field("TIERKEEPER_ADMIN_PASSWORD", f"must have 1 to {MAX_PASSWORD} characters")
        with self._db.read() as session:
            user = session.scalar(select(User).where(User.username == "admin"))
        if user is not None:
            if wanted is not None and not self._hasher.verify(wanted, user.password_hash):
                hashed = self._hasher.hash(wanted)
                with self._db.write() as session:
                    session.execute(update(User).where(User.id == user.id).values(password_hash=hashed, disabled=False))
                    session.execute(delete(UserSession).where(UserSession.user_id == user.id))
                    self._audit.record(
                        session, actor="system", action="user.password", target_kind="user", target_id=user.id
                    )
            return None
        made = None if wanted is not None else secrets.token_urlsafe(12)
        hashed = self._hasher.hash(wanted or made or "")
        with self._db.write() as session:
            row = User(username="admin", password_hash=hashed, role="admin", created_at=self._clock())
            session.add(row)
            session.flush()
            self._audit.record(session, actor="system", action="user.create", target_kind="user", target_id=row.id)
        return made

    # sessions

    def sign_in(self, username: str, password: str, address: str | None, *, replaces: str | None = None) -> str:
        """A new session token. Raises NotSignedIn for a wrong pair, TooManyRequests when throttled.

        replaces: the session this browser had, which ends: no token lives through a sign-in.
        """
        now = self._clock()
        self._throttle(username, address, now)
        with self._db.read() as session:
            user = session.scalar(select(User).where(User.username == username))
        # The same work for an unknown name as for a wrong password: names cannot be told apart by time.
        hashed = user.password_hash if user else self._dummy_hash
        good = len(password) <= MAX_PASSWORD and self._hasher.verify(password, hashed)
        if user is None or not good or user.disabled:
            with self._db.write() as session:
                session.execute(delete(LoginFailure).where(LoginFailure.at < now - FAILURE_WINDOW_SECONDS))
                session.add(LoginFailure(at=now, username=username[:64], address=address))
                self._audit.record(
                    session, actor="anonymous", action="session.refused", target_kind="user", target_id=username[:64]
                )
            raise NotSignedIn("user name or password is wrong")
        token = secrets.token_urlsafe(32)
        with self._db.write() as session:
            session.execute(
                delete(UserSession).where(
                    or_(
                        UserSession.created_at < now - self._settings.session_absolute_seconds,
                        UserSession.token_hash == digest(replaces or ""),
                    )
                )
            )
            session.add(
                UserSession(
                    token_hash=digest(token), user_id=user.id, created_at=now, last_seen_at=now, address=address
                )
            )
            session.execute(delete(LoginFailure).where(LoginFailure.username == username))
            self._audit.record(
                session, actor=f"user:{username}", action="session.create", target_kind="user", target_id=user.id
            )
        return token

    def _throttle(self, username: str, address: str | None, now: float) -> None:
        recent = LoginFailure.at > now - FAILURE_WINDOW_SECONDS
        with self._db.read() as session:
            by_name = session.scalar(
                select(func.count()).where(recent, LoginFailure.username == username, LoginFailure.address == address)
            )
            by_address = session.scalar(select(func.count()).where(recent, LoginFailure.address == address))
        if (by_name or 0) >= FAILURES_PER_NAME or (by_address or 0) >= FAILURES_PER_ADDRESS:
            raise TooManyRequests("too many failed sign-ins from this address; wait five minutes and try again")

    def sign_out(self, token: str) -> None:
        """Ends the session; unknown tokens are ignored."""
        with self._db.write() as session:
            row = session.get(UserSession, digest(token))
            if row is None:
                return
            user = self._user(session, row.user_id)
            session.delete(row)
            self._audit.record(
                session,
                actor=f"user:{user.username}",
                action="session.delete",
                target_kind="user",
                target_id=user.id,
            )

    def list_sessions(self, user_id: int) -> Page[SessionView]:
        """The sessions of one user that are not over, newest first."""
        now, settings = self._clock(), self._settings
        with self._db.read() as session:
            self._user(session, user_id)
            rows = session.scalars(
                select(UserSession)
                .where(
                    UserSession.user_id == user_id,
                    UserSession.created_at >= now - settings.session_absolute_seconds,
                    UserSession.last_seen_at >= now - settings.session_idle_seconds,
                )
                .order_by(UserSession.created_at.desc())
            )
            return Page(items=[session_view(row) for row in rows], next_page_token=None)

    def end_sessions(self, user_id: int, *, actor: str) -> None:
        """Signs the user out everywhere, at once."""
        with self._db.write() as session:
            user = self._user(session, user_id)
            ended = session.execute(delete(UserSession).where(UserSession.user_id == user_id))
            self._audit.record(
                session,
                actor=actor,
                action="session.revoke",
                target_kind="user",
                target_id=user_id,
                detail={"username": user.username, "sessions": ended.rowcount},  # type: ignore[attr-defined]
            )

    def forwarded_principal(self, name: str, address: str | None) -> Principal | None:
        """Whom a trusted proxy has signed in: with the role of the account of that name, else FORWARD_AUTH_ROLE.

        None for a disabled account, for a name no person has, and for strangers where the setting says none.
        """
        if len(name) > MAX_FORWARDED_NAME or not name.isprintable():
            return None
        with self._db.read() as session:
            user = session.scalar(select(User).where(User.username == name))
        if user is not None:
            return None if user.disabled else Principal(name, user.role, "user", address)
        role = self._settings.forward_auth_role
        return None if role == "none" else Principal(name, role, "proxy", address)

    def session_principal(self, token: str, address: str | None, *, active: bool = True) -> Principal | None:
        """Who owns this session cookie, or None when it is unknown or over.

        active: somebody does something. What a page asks by itself does not put off the idle end.
        """
        now = self._clock()
        hashed = digest(token)
        with self._db.read() as session:
            found = session.execute(
                select(UserSession, User)
                .join(User, User.id == UserSession.user_id)
                .where(UserSession.token_hash == hashed)
            ).one_or_none()
        if found is None:
            return None
        row, user = found
        settings = self._settings
        expired = (
            now - row.last_seen_at > settings.session_idle_seconds
            or now - row.created_at > settings.session_absolute_seconds
        )
        if expired or user.disabled:
            return None
        if active and now - row.last_seen_at > TOUCH_SECONDS:
            self._note(update(UserSession).where(UserSession.token_hash == hashed).values(last_seen_at=now))
        return Principal(user.username, user.role, "user", address)

    def _note(self, statement: Update) -> None:
        """Writes when something was last used, if that can be done at once: it must not keep people from reading."""
        now = self._clock()
        if self._unwritten_at is not None and 0 <= now - self._unwritten_at < UNWRITTEN_SECONDS:
            return
        reason = self._db.write_if_free(lambda session: session.execute(statement))
        self._unwritten_at = None if reason is None else now
        if reason is not None:
            log.warning("auth.last_use_not_written", reason=reason)

    # tokens

    def token_principal(self, token: str, address: str | None) -> Principal | None:
        """Who this bearer token is, or None when it is unknown or expired."""
        now = self._clock()
        with self._db.read() as session:
            row = session.scalar(select(ApiToken).where(ApiToken.token_hash == digest(token)))
        if row is None or (row.expires_at is not None and row.expires_at <= now):
            return None
        if row.last_used_at is None or now - row.last_used_at > TOUCH_SECONDS:
            self._note(update(ApiToken).where(ApiToken.id == row.id).values(last_used_at=now))
        return Principal(row.name, row.role, "token", address)

    def create_token(self, body: TokenInput, *, actor: str) -> NewTokenView:
        """Makes a token; the secret is in this answer only. Raises Conflict when the name is taken."""
        now = self._clock()
        secret = TOKEN_PREFIX + secrets.token_urlsafe(32)
        row = ApiToken(
            name=body.name,
            token_hash=digest(secret),
            role=body.role,
            created_at=now,
            created_by=actor,
            expires_at=None if body.expires_in_days is None else now + body.expires_in_days * 86400,
        )
        with unique("name", body.name, "token"), self._db.write() as session:
            session.add(row)
            session.flush()
            self._audit.record(
                session,
                actor=actor,
                action="token.create",
                target_kind="token",
                target_id=row.id,
                detail={"name": body.name, "role": body.role},
            )
        return NewTokenView(**token_view(row).model_dump(), token=secret)

    def list_tokens(self) -> Page[TokenView]:
        with self._db.read() as session:
            rows = session.scalars(select(ApiToken).order_by(ApiToken.name))
            return Page(items=[token_view(row) for row in rows], next_page_token=None)

    def delete_token(self, token_id: int, *, actor: str) -> None:
        """Revokes it at once."""
        with self._db.write() as session:
            row = session.get(ApiToken, token_id)
            if row is None:
                raise NotFound.of("token", token_id)
            session.delete(row)
            self._audit.record(
                session,
                actor=actor,
                action="token.delete",
                target_kind="token",
                target_id=token_id,
                detail={"name": row.name},
            )

    # users

    def create_user(self, body: UserInput, *, actor: str) -> UserView:
        hashed = self._hasher.hash(body.password)
        row = User(username=body.username, password_hash=hashed, role=body.role, created_at=self._clock())
        with unique("username", body.username, "user"), self._db.write() as session:
            session.add(row)
            session.flush()
            self._audit.record(
                session,
                actor=actor,
                action="user.create",
                target_kind="user",
                target_id=row.id,
                detail={"username": body.username, "role": body.role},
            )
        return user_view(row)

    def list_users(self) -> Page[UserView]:
        with self._db.read() as session:
            rows = session.scalars(select(User).order_by(User.username))
            return Page(items=[user_view(row) for row in rows], next_page_token=None)

    def get_user(self, user_id: int) -> UserView:
        with self._db.read() as session:
            return user_view(self._user(session, user_id))

    def user_id(self, username: str) -> int:
        """Raises NotFound, with the names there are."""
        with self._db.read() as session:
            found = session.scalar(select(User.id).where(User.username == username))
            if found is None:
                known = ", ".join(session.scalars(select(User.username).order_by(User.username).limit(20)))
                raise NotFound(f"there is no user {username!r}; known: {known or 'none'}")
            return found

    def update_user(self, user_id: int, body: UserPatch, *, actor: str) -> UserView:
        """Changes what is given. A new password, role or a disabling ends the user's sessions."""
        hashed = self._hasher.hash(body.password) if body.password else None
        with self._db.write() as session:
            row = self._user(session, user_id)
            demoted = body.role not in (None, "admin") or body.disabled
            if row.role == "admin" and demoted:
                self._keep_an_admin(session, user_id)
            if hashed:
                row.password_hash = hashed
            if body.role is not None:
                row.role = body.role
            if body.disabled is not None:
                row.disabled = body.disabled
            session.execute(delete(UserSession).where(UserSession.user_id == user_id))
            self._audit.record(
                session,
                actor=actor,
                action="user.update",
                target_kind="user",
                target_id=user_id,
                detail=body.model_dump(exclude_none=True),
            )
            session.flush()
            return user_view(row)

    def delete_user(self, user_id: int, *, actor: str) -> None:
        with self._db.write() as session:
            row = self._user(session, user_id)
            if row.role == "admin":
                self._keep_an_admin(session, user_id)
            session.delete(row)
            self._audit.record(
                session,
                actor=actor,
                action="user.delete",
                target_kind="user",
                target_id=user_id,
                detail={"username": row.username},
            )

    @staticmethod
    def _user(session: Session, user_id: int) -> User:
        row = session.get(User, user_id)
        if row is None:
            raise NotFound.of("user", user_id)
        return row

    @staticmethod
    def _keep_an_admin(session: Session, leaving: int) -> None:
        others = session.scalar(
            select(func.count()).where(User.role == "admin", User.disabled.is_(False), User.id != leaving)
        )
        if not others:
            raise Conflict("this is the last admin; make another admin first")
