"""What the store's page says after a change of layout, and of each layout; a record's past; whose an epoch is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.clock import iso
from app.fleet.schemas import L2View
from app.records.filters import RecordFilter
from app.records.safe_choices import adapter_flag, new_directory
from app.records.schemas import EpochInput, RecordDetail
from app.records.summary import growth_error, growth_per_hour
from tests.unit.records.room import Room
from tests.unit.records.world import LAYOUTS


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    made = Room(tmp_path)
    yield made
    made.close()


def detail(room: Room, name: str) -> RecordDetail:
    page = room.records.list_records(1, RecordFilter(), order="name", page_size=500, page_token=None)
    return room.records.get_record(next(item.id for item in page.items if item.name == name))


class TestSafeChoices:
    def test_a_change_over_records_offers_both_ways(self, room: Room) -> None:
        room.changed_layout()
        for number in range(3):
            room.record(number, age=5000 + number)
        room.record(9, age=100)
        before = room.records.epochs(1).choices
        assert [choice.records for choice in before] == [None]  # not scanned: not zero
        room.scan()
        (choice,) = room.records.epochs(1).choices
        live = LAYOUTS[1].fingerprint
        assert (choice.model_name, choice.fingerprint, choice.records, choice.bytes) == (
            LAYOUTS[1].model_name,
            live,
            3,
            3 * 32768,
        )
        assert choice.new_directory == f"{room.root.parent}/tiny-{live}"
        assert choice.flag == f'--l2-adapter \'{{"type": "fs", "base_path": "{choice.new_directory}"}}\''

    def test_none_without_records_of_the_old_layout(self, room: Room) -> None:
        room.changed_layout()
        room.record(9, age=100)
        room.scan()
        assert room.records.epochs(1).choices == []

    def test_none_without_a_change(self, room: Room) -> None:
        room.polls(-1000, -1, {"c1": LAYOUTS[0]}, engine_ids=("c1",))
        room.record(1, age=100)
        room.scan()
        assert room.records.epochs(1).choices == []

    def test_the_flag_keeps_what_is_known_of_the_adapter_and_a_quote_ends_nothing(self) -> None:
        adapter = L2View(
            adapter="fs_native",
            base_path="/kv",
            relative_tmp_dir=".tmp",
            usage_bytes=None,
            max_capacity_bytes=None,
            evicts=None,
            store_id=None,
        )
        flag = adapter_flag("/it's/here", [adapter])
        assert flag == (
            '--l2-adapter \'{"type": "fs_native", "base_path": "/it\\u0027s/here", "relative_tmp_dir": ".tmp"}\''
        )

    def test_a_directory_that_ends_in_a_fingerprint_gets_a_neighbour(self) -> None:
        assert new_directory("/kv/tiny-0123456789abcdef/", "/models/tiny", "f" * 16) == f"/kv/tiny-{'f' * 16}"
        assert new_directory("/kv", "m", "f" * 16) == f"/m-{'f' * 16}"


class TestEpochs:
    def test_mean_record_against_the_layout_first_and_last_written(self, room: Room) -> None:
        room.changed_layout()
        room.record(1, age=5000)
        room.record(2, age=4000, size=16384)
        room.record(3, age=100)
        room.scan()
        live, old = room.records.epochs(1).items
        assert (old.records, old.bytes, old.mean_record_bytes) == (2, 49152, 24576)
        assert old.layout_record_bytes == [32768]
        assert (old.first_written_at, old.last_written_at) != (None, None)
        assert (old.first_written_at or "") < (old.last_written_at or "") < (live.first_written_at or "")
        assert live.first_written_at == live.last_written_at

    def test_before_a_scan_nothing_is_a_number(self, room: Room) -> None:
        room.changed_layout()
        assert {(e.records, e.bytes, e.mean_record_bytes) for e in room.records.epochs(1).items} == {(None, None, None)}

    def test_times_nobody_watched_are_told(self, room: Room) -> None:
        """Before the first poll, and a gap after which the server was another process; closed gaps are none."""
        room.polls(-9_000, -8_000, {"c1": LAYOUTS[0]}, engine_ids=("c1",))
        room.polls(-7_000, -6_000, {"c1": LAYOUTS[0]}, engine_ids=("c1",))  # the same process: closed
        room.polls(-4_000, -1, {"c2": LAYOUTS[0]}, instance="i2", boot=-4_500.0, engine_ids=("c2",))
        found = room.records.epochs(1).unwatched
        assert [(gap.kind, gap.server_name, gap.from_at is None) for gap in found] == [
            ("gap", "s1", False),
            ("before", "s1", True),
        ]
        assert (found[0].from_at, found[0].until) == (iso(room.base - 6_000), iso(room.base - 4_000))
        assert found[1].until == iso(room.base - 9_000)

    def test_two_models_with_one_fingerprint_have_epochs_of_their_own(self, room: Room) -> None:
        other = replace(LAYOUTS[0], model_name="/models/other")
        assert other.fingerprint == LAYOUTS[0].fingerprint
        room.polls(-1000, -1, {"c1": LAYOUTS[0], "c2": other}, engine_ids=("c1", "c2"))
        mine, theirs = room.record(1, age=100), room.record(2, age=100, model="/models/other")
        room.scan()
        models = {epoch.id: epoch.model_name for epoch in room.records.epochs(1).items}
        found = {name: detail(room, name).epoch_id or "" for name in (mine, theirs)}
        assert [models[found[name]] for name in (mine, theirs)] == [LAYOUTS[0].model_name, "/models/other"]
        for name in (mine, theirs):
            where = RecordFilter(epoch_id=int(found[name]))
            page = room.records.list_records(1, where, order="name", page_size=10, page_token=None)
            assert [item.name for item in page.items] == [name]


class TestPast:
    def test_written_found_and_what_came_since(self, room: Room) -> None:
        room.changed_layout()
        name = room.record(1, age=5000)
        room.clock.now += 5  # the file's own times are of the real clock
        room.scan()
        body = EpochInput(kind="declare", reason="new weights", model_name=None, effective_at=None)
        room.records.add_epoch(1, body, actor="ann")
        found = detail(room, name)
        words = [event.what for event in found.past]
        assert words[0] == "written"
        assert found.past[0].detail == "by bfloat16, chunk 64"
        assert {"another layout began", "found", "a generation was declared"} <= set(words)
        change = next(event for event in found.past if event.what == "another layout began")
        assert "dtype bfloat16 → float16 (decides bytes)" in change.detail
        said = next(event for event in found.past if event.what == "a generation was declared")
        assert (said.detail, said.source) == ("new weights", "ann")
        assert [event.at for event in found.past] == sorted(event.at for event in found.past)

    def test_sizes_seen_are_of_its_kind(self, room: Room) -> None:
        room.polls(-1000, -1, {"c1": LAYOUTS[0]}, engine_ids=("c1",))
        names = [room.record(number, age=100) for number in range(3)]
        room.record(8, age=100, size=5)
        room.record(9, age=100, size=7, model="/models/other")
        room.scan()
        seen = [(item.size_bytes, item.records) for item in detail(room, names[0]).sizes_seen]
        assert seen == [(32768, 3), (5, 1)]


class TestGrowth:
    def test_on_a_line_there_is_no_doubt_and_beside_it_there_is(self) -> None:
        line = [(3600.0 * hour, 100.0 * hour) for hour in range(5)]
        assert growth_error(line) == pytest.approx(0.0, abs=1e-6)
        bent = [*line[:-1], (3600.0 * 4, 900.0)]
        growth, error = growth_per_hour(bent)[0], growth_error(bent)
        assert growth is not None
        assert error is not None
        assert error > 0.1 * growth

    def test_two_scans_tell_none(self) -> None:
        assert growth_error([(0.0, 1.0), (3600.0, 2.0)]) is None
