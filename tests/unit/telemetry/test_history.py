"""Samples: steps, tables, gaps, exact ratios; roll-ups and retention."""

from __future__ import annotations

import math
import random

import pytest
from sqlalchemy import func, select

from app.database import insert_ignore
from app.errors import InvalidInput
from app.telemetry import rollup
from app.telemetry.history import plan, spread
from app.telemetry.metrics import CATALOGUE, INCREMENTS
from app.telemetry.schemas import SamplesView
from app.telemetry.tables import RollUpMark, Sample1h, Sample5m, SampleRaw, Series
from app.telemetry.window_sums import sums
from tests.unit.telemetry.support import Bench

T0 = 1_795_964_400.0  # a whole hour


def put(bench: Bench, metric: str, points: list[tuple[float, float]], kind: str = "server", ident: int = 1) -> None:
    with bench.db.write() as session:
        table = Series.__table__
        insert_ignore(session, table, [{"target_kind": kind, "target_id": ident, "metric": metric}])  # type: ignore[arg-type]
        series = session.scalar(
            select(Series.id).where(Series.target_kind == kind, Series.target_id == ident, Series.metric == metric)
        )
        rows = [{"series_id": series, "at": round(at * 1000), "value": value} for at, value in points]
        insert_ignore(session, SampleRaw.__table__, rows)  # type: ignore[arg-type]


def count(bench: Bench, table: type[SampleRaw] | type[Sample5m] | type[Sample1h]) -> int:
    with bench.db.read() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


class TestPlan:
    def ask(self, name: str = "l1_used_bytes", **more: float | None) -> object:
        given = {"start": None, "end": None, "step": None, **more}
        return plan("server", name, now=T0, interval=10.0, **given)  # type: ignore[arg-type]

    def test_an_hour_comes_as_polled_a_ratio_by_the_minute(self) -> None:
        assert plan("server", "l1_used_bytes", start=None, end=None, step=None, now=T0, interval=10).step == 0
        assert plan("server", "hit_rate", start=None, end=None, step=None, now=T0, interval=10).step == 60

    @pytest.mark.parametrize(
        ("days", "step", "source"), [(1, 300.0, "5m"), (7, 3600.0, "1h"), (60, 21600.0, "1h"), (0.2, 60.0, "raw")]
    )
    def test_longer_spans_take_wider_steps(self, days: float, step: float, source: str) -> None:
        request = plan("server", "up", start=T0 - days * 86400, end=T0, step=None, now=T0, interval=10)
        assert (request.step, request.source) == (step, source)

    def test_what_is_older_than_the_raw_data_is_not_asked_of_it(self) -> None:
        request = plan("server", "up", start=T0 - 3 * 86400, end=T0 - 3 * 86400 + 60, step=10, now=T0, interval=10)
        assert (request.step, request.source) == (300, "5m")

    @pytest.mark.parametrize(
        ("name", "more", "field"),
        [
            ("no_such", {}, "metric"),
            ("running", {}, "metric"),
            ("up", {"start": T0, "end": T0 - 5}, "from"),
            ("up", {"step": 0.0}, "step"),
            ("up", {"step": math.nan}, "step"),
            ("up", {"start": T0 - 40 * 3600, "step": 10.0}, "step"),
        ],
    )
    def test_bad_input_names_the_field(self, name: str, more: dict[str, float], field: str) -> None:
        with pytest.raises(InvalidInput) as caught:
            self.ask(name, **more)
        assert caught.value.errors[0].field == field

    def test_the_contract_lists_these(self) -> None:
        wanted = """l1_used_bytes l1_usage_ratio hit_rate l1_hit_rate l2_hit_rate l2_usage_bytes
            l1_evicted_per_second l2_store_bytes_per_second up"""
        for name in wanted.split():
            assert name in CATALOGUE["server"]
        assert "interval_seconds" in INCREMENTS
        assert "l1_used_bytes" not in INCREMENTS


class TestPoints:
    def values(self, bench: Bench, metric: str, **more: float) -> list[tuple[str, float | None]]:
        return bench.telemetry.samples("server", 1, metric, **more).points  # type: ignore[arg-type]

    def test_raw_points_with_gaps_as_null(self, bench: Bench) -> None:
        bench.clock.now = T0 + 100
        put(bench, "l1_used_bytes", [(T0, 1.0), (T0 + 10, 2.0), (T0 + 60, 3.0), (T0 + 70, 4.0)])
        assert self.values(bench, "l1_used_bytes") == [
            ("2026-11-29T15:00:00.000Z", 1.0),
            ("2026-11-29T15:00:10.000Z", 2.0),
            ("2026-11-29T15:00:20.000Z", None),
            ("2026-11-29T15:01:00.000Z", 3.0),
            ("2026-11-29T15:01:10.000Z", 4.0),
        ]

    def test_points_polled_at_a_longer_interval_have_no_gaps(self, bench: Bench) -> None:
        bench.clock.now = T0 + 600
        put(
            bench,
            "l1_used_bytes",
            [(T0 + 60 * n, 1.0) for n in range(5)] + [(T0 + 250 + 10 * n, 2.0) for n in range(5)],
        )
        assert None not in [value for _, value in self.values(bench, "l1_used_bytes")]

    def test_buckets_are_means_ratios_are_sums_by_sums(self, bench: Bench) -> None:
        bench.clock.now = T0 + 180
        put(bench, "l1_used_bytes", [(T0 + 5, 10.0), (T0 + 15, 20.0), (T0 + 65, 40.0)])
        put(bench, "up", [(T0 + 5, 1.0), (T0 + 15, 0.0)])
        put(bench, "requested_tokens", [(T0 + 5, 1000.0), (T0 + 15, 0.0), (T0 + 65, 0.0)])
        put(bench, "hit_tokens", [(T0 + 5, 300.0), (T0 + 15, 0.0), (T0 + 65, 0.0)])
        put(bench, "interval_seconds", [(T0 + 5, 10.0), (T0 + 15, 10.0), (T0 + 65, 10.0)])
        span = {"start": T0, "end": T0 + 180, "step": 60.0}
        assert [v for _, v in self.values(bench, "l1_used_bytes", **span)] == [15.0, 40.0, None]
        assert [v for _, v in self.values(bench, "up", **span)] == [0.0, None, None]
        assert [v for _, v in self.values(bench, "hit_rate", **span)] == [0.3, None, None]
        assert [v for _, v in self.values(bench, "requested_tokens_per_second", **span)] == [50.0, 0.0, None]
        assert [t for t, _ in self.values(bench, "up", **span)] == [
            "2026-11-29T15:00:00.000Z",
            "2026-11-29T15:01:00.000Z",
            "2026-11-29T15:02:00.000Z",
        ]

    def test_a_bucket_half_of_which_is_unknown_has_no_ratio(self, bench: Bench) -> None:
        bench.clock.now = T0 + 60
        put(bench, "requested_tokens", [(T0 + 10 * n, 100.0) for n in range(6)])
        put(bench, "l1_hit_tokens", [(T0 + 10 * n, 50.0) for n in range(3)])
        assert [v for _, v in self.values(bench, "l1_hit_rate", start=T0, end=T0 + 60, step=60.0)] == [None]

    def test_a_metric_never_sampled(self, bench: Bench) -> None:
        bench.clock.now = T0
        assert self.values(bench, "l2_usage_bytes") == []
        assert [v for _, v in self.values(bench, "hit_rate", start=T0 - 120, end=T0)] == [None, None]

    def test_sparkline(self, bench: Bench) -> None:
        bench.clock.now = T0 + 3600
        put(bench, "l1_usage_ratio", [(T0 + 10 * n, n / 360) for n in range(180)])
        line = bench.telemetry.sparklines("server", [1], ["l1_usage_ratio"])[0][1]
        assert len(line) == 60
        assert line[0] == pytest.approx(2.5 / 360)
        assert None not in line[:30]
        assert set(line[30:]) == {None}

    @pytest.mark.parametrize("points", [1, 60, 360])  # five-minute buckets, raw buckets, raw points
    def test_sparklines_of_many_are_those_of_each(self, bench: Bench, points: int) -> None:
        bench.clock.now = T0 + 3600
        for ident in (1, 2):
            for number, name in enumerate(("requested_tokens", "hit_tokens", "interval_seconds", "l1_used_bytes")):
                if (ident, name) != (2, "l1_used_bytes"):
                    put(bench, name, [(T0 + 10 * n, 10.0 + (n * number) % 7 + ident) for n in range(360)], ident=ident)
        metrics = ["hit_rate", "requested_tokens_per_second", "l1_used_bytes", "cpu_cores"]
        together = bench.telemetry.sparklines("server", [1, 2, 3], metrics, points=points)
        alone = [
            {i: bench.telemetry.sparklines("server", [i], [name], points=points)[0][i] for i in (1, 2, 3)}
            for name in metrics
        ]
        assert together == alone
        assert together[0][1][0] is not None and set(together[2][2]) == set(together[3][1]) == {None}
        for name, lines in zip(metrics, together, strict=True):
            if points == 60:
                read = bench.telemetry.samples("server", 1, name, start=T0, end=T0 + 3600, step=60.0).points
                assert lines[1] == [value for _, value in read]

    def test_spread_takes_the_mean_of_what_falls_together(self) -> None:
        assert spread([(0.0, 1.0), (1.0, 3.0), (5.0, None), (9.9, 7.0), (10.0, 9.0)], 0.0, 10.0, 2) == [2.0, 7.0]


class TestRollUp:
    def fill(self, bench: Bench, hours: float, seed: int = 3) -> list[tuple[float, float]]:
        rng = random.Random(seed)
        points = [(T0 + 10 * n, rng.uniform(0, 100)) for n in range(int(hours * 360))]
        put(bench, "l1_used_bytes", points)
        return points

    def test_buckets_keep_count_sum_min_max_last(self, bench: Bench) -> None:
        points = self.fill(bench, 2.5)
        bench.clock.now = T0 + 2.5 * 3600 + 60
        written = bench.telemetry.roll_up()
        assert (written, count(bench, Sample5m), count(bench, Sample1h)) == (32, 30, 2)
        assert bench.telemetry.roll_up() == 0
        for table, width in ((Sample5m, 300), (Sample1h, 3600)):
            with bench.db.read() as session:
                for row in session.scalars(select(table)):
                    inside = [v for t, v in points if row.at / 1000 <= t < row.at / 1000 + width]
                    assert row.count == len(inside)
                    assert row.sum == pytest.approx(math.fsum(inside))
                    assert (row.min, row.max, row.last) == (min(inside), max(inside), inside[-1])

    def test_goes_on_from_its_mark_and_leaves_the_unfinished_bucket(self, bench: Bench) -> None:
        points = self.fill(bench, 1)
        bench.clock.now = T0 + 1000
        bench.telemetry.roll_up()
        with bench.db.read() as session:
            assert rollup.marks(session) == {"5m": round(T0 + 900) * 1000, "1h": round(T0) * 1000}
        bench.clock.now = T0 + 3700
        bench.telemetry.roll_up()
        with bench.db.read() as session:
            assert session.scalar(select(func.sum(Sample5m.count))) == len(points)
            assert session.scalar(select(Sample1h.sum)) == pytest.approx(math.fsum(v for _, v in points))

    def test_an_empty_database(self, bench: Bench) -> None:
        assert bench.telemetry.roll_up() == 0
        assert bench.telemetry.retire() is False

    def test_charts_are_the_same_whatever_table_they_come_from(self, bench: Bench) -> None:
        points = self.fill(bench, 5)
        bench.clock.now = T0 + 5 * 3600
        span = {"start": T0, "end": T0 + 5 * 3600}
        before = {
            step: bench.telemetry.samples("server", 1, "l1_used_bytes", step=step, **span) for step in (300, 3600)
        }
        bench.telemetry.roll_up()
        for step, raw in before.items():
            rolled = bench.telemetry.samples("server", 1, "l1_used_bytes", step=step, **span)
            assert [t for t, _ in rolled.points] == [t for t, _ in raw.points]
            assert [v for _, v in rolled.points] == pytest.approx([v for _, v in raw.points])
            assert None not in [v for _, v in rolled.points]  # the newest come from the raw table
        inside = [v for t, v in points if T0 <= t < T0 + 3600]
        assert before[3600].points[0][1] == pytest.approx(sum(inside) / len(inside))

    def test_token_sums_over_long_windows_are_exact(self, bench: Bench) -> None:
        put(bench, "local_tokens", [(T0 + 10 * n, 7.0) for n in range(8 * 360)], kind="engine")
        bench.clock.now = T0 + 8 * 3600
        bench.telemetry.roll_up()
        with bench.db.read() as session:
            now = bench.clock.now
            found = sums(session, "engine", [1], ("local_tokens",), now - 8 * 3600, now, now)
        assert found[1]["local_tokens"] == 7.0 * 8 * 360

    def test_what_was_lately_ends_now_and_not_at_a_border(self, bench: Bench) -> None:
        now = T0 + 7 * 60 + 3
        polls = [T0 + 10 * n for n in range(43)]
        for ident in (1, 2):
            put(
                bench, "l1_written_chunks", [(at, 20.0 * ident if at > now - 300 else 9e9) for at in polls], ident=ident
            )
            put(bench, "interval_seconds", [(at, 10.0) for at in polls], ident=ident)
        put(bench, "interval_seconds", [(at, 10.0) for at in polls], ident=3)
        bench.clock.now = now
        metrics = ("l1_written_per_second", "l1_evicted_per_second")
        stored, evicted = bench.telemetry.lately("server", [1, 2, 3, 4], metrics, seconds=300.0)
        assert stored == {1: 2.0, 2: 4.0, 3: None}
        assert evicted == {1: None, 2: None, 3: None}


class TestRetention:
    def test_drops_in_batches_what_is_rolled_up_and_old(self, bench: Bench) -> None:
        put(bench, "up", [(T0 + 10 * n, 1.0) for n in range(360)])
        put(bench, "l1_used_bytes", [(T0 + 10 * n, 1.0) for n in range(360)])
        bench.clock.now = T0 + 72 * 3600
        assert rollup.retire(bench.db, bench.clock.now) is False
        assert count(bench, SampleRaw) == 720  # nothing goes before it is rolled up
        bench.telemetry.roll_up()
        rounds = 0
        while rollup.retire(bench.db, bench.clock.now, rows=100):
            rounds += 1
        assert rounds >= 7
        assert (count(bench, SampleRaw), count(bench, Sample5m), count(bench, Sample1h)) == (0, 24, 2)

    def test_each_table_has_its_own_age(self, bench: Bench) -> None:
        put(bench, "up", [(T0 + 10 * n, 1.0) for n in range(360)])
        bench.clock.now = T0 + 7200
        bench.telemetry.roll_up()
        bench.clock.now = T0 + 31 * 86400
        bench.telemetry.roll_up()
        bench.telemetry.retire()
        assert (count(bench, SampleRaw), count(bench, Sample5m), count(bench, Sample1h)) == (0, 0, 1)
        bench.clock.now = T0 + 731 * 86400
        bench.telemetry.retire()
        assert count(bench, Sample1h) == 0

    def test_fresh_raw_samples_stay(self, bench: Bench) -> None:
        put(bench, "up", [(T0 + 10 * n, 1.0) for n in range(360)])
        bench.clock.now = T0 + 47 * 3600
        bench.telemetry.roll_up()
        bench.telemetry.retire()
        assert count(bench, SampleRaw) == 360
        with bench.db.read() as session:
            assert session.get_one(RollUpMark, "5m").until == round(T0 + 47 * 3600 - 300) * 1000


class TestExtremes:
    def samples(self, bench: Bench, metric: str, **more: float) -> SamplesView:
        return bench.telemetry.samples("server", 1, metric, start=T0, end=T0 + 300, step=300.0, **more)

    def test_a_spike_of_a_rate_survives_its_mean(self, bench: Bench) -> None:
        bench.clock.now = T0 + 400
        times = [T0 + 10 * n for n in range(30)]
        put(bench, "interval_seconds", [(at, 10.0) for at in times])
        put(bench, "l1_evicted_chunks", [(at, 900.0 if n == 4 else 0.0) for n, at in enumerate(times)])
        view = self.samples(bench, "l1_evicted_per_second")
        assert view.rows() == [((view.points[0][0], pytest.approx(3.0)), 0.0, pytest.approx(90.0))]
        # The same after the raw rows are gone.
        rollup.roll_up(bench.db, T0 + 400)
        assert self.samples(bench, "l1_evicted_per_second").highest == [pytest.approx(90.0)]

    def test_what_came_over_a_long_interval_is_not_taken_for_a_spike(self, bench: Bench) -> None:
        bench.clock.now = T0 + 400
        put(bench, "interval_seconds", [(T0 + 10, 10.0), (T0 + 200, 190.0)])
        put(bench, "l1_evicted_chunks", [(T0 + 10, 10.0), (T0 + 200, 190.0)])
        view = self.samples(bench, "l1_evicted_per_second")
        assert (view.lowest, view.highest) == ([1.0], [1.0])

    def test_of_a_ratio_and_of_what_is_shown_as_polled_there_are_none(self, bench: Bench) -> None:
        bench.clock.now = T0 + 400
        put(bench, "hit_tokens", [(T0 + 10, 5.0)])
        put(bench, "requested_tokens", [(T0 + 10, 10.0)])
        put(bench, "l1_used_bytes", [(T0 + 10, 5.0)])
        assert self.samples(bench, "hit_rate").lowest is None
        raw = bench.telemetry.samples("server", 1, "l1_used_bytes", start=T0, end=T0 + 300)
        assert (raw.lowest, [low for _, low, _ in raw.rows()]) == (None, [None])
