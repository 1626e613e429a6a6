"""Live values are taken apart once a poll, and are always those of the last one."""

from __future__ import annotations

import pytest

from app.fleet.live import EngineLive, ServerLive
from app.telemetry import live
from app.telemetry.tables import Snapshot
from app.telemetry.taken_apart import TakenApart
from tests.unit.telemetry.support import Bench, captured_engine, captured_server


async def test_once_a_poll_and_never_old(bench: Bench) -> None:
    first = bench.add_engine(captured_engine(), "http://a:8000")
    second = bench.add_engine(captured_engine(), "http://b:8000")
    taken: list[int] = []

    def take(row: Snapshot) -> object:
        taken.append(row.target_id)
        return live.engine_live(row)

    kept = TakenApart("engine", take)

    def ask(*ids: int) -> dict[int, object]:
        with bench.db.read() as session:
            return kept.of(session, ids)

    assert ask(first, second) == {}  # never polled
    await bench.tick()
    before = ask(first, second)
    assert ask(second, first) == before
    assert ask(first)[first] is before[first]
    assert sorted(taken) == [first, second]
    await bench.tick()
    after = ask(first)
    assert taken[2:] == [first]
    assert after[first] is not before[first]
    assert after[first].polled_at > before[first].polled_at  # type: ignore[attr-defined]
    bench.fleet.delete_engine(first, actor="t")
    assert set(ask(first, second)) == {second}
    assert set(kept._known) == {second}


async def test_a_view_of_nothing_is_made_only_for_who_was_never_polled(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is eight models: made for every target of a list it was a third of the list."""
    server_id = bench.add_server(captured_server())
    bench.add_engine(captured_engine(), server_id=server_id)
    made: list[str] = []

    def counted(kind: type[object]) -> object:
        made.append(kind.__name__)
        return kind()

    monkeypatch.setattr("app.fleet.servers.ServerLive", lambda: counted(ServerLive))
    monkeypatch.setattr("app.fleet.engines.EngineLive", lambda: counted(EngineLive))

    def ask() -> None:
        bench.fleet.list_servers(page_size=500, page_token=None)
        bench.fleet.list_engines(page_size=500, page_token=None)

    ask()
    assert made == ["ServerLive", "EngineLive"]
    await bench.tick()
    ask()
    assert made == ["ServerLive", "EngineLive"]
