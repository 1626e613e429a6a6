"""The increments of a window are read once, and are always those that the samples themselves add up to."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import delete, event, select

from app.database import upsert
from app.telemetry.flow_sums import FlowSums
from app.telemetry.recent import Recent
from app.telemetry.tables import SampleRaw, Series, Snapshot
from tests.unit.telemetry.support import Bench, captured_engine, captured_server

NAMES = ("local_tokens", "external_tokens")
WINDOW = 900.0


class Fleet:
    """Engines that are polled by hand; `read` counts the samples that the database handed out."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.passed = bench, 0.0
        self.recent = Recent("engine", NAMES, WINDOW, steady=lambda: self.passed)

    def poll(self, *ids: int, late: float = 0.0) -> None:
        at = self.bench.clock() - late
        with self.bench.db.write() as session:
            for ident in ids:
                for name in NAMES:
                    series = session.scalar(select(Series).where(Series.target_id == ident, Series.metric == name))
                    if series is None:
                        series = Series(target_kind="engine", target_id=ident, metric=name)
                        session.add(series)
                        session.flush()
                    session.add(SampleRaw(series_id=series.id, at=round(at * 1000), value=random.randint(1, 99) / 4))
                row = {"target_kind": "engine", "target_id": ident, "polled_at": at, "scraped_at": at}
                upsert(
                    session,
                    Snapshot.__table__,  # type: ignore[arg-type]
                    [{**row, "data": {}, "memory": {}}],
                    key=["target_kind", "target_id"],
                    update=["polled_at"],
                )

    def passes(self, seconds: float) -> None:
        self.bench.clock.now += seconds
        self.passed += seconds

    def ask(self, *ids: int) -> dict[int, dict[str, dict[int, float]]]:
        with self.bench.db.read() as session:
            found = self.recent.of(session, ids, self.bench.clock())
        return {ident: {name: dict(minutes) for name, minutes in own.items()} for ident, own in found.items() if own}

    def added_up(self, *ids: int) -> dict[int, dict[str, dict[int, float]]]:
        """The same from all samples."""
        start, now = round((self.bench.clock() - WINDOW) * 1000), round(self.bench.clock() * 1000)
        found: dict[int, dict[str, dict[int, float]]] = {}
        with self.bench.db.read() as session:
            for ident, name, at, value in session.execute(
                select(Series.target_id, Series.metric, SampleRaw.at, SampleRaw.value)
                .join_from(Series, SampleRaw, SampleRaw.series_id == Series.id)
                .where(SampleRaw.at > start, SampleRaw.at <= now, Series.target_id.in_(ids))
            ):
                minutes = found.setdefault(ident, {}).setdefault(name, {})
                minutes[at // 60_000] = minutes.get(at // 60_000, 0.0) + value
        return found


@pytest.fixture
def fleet(bench: Bench) -> Fleet:
    return Fleet(bench)


@contextmanager
def statements(bench: Bench) -> Iterator[list[str]]:
    """What the database is asked meanwhile."""
    asked: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        asked.append(statement)

    event.listen(bench.db.engine, "before_cursor_execute", note)
    try:
        yield asked
    finally:
        event.remove(bench.db.engine, "before_cursor_execute", note)


def test_the_window_is_what_its_samples_add_up_to_wherever_it_ends(fleet: Fleet) -> None:
    assert fleet.ask(1, 2) == {}
    for turn in range(260):
        fleet.passes(7.3)
        fleet.poll(1)
        if turn % 3 == 0 and turn < 120:  # the second falls silent, and leaves the window
            fleet.poll(2, late=0.4)
        if turn % 4 == 0:
            assert fleet.ask(1, 2) == fleet.added_up(1, 2)
    assert set(fleet.ask(1, 2)) == {1}


def test_a_sample_is_read_once_and_a_question_costs_the_same_whatever_the_number_of_targets(fleet: Fleet) -> None:
    fleet.poll(*range(1, 41))
    fleet.ask(*range(1, 41))
    with statements(fleet.bench) as nothing_new:
        before = fleet.ask(*range(1, 41))
    assert len(nothing_new) == 1, "only when they were polled"
    with fleet.bench.db.write() as session:  # what was read once is not looked at again
        session.execute(delete(SampleRaw))
    assert fleet.ask(*range(1, 41)) == before
    fleet.passes(10)
    fleet.poll(*range(1, 41))
    with statements(fleet.bench) as one_poll_more:
        fleet.ask(*range(1, 41))
    assert len(one_poll_more) == 2


def test_a_clock_that_was_set_back_hides_no_poll(fleet: Fleet) -> None:
    for _ in range(30):
        fleet.passes(10)
        fleet.poll(1)
    assert fleet.ask(1) == fleet.added_up(1)
    fleet.bench.clock.now -= 64  # between two polls: their times stay apart
    for _ in range(9):
        fleet.passes(10)
        fleet.poll(1)
    assert fleet.bench.clock() > 0
    assert fleet.ask(1) == fleet.added_up(1)


@pytest.mark.parametrize("back", [4, 64, 300, 2000])
def test_after_a_clock_was_set_back_each_sample_counts_once_and_in_its_own_time(fleet: Fleet, back: int) -> None:
    for _ in range(60):
        fleet.passes(10)
        fleet.poll(1, 2)
        fleet.ask(1, 2)
    fleet.bench.clock.now -= back + 0.123  # their times stay apart
    assert fleet.ask(1, 2) == fleet.added_up(1, 2), "before any new poll"
    for turn in range(120):
        fleet.passes(10)
        fleet.poll(1)
        assert fleet.ask(1, 2) == fleet.added_up(1, 2), turn


def test_after_a_long_silence_the_window_is_read_anew(fleet: Fleet) -> None:
    fleet.poll(1)
    fleet.ask(1)
    for _ in range(200):
        fleet.passes(10)
        fleet.poll(1)
    assert fleet.ask(1) == fleet.added_up(1)


async def test_the_flow_is_the_same_read_once_and_added_up_anew(bench: Bench) -> None:
    server = captured_server()
    server_id = bench.add_server(server)
    engine = captured_engine()
    engine_id = bench.add_engine(engine, server_id=server_id)
    sums = FlowSums()
    for turn in range(12):
        engine.set_metric("/metrics", "vllm:external_prefix_cache_hits_total", 1000.0 * turn)
        await bench.tick()
        with bench.db.read() as session:
            once = sums.of(session, {engine_id: server_id}, WINDOW, bench.clock())
            anew = sums.of(session, {engine_id: server_id}, WINDOW + 0.001, bench.clock())
        assert [dict(part) for part in once[:2]] == [dict(part) for part in anew[:2]]
        assert sorted(once[2]) == sorted(anew[2])
    assert sum(slice_.external for slice_ in once[2]) == once[0][engine_id]["external_tokens"]
    assert len(once[2]) > 1


async def test_what_a_job_has_read_no_page_reads_again(bench: Bench) -> None:
    server_id = bench.add_server(captured_server())
    bench.add_engine(captured_engine(), server_id=server_id)
    await bench.tick()
    await bench.tick()
    bench.telemetry.read_recent()
    with statements(bench) as asked:
        flow = bench.telemetry.token_flow(None)
    assert flow.state != "unknown"
    assert not [statement for statement in asked if "sample_raw" in statement]
