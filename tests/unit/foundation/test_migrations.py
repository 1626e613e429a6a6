from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Column, MetaData, inspect, text

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


REVISIONS = [revision.revision for revision in ScriptDirectory.from_config(migration_config()).walk_revisions()]
SCHEMAS = sorted((Path(__file__).parents[2] / "fixtures" / "schemas").glob("*.sql"))


def _a_value(column: Column[Any], number: int) -> object:
    """Something that fits the column's type."""
    try:
        kind = column.type.python_type
    except NotImplementedError:
        kind = str
    if column.foreign_keys or kind is int:
        return number
    return {float: 1_796_000_000.5, bool: True, bytes: b"x", dict: {"a": 1}}.get(kind, f"v{number}")


def _rows(db: Database) -> dict[str, list[dict[str, Any]]]:
    with db.engine.connect() as connection:
        found = MetaData()
        found.reflect(connection)
        return {
            name: [dict(row) for row in connection.execute(table.select()).mappings()]
            for name, table in found.tables.items()
            if name != "alembic_version"
        }


@pytest.mark.parametrize("revision", REVISIONS)
def test_data_of_every_schema_ever_released_is_there_after_an_upgrade(
    empty: Database, tmp_path: Path, revision: str
) -> None:
    """A released migration is never edited: going up to it makes the schema that was released."""
    with empty.engine.connect().execution_options(sqlite_begin="IMMEDIATE") as connection:
        command.upgrade(migration_config(connection), revision)
        connection.commit()
    found = MetaData()
    with empty.engine.begin() as connection:
        found.reflect(connection)
        for table in found.sorted_tables:
            if table.name != "alembic_version":
                for number in (1, 2):
                    connection.execute(table.insert().values({c.name: _a_value(c, number) for c in table.columns}))
    before = _rows(empty)
    assert all(len(rows) == 2 for rows in before.values())
    upgrade(empty, tmp_path)
    assert current_revision(empty) == head_revision()
    _nothing_lost(before, _rows(empty))
    empty.dispose()


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda path: path.stem)
def test_a_dump_of_a_release_is_there_after_an_upgrade(schema: Path, tmp_path: Path) -> None:
    """`sqlite3 tierkeeper.db .dump > tests/fixtures/schemas/VERSION.sql`, made when a version is released."""
    raw = sqlite3.connect(tmp_path / "tierkeeper.db")
    raw.executescript(schema.read_text())
    raw.close()
    db = Database(f"sqlite:///{tmp_path / 'tierkeeper.db'}")
    before = _rows(db)
    upgrade(db, tmp_path)
    _nothing_lost(before, _rows(db))
    db.dispose()


def _nothing_lost(before: dict[str, list[dict[str, Any]]], after: dict[str, list[dict[str, Any]]]) -> None:
    for name, rows in before.items():
        for old, new in zip(rows, after.get(name, []), strict=True):
            assert {k: v for k, v in new.items() if k in old} == {k: v for k, v in old.items() if k in new}, name
