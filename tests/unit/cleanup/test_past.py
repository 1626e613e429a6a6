"""What plans, runs, restores and purges had to do with one record: found by an index, whole before it is made."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from sqlalchemy import func, select

from app.cleanup import name_index
from app.cleanup.name_index import plans_naming
from app.cleanup.past import past_of_name
from app.cleanup.schemas import FilterPlanInput, SelectionInput
from app.cleanup.tables import Plan, PlanNames
from app.records.filters import RecordFilter
from app.records.schemas import PastView
from tests.unit.cleanup.support import World, name_of
from tests.unit.cleanup.test_adapters import Joined

CORRUPT: list[dict[str, Any]] = [{"kind": "corrupt"}]


def past(world: World, name: bytes) -> list[PastView]:
    return sorted(past_of_name(world.db, world.store_id, name), key=lambda event: event.at)


def told(world: World, name: bytes) -> list[tuple[str, str | None, str | None]]:
    return [(event.what, event.ref_kind, event.ref_id) for event in past(world, name)]


class TestPast:
    def test_planned_moved_put_back_planned_again_and_purged(self, world: World) -> None:
        names = world.fill(3, cls=("corrupt", "short"))
        run = world.run(CORRUPT, name="nightly")
        world.clock.forward(60)
        item = next(i for i in world.service.export_run_records(int(run.id)) if i.name.encode() == names[1])
        world.service.restore(int(run.id), SelectionInput(record_ids=[item.id], filter=None), actor="ann")
        world.clock.forward(60)
        world.inventory.holds.clear()
        again = world.run(CORRUPT, name="weekly")
        world.clock.forward(60)
        world.service.purge(int(again.id), None, actor="bob")
        plan, second = (world.service.get_run(int(r.id)).plan_id for r in (run, again))
        assert told(world, names[1]) == [
            ("planned", "plan", plan),
            ("moved to quarantine", "cleanup_run", run.id),
            ("put back", "cleanup_run", run.id),
            ("planned", "plan", second),
            ("moved to quarantine", "cleanup_run", again.id),
            ("purged for good", "cleanup_run", again.id),
        ]
        events = past(world, names[1])
        assert events[0].detail == "to go to quarantine as corrupt (short); the policy nightly"
        assert events[1].detail == "a run by hand, of the policy nightly"
        assert (events[2].source, events[2].detail) == ("ann", f"from the quarantine of run {run.id}, with part of it")
        assert (events[5].source, events[5].detail) == ("bob", f"from the quarantine of run {again.id}, with all of it")
        assert [event.at for event in events][2:4] == sorted({event.at for event in events})[1:3]
        # The others were never put back.
        assert [what for what, _, _ in told(world, names[0])] == ["planned", "moved to quarantine"]
        assert told(world, name_of(99)) == []

    def test_why_it_was_left(self, world: World) -> None:
        (name,) = world.fill(1, cls=("corrupt", "short"))
        plan = world.plan(CORRUPT)
        assert [what for what, _, _ in told(world, name)] == ["planned"]
        world.write(name, b"another")
        world.service.start_run(int(plan.id), actor="test")
        assert [(event.what, event.detail) for event in past(world, name)][1:] == [
            ("left where it was", "it was not the file that was planned")
        ]

    def test_deleted_by_a_filter(self, world: World) -> None:
        (name,) = world.fill(1)
        body = FilterPlanInput(filter={"class": "current"}, removal="delete")
        plan = world.service.start_filter_plan(world.store_id, body, actor="test")
        world.service.start_run(int(plan.id), actor="eve")
        events = past(world, name)
        assert [(event.what, event.source) for event in events] == [("planned", "test"), ("deleted", "eve")]
        assert events[0].detail == "to be deleted as current, for filter; a filter"

    def test_taken_over_from_another_panel(self, tmp_path: Path) -> None:
        first = World(tmp_path)
        (name,) = first.fill(1, cls=("corrupt", "short"))
        first.run(CORRUPT)
        (folder,) = [entry.folder for entry in first.service.quarantine(1, page_size=10, page_token=None).items]
        first.db.dispose()
        second = World(tmp_path, url=f"sqlite:///{tmp_path / 'other.db'}")
        run = second.service.adopt_quarantine(second.store_id, folder, actor="ann")
        assert told(second, name) == [
            ("moved to quarantine", "cleanup_run", run.id),
            ("taken over", "cleanup_run", run.id),
        ]
        second.db.dispose()

    def test_the_records_page_has_it_among_the_rest(self, tmp_path: Path) -> None:
        joined = Joined(tmp_path)
        world, name = joined.world, name_of(1)
        world.write(name, b"x" * 64, age=3600)
        joined.scan()
        plan = joined.cleanup.start_filter_plan(
            1, FilterPlanInput(filter={"q": "tiny"}, removal="quarantine"), actor="ann"
        )
        run = joined.cleanup.start_run(int(plan.id), actor="ann")
        joined.cleanup.restore(int(run.id), None, actor="ann")
        (item,) = joined.records.list_records(1, RecordFilter(), order="name", page_size=10, page_token=None).items
        events = joined.records.get_record(item.id).past
        words = [event.what for event in events]
        assert words[0] == "written"
        assert {"planned", "moved to quarantine", "put back", "held"} <= set(words)
        assert [event.at for event in events] == sorted(event.at for event in events)
        world.db.dispose()


class TestIndex:
    def plans(self, world: World) -> list[int]:
        with world.db.read() as session:
            return list(session.scalars(select(Plan.id).order_by(Plan.id)))

    def rows(self, world: World) -> int:
        with world.db.read() as session:
            return session.scalar(select(func.count()).select_from(PlanNames)) or 0

    def test_it_answers_the_same_with_and_without(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(name_index, "_TOGETHER", 10)
        monkeypatch.setattr(name_index, "_FEW", 12)
        world.inventory.judge = lambda name, fact: ("corrupt", "short")
        names = [name_of(n) for n in range(40)] + [name_of(1, salt="s")]
        for name in names:
            world.write(name)
        for chunk in (7, 1000):  # several chunks a plan, in buckets; one chunk, as one row
            world.service._plans._chunk = chunk
            world.plan(CORRUPT)
        first, second = self.plans(world)
        without = {name: plans_naming(world.db, 1, name) for name in names}
        assert all([plan for plan, _ in found] == [first, second] for found in without.values())
        assert world.service.index_names() == 2 * len(names)
        assert self.rows(world) > 10
        assert {name: plans_naming(world.db, 1, name) for name in names} == without
        assert plans_naming(world.db, 2, names[0]) == []
        assert world.service.index_names() == 0
        # Plans that go take their index along.
        world.service.retire(world.clock() + 8 * 86_400)
        assert self.rows(world) == 0

    def test_names_of_one_crc_are_told_apart(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(name_index, "crc32", lambda name: crc32(name) & 1)
        names = world.fill(9, cls=("corrupt", "short"))
        world.plan(CORRUPT)
        world.service.index_names()
        found = [plans_naming(world.db, 1, name) for name in names]
        assert sorted(seq for ((_, seq),) in found) == list(range(1, 10))
        assert plans_naming(world.db, 1, name_of(50)) == []

    def test_what_a_run_adds_later_is_found_too(self, world: World) -> None:
        """Records that an engine writes again while a run goes on are chunks of the plan that came after its index."""
        names = world.fill(4, cls=("incompatible", "other_layout"))
        plan = world.plan([{"kind": "incompatible"}])
        world.service.index_names()
        made: list[Path] = []

        def written_again() -> None:
            if not made:
                made.append(world.write(names[0], os.urandom(64), age=0.0))

        world.calls.on_reset = written_again
        run = world.service.start_run(int(plan.id), actor="test")
        assert run.added.records == 1
        for _ in range(2):
            assert [seq for _, seq in plans_naming(world.db, 1, names[0])][1:] == [5]
            assert "named by a run" in [what for what, _, _ in told(world, names[0])]
            world.service.index_names()
