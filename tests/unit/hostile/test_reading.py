"""Looking at things changes nothing: every GET of the API and of the pages, with the database before and after."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest
from sqlalchemy import MetaData

from app.database import Database
from tests.unit.api.test_every_route import ENDLESS, routes
from tests.unit.hostile.stage import Stage, peopled_panel

#: What only people and their programs change. Polls, alarms, sessions and "last used" go on by themselves.
_WATCHED = {
    *("user_account", "audit_event", "idempotent_answer", "store", "store_server", "scan", "schedule"),
    *("policy", "plan", "cleanup_run", "cleanup_intent", "quarantine_job", "record_hold", "restart_hook", "canary"),
    *("notifier", "silence", "maintenance_window", "alert_rule_setting", "alert_override"),
    *("acceptance_run", "benchmark_run"),
}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with peopled_panel(tmp_path_factory.mktemp("reading")) as found:
        yield found


def contents(db: Database) -> dict[str, str]:
    """A digest of every watched table."""
    found = MetaData()
    with db.engine.connect() as connection:
        found.reflect(connection)
        return {
            name: hashlib.sha256(repr(sorted(map(repr, connection.execute(table.select())))).encode()).hexdigest()
            for name, table in found.tables.items()
            if name in _WATCHED
        }


def test_no_get_changes_a_row(stage: Stage) -> None:
    admin, browser = stage.panel.client(), stage.panel.browser()
    before = contents(stage.panel.services.db)
    assert set(before) == _WATCHED
    asked = 0
    for route in routes():
        if "GET" not in (route.methods or ()) or route.path in ENDLESS:
            continue
        path = route.path
        for part in path.split("{")[1:]:
            name = part.partition("}")[0]
            value = {"form": "json", "folder": "x", "kind": "server"}.get(name, "1")
            path = path.replace(f"{{{name}}}", value)
        client = admin if path.startswith("/api/v1") else browser
        answer = client.get(path, timeout=120)
        assert answer.status_code < 500, (path, answer.text[:300])
        asked += 1
    assert asked > 90
    assert contents(stage.panel.services.db) == before
