"""The service over a real database, directory and inventory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import delete

from app.errors import BadToken, Conflict, InvalidInput, NotFound
from app.fleet.tables import Server, StoreServer
from app.lmcache.layouts import KVLayout
from app.lmcache.object_keys import format_name
from app.records import distribution as distributions
from app.records.bulk import _hex
from app.records.epoch_views import epoch_views
from app.records.facts import CLASSES, FileFact
from app.records.filters import RecordFilter
from app.records.hits import HitMemory, HitSamples
from app.records.inventory_file import Inventory
from app.records.schemas import EpochInput
from app.records.store_dir import StoreDirectory
from app.records.tables import LayoutEpoch, RecordHold
from app.telemetry.tables import Observation, Sample5m, SampleRaw
from tests.unit.records.disk import key
from tests.unit.records.room import Room
from tests.unit.records.world import LAYOUTS, layout

OTHER, CURRENT = ("incompatible", "other_layout"), ("current", None)


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    made = Room(tmp_path)
    yield made
    made.close()


class TestClasses:
    def test_a_changed_dtype_is_found_although_sizes_match(self, room: Room) -> None:
        room.changed_layout()
        room.hits({-at: 0.0 for at in range(0, 3000, 10)})
        old = {room.record(n, 5_000) for n in range(30)}
        new = {room.record(n, 1_000) for n in range(30, 60)}
        between = room.record(60, 1_900)
        room.scan()
        assert room.classes() == {**dict.fromkeys(old, OTHER), **dict.fromkeys(new, CURRENT)} | {
            between: ("unverified", "mixed_layouts")
        }

    def test_what_was_written_while_wrong_records_were_read_is_derived(self, room: Room) -> None:
        room.changed_layout()
        # The first hit after the change comes 1,200 s ago.
        room.hits({-at: (960.0 if at == 1_200 else 0.0) for at in range(0, 3000, 10)})
        room.record(1, 5_000)
        before, after = room.record(2, 1_500), room.record(3, 600)
        room.scan()
        assert (room.classes()[before], room.classes()[after]) == (CURRENT, ("unverified", "derived"))
        room.records.mark_cleared(1, "/models/tiny", None, room.base - 700)
        assert room.classes()[after] == CURRENT

    def test_what_was_written_after_wrong_records_were_put_back_is_derived(self, room: Room) -> None:
        room.changed_layout()
        room.hits({-at: 960.0 for at in range(0, 3000, 10)})
        clean, after = room.record(2, 850), room.record(3, 600)
        room.scan()
        room.records.mark_cleared(1, "/models/tiny", None, room.base - 900)
        assert room.classes() == {clean: CURRENT, after: CURRENT}
        room.records.mark_reopened(1, "/models/tiny", room.base - 800)
        assert room.classes() == {clean: CURRENT, after: ("unverified", "derived")}
        room.records.mark_cleared(1, "/models/tiny", None, room.base - 700)
        assert room.classes() == {clean: CURRENT, after: CURRENT}

    def test_no_counter_counts_as_a_hit(self, room: Room) -> None:
        room.changed_layout()
        new = room.record(2, 600)
        room.scan()
        assert room.classes()[new] == ("unverified", "derived")

    def test_a_new_layout_is_seen_without_a_walk(self, room: Room) -> None:
        room.polls(-10_000, -100, {"c1": LAYOUTS[0]})
        name = room.record(1, 5_000)
        room.scan()
        assert room.classes()[name] == CURRENT
        room.polls(-90, -80, {"c1": LAYOUTS[0], "c2": LAYOUTS[1]})
        room.polls(-40, -1, {"c2": LAYOUTS[1]})
        assert room.classes()[name] == OTHER
        assert room.records.classify_now(1, [_fact(room, name)])[0].reason == "other_layout"
        room.polls(10, 20, {"c2": LAYOUTS[1], "c3": LAYOUTS[0]})
        room.polls(30, 40, {"c3": LAYOUTS[0]})
        room.clock.now = room.base + 41
        assert room.classes()[name] == CURRENT, "a rollback makes the first records good again"

    def test_nothing_is_called_incompatible_while_polls_are_old(self, room: Room) -> None:
        room.changed_layout()
        name = room.record(1, 5_000)
        room.clock.now += 600
        room.scan()
        assert room.classes()[name][0] == "unverified"

    def test_before_the_panel_is_unverified_until_adopted(self, room: Room) -> None:
        room.polls(-1_000, -1, {"c1": LAYOUTS[0]})
        old, new = room.record(1, 5_000), room.record(2, 500)
        room.scan()
        assert room.classes() == {old: ("unverified", "before_first_seen"), new: CURRENT}
        epoch = room.records.add_epoch(1, EpochInput(kind="adopt", reason="same engine all along"), actor="op")
        assert (epoch.kind, epoch.model_name) == ("adopt", "/models/tiny")
        assert room.classes()[old] == CURRENT
        room.records.undo_epoch(1, int(epoch.id), actor="op")
        assert room.classes()[old] == ("unverified", "before_first_seen")

    def test_a_declared_generation(self, room: Room) -> None:
        room.polls(-10_000, -1, {"c1": LAYOUTS[0]}, engine_start=-3_000)
        old, new = room.record(1, 5_000), room.record(2, 500)
        room.hits({-at: 0.0 for at in range(0, 3100, 10)})
        room.scan()
        epoch = room.records.add_epoch(1, EpochInput(kind="declare", model_name="/models/tiny"), actor="op")
        assert epoch.effective_at is not None
        assert room.classes() == {old: ("incompatible", "declared"), new: CURRENT}
        room.records.undo_epoch(1, int(epoch.id), actor="op")
        assert room.classes() == {old: CURRENT, new: CURRENT}

    def test_a_process_start_dates_certainty_back(self, room: Room) -> None:
        room.polls(-1_000, -1, {"c1": LAYOUTS[0]}, boot=-9_000, engine_start=-8_000, engine_ids=("c1",))
        started, earlier = room.record(1, 7_000), room.record(2, 8_500)
        room.scan()
        assert room.classes() == {started: CURRENT, earlier: ("unverified", "before_first_seen")}

    def test_an_engine_id_nobody_accounts_for_dates_nothing_back(self, room: Room) -> None:
        room.polls(-1_000, -1, {"c1": LAYOUTS[0]}, boot=-9_000, engine_start=-8_000, engine_ids=("c1", "gone"))
        name = room.record(1, 7_000)
        room.scan()
        assert room.classes()[name] == ("unverified", "before_first_seen")

    def test_an_upgrade_alone_makes_nothing_incompatible(self, room: Room) -> None:
        old, new = layout(version="0.5.2", shape="NB x BS"), layout(version="0.5.5", shape="NL x NB")
        room.polls(-10_000, -2_000, {"c1": old}, version="0.5.2")
        room.polls(-1_900, -1, {"c2": new}, instance="i2", boot=-1_950, version="0.5.5")
        before, after = room.record(1, 5_000), room.record(2, 1_000)
        room.scan()
        assert room.classes() == {before: ("unverified", "layout_unknown"), after: CURRENT}
        room.records.add_epoch(1, EpochInput(kind="adopt"), actor="op")
        assert room.classes() == {before: CURRENT, after: CURRENT}

    def test_a_truncated_record_among_its_like(self, room: Room) -> None:
        room.polls(-10_000, -1, {"c1": LAYOUTS[0]})
        for number in range(100, 200):
            room.record(number, 5_000)
        short, long_, empty = room.record(50, 500, 10_000), room.record(51, 500, 40_000), room.record(52, 900, 0)
        padded = room.record(53, 500, 32768 + 8)
        room.scan()
        found = room.classes()
        assert (found[short], found[long_], found[empty], found[padded]) == (
            ("corrupt", "short"),
            ("corrupt", "long"),
            ("corrupt", "empty"),
            CURRENT,
        )
        detail = room.records.get_record(_item(room, short).id)
        assert (detail.rule, detail.size_evidence.expected_bytes, detail.size_evidence.records) == ("C6", 32768, 104)
        assert [c.verdict for c in detail.candidates] == ["same"]

    def test_a_forgotten_server_still_speaks_for_what_it_wrote(self, room: Room) -> None:
        with room.db.write() as session:
            session.add(Server(id=2, name="s2", url="http://h:2", created_at=0, health_since=0, health_state="healthy"))
            session.flush()
            session.add(StoreServer(store_id=1, server_id=2))
        room.polls(-10_000, -1, {"c1": LAYOUTS[0]})
        room.polls(-10_000, -1, {"x1": LAYOUTS[1]}, server=2, instance="j1")
        name = room.record(1, 5_000)
        room.scan()
        assert room.classes()[name] == ("unverified", "mixed_layouts")
        assert any("mixed layouts" in alarm for alarm in room.records.summary(1).alarms)
        room.fleet.delete_server(2, actor="op")
        with room.db.read() as session:
            assert {row.server_id for row in session.query(Observation)} == {1}
        assert room.classes()[name] == ("unverified", "mixed_layouts"), "one of the two wrote it, whoever is left"

    def test_two_models_and_what_is_not_served(self, room: Room) -> None:
        room.polls(-10_000, -1, {"c1": LAYOUTS[0]})
        mine, theirs = room.record(1, 5_000), room.record(1, 5_000, model="org/other")
        room.scan()
        assert room.classes() == {mine: CURRENT, theirs: ("unverified", "layout_unknown")}
        days = 8 * 86400
        room.polls(0, days, {"c1": LAYOUTS[0]})
        room.clock.now = room.base + days + 1
        assert room.classes() == {mine: CURRENT, theirs: ("incompatible", "model_not_served")}


class TestInventory:
    def test_a_store_that_was_never_scanned_is_unknown_not_empty(self, room: Room) -> None:
        summary = room.records.summary(1)
        assert (summary.state, summary.records, summary.bytes, summary.by_class) == ("never_scanned", None, None, {})
        assert room.records.scanned_at(1) is None
        assert room.classes() == {}

    def test_summary_counts_by_class_and_model(self, room: Room) -> None:
        room.polls(-10_000, -1, {"c1": LAYOUTS[0]})
        for number in range(3):
            room.record(number, 5_000, 100)
        room.record(9, 5_000, 50, model="org/other")
        (room.root / "README").write_text("hello")
        room.scan()
        summary = room.records.summary(1)
        assert (summary.records, summary.bytes) == (4, 350)
        assert set(summary.by_class) == set(CLASSES)
        assert {cls: (c.records, c.bytes) for cls, c in summary.by_class.items() if c.records} == {
            "current": (3, 300),
            "unverified": (1, 50),
            "foreign": (1, 5),
        }
        assert [(m.model_name, m.records) for m in summary.by_model] == [("/models/tiny", 3), ("org/other", 1)]
        assert summary.filesystem.free_bytes and summary.filesystem.total_bytes
        assert (summary.foreign_examples, summary.growth_reason) == (["README"], "needs two scans")
        assert room.records.growth(1)[0].by_class["total"].records == 4

    def test_growth_leaves_out_what_our_runs_removed(self, room: Room) -> None:
        for number in range(10):
            room.record(number, 5_000, 1_000)
        room.scan()
        room.clock.now += 3600
        for number in range(5):
            (room.root / format_name(key(number))).unlink()
        room.records.removed_by_run(
            1, [(format_name(key(number)).encode(), 32768, None) for number in range(5)], since=room.clock()
        )
        (room.root / format_name(key(5))).unlink()
        for number in range(10, 13):
            room.record(number, 5_000, 1_000)
        room.scan()
        scan = room.records.list_scans(page_size=1, page_token=None, store_id=1).items[0]
        assert (scan.added, scan.vanished, scan.removed_by_runs) == (3, 1, 5)
        summary = room.records.summary(1)
        assert summary.growth_bytes_per_hour == pytest.approx(2_000)
        assert summary.eviction.vanished_records == 1

    def test_distribution_by_age_last_use_and_salt(self, room: Room) -> None:
        day = 86_400.0
        room.record(1, 600.0, 1_000)
        room.record(2, 2 * day, 2_000, salt="tenant-a")
        room.record(3, 2 * day, 3_000, salt="tenant-b")
        room.record(4, 200 * day, 4_000)
        read = room.record(5, 20 * day, 5_000)
        os.utime(room.root / read, (room.base - 7_000, room.base - 20 * day))
        assert room.records.distribution(1) is None
        room.scan()
        found = room.records.distribution(1)
        assert found is not None
        ages = {bucket.from_seconds: (bucket.records, bucket.bytes) for bucket in found.age if bucket.records}
        assert ages == {0: (1, 1_000), day: (2, 5_000), 14 * day: (1, 5_000), 90 * day: (1, 4_000)}
        assert found.last_use is not None
        used = {bucket.from_seconds: bucket.bytes for bucket in found.last_use if bucket.records}
        assert used == {0: 1_000, 3_600: 5_000, day: 5_000, 90 * day: 4_000}
        assert found.never_read is not None
        assert (found.never_read.records, found.never_read.bytes) == (4, 10_000)
        assert (found.unsalted.records, found.unsalted.bytes) == (3, 10_000)
        assert [(s.salt, s.records, s.bytes) for s in found.by_salt] == [("tenant-b", 1, 3_000), ("tenant-a", 1, 2_000)]

    def test_a_distribution_is_counted_by_the_scan_and_again_when_records_leave(
        self, room: Room, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        names = [room.record(number, 600.0 * number, 1_000) for number in range(1, 9)]
        room.scan()
        before = room.records.distribution(1)
        path = next(room.root.parent.rglob("store-1.db"))
        counted: list[str] = []
        count = distributions._counted
        monkeypatch.setattr(distributions, "_counted", lambda *given: counted.append("") or count(*given))
        assert room.records.distribution(1) == before
        room.records.count_anew()
        assert counted == []  # the scan has counted
        room.records.removed_by_run(1, [(names[0].encode(), 1_000, None)], since=room.base)
        after = room.records.distribution(1)
        assert before is not None and after is not None and counted
        assert (sum(b.records for b in before.age), sum(b.records for b in after.age)) == (8, 7)
        # A large store is not counted while somebody waits: the page shows the scan's counts until the next job.
        monkeypatch.setattr(distributions, "COUNTED_AT_ONCE", 3)
        assert room.records.distribution(1) == before
        room.records.count_anew()
        assert room.records.distribution(1) == after
        with Inventory.require(path) as inventory:
            assert not distributions.keep_counts(inventory)
            inventory.set_meta(distribution="{}")
        assert room.records.distribution(1) == after  # what is kept cannot be read: counted

    def test_distribution_counts_mixed_sizes_and_leaves_nothing_out(self, room: Room) -> None:
        total = 0
        for number in range(300):  # more sizes than get cohorts of their own
            room.record(number, 100.0 * number, 1_000 + number)
            total += 1_000 + number
        room.scan()
        found = room.records.distribution(1)
        assert found is not None and found.last_use is not None
        for buckets in (found.age, found.last_use):
            assert (sum(b.records for b in buckets), sum(b.bytes for b in buckets)) == (300, total)

    def test_pages_and_tokens(self, room: Room) -> None:
        names = {room.record(number, 5_000 + number) for number in range(25)}
        room.scan()
        seen: list[str] = []
        token = None
        while True:
            page = room.records.list_records(1, RecordFilter(), order="-modified_at", page_size=10, page_token=token)
            seen += [item.name for item in page.items]
            token = page.next_page_token
            if token is None:
                break
        assert len(seen) == 25
        assert set(seen) == names
        first = room.records.list_records(1, RecordFilter(), order="name", page_size=10, page_token=None)
        with pytest.raises(BadToken):
            room.records.list_records(
                1, RecordFilter(q="a"), order="name", page_size=10, page_token=first.next_page_token
            )
        assert room.records.count_records(1, RecordFilter(older_than=5_012)) == (12, 12 * 32768, True)
        assert len(list(room.records.export_records(1, RecordFilter()))) == 25

    def test_ids_that_name_nothing(self, room: Room) -> None:
        name = room.record(1, 5_000)
        room.scan()
        ident = _item(room, name).id
        assert room.records.get_record(ident).name == name
        for bad in ("", "x", "-1", "1", "99999999999999999999", str(int(ident) + 1), str((7 << 40) + 1)):
            with pytest.raises(NotFound):
                room.records.get_record(bad)
        with pytest.raises(NotFound):
            room.records.list_records(9, RecordFilter(), order="name", page_size=10, page_token=None)
        with pytest.raises(NotFound):
            room.records.start_scan(9, actor="t")
        with pytest.raises(NotFound):
            room.records.get_scan(99)

    def test_the_model_is_named_as_its_server_names_it(self, room: Room) -> None:
        odd = "/models/a-SEP-b"
        room.polls(-10_000, -1, {"c1": KV(odd)})
        name = room.record(1, 5_000, model=odd)
        room.scan()
        assert _item(room, name).model_name == odd
        (batch,) = room.records.select_batches(1, RecordFilter())
        assert batch.model_name == odd

    def test_a_gentle_scan_rests_as_long_as_it_works_and_finds_the_same(self, room: Room) -> None:
        room.polls(-1000, -1, {"c1": LAYOUTS[0]}, engine_ids=("c1",))
        for number in range(3):
            room.record(number, age=100 + number)
        room.scan()
        assert room.waits == []
        found = room.classes()
        scan = room.records.start_scan(1, actor="test", gentle=True)
        assert (scan.state, scan.gentle, scan.records) == ("succeeded", True, 3)
        assert room.waits
        assert all(0 <= wait <= 1.0 for wait in room.waits)
        assert room.classes() == found

    def test_a_missing_directory_fails_the_scan_and_says_why(self, room: Room) -> None:
        room.root.rmdir()
        scan = room.records.start_scan(1, actor="t")
        assert scan.state == "failed"
        assert "does not exist" in (scan.error or "")

    def test_a_second_scan_while_one_is_queued_is_refused(self, room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(room.runner, "submit", lambda kind, ident: None)
        first = room.records.start_scan(1, actor="t")
        with pytest.raises(Conflict):
            room.records.start_scan(1, actor="t")
        assert room.records.cancel_scan(int(first.id), actor="t").state == "cancelled"
        assert room.records.start_scan(1, actor="t").state == "queued"

    def test_a_scan_waits_for_the_poll_that_tells_what_is_fresh(
        self, room: Room, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        room.polls(-10_000, -1, {"c1": LAYOUTS[0]})
        fresh = room.record(1, 2)

        def rest(seconds: float) -> None:
            room.clock.now += seconds
            if room.clock.now > room.base + 12 and len(room.waits) == 0:
                room.waits.append(1)
                with room.db.write() as session:
                    session.query(Observation).update({"last_at": room.base + 12})

        monkeypatch.setattr(room.records._scans, "_rest", rest)
        room.scan()
        assert room.classes()[fresh] == CURRENT
        assert room.clock.now < room.base + 20


class TestForCleanup:
    def test_select_gives_frozen_facts_least_recently_used_first(self, room: Room) -> None:
        names = [room.record(number, 10_000 - number * 100) for number in range(5)]
        os.utime(room.root / names[0], ns=(int((room.base - 10) * 1e9), int((room.base - 10_000) * 1e9)))
        room.scan()
        batches = list(room.records.select_batches(1, RecordFilter(), oldest_first="used"))
        found = [row for batch in batches for row in batch.rows]
        assert [row[0].decode() for row in found] == [*names[1:], names[0]]
        with StoreDirectory.open(str(room.root)) as directory:
            for row in found:
                now = directory.stat(row[0])
                assert now is not None
                assert (*now[:5], now.inode, now.device) == (*row[:6], batches[0].device)

    def test_names_are_spelt_right_whatever_their_salts_and_the_lengths_of_their_hashes(self, room: Room) -> None:
        names = [room.record(number, 5_000, salt=salt) for number, salt in enumerate(["", "one", "two"])]
        odd = "m@0x01000100@0@abcd.data"
        (room.root / odd).write_bytes(b"x")
        room.scan()
        for order in (None, "used", "written"):
            batches = list(room.records.select_batches(1, RecordFilter(), oldest_first=order))  # type: ignore[arg-type]
            assert {row[0].decode() for batch in batches for row in batch.rows} >= set(names), order
        assert _hex([b"\xab\xcd", b"\x01\x02"]) == [b"abcd", b"0102"]
        assert _hex([b"\xab\xcd", b"\x01"]) == [b"abcd", b"01"]
        assert _hex([b"", b"\x01"]) == [b"", b"01"]

    def test_select_by_class_and_age(self, room: Room) -> None:
        room.polls(-10_000, -1, {"c1": LAYOUTS[0]})
        empty = room.record(1, 5_000, 0)
        room.record(2, 5_000)
        where = RecordFilter(classes=frozenset({"corrupt"}), reasons=frozenset({"empty"}))
        room.scan()
        assert [row[0].decode() for batch in room.records.select_batches(1, where) for row in batch.rows] == [empty]
        assert list(room.records.select_batches(1, RecordFilter(older_than=6_000))) == []

    def test_removed_and_restored(self, room: Room) -> None:
        name = room.record(1, 5_000, salt="tenant")
        room.record(2, 5_000)
        room.scan()
        fact = _fact(room, name)
        room.records.removed_by_run(1, [(name.encode(), 32768, None), (b"not there", 1, None)], since=room.clock())
        assert set(room.classes()) == {format_name(key(2))}
        assert room.records.summary(1).records == 1
        room.records.records_restored(1, [fact], reason="restored from run 1", actor="op")
        assert set(room.classes()) == {format_name(key(2)), name}
        assert room.records.holds.names(1) == frozenset({name.encode()})
        assert _item(room, name).held
        room.scan()
        assert room.records.list_scans(page_size=1, page_token=None).items[0].added == 0
        assert room.records.release_holds(1, [name], actor="op") == 1
        assert room.records.holds.names(1) == frozenset()

    def test_what_a_scan_found_gone_before_the_run_told_of_it_did_not_vanish(self, room: Room) -> None:
        names = [room.record(number, 5_000, 1_000) for number in range(10)]
        room.scan()
        rows = {row[0].decode(): row for batch in room.records.select_batches(1, RecordFilter()) for row in batch.rows}
        began = room.clock()
        room.clock.now += 60
        for name in names[:6]:
            (room.root / name).unlink()
        room.scan()  # while a run is at work: it removed four of the six, and has not told yet
        scan = room.records.list_scans(page_size=1, page_token=None).items[0]
        assert scan.vanished == 6
        room.records.removed_by_run(1, [(row[0], row[1], row[6]) for n in names[:4] for row in [rows[n]]], since=began)
        scan = room.records.list_scans(page_size=1, page_token=None).items[0]
        assert (scan.vanished, scan.vanished_bytes, scan.removed_by_runs) == (2, 2_000, 4)
        assert room.records.summary(1).eviction.vanished_records == 2
        room.clock.now += 3600
        room.scan()
        scan = room.records.list_scans(page_size=1, page_token=None).items[0]
        assert (scan.vanished, scan.removed_by_runs) == (0, 0), "each once"

    def test_an_older_scan_is_left_as_it_was(self, room: Room) -> None:
        name = room.record(1, 5_000)
        room.record(2, 5_000)
        room.scan()
        (room.root / name).unlink()
        room.clock.now += 60
        room.scan()
        room.clock.now += 60
        room.records.removed_by_run(1, [(name.encode(), 32768, (1 << 40) + 1)], since=room.clock())
        assert room.records.summary(1).eviction.vanished_records == 1

    def test_holds_are_listed_and_released_but_for_canaries(self, room: Room) -> None:
        names = [room.record(number, 5_000) for number in range(3)]
        room.scan()
        room.records.records_restored(1, [_fact(room, n) for n in names], reason="restored from run 1", actor="op")
        with room.db.write() as session:
            session.get_one(RecordHold, (1, names[2].encode())).reason = "canary 4"
        first = room.records.list_holds(1, page_size=2, page_token=None)
        rest = room.records.list_holds(1, page_size=2, page_token=first.next_page_token)
        assert [hold.name for hold in (*first.items, *rest.items)] == sorted(names)
        assert rest.next_page_token is None
        assert {hold.name for hold in (*first.items, *rest.items) if hold.canary} == {names[2]}
        with pytest.raises(Conflict, match="canary 4"):
            room.records.release_holds(1, [names[0], names[2]], actor="op")
        assert len(room.records.holds.names(1)) == 3, "all or nothing"
        assert room.records.release_holds(1, None, actor="op") == 2
        assert room.records.holds.names(1) == frozenset({names[2].encode()})

    def test_judging_now_looks_at_names_and_kinds(self, room: Room) -> None:
        room.polls(-10_000, -1, {"c1": LAYOUTS[0]})
        name = room.record(1, 5_000)
        fact = _fact(room, name)
        judged = room.records.classify_now(
            1,
            [
                fact,
                fact._replace(name=b"README"),
                fact._replace(mode=0o120777),
                fact._replace(name=b".tmp/" + fact.name),
                fact._replace(name=b"\xff@0x01000100@0@" + b"ab" * 32 + b".data"),
            ],
        )
        assert [found.cls for found in judged] == ["current", "foreign", "foreign", "temporary", "foreign"]


class TestEpochs:
    def test_a_change_is_told_field_by_field(self, room: Room) -> None:
        room.changed_layout()
        room.scan()
        epochs = room.records.epochs(1).items
        assert [(e.kind, e.live) for e in epochs] == [("observed", True), ("observed", False)]
        assert [(c["field"], c["old"], c["new"], c["meaning"]) for c in epochs[0].changes if c["field"] == "dtype"] == [
            ("dtype", "bfloat16", "float16", "decides bytes")
        ]
        assert epochs[1].ended_at is not None
        assert epochs[0].ended_at is None

    def row(self, number: int, shown: KVLayout, *starts: float) -> LayoutEpoch:
        """An observed epoch with a span of ten seconds from each start."""
        times = [(at, at + 10) for at in starts]
        spans = [{"from": a, "until": b, "first_listed": a, "last_listed": b} for a, b in times]
        return LayoutEpoch(
            id=number,
            kind="observed",
            model_name="m",
            display_model="m",
            world_size=1,
            live=False,
            created_at=0.0,
            fingerprint=shown.fingerprint,
            layout=shown.to_dict(),
            spans=spans,
        )

    def test_each_is_compared_with_the_one_just_before_it_also_after_a_rollback(self) -> None:
        rows = [
            self.row(1, layout("bfloat16", chunk=64), 100.0, 300.0),
            self.row(2, layout("bfloat16", chunk=128), 200.0),
            self.row(3, layout("float16", chunk=64), 400.0),
        ]
        changed = {view.id: {change["field"] for change in view.changes} for view in epoch_views(rows, {})}
        assert (changed["1"], changed["2"]) == (set(), {"chunk_size"})
        assert "dtype" in changed["3"]
        assert "chunk_size" not in changed["3"]

    def test_what_became_known_later_makes_no_epoch_of_its_own(self) -> None:
        known = layout("bfloat16")
        less = replace(known, lmcache_version=None)
        assert less.fingerprint == known.fingerprint
        newer = self.row(3, replace(known, lmcache_version="0.5.7"), 300.0)
        views = epoch_views([self.row(1, less, 100.0), self.row(2, known, 200.0), newer], {})
        assert [view.id for view in views] == ["3", "2"]
        assert [change["field"] for change in views[0].changes] == ["lmcache_version"]
        assert len(views[1].spans) == 2

    def test_bad_input_names_its_field(self, room: Room) -> None:
        with pytest.raises(InvalidInput, match="model_name"):
            room.records.add_epoch(1, EpochInput(kind="declare"), actor="op")
        room.polls(-10_000, -1, {"c1": LAYOUTS[0]})
        for body, field in (
            (EpochInput(kind="declare", model_name="nobody"), "model_name"),
            (EpochInput(kind="declare", effective_at="yesterday"), "effective_at"),
            (EpochInput(kind="declare", effective_at="2999-01-01T00:00:00Z"), "effective_at"),
        ):
            with pytest.raises(InvalidInput) as caught:
                room.records.add_epoch(1, body, actor="op")
            assert caught.value.errors[0].field == field
        observed = room.records.epochs(1).items[0]
        with pytest.raises(Conflict):
            room.records.undo_epoch(1, int(observed.id), actor="op")
        with pytest.raises(NotFound):
            room.records.undo_epoch(1, 999, actor="op")

    def test_several_models_must_be_told_apart(self, room: Room) -> None:
        room.polls(-10_000, -1, {"c1": LAYOUTS[0], "c2": KV("org/other")})
        with pytest.raises(InvalidInput, match="say which model"):
            room.records.add_epoch(1, EpochInput(kind="declare"), actor="op")


def KV(model: str):
    from dataclasses import replace

    return replace(LAYOUTS[0], model_name=model)


def _fact(room: Room, name: str) -> FileFact:
    with StoreDirectory.open(str(room.root)) as directory:
        found = directory.stat(name.encode())
    assert found is not None
    return found


def _item(room: Room, name: str):
    page = room.records.list_records(1, RecordFilter(), order="name", page_size=500, page_token=None)
    return next(item for item in page.items if item.name == name)


class TestHits:
    """What polls left says whether records were read back (C8)."""

    def evidence(self, room: Room, start: float, end: float) -> float | None:
        found = HitSamples(room.db, [1])("m", room.base + start, room.base + end)
        return None if found is None else found - room.base

    def test_no_hit_and_no_gap(self, room: Room) -> None:
        room.hits({-at: 0.0 for at in range(0, 5_000, 10)})
        assert self.evidence(room, -3_000, -5) is None

    def test_the_first_hit(self, room: Room) -> None:
        room.hits({-at: (64.0 if at in (1_000, 500) else 0.0) for at in range(0, 5_000, 10)})
        assert self.evidence(room, -3_000, -5) == -1_010
        assert self.evidence(room, -900, -5) == -510

    def test_a_time_without_samples_counts(self, room: Room) -> None:
        room.hits({-at: 0.0 for at in range(0, 5_000, 10) if not 1_500 <= at < 1_600})
        assert self.evidence(room, -3_000, -5) == -1_600
        assert self.evidence(room, -1_000, -5) is None
        assert HitSamples(room.db, [])("m", 5.0, 6.0) == 5.0
        assert HitSamples(room.db, [7])("m", 5.0, 60.0) == 5.0

    def test_a_memory_changes_no_answer(self, room: Room) -> None:
        """Polls come one after the other: what was looked at once is not read again, and says the same."""
        memory = HitMemory()
        for now in range(-4_000, 0, 250):
            room.hits({at: (64.0 if at in (-1_000, -500) else 0.0) for at in range(now - 250, now, 10)})
            for start in (-3_900, -2_000, -900):
                for end in (now, now - 120, min(now, -1_500)):
                    if end > start:
                        asked = "m", room.base + start, room.base + end
                        assert HitSamples(room.db, [1], memory)(*asked) == HitSamples(room.db, [1])(*asked)
        memory.forget(1)
        assert memory.recall(1, room.base - 2_000) is None

    def test_a_remembered_hit_outlives_its_sample(self, room: Room) -> None:
        memory = HitMemory()
        room.hits({-at: (64.0 if at == 1_000 else 0.0) for at in range(0, 5_000, 10)})
        asked = "m", room.base - 3_000, room.base - 5
        first = HitSamples(room.db, [1], memory)(*asked)
        with room.db.write() as session:
            session.execute(delete(SampleRaw))
        assert HitSamples(room.db, [1], memory)(*asked) == first == room.base - 1_010
        assert HitSamples(room.db, [1], memory)("m", asked[1], room.base - 2_000) is None

    def test_older_times_are_read_from_the_roll_ups(self, room: Room) -> None:
        room.hits({-at: 0.0 for at in range(0, 1_000, 10)})
        with room.db.write() as session:
            first = (int(room.base) - 1_000) // 300 * 300
            for number in range(20):
                at = (first - 300 * number) * 1000
                hits = 5.0 if number == 10 else 0.0
                for series, total in ((10, hits), (11, 300.0 if number != 15 else 20.0)):
                    session.add(Sample5m(series_id=series, at=at, count=30, sum=total, min=0, max=total, last=0))
        assert self.evidence(room, -2_000, -5) is None
        assert self.evidence(room, -4_600, -5) == pytest.approx(first - 3_000 - room.base)
        assert self.evidence(room, -6_000, -5) is not None
