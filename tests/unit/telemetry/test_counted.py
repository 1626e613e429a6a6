"""Increments as spans: what was covered without a hole, and what a missing counter means."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import app.schema
from app.database import Database
from app.lmcache.metrics import server_metrics
from app.telemetry.counted import Span, spans, total, unbroken
from app.telemetry.rollup import roll_up
from app.telemetry.server_reading import _loaded_records, _stored_records
from app.telemetry.tables import SampleRaw, Series
from app.wire.exposition import parse_metrics
from tests.unit.telemetry.support import TEXT, capture

NOW = 1_800_000_000.0  # a whole hour and a whole five minutes
NAME = "l2_loaded_records"


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    made = Database(f"sqlite:///{tmp_path / 'c.db'}")
    app.schema.metadata.create_all(made.engine)
    with made.write() as session:
        session.add(Series(id=1, target_kind="server", target_id=7, metric="interval_seconds"))
        session.add(Series(id=2, target_kind="server", target_id=7, metric=NAME))
    yield made
    made.dispose()


def poll(db: Database, start: float, end: float, loads: Mapping[float, float] | None = None) -> None:
    """A poll every ten seconds in (start, end], relative to NOW."""
    with db.write() as session:
        for number in range(round((end - start) / 10)):
            at = start + 10 * (number + 1)
            stamp = round((NOW + at) * 1000)
            session.add(SampleRaw(series_id=1, at=stamp, value=10.0))
            session.add(SampleRaw(series_id=2, at=stamp, value=(loads or {}).get(at, 0.0)))


def read(db: Database, since: float) -> list[Span]:
    with db.read() as session:
        return spans(session, "server", [7], [NAME], NOW + since, NOW)[7]


class TestSpans:
    @pytest.mark.parametrize("rolled", [False, True])
    def test_days_of_polls_are_one_chain_whatever_table_they_lie_in(self, db: Database, rolled: bool) -> None:
        poll(db, -30 * 3600, 0, {-29 * 3600.0: 3.0, -2 * 3600.0: 2.0, -50.0: 1.0})
        if rolled:
            roll_up(db, NOW)
        found = read(db, -40 * 3600)
        chain = unbroken(found, NAME)
        assert len(chain) == len(found) > 360
        assert total(found, NAME) == 6
        assert chain[0].start == pytest.approx(NOW - 30 * 3600, abs=10)
        assert chain[-1].end == NOW
        assert all(after.start - before.end < 2 for before, after in itertools.pairwise(chain))

    def test_a_hole_within_the_last_hour_ends_the_chain_there(self, db: Database) -> None:
        poll(db, -3000, -600)
        poll(db, -500, 0)
        assert unbroken(read(db, -9000), NAME)[0].start == NOW - 500

    def test_a_bucket_with_a_hole_is_left_out(self, db: Database) -> None:
        poll(db, -7200, -5500)
        poll(db, -5300, 0)
        first = unbroken(read(db, -9000), NAME)[0].start
        assert NOW - 5300 <= first <= NOW - 5000

    def test_a_poll_that_did_not_tell_is_unknown(self, db: Database) -> None:
        poll(db, -100, 0)
        with db.write() as session:
            session.delete(session.get_one(SampleRaw, (2, round((NOW - 50) * 1000))))
        found = read(db, -200)
        assert total(found, NAME) is None
        assert unbroken(found, NAME)[0].start == NOW - 50

    def test_a_server_that_was_never_counted_has_none(self, db: Database) -> None:
        with db.read() as session:
            assert spans(session, "server", [8], [NAME], NOW - 100, NOW) == {8: []}


class TestAbsentCounters:
    """A series appears with its first event, so absent may be zero; an older LMCache has none at all."""

    def text(self, drop: str) -> str:
        lines = capture("server-with-engine/after-traffic.metrics.txt").decode().splitlines()
        return "\n".join(line for line in lines if drop not in line) + "\n"

    def test_both_are_read(self) -> None:
        metrics = server_metrics(parse_metrics(self.text("never"), TEXT))
        assert (_stored_records(metrics), _loaded_records(metrics, 960.0)) == (30, 15)

    def test_hits_from_l2_without_the_counter_are_unknown(self) -> None:
        metrics = server_metrics(parse_metrics(self.text("l2_prefetch_load"), TEXT))
        assert _loaded_records(metrics, 960.0) is None
        assert _loaded_records(metrics, None) is None
        assert _loaded_records(metrics, 0.0) == 0.0

    def test_writes_to_l1_without_the_counter_are_unknown(self) -> None:
        metrics = server_metrics(parse_metrics(self.text("l2_store_"), TEXT))
        assert _stored_records(metrics) is None

    def test_before_any_traffic_nothing_was_stored(self) -> None:
        metrics = server_metrics(parse_metrics(capture("server-idle/metrics.txt").decode(), TEXT))
        assert _stored_records(metrics) == 0.0
