"""Written against read back, what was never read, and records per request: from counters, with unknown never zero."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from app.fleet.tables import Engine
from app.records import traffic
from app.records.traffic import Bounds
from app.records.traffic_views import Factors, request_records, sentence
from app.telemetry.counted import Span
from app.telemetry.tables import SampleRaw, Series
from tests.unit.records.room import POLL, Room
from tests.unit.records.world import LAYOUTS

NAMES = ("l2_stored_records", "l2_loaded_records", "l2_store_bytes")
REQUESTS = ("requests_finished", "prompt_tokens_finished", "generated_tokens_finished", "recomputed_tokens")


def server(*values: tuple[float | None, float | None], start: float = 1000.0) -> list[Span]:
    """Polls of ten seconds: (stored, loaded)."""
    return [
        Span(
            start + 10 * n,
            start + 10 * n + 10,
            {"l2_stored_records": stored, "l2_loaded_records": loaded, "l2_store_bytes": None},
        )
        for n, (stored, loaded) in enumerate(values)
    ]


def engine(*values: tuple[float, float, float]) -> list[Span]:
    return [
        Span(
            1000.0 + 10 * n,
            1010.0 + 10 * n,
            dict(zip(REQUESTS, (*value, value[1]), strict=True)),
        )
        for n, value in enumerate(values)
    ]


class TestFlow:
    def test_servers_of_one_store_are_summed(self) -> None:
        found = traffic.flow({1: server((5, 0), (3, 2)), 2: server((1, 1))})
        assert (found.stored, found.loaded, found.stored_bytes) == (9, 3, None)
        assert (found.start, found.end, found.covered) == (1000.0, 1020.0, 10.0)

    def test_a_server_that_does_not_count_makes_the_sum_unknown(self) -> None:
        found = traffic.flow({1: server((5, 1)), 2: server((None, None))})
        assert (found.stored, found.loaded) == (None, None)

    def test_a_counter_that_came_later_counts_from_then_on(self) -> None:
        assert traffic.flow({1: server((None, None), (4, 0))}).stored == 4

    def test_never_polled_is_unknown(self) -> None:
        found = traffic.flow({1: []})
        assert (found.start, found.stored, found.loaded) == (None, None, None)


class TestQuiet:
    def test_all_reads_since_the_last_hole_are_counted(self) -> None:
        spans = [*server((1, 9)), *server((1, 0), (0, 4), (0, 0), start=2000.0)]
        assert traffic.quiet({1: spans}, 2031.0, 35.0) == traffic.Quiet(since=2000.0, loads=4, last_load=2020.0)

    def test_all_servers_are_needed_from_the_latest_beginning_on(self) -> None:
        found = traffic.quiet({1: server((0, 3), (0, 0), (0, 2)), 2: server((0, 0), (0, 0), start=1010.0)}, 1031.0, 35)
        assert found == traffic.Quiet(since=1010.0, loads=2, last_load=1030.0)

    def test_without_a_read_the_last_one_is_the_beginning(self) -> None:
        assert traffic.quiet({1: server((1, 0), (1, 0))}, 1021.0, 35.0) == traffic.Quiet(1000.0, 0, 1000.0)

    @pytest.mark.parametrize(
        ("servers", "now"),
        [({}, 1010.0), ({1: []}, 1010.0), ({1: server((1, None))}, 1010.0), ({1: server((1, 0))}, 1100.0)],
    )
    def test_what_cannot_be_known_says_why(self, servers: Mapping[int, list[Span]], now: float) -> None:
        assert isinstance(traffic.quiet(servers, now, 35.0), str)


class TestRequests:
    def test_one_request_at_a_time_is_exact(self) -> None:
        found = traffic.requests({1: engine((1, 1000, 30), (0, 0, 0), (1, 63, 1))}, 64, 1000.0, 1030.0)
        assert found is not None
        assert (found.requests, found.prompt_tokens, found.computed_tokens) == (2, 1063, 1063)
        assert found.prompt_chunks == Bounds(15, 15)  # ⌊1000/64⌋ + ⌊63/64⌋
        assert found.output_chunks == Bounds(2, 2)  # 1030 = 16 × 64 + 6, and 64 = 1 × 64

    def test_several_at_once_are_bounded(self) -> None:
        assert traffic.whole_chunks(100, 2, 64) == Bounds(0, 1)
        assert traffic.whole_chunks(128, 2, 64) == Bounds(1, 2)
        assert traffic.more_chunks(100, 10, 2, 64) == Bounds(0, 2)
        assert traffic.more_chunks(100, 1, 2, 64) == Bounds(0, 1)

    @pytest.mark.parametrize("lengths", [[64, 64], [63, 65], [1, 127], [640, 3, 200], [10, 10, 10, 10]])
    def test_the_bounds_hold(self, lengths: list[int]) -> None:
        bounds = traffic.whole_chunks(sum(lengths), len(lengths), 64)
        assert bounds.least <= sum(length // 64 for length in lengths) <= bounds.most
        outputs = [length // 2 for length in lengths]
        more = traffic.more_chunks(sum(lengths), sum(outputs), len(lengths), 64)
        true = sum((p + o) // 64 - p // 64 for p, o in zip(lengths, outputs, strict=True))
        assert more.least <= true <= more.most

    def test_an_engine_without_the_counters_tells_nothing(self) -> None:
        silent = [Span(1000, 1010, dict.fromkeys(REQUESTS))]
        assert traffic.requests({1: silent}, 64, 1000.0, 1010.0) is None

    def test_groups_and_ranks_multiply(self) -> None:
        told = traffic.requests({1: engine((1, 640, 0))}, 64, 1000.0, 1010.0)
        view = request_records(told, Factors(64, 2, 4), traffic.flow({1: server((80, 0))}), "", None)
        assert (view.expected_prompt_records, view.expected_output_records) == ([80, 80], [0, 0])
        assert (view.stored_records, view.stored_per_request, view.state) == (80, 80.0, "value")

    def test_what_was_stored_is_unknown_where_a_server_has_other_stores(self) -> None:
        told = traffic.requests({1: engine((1, 640, 0))}, 64, 1000.0, 1010.0)
        view = request_records(told, Factors(64, 1, 1), traffic.flow({1: server((80, 0))}), "shared", None)
        assert (view.state, view.stored_records, view.reason) == ("unknown", None, "shared")

    def test_the_sentence(self) -> None:
        assert "more than" in (sentence(11, Bounds(5, 10)) or "")
        assert "as many" in (sentence(7, Bounds(5, 10)) or "")
        assert "fewer" in (sentence(1, Bounds(5, 10)) or "")
        assert sentence(None, Bounds(5, 10)) is None


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    made = Room(tmp_path)
    yield made
    made.close()


def count(room: Room, kind: str, first: int, values: Mapping[str, Mapping[float, float]]) -> None:
    """Increments at polls, by series and time relative to `base`."""
    with room.db.write() as session:
        for number, (metric, points) in enumerate(values.items()):
            session.add(Series(id=first + number, target_kind=kind, target_id=1, metric=metric))
            session.flush()
            for at, value in points.items():
                session.add(SampleRaw(series_id=first + number, at=round((room.base + at) * 1000), value=value))


class TestStore:
    def test_before_any_poll_nothing_is_a_number(self, room: Room) -> None:
        view = room.records.traffic.view(1)
        assert (view.read_back.state, view.never_read.state, view.requests.state) == ("unknown",) * 3
        assert view.read_back.written_records is None
        assert view.requests.reason == "no engine of its servers is registered in the panel"

    def test_counters_beside_the_records_on_the_disk(self, room: Room) -> None:
        with room.db.write() as session:
            session.add(Engine(id=1, name="e1", url="http://e:1", server_id=1, created_at=0, health_since=0))
        room.polls(-1000, -1, {"c1": LAYOUTS[0]}, engine_ids=("c1",))
        for number in range(4):
            room.record(number, age=200 + number)  # while polls went on
        room.record(9, age=900)  # before them
        polls = [-500 + POLL * n for n in range(51)]
        loads = dict.fromkeys(polls, 0.0) | {-100: 3.0}
        chunk = LAYOUTS[0].chunk_size or 0
        count(
            room,
            "server",
            50,
            {
                "interval_seconds": dict.fromkeys(polls, POLL),
                "l2_stored_records": dict.fromkeys(polls, 0.0) | {-200: 4.0},
                "l2_loaded_records": loads,
                "l2_store_bytes": dict.fromkeys(polls, 0.0) | {-200: 4 * 32768.0},
            },
        )
        count(
            room,
            "engine",
            70,
            {
                "interval_seconds": dict.fromkeys(polls, POLL),
                "requests_finished": dict.fromkeys(polls, 0.0) | {-200: 1.0},
                "prompt_tokens_finished": dict.fromkeys(polls, 0.0) | {-200: 4.0 * chunk + 1},
                "generated_tokens_finished": dict.fromkeys(polls, 0.0) | {-200: 2.0},
                "recomputed_tokens": dict.fromkeys(polls, 0.0),
            },
        )
        room.scan()
        view = room.records.traffic.view(1)
        back = view.read_back
        assert (back.written_records, back.written_bytes, back.read_records) == (4, 4 * 32768, 3)
        assert (back.read_bytes, back.reads_per_record, back.written_estimated) == (3 * 32768, 0.75, False)
        assert back.read_bytes_bounds == [3 * 32768, 3 * 32768]
        assert "32.8 kB, the mean of those on the disk at the last scan. All of them have" in (
            back.read_bytes_note or ""
        )
        # Three reads can have met three of the four at most.
        assert (view.never_read.written_records, view.never_read.at_least_records) == (4, 1)
        asked = view.requests
        assert (asked.expected_prompt_records, asked.expected_output_records) == ([4, 4], [0, 0])
        assert (asked.stored_records, asked.requests, asked.state) == (4, 1, "value")

    def test_bytes_read_back_are_an_estimate_between_two_bounds(self, room: Room) -> None:
        """LMCache counts the records it reads, and no byte of them."""
        room.polls(-1000, -1, {"c1": LAYOUTS[0]}, engine_ids=("c1",))
        for number, size in enumerate((10_000, 30_000, 50_000)):
            room.record(number, age=200, size=size)
        polls = [-500 + POLL * n for n in range(51)]
        counted = {
            "interval_seconds": dict.fromkeys(polls, POLL),
            "l2_stored_records": dict.fromkeys(polls, 0.0) | {-200: 3.0},
            "l2_loaded_records": dict.fromkeys(polls, 0.0) | {-100: 4.0},
        }
        count(room, "server", 50, counted)
        room.scan()
        back = room.records.traffic.view(1).read_back
        assert (back.read_bytes, back.read_bytes_bounds) == (120_000, [40_000, 200_000])
        assert (back.written_bytes, back.written_estimated) == (90_000, True)
        note = back.read_bytes_note or ""
        assert note.startswith("an estimate, since LMCache counts records read from L2 and not their bytes")
        assert "If only the smallest were read it is 40.0 kB, if only the largest 200.0 kB" in note

    def test_what_was_looked_at_is_counted_beside_the_pages(self, room: Room) -> None:
        room.polls(-1000, -1, {"c1": LAYOUTS[0]}, engine_ids=("c1",))
        room.record(1, age=200)
        room.scan()
        first = room.records.traffic.view(1)
        room.clock.now += 60
        assert room.records.traffic.view(1).counted_at == first.counted_at
        room.records.count_anew()
        again = room.records.traffic.view(1)
        assert again.counted_at > first.counted_at
        room.clock.now += 700  # nobody looked for ten minutes
        room.records.count_anew()
        assert room.records.traffic._kept == {}
        counted = room.records.traffic.view(1).counted_at
        room.clock.now += 1
        room.scan()
        assert room.records.traffic.view(1).counted_at > counted, "a scan found other records"

    def test_without_a_read_all_that_was_written_since_was_never_read(self, room: Room) -> None:
        room.polls(-1000, -1, {"c1": LAYOUTS[0]}, engine_ids=("c1",))
        room.record(1, age=200)
        polls = [-500 + POLL * n for n in range(51)]
        count(
            room,
            "server",
            50,
            {
                "interval_seconds": dict.fromkeys(polls, POLL),
                "l2_loaded_records": dict.fromkeys(polls, 0.0),
            },
        )
        room.scan()
        view = room.records.traffic.view(1)
        assert (view.never_read.at_least_records, view.never_read.at_least_bytes) == (1, 32768)
        assert view.read_back.written_records is None  # this server does not say
        assert view.read_back.read_records == 0
