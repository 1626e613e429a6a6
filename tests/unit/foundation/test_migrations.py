from __future__ import annotations

from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import inspect, text

from app.database import Database
from app.errors import Conflict
from app.migrate import current_revision, head_revision, migration_config, upgrade
from app.schema import metadata


@pytest.fixture
def empty(tmp_path: Path) -> Database:
    return Database(f"sqlite:///{tmp_path / 'tierkeeper.db'}")


def test_the_migrations_make_exactly_the_tables(empty: Database, tmp_path: Path) -> None:
    upgrade(empty, tmp_path)
    with empty.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        # Tables that test modules declare for themselves are not of the product.
        found = [d for d in compare_metadata(context, metadata) if "test_" not in str(d)]
    assert found == []
    empty.dispose()


def test_upgrade_is_idempotent_and_can_be_undone_and_done_again(empty: Database, tmp_path: Path) -> None:
    upgrade(empty, tmp_path)
    upgrade(empty, tmp_path)
    assert current_revision(empty) == head_revision()
    with empty.engine.connect().execution_options(sqlite_begin="IMMEDIATE") as connection:
        command.downgrade(migration_config(connection), "base")
        connection.commit()
    assert inspect(empty.engine).get_table_names() == ["alembic_version"]
    upgrade(empty, tmp_path)
    assert current_revision(empty) == head_revision()
    empty.dispose()


def test_an_older_panel_refuses_a_newer_schema(empty: Database, tmp_path: Path) -> None:
    upgrade(empty, tmp_path)
    with empty.write() as session:
        session.execute(text("update alembic_version set version_num = '9999'"))
    with pytest.raises(Conflict, match=r"schema 9999.*newer Tierkeeper"):
        upgrade(empty, tmp_path)
    empty.dispose()


def test_a_damaged_file_is_told_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "tierkeeper.db").write_bytes(bytes(range(256)) * 80)
    damaged = Database(f"sqlite:///{tmp_path / 'tierkeeper.db'}")
    with pytest.raises(Conflict, match=r"tierkeeper\.db cannot be used .*restore a backup"):
        upgrade(damaged, tmp_path)
    damaged.dispose()
