from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pwdlib import PasswordHash
from pwdlib.hashers.argon2 import Argon2Hasher

from app.audit.service import AuditService
from app.auth.service import AuthService
from app.database import Base, Database
from app.settings import Settings, load_settings


class FrozenClock:
    """A clock that moves when told to."""

    def __init__(self, now: float = 1_796_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings({"TIERKEEPER_DATA_DIR": str(tmp_path / "var")})


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    import app.audit.tables
    import app.auth.tables
    import app.scheduling.tables  # noqa: F401

    database = Database(f"sqlite:///{tmp_path / 'test.db'}")
    Base.metadata.create_all(database.engine)
    yield database
    database.dispose()


@pytest.fixture
def audit(db: Database, clock: FrozenClock) -> AuditService:
    return AuditService(db=db, clock=clock)


@pytest.fixture
def auth(db: Database, clock: FrozenClock, settings: Settings, audit: AuditService) -> AuthService:
    cheap = PasswordHash((Argon2Hasher(time_cost=1, memory_cost=8, parallelism=1),))
    return AuthService(db=db, clock=clock, settings=settings, audit=audit, hasher=cheap)
