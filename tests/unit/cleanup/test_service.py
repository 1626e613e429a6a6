"""Policies, schedules, lists and what the service refuses."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from app.audit.tables import AuditEvent
from app.cleanup.execution import RunExecutor
from app.cleanup.schemas import FilterPlanInput, PolicyInput, PolicyPatch, SeenInput, SelectionInput
from app.cleanup.tables import CleanupEpisode, CleanupRun
from app.clock import parse_iso
from app.errors import Conflict, InvalidInput, NotFound, StoreError
from app.fleet.service import FleetService
from app.records.facts import FileFact
from app.scheduling.tables import Schedule
from app.scheduling.work import Skipped
from tests.unit.cleanup.support import START, World, name_of

CORRUPT: list[dict[str, Any]] = [{"kind": "corrupt"}]


def body(world: World, **more: Any) -> PolicyInput:
    return PolicyInput(**{"name": "nightly", "store_id": str(world.store_id), "select": CORRUPT, **more})


def fields(error: InvalidInput) -> set[str]:
    return {e.field for e in error.errors}


class TestPolicies:
    def test_what_is_written_is_what_is_shown(self, world: World) -> None:
        given = {
            "select": [{"kind": "incompatible", "reasons": ["declared"]}, {"kind": "temporary", "older_than": "2h"}],
            "protect": {"written_within": "1h", "models": ["/m/a"]},
            "limits": {"max_bytes": "5GB", "max_fraction": 0.3},
            "blackouts": [{"start": "08:00", "end": "20:00", "days": [1, 2]}],
            "schedule": "0 3 * * *",
            "timezone": "Europe/Berlin",
            "quarantine_for": "7d",
        }
        view = world.service.create_policy(body(world, **given), actor="test")
        assert world.service.get_policy(int(view.id)) == view
        assert view.select == given["select"]
        assert (view.protect.written_within, view.protect.models) == ("1h", ["/m/a"])
        assert view.limits.max_bytes == "5GB"
        assert view.schedule == "0 3 * * *"
        assert len(view.next_firings) == 3
        assert view.next_firings[0].endswith("T02:00:00.000Z"), "03:00 in Berlin's winter"
        assert len(view.summary) >= 4

    @pytest.mark.parametrize(
        ("change", "field"),
        [
            ({"store_id": "99"}, "store_id"),
            ({"store_id": "../1"}, "store_id"),
            ({"schedule": "every day"}, "schedule"),
            ({"schedule": "61 * * * *"}, "schedule"),
            ({"schedule": "@sometimes"}, "schedule"),
            ({"schedule": "0 0 31 2 *"}, "schedule"),
            ({"timezone": "Mars/Olympus"}, "timezone"),
            ({"select": []}, "select"),
            ({"select": [{"kind": "free_space", "floor": "900PiB"}]}, "select[0].floor"),
            ({"quarantine_for": "soon"}, "quarantine_for"),
        ],
    )
    def test_bad_input_changes_nothing_and_names_the_field(
        self, world: World, change: dict[str, Any], field: str
    ) -> None:
        with pytest.raises(InvalidInput) as caught:
            world.service.create_policy(body(world, **change), actor="test")
        assert field in fields(caught.value)
        assert world.service.list_policies(page_size=10, page_token=None).items == []

    def test_names_are_taken_once(self, world: World) -> None:
        world.service.create_policy(body(world), actor="test")
        with pytest.raises(Conflict, match="already called 'nightly'") as caught:
            world.service.create_policy(body(world), actor="test")
        assert caught.value.errors[0].field == "name"

    def test_patch_replaces_what_is_given_and_keeps_the_rest(self, world: World) -> None:
        view = world.service.create_policy(
            body(world, limits={"max_records": 5}, protect={"models": ["/m"]}, schedule="@daily"), actor="test"
        )
        ident = int(view.id)
        changed = world.service.patch_policy(
            ident, PolicyPatch(limits=None, schedule=None, enabled=False), actor="test"
        )
        assert changed.limits.max_records is None
        assert changed.protect.models == ["/m"]
        assert (changed.schedule, changed.enabled, changed.name) == (None, False, "nightly")
        with pytest.raises(InvalidInput, match="select"):
            world.service.patch_policy(ident, PolicyPatch(select=[{"kind": "x"}]), actor="test")
        with pytest.raises(InvalidInput, match="name"):
            world.service.patch_policy(ident, PolicyPatch(name=None), actor="test")
        assert world.service.get_policy(ident).select == CORRUPT

    def test_deleting_keeps_runs_and_quarantine(self, world: World) -> None:
        world.fill(1, cls=("corrupt", "short"))
        policy = world.policy(CORRUPT, name="gone", schedule="0 3 * * *")
        run = world.service.start_policy_run(policy, actor="test")
        world.service.delete_policy(policy, actor="test")
        with pytest.raises(NotFound):
            world.service.get_policy(policy)
        kept = world.service.get_run(int(run.id))
        assert (kept.policy_id, kept.policy_name, kept.in_quarantine.records) == (None, "gone", 1)
        with world.db.read() as session:
            assert session.scalars(select(Schedule)).all() == []

    def test_lists_are_paged(self, world: World) -> None:
        for number in range(5):
            world.service.create_policy(body(world, name=f"p{number}"), actor="test")
        seen: list[str] = []
        token: str | None = None
        while True:
            page = world.service.list_policies(page_size=2, page_token=token)
            seen += [p.name for p in page.items]
            token = page.next_page_token
            if token is None:
                break
        assert seen == [f"p{n}" for n in range(5)]

    def test_found_by_name_or_id(self, world: World) -> None:
        view = world.service.create_policy(body(world), actor="test")
        assert world.service.find_policy("nightly") == int(view.id) == world.service.find_policy(view.id)
        with pytest.raises(NotFound, match="name or id 'nightly2'; there are: nightly"):
            world.service.find_policy("nightly2")

    def test_everything_is_in_the_audit_trail(self, world: World) -> None:
        world.fill(1, cls=("corrupt", "short"))
        policy = world.policy(CORRUPT)
        run = world.service.start_policy_run(policy, actor="alice")
        world.service.restore(int(run.id), None, actor="bob")
        with world.db.read() as session:
            actions = [(e.actor, e.action) for e in session.scalars(select(AuditEvent).order_by(AuditEvent.id))]
        assert ("test", "policy.create") in actions
        assert [a for a in actions if a[0] == "alice"] == [("alice", "cleanup.start"), ("alice", "cleanup.finish")]
        assert [a for a in actions if a[0] == "bob"] == [
            ("bob", "quarantine.restore.start"),
            ("bob", "quarantine.restore"),
        ]

    @pytest.mark.parametrize(("how", "state"), [("cancel", "cancelled"), ("away", "failed")])
    def test_the_trail_tells_how_a_run_ended_that_did_not_go_to_its_end(
        self, world: World, how: str, state: str
    ) -> None:
        world.fill(1500, cls=("corrupt", "short"))  # two chunks
        judge = world.inventory.classify_now

        def stop(store_id: int, facts: Sequence[FileFact]) -> list[tuple[str, str | None]]:
            if len(facts) == 500:
                world.clock.forward(2)
                if how == "cancel":
                    world.service.cancel_run(1, actor="bob")
                else:
                    raise StoreError("the store is away")
            return judge(store_id, facts)

        world.inventory.classify_now = stop  # type: ignore[method-assign]
        run = world.service.start_policy_run(world.policy(CORRUPT), actor="alice")
        assert run.state == state
        with world.db.read() as session:
            told = list(session.scalars(select(AuditEvent).where(AuditEvent.action == "cleanup.finish")))
        assert [(e.actor, e.detail["state"], e.detail["removed_records"]) for e in told] == [
            ("alice", state, run.removed.records)
        ]
        assert told[0].detail["planned_records"] == 1500

    def test_a_queued_run_that_is_cancelled_has_its_end_in_the_trail(self, world: World) -> None:
        policy = world.policy(CORRUPT)
        world.runner.submit = lambda kind, work: None  # type: ignore[method-assign]  # every thread is busy
        run = world.service.start_policy_run(policy, actor="alice")
        assert world.service.cancel_run(int(run.id), actor="bob").state == "cancelled"
        with world.db.read() as session:
            (told,) = session.scalars(select(AuditEvent).where(AuditEvent.action == "cleanup.finish"))
        assert (told.detail["state"], told.detail["planned_records"]) == ("cancelled", None)

    def test_a_plan_that_its_run_could_not_end_ends_with_it(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: object) -> None:
            raise OperationalError("UPDATE plan", {}, sqlite3.OperationalError("database or disk is full"))

        monkeypatch.setattr(RunExecutor, "_end_plan", full)
        run = world.service.start_policy_run(world.policy(CORRUPT), actor="alice")
        assert run.state == "failed" and run.plan_id is not None
        plan = world.service.get_plan(int(run.plan_id))
        assert (plan.state, plan.error) == ("interrupted", f"its run {run.id} ended failed")
        assert plan.finished_at is not None

    def test_progress_at_the_end_is_all_that_was_done(self, world: World) -> None:
        """The clock stands still: nothing but the first progress is written before the end."""
        names = world.fill(2500, cls=("corrupt", "short"))
        plan = world.plan(CORRUPT)
        assert (plan.progress.done, plan.progress.unit) == (2500, "records planned")
        for name in names[::10]:
            world.inventory.classes[name] = ("current", None)
        run = world.service.start_run(int(plan.id), actor="test")
        assert (run.removed.records, run.skipped) == (2250, {"reclassified": 250})
        assert (run.progress.done, run.progress.total) == (2500, 2500)
        job = world.service.restore(int(run.id), None, actor="test")
        assert (job.progress.done, job.progress.total) == (2250, 2250)


class TestSchedules:
    def test_a_cron_policy_has_its_schedule_row(self, world: World) -> None:
        policy = world.policy(CORRUPT, schedule="@daily", timezone="UTC")
        with world.db.read() as session:
            row = session.scalars(select(Schedule)).one()
        assert (row.kind, row.target_id, row.cron, row.paused) == ("policy", policy, "0 0 * * *", False)
        world.service.patch_policy(policy, PolicyPatch(enabled=False), actor="test")
        with world.db.read() as session:
            assert session.scalars(select(Schedule)).one().paused

    def test_fire_starts_a_run_by_schedule(self, world: World) -> None:
        world.fill(2, cls=("corrupt", "short"))
        policy = world.policy(CORRUPT, schedule="0 3 * * *")
        started = world.service.fire(policy, {}, "schedule:1")
        assert started is not None
        run = world.service.get_run(started.id)
        assert (run.trigger, run.verdict, run.removed.records) == ("schedule", "succeeded", 2)

    def test_a_scheduled_run_looks_at_the_disk_first(self, world: World) -> None:
        policy = world.policy(CORRUPT)
        world.service.fire(policy, {}, "schedule:1")
        assert world.inventory.scans == 1
        world.clock.forward(3600)
        world.service.fire(policy, {}, "schedule:1")
        assert world.inventory.scans == 2

    def test_disabled_and_blacked_out_policies_do_not_fire_by_themselves(self, world: World) -> None:
        off = world.policy(CORRUPT, enabled=False)
        with pytest.raises(Skipped, match="switched off"):
            world.service.fire(off, {}, "schedule:1")
        # 00:53 on a Monday lies in the window that began on Sunday
        assert parse_iso("2026-11-30T00:53:20Z") == START
        dark = world.policy(CORRUPT, blackouts=[{"start": "22:00", "end": "06:00", "days": [0]}])
        with pytest.raises(Skipped, match="must not run at this time"):
            world.service.fire(dark, {}, "schedule:1")
        assert world.service.fire(dark, {}, "user:alice") is not None, "run now means now"
        world.clock.forward(7 * 3600)
        assert world.service.fire(dark, {}, "schedule:1") is not None

    def test_check(self, world: World) -> None:
        world.service.check_schedule(world.policy(CORRUPT), {})
        with pytest.raises(NotFound):
            world.service.check_schedule(99, {})
        with pytest.raises(InvalidInput, match="options"):
            world.service.check_schedule(world.policy(CORRUPT), {"x": 1})

    def test_a_layout_change_calls_its_policies_at_once_and_once_more(self, world: World) -> None:
        world.fill(1, cls=("corrupt", "short"))
        world.policy(CORRUPT, schedule="@layout-change")
        world.policy(CORRUPT, schedule="0 3 * * *")
        world.policy(CORRUPT, schedule="@layout-change", enabled=False)
        world.policy(CORRUPT)
        started = world.service.on_layout_change(world.store_id)
        assert [world.service.get_run(s.id).trigger for s in started] == ["layout_change"]
        assert world.service.start_pending() == []
        world.clock.forward(301)
        assert len(world.service.start_pending()) == 1
        assert world.service.start_pending() == []

    def test_one_that_cannot_start_starts_when_it_can(self, world: World) -> None:
        world.policy(CORRUPT, schedule="@layout-change", blackouts=[{"start": "22:00", "end": "06:00"}], timezone="UTC")
        assert world.service.on_layout_change(world.store_id) == []
        world.clock.forward(7 * 3600)
        assert len(world.service.start_pending()) == 1


class TestCapacity:
    def test_a_goal_out_of_reach_is_insufficient_and_says_why(self, world: World) -> None:
        names = world.fill(10, age=5 * 86_400)
        run = world.run([{"kind": "capacity", "high": 600, "low": 1}], protect={"written_within": "30d"})
        assert (run.verdict, run.removed.records) == ("insufficient", 0)
        assert "goal was not reached" in run.notes[0]
        assert "640 B are protected (written_within)" in run.notes[0]
        assert world.names() == set(names)

    def test_down_to_the_low_mark(self, world: World) -> None:
        names = world.fill(10, age=5 * 86_400)
        # ten records of 64 bytes; sizes are apparent, a deletion frees whole blocks
        run = world.run([{"kind": "capacity", "high": 600, "low": 590}])
        assert (run.verdict, run.removed.records) == ("succeeded", 1)
        assert world.names() == set(names[1:]), "the one unused for longest"
        assert run.in_quarantine.records == 0

    def test_under_the_high_mark_there_is_nothing_to_do(self, world: World) -> None:
        world.fill(10)
        assert world.run([{"kind": "capacity", "high": "1GB", "low": "1MB"}]).verdict == "nothing_to_do"


class TestLists:
    def test_plan_records_in_order_and_paged(self, world: World) -> None:
        world.fill(7, cls=("corrupt", "short"))
        world.fill(3, first=50, cls=("corrupt", "empty"))
        plan = world.plan(CORRUPT)
        first = world.service.plan_records(int(plan.id), page_size=4, page_token=None)
        rest = world.service.plan_records(int(plan.id), page_size=500, page_token=first.next_page_token)
        assert (len(first.items), len(rest.items), rest.next_page_token) == (4, 6, None)
        empty = world.service.plan_records(int(plan.id), page_size=500, page_token=None, reason="empty")
        assert {i.name.encode() for i in empty.items} == {name_of(n) for n in range(50, 53)}
        item = empty.items[0]
        assert (item.class_, item.reason, item.model_name, item.kv_rank) == (
            "corrupt",
            "empty",
            "/models/tiny",
            16777472,
        )
        assert item.model_dump(by_alias=True)["class"] == "corrupt"

    def test_runs_by_state_and_export(self, world: World) -> None:
        names = world.fill(3, cls=("corrupt", "short"))
        plan = world.plan(CORRUPT)
        (world.path / names[0].decode()).unlink()
        run = world.service.start_run(int(plan.id), actor="test")
        gone = world.service.run_records(int(run.id), page_size=10, page_token=None, state="vanished")
        assert [i.name.encode() for i in gone.items] == [names[0]]
        assert len(list(world.service.export_run_records(int(run.id)))) == 3
        left = world.service.export_run_records(int(run.id), state="vanished")
        assert [i.name.encode() for i in left] == [names[0]], "a download is of what is looked at"
        with pytest.raises(InvalidInput, match="vanished"):
            world.service.run_records(int(run.id), page_size=10, page_token=None, state="lost")

    def test_outcomes_are_counted_as_they_stand_and_failures_found_by_errno(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        names = world.fill(5, cls=("corrupt", "short"))
        plan = world.plan(CORRUPT)
        (world.path / names[0].decode()).unlink()
        rename = os.rename

        def refusing(source: bytes, *args: Any, **more: Any) -> None:
            for name, number in ((names[1], errno.EIO), (names[2], errno.EACCES)):
                if name.endswith(os.fsencode(source)):
                    raise OSError(number, os.strerror(number))
            rename(source, *args, **more)

        monkeypatch.setattr(os, "rename", refusing)
        run = world.service.start_run(int(plan.id), actor="test")
        ident = int(run.id)
        assert world.service.get_run(ident).outcomes == {"vanished": 1, "failed": 2, "quarantined": 2}
        found = world.service.run_records(ident, page_size=10, page_token=None, errno=errno.EACCES)
        assert [(i.name.encode(), i.errno) for i in found.items] == [(names[2], errno.EACCES)]
        exported = world.service.export_run_records(ident, state="failed", errno=errno.EIO)
        assert [i.name.encode() for i in exported] == [names[1]]
        both = world.service.run_records(ident, page_size=1, page_token=None, state="failed")
        rest = world.service.run_records(ident, page_size=1, page_token=both.next_page_token, state="failed")
        assert {i.name.encode() for i in (*both.items, *rest.items)} == set(names[1:3])
        assert rest.next_page_token is None

    def test_a_plan_keeps_what_was_shown_before(self, world: World) -> None:
        world.fill(2, cls=("corrupt", "short"))
        seen = SeenInput(records=1, scanned_at="2026-01-01T00:00:00Z")
        body = FilterPlanInput(filter={"class": "corrupt"}, seen=seen)
        plan = world.service.start_filter_plan(world.store_id, body, actor="test")
        shown = world.service.get_plan(int(plan.id)).seen
        assert shown is not None
        assert (shown.records, shown.scanned_at) == (1, "2026-01-01T00:00:00Z")
        bare = world.service.start_filter_plan(
            world.store_id, FilterPlanInput(filter={"class": "corrupt"}), actor="test"
        )
        assert bare.seen is None

    def test_a_cache_is_told_with_the_run_that_is_at_work(self, world: World) -> None:
        with world.db.write() as session:
            session.add(
                CleanupEpisode(
                    store_id=world.store_id, model_name="m", opened_at=1.0, pass_at=1.0, run_ids=[7], starts={}
                )
            )
            session.add(CleanupRun(id=8, store_id=world.store_id, folder="f", created_at=1.0, state="running"))
        (told,) = world.service.episodes()
        assert told.running_run_id == "8"
        with world.db.write() as session:
            run = session.get(CleanupRun, 8)
            assert run is not None
            run.state = "succeeded"
        (told,) = world.service.episodes()
        assert told.running_run_id is None

    def test_unknown_things(self, world: World) -> None:
        for look in (
            lambda: world.service.get_plan(9),
            lambda: world.service.get_run(9),
            lambda: world.service.plan_records(9, page_size=1, page_token=None),
            lambda: world.service.run_records(9, page_size=1, page_token=None),
            lambda: world.service.export_run_records(9),
            lambda: world.service.restore(9, None, actor="x"),
            lambda: world.service.get_quarantine_job(9),
            lambda: world.service.start_run(9, actor="x"),
            lambda: world.service.start_policy_plan(9, actor="x"),
            lambda: world.service.adopt_quarantine(world.store_id, "run-1", actor="x"),
            lambda: world.service.quarantine(9, page_size=1, page_token=None),
        ):
            with pytest.raises(NotFound):
                look()

    def test_a_restore_of_nothing(self, world: World) -> None:
        run = world.run(CORRUPT)
        job = world.service.restore(int(run.id), SelectionInput(), actor="test")
        assert (job.state, job.records) == ("succeeded", 0)


class TestRetention:
    def test_plans_that_nobody_ran_and_records_of_old_runs_go(self, world: World) -> None:
        world.fill(2, cls=("corrupt", "short"))
        idle = world.plan(CORRUPT)
        run = world.run(CORRUPT)
        waiting = int(run.id)
        assert world.service.retire(world.clock() + 86_400) == 0
        assert world.service.retire(world.clock() + 8 * 86_400) == 1
        with pytest.raises(NotFound):
            world.service.get_plan(int(idle.id))
        assert world.service.retire(world.clock() + 100 * 86_400) == 0, "its records wait in quarantine"
        world.service.purge(waiting, None, actor="test")
        assert world.service.retire(world.clock() + 100 * 86_400) == 1
        kept = world.service.get_run(waiting)
        assert (kept.plan_id, kept.removed.records, kept.purged.records) == (None, 2, 2)
        assert list(world.service.export_run_records(waiting)) == []


def test_a_store_with_an_active_run_is_not_forgotten(world: World) -> None:
    assert isinstance(world.fleet, FleetService)
    policy = world.policy(CORRUPT)
    scan = world.inventory.refresh
    refused: list[str] = []

    def in_the_middle(store_id: int, check: Any) -> None:
        with pytest.raises(Conflict) as caught:
            world.fleet.delete_store(store_id, actor="test")
        refused.append(caught.value.detail)
        scan(store_id, check)

    world.inventory.refresh = in_the_middle  # type: ignore[method-assign]
    world.service.start_policy_run(policy, actor="test")
    assert "works on this store" in refused[0]
    world.fleet.delete_store(world.store_id, actor="test")
    assert world.service.list_policies(page_size=10, page_token=None).items == []
