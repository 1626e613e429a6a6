"""What the page that people land on asks of the database does not grow with the fleet."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import event

from app.fleet.schemas import EngineCreate, ServerCreate
from app.web.warm import warm_overview
from tests.support.panel import Panel, running_panel


@contextmanager
def statements(panel: Panel) -> Iterator[list[str]]:
    """What this thread asks the database meanwhile: pollers and jobs have threads of their own."""
    asked: list[str] = []
    mine = threading.get_ident()

    def note(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        if threading.get_ident() == mine:
            asked.append(statement)

    event.listen(panel.services.db.engine, "before_cursor_execute", note)
    try:
        yield asked
    finally:
        event.remove(panel.services.db.engine, "before_cursor_execute", note)


def add(panel: Panel, first: int, last: int) -> None:
    """Pairs that nobody answers for: addresses of the test network."""
    for number in range(first, last):
        server = ServerCreate(url=f"http://127.0.0.1:9/s{number}", name=f"server {number}")
        server_id = panel.services.fleet.create_server(server, actor="test").id
        engine = EngineCreate(url=f"http://127.0.0.1:9/e{number}", name=f"engine {number}", server_id=server_id)
        panel.services.fleet.create_engine(engine, actor="test")


def test_the_overview_asks_the_database_as_often_for_sixty_targets_as_for_six(tmp_path: Path) -> None:
    with running_panel(tmp_path / "var", POLL_SECONDS="3600") as panel:
        counted = []
        for first, last in ((0, 3), (3, 30)):
            add(panel, first, last)
            warm_overview(panel.app)  # statements are compiled, and what is kept once a poll is there
            with statements(panel) as asked:
                warm_overview(panel.app)
            assert any("sample_raw" in statement for statement in asked), "the page was made to its end"
            counted.append(len(asked))
    few, many = counted
    # Polls come and go beside it: what is kept once a poll may be read again, with a query or two for each kind.
    assert many <= few + 8, counted
