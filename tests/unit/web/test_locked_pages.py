"""Reading while another process holds the database: pages answer, none of them waits to write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from app.fleet.schemas import ServerCreate, StoreCreate
from app.records.tables import ServerHistory
from tests.support.locks import held, impatient
from tests.support.panel import Panel
from tests.unit.web.test_routes import PAGES, dead_port


@pytest.fixture
def store_id(panel: Panel, tmp_path: Path) -> Iterator[str]:
    server = panel.services.fleet.create_server(
        ServerCreate(url=f"http://127.0.0.1:{dead_port()}", name="silent"), actor="test"
    )
    body = StoreCreate(path=str(tmp_path), server_ids=[server.id], name="kv-a", confirm=True)
    yield panel.services.fleet.create_store(body, actor="test").id


def test_every_page_and_the_store_that_nobody_looked_at_yet(panel: Panel, store_id: str) -> None:
    browser, api = panel.browser(), panel.client("viewer")
    store = [f"/stores/{store_id}", f"/api/v1/stores/{store_id}/epochs", f"/api/v1/stores/{store_id}/summary"]
    db = panel.services.db
    with db.read() as session:
        kept = select(ServerHistory).where(ServerHistory.store_id == int(store_id))
        assert session.scalars(kept).all() == [], "the list of its servers is yet to be written"
    with held(db), impatient(db):
        # A write that must be done is refused at once here, and its page with it.
        found = {path: (api if path.startswith("/api") else browser).get(path).status_code for path in [*store, *PAGES]}
    assert {path: status for path, status in found.items() if status >= 400} == {}
