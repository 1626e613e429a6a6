"""Cleanup over the real records room: what it selects, how it judges, and that both rooms tell one story."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from app.cleanup.adapters import RecordsInventory
from app.cleanup.ports import RESTORED, Selection
from app.cleanup.schemas import FilterPlanInput, PolicyInput
from app.cleanup.service import CleanupService
from app.clock import iso_ns
from app.errors import InvalidInput, StoreError
from app.fleet.tables import Store
from app.lmcache.object_keys import parse_name
from app.records.facts import FileFact, Judgement
from app.records.filters import RecordFilter
from app.records.service import RecordsService
from app.records.tables import ClearedEpisode
from app.telemetry.service import TelemetryService
from tests.unit.cleanup.support import START, World, name_of


class Joined:
    """A world whose inventory is the records room's."""

    def __init__(self, base: Path) -> None:
        self.world = World(base, servers=False)
        world = self.world
        telemetry = TelemetryService(db=world.db, clock=world.clock, settings=world.settings, fleet=world.fleet)
        self.records = RecordsService(
            db=world.db,
            clock=world.clock,
            settings=world.settings,
            runner=world.runner,
            fleet=world.fleet,
            telemetry=telemetry,
            audit=world.audit,
        )
        self.cleanup = CleanupService(
            db=world.db,
            clock=world.clock,
            runner=world.runner,
            audit=world.audit,
            fleet=world.fleet,
            scheduling=world.scheduling,
            records=self.records,
            calls=world.calls,
        )
        self.inventory = RecordsInventory(
            db=world.db, clock=world.clock, records=self.records, runner=world.runner, wait=lambda _: None
        )

    def scan(self) -> None:
        scan = self.records.start_scan(1, actor="test")
        assert self.records.get_scan(int(scan.id)).state == "succeeded"

    def everything(self, selection: Selection) -> list[bytes]:
        return [row[0] for batch in self.inventory.select(1, selection) for row in batch.rows]


@pytest.fixture
def joined(tmp_path: Path) -> Iterator[Joined]:
    made = Joined(tmp_path)
    yield made
    made.world.db.dispose()


def fill(world: World) -> set[bytes]:
    """Every form of name that the file adapters know, with sizes and ages of all kinds."""
    names: set[bytes] = set()

    def put(name: bytes, size: int, age: float, used: float | None = None) -> None:
        world.write(name, b"x" * size, age=age, used=used)
        names.add(name)

    for number in range(20):
        put(name_of(number), 64, 86_400.0 * number + 700)
        put(name_of(number, model="/models/other"), 128, 86_400.0 * number + 700, used=3600.0)
        put(name_of(number, salt=f"tk-{number % 3}-x"), 64, 86_400.0 * number + 700)
    plain = name_of(500)
    put(plain.replace(b"@0@", b"@"), 64, 90_000.0)  # before object groups
    digest = name_of(501).split(b"@")[3][:4]
    put(digest[:2] + b"/" + digest[2:] + b"/" + name_of(501), 64, 90_000.0)
    put(b".tmp/" + name_of(502), 64, 90_000.0)
    put(name_of(503).replace(b".data", b".tmp"), 64, 90_000.0)
    put(name_of(504), 0, 90_000.0)
    world.write(b"README", b"foreign")
    return names


class TestSelection:
    def test_everything_comes_with_the_facts_of_the_disk(self, joined: Joined) -> None:
        names = fill(joined.world)
        joined.scan()
        found = {row[0]: row for batch in joined.inventory.select(1, Selection(filters={})) for row in batch.rows}
        assert set(found) == names
        for name, row in found.items():
            facts = (joined.world.path / os.fsdecode(name)).stat()
            assert row[1:6] == (facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_atime_ns, facts.st_ino)
            assert row[6] is not None
            assert joined.records.get_record(str(row[6])).name == os.fsdecode(name)
        totals = joined.inventory.totals(1)
        assert (totals.records, totals.scanned_at) == (len(names), START)
        assert totals.bytes == sum(row[1] for row in found.values())

    @pytest.mark.parametrize(
        "filters",
        [
            {},
            {"model": "/models/other"},
            {"q": "@tk-1"},
            {"q": "other"},
            {"salt": "tk-2-x"},
            {"salt": ""},
            {"min_size": "100"},
            {"older_than": "5d"},
            {"unused_for": "5d"},
            {"class": "temporary"},
            {"class": "corrupt", "reason": "empty"},
            {"kv_rank": "0x01000100", "older_than": "3d", "min_size": 65},
            {"q": name_of(3).split(b"@")[3][:12].decode()},
        ],
    )
    def test_batches_hold_what_single_records_do(self, joined: Joined, filters: dict[str, object]) -> None:
        fill(joined.world)
        joined.scan()
        where = RecordFilter.from_query(filters)
        single = {
            r.name.encode(): (r.class_, r.reason, r.id, r.size_bytes, r.modified_at, r.accessed_at)
            for r in joined.records.export_records(1, where)
        }
        bulk = {
            row[0]: (batch.cls, batch.reason, str(row[6]), row[1], iso_ns(row[2]), iso_ns(row[4]))
            for batch in joined.records.select_batches(1, where)
            for row in batch.rows
        }
        assert bulk == single
        assert single

    def test_least_recently_used_first_across_models_and_sizes(self, joined: Joined) -> None:
        fill(joined.world)
        joined.scan()
        rows = [row for batch in joined.inventory.select(1, Selection(least_recent_first=True)) for row in batch.rows]
        used = [max(row[4], row[2]) for row in rows]
        assert used == sorted(used)
        written = [
            row[2]
            for batch in joined.inventory.select(1, Selection(least_recent_first=True, by_age=True))
            for row in batch.rows
        ]
        assert written == sorted(written)

    def test_hard_links_are_never_given(self, joined: Joined) -> None:
        names = joined.world.fill(2)
        os.link(joined.world.path / os.fsdecode(names[0]), joined.world.base / "second")
        joined.scan()
        assert joined.everything(Selection(filters={})) == [names[1]]

    def test_a_store_that_was_never_scanned(self, joined: Joined) -> None:
        assert joined.inventory.totals(1).scanned_at is None
        assert joined.everything(Selection(filters={})) == []

    def test_bad_filters_name_the_field(self, joined: Joined) -> None:
        with pytest.raises(InvalidInput, match=r"filter\.older_than"):
            joined.inventory.check_filter({"older_than": "soon"})


class TestTogether:
    def test_a_damaged_record_is_found_taken_restored_and_then_left_alone(self, joined: Joined) -> None:
        world = joined.world
        world.fill(10)
        broken = name_of(77)
        world.write(broken, b"", age=3600)
        body = PolicyInput(name="p", store_id="1", select=[{"kind": "corrupt"}])
        policy = int(joined.cleanup.create_policy(body, actor="test").id)
        run = joined.cleanup.start_policy_run(policy, actor="test")
        assert (run.verdict, run.removed.records, run.by_reason["empty"].records) == ("succeeded", 1, 1)
        assert broken not in joined.everything(Selection(filters={}))
        assert joined.records.summary(1).records == 10

        joined.cleanup.restore(int(run.id), None, actor="test")
        assert joined.inventory.held(1) == {broken: RESTORED}
        assert broken in joined.everything(Selection(filters={}))
        world.clock.forward(120)
        assert joined.cleanup.start_policy_run(policy, actor="test").verdict == "nothing_to_do"
        assert broken in world.names()

        # what was taken by a run did not vanish by itself
        joined.scan()
        assert joined.records.summary(1).eviction.vanished_records == 0

    def test_nothing_that_cannot_be_decided_goes(self, joined: Joined) -> None:
        """No server was ever polled: every record is unverified, whatever the presets say."""
        names = joined.world.fill(20)
        for preset in joined.cleanup.presets():
            policy = joined.cleanup.create_policy(PolicyInput(store_id="1", **preset.policy), actor="test")
            plan = joined.cleanup.start_policy_plan(int(policy.id), actor="test")
            if preset.id != "keep_under_85":
                assert (plan.state, plan.records) == ("succeeded", 0)
        assert joined.world.names() == set(names)

    def test_a_filter_plan_over_one_salt(self, joined: Joined) -> None:
        world = joined.world
        mine = {name_of(n, salt="tk-9-1") for n in range(3)}
        for name in mine:
            world.write(name)
        others = world.fill(5)
        plan = joined.cleanup.start_filter_plan(1, FilterPlanInput(filter={"q": "@tk-9-"}, removal="delete"), actor="t")
        assert plan.records == 3
        run = joined.cleanup.start_run(int(plan.id), actor="test")
        assert run.removed.records == 3
        assert world.names() == set(others)

    def test_a_plan_scans_by_itself_what_was_never_scanned(self, joined: Joined) -> None:
        joined.world.write(name_of(1), b"", age=3600)
        plan = joined.cleanup.start_filter_plan(1, FilterPlanInput(filter={"class": "corrupt"}), actor="test")
        assert (plan.state, plan.records) == ("succeeded", 1)
        assert plan.scanned_at is not None

    def test_a_store_that_is_gone_is_a_sentence(self, joined: Joined) -> None:
        with joined.world.db.write() as session:
            row = session.get(Store, 1)
            assert row is not None
            row.path = "/nonexistent/store"
        plan = joined.cleanup.start_filter_plan(1, FilterPlanInput(filter={"class": "corrupt"}), actor="test")
        assert plan.state == "failed"
        assert "does not exist" in (plan.error or "")


class TestWhatIsWrong:
    def test_hard_links_are_never_taken_and_are_counted_where_asked(self, joined: Joined) -> None:
        world = joined.world
        one, two = name_of(1), name_of(2)
        for name in (one, two):
            world.write(name, b"x" * 64, age=1000.0)
        os.link(os.path.join(os.fsencode(world.path), one), os.path.join(os.fsencode(world.path.parent), b"backup"))
        joined.scan()
        assert joined.everything(Selection()) == [two]
        assert set(joined.everything(Selection(hard_links=True))) == {one, two}

    @pytest.mark.parametrize(
        ("reason", "reopens"), [("other_layout", True), ("derived", True), ("layout_unknown", False)]
    )
    def test_a_restore_of_wrong_records_opens_their_episode_anew(
        self, joined: Joined, monkeypatch: pytest.MonkeyPatch, reason: str, reopens: bool
    ) -> None:
        world = joined.world
        name = name_of(1)
        world.write(name, b"x" * 64, age=1000.0)
        joined.scan()
        fact = FileFact.of(name, os.stat(os.path.join(os.fsencode(world.path), name)))
        monkeypatch.setattr(joined.records, "classify_now", lambda _store, facts: [Judgement("unverified", reason)])
        joined.inventory.restored(1, [fact], 7, "test")
        with world.db.read() as session:
            told = [(row.model_name, row.at, row.reopened) for row in session.scalars(select(ClearedEpisode))]
        model = parse_name(name)
        assert model is not None
        assert told == ([(model.model, world.clock(), True)] if reopens else [])


class TestAnotherDirectory:
    """The volume went away and its empty mount point is there."""

    def unmount(self, world: World) -> Path:
        away = world.path.with_name("volume")
        world.path.rename(away)
        world.path.mkdir()
        return away

    def test_nothing_is_planned_run_restored_or_purged_and_nothing_written(self, joined: Joined) -> None:
        world, cleanup = joined.world, joined.cleanup
        fill(world)
        joined.scan()
        body = FilterPlanInput(filter={"model": "/models/other"}, removal="quarantine")
        plan = int(cleanup.start_filter_plan(1, body, actor="test").id)
        run = cleanup.start_run(plan, actor="test")
        assert run.removed.records == 20
        salted = FilterPlanInput(filter={"salt": "tk-1-x"}, removal="delete")
        later = int(cleanup.start_filter_plan(1, salted, actor="test").id)
        away = self.unmount(world)

        def refused(error: str | None) -> None:
            assert error is not None and "not the directory that the last scan knew" in error
            assert list(world.path.iterdir()) == []

        refused(cleanup.start_filter_plan(1, salted, actor="test").error)
        refused(cleanup.start_run(later, actor="test").error)
        policy = PolicyInput(name="p", store_id="1", select=[{"kind": "corrupt"}])
        made = int(cleanup.create_policy(policy, actor="test").id)
        refused(cleanup.start_policy_run(made, actor="test").error)
        refused(cleanup.restore(int(run.id), None, actor="test").error)
        refused(cleanup.purge(int(run.id), None, actor="test").error)
        with pytest.raises(StoreError, match="not the directory that the last scan knew"):
            cleanup.quarantine(1, page_size=10, page_token=None)
        with pytest.raises(StoreError, match="not the directory that the last scan knew"):
            cleanup.adopt_quarantine(1, "20260101-foreign", actor="test")
        world.clock.forward(90 * 86_400.0)
        cleanup.purge_expired(world.clock())
        assert list(world.path.iterdir()) == []
        # Mounted again, everything is where it was.
        world.path.rmdir()
        away.rename(world.path)
        assert cleanup.restore(int(run.id), None, actor="test").records == 20
