from __future__ import annotations

import pytest
from sqlalchemy import select

from app.audit.service import AuditService
from app.audit.tables import AuditEvent
from app.auth.schemas import TokenInput, UserInput, UserPatch
from app.auth.service import FAILURES_PER_NAME, AuthService
from app.auth.tables import ApiToken, UserSession
from app.database import Database
from app.errors import Conflict, NotFound, NotSignedIn, TooManyRequests
from app.settings import load_settings
from tests.unit.foundation.conftest import FrozenClock


class TestEnsureAdmin:
    def test_makes_a_password_once(self, auth: AuthService) -> None:
        made = auth.ensure_admin()
        assert made
        assert auth.ensure_admin() is None
        assert auth.sign_in("admin", made, None)

    def test_a_configured_password_is_applied_and_ends_sessions(
        self, db: Database, clock: FrozenClock, audit: AuditService, auth: AuthService
    ) -> None:
        made = auth.ensure_admin()
        old_session = auth.sign_in("admin", str(made), None)
        settings = load_settings({"TIERKEEPER_ADMIN_PASSWORD": "s3cret"})
        again = AuthService(db=db, clock=clock, settings=settings, audit=audit)
        assert again.ensure_admin() is None
        assert again.session_principal(old_session, None) is None
        assert again.sign_in("admin", "s3cret", None)
        with pytest.raises(NotSignedIn):
            again.sign_in("admin", str(made), None)


class TestSessions:
    def test_the_database_holds_no_usable_token(self, auth: AuthService, db: Database) -> None:
        token = auth.sign_in("admin", str(auth.ensure_admin()), None)
        with db.read() as session:
            assert [row.token_hash for row in session.scalars(select(UserSession))] != [token]

    def test_ends_after_idle_time_and_after_absolute_time(self, auth: AuthService, clock: FrozenClock) -> None:
        password = str(auth.ensure_admin())
        token = auth.sign_in("admin", password, None)
        clock.advance(11 * 3600)
        assert auth.session_principal(token, None) is not None
        clock.advance(13 * 3600)
        assert auth.session_principal(token, None) is None
        token = auth.sign_in("admin", password, None)
        for _ in range(17):
            clock.advance(10 * 3600)
            last = auth.session_principal(token, None)
        assert last is None

    def test_is_over_after_sign_out(self, auth: AuthService) -> None:
        token = auth.sign_in("admin", str(auth.ensure_admin()), None)
        auth.sign_out(token)
        assert auth.session_principal(token, None) is None

    def test_guessing_is_throttled_and_recovers(self, auth: AuthService, clock: FrozenClock) -> None:
        password = str(auth.ensure_admin())
        for _ in range(FAILURES_PER_NAME):
            with pytest.raises(NotSignedIn):
                auth.sign_in("admin", "wrong", "192.0.2.1")
        with pytest.raises(TooManyRequests):
            auth.sign_in("admin", password, "192.0.2.1")
        assert auth.sign_in("admin", password, "192.0.2.2")
        clock.advance(301)
        assert auth.sign_in("admin", password, "192.0.2.1")

    def test_unknown_user_and_wrong_password_say_the_same(self, auth: AuthService) -> None:
        auth.ensure_admin()
        answers = []
        for name in ("admin", "nobody"):
            with pytest.raises(NotSignedIn) as caught:
                auth.sign_in(name, "wrong", None)
            answers.append(caught.value.detail)
        assert answers[0] == answers[1]

    def test_an_overlong_password_is_refused_without_hashing_it(self, auth: AuthService) -> None:
        auth.ensure_admin()
        with pytest.raises(NotSignedIn):
            auth.sign_in("admin", "x" * 100_000, None)


class TestTokens:
    def test_works_until_it_expires_and_is_stored_hashed(
        self, auth: AuthService, clock: FrozenClock, db: Database
    ) -> None:
        view = auth.create_token(TokenInput(name="ci", role="operator", expires_in_days=1.0), actor="t")
        principal = auth.token_principal(view.token, "192.0.2.9")
        assert principal is not None
        assert (principal.role, principal.actor, principal.may("admin")) == ("operator", "token:ci", False)
        with db.read() as session:
            row = session.scalars(select(ApiToken)).one()
        assert view.token not in row.token_hash
        assert row.last_used_at == clock()
        clock.advance(86400)
        assert auth.token_principal(view.token, None) is None

    def test_a_taken_name_is_refused_and_a_deleted_token_is_dead(self, auth: AuthService) -> None:
        view = auth.create_token(TokenInput(name="ci", role="viewer"), actor="t")
        with pytest.raises(Conflict, match="name: another token is already called 'ci'"):
            auth.create_token(TokenInput(name="ci", role="viewer"), actor="t")
        auth.delete_token(int(view.id), actor="t")
        assert auth.token_principal(view.token, None) is None
        with pytest.raises(NotFound):
            auth.delete_token(int(view.id), actor="t")


class TestUsers:
    def test_the_last_admin_cannot_be_demoted_disabled_or_deleted(self, auth: AuthService) -> None:
        auth.ensure_admin()
        admin = auth.list_users().items[0]
        for attempt in (
            lambda: auth.update_user(int(admin.id), UserPatch(role="viewer"), actor="t"),
            lambda: auth.update_user(int(admin.id), UserPatch(disabled=True), actor="t"),
            lambda: auth.delete_user(int(admin.id), actor="t"),
        ):
            with pytest.raises(Conflict, match="last admin"):
                attempt()
        auth.create_user(UserInput(username="second", password="long enough", role="admin"), actor="t")
        auth.delete_user(int(admin.id), actor="t")
        assert [user.username for user in auth.list_users().items] == ["second"]

    def test_a_changed_role_ends_the_sessions(self, auth: AuthService) -> None:
        auth.ensure_admin()
        user = auth.create_user(UserInput(username="olga", password="long enough", role="operator"), actor="t")
        token = auth.sign_in("olga", "long enough", None)
        auth.update_user(int(user.id), UserPatch(role="viewer"), actor="t")
        assert auth.session_principal(token, None) is None


def test_every_change_leaves_a_row_without_secrets(auth: AuthService, db: Database) -> None:
    auth.ensure_admin()
    user = auth.create_user(UserInput(username="olga", password="very secret", role="viewer"), actor="user:admin")
    auth.update_user(int(user.id), UserPatch(password="even more secret"), actor="user:admin")
    with db.read() as session:
        rows = list(session.scalars(select(AuditEvent).order_by(AuditEvent.id)))
    assert [row.action for row in rows] == ["user.create", "user.create", "user.update"]
    assert "secret" not in str([row.detail for row in rows])
    assert rows[2].detail == {"password": "(hidden)"}
