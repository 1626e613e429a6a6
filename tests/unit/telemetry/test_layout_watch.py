"""A changed layout is told once, a restart that brings the same layout back is not; what was told is not read again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from app.layout_watch import LayoutWatch
from tests.support.locks import held, impatient
from tests.unit.telemetry.support import Bench, FakeTarget, captured_server


class Told:
    """Stands for the rooms that act on a change; `stores` lists what they were told."""

    def __init__(self, bench: Bench) -> None:
        self.stores: list[int] = []
        self.db = bench.db
        self.fleet = SimpleNamespace(store_targets=lambda server_id: [SimpleNamespace(id=100 + server_id)])
        self.records = SimpleNamespace(on_layout_change=self.stores.append)
        self.cleanup = SimpleNamespace(on_layout_change=lambda store_id: None)


def with_dtype(fake: FakeTarget, dtype: str) -> None:
    status: dict[str, Any] = fake.json("/status")
    for context in status["cache_context_meta"].values():
        for group in context["kv_cache_layout"]["kernel_groups"]:
            group["dtype"] = dtype
    fake.set_json("/status", status)


async def test_a_change_is_told_once_for_the_server_it_is_about(bench: Bench) -> None:
    one, other = captured_server(), captured_server()
    first = bench.add_server(one)
    bench.add_server(other, url="http://other:8080")
    told = Told(bench)
    watch = LayoutWatch(told)  # type: ignore[arg-type]
    await bench.tick()
    watch.look()
    await bench.tick()
    watch.look()
    assert told.stores == []
    with_dtype(one, "torch.float16")
    await bench.tick()
    watch.look()
    watch.look()
    assert told.stores == [100 + first]
    one.set_json("/status", {"detail": "busy"}, status=503)  # a failed poll says nothing of layouts
    await bench.tick()
    watch.look()
    assert told.stores == [100 + first]


async def test_a_new_watch_begins_with_what_is_there(bench: Bench) -> None:
    fake = captured_server()
    server_id = bench.add_server(fake)
    await bench.tick()
    with_dtype(fake, "torch.float16")
    await bench.tick()
    told = Told(bench)
    watch = LayoutWatch(told)  # type: ignore[arg-type]
    watch.look()
    assert told.stores == []
    with_dtype(fake, "torch.bfloat16")
    await bench.tick()
    watch.look()
    assert told.stores == [100 + server_id]


async def test_a_change_that_meets_a_locked_database_is_told_by_a_later_look(bench: Bench) -> None:
    fake = captured_server()
    server_id = bench.add_server(fake)
    told = Told(bench)
    started: list[int] = []

    def start(store_id: int) -> None:
        with bench.db.write() as session:
            session.execute(text("DELETE FROM series WHERE id = -1"))
        started.append(store_id)

    told.cleanup = SimpleNamespace(on_layout_change=start)
    watch = LayoutWatch(told)  # type: ignore[arg-type]
    await bench.tick()
    watch.look()
    with_dtype(fake, "torch.float16")
    await bench.tick()
    with held(bench.db), impatient(bench.db), pytest.raises(OperationalError, match="locked"):
        watch.look()
    assert started == []
    watch.look()
    watch.look()
    assert started == [100 + server_id]
