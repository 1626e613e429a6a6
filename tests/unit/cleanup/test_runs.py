"""Plan, run, restore and purge over real files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, update

from app.cleanup import passes
from app.cleanup.chunks import Chunk
from app.cleanup.journal import Journal, RunTally
from app.cleanup.passes import CHUNKS_AT_ONCE
from app.cleanup.schemas import FilterPlanInput, SelectionInput
from app.cleanup.tables import CleanupIntent, PlanChunk
from app.cleanup.views import freed_note
from app.errors import Conflict, InvalidInput, NotFound
from app.records.facts import FileFact
from tests.unit.cleanup.support import World, name_of

INCOMPATIBLE = [{"kind": "incompatible"}]
CORRUPT = [{"kind": "corrupt"}]


class TestRun:
    def test_moves_exactly_what_was_planned_into_quarantine(self, world: World) -> None:
        good = world.fill(20)
        bad = world.fill(10, first=100, cls=("corrupt", "short"))
        run = world.run(CORRUPT)
        assert (run.state, run.verdict) == ("succeeded", "succeeded")
        assert run.removed.records == 10
        assert run.removed.bytes == 640
        assert run.by_reason["short"].records == 10
        assert world.names() == set(good)
        assert world.quarantined() == set(bad)
        assert set(world.inventory.gone) == set(bad)
        assert run.in_quarantine.records == 10

    def test_a_run_that_moves_nothing_leaves_no_folder(self, world: World) -> None:
        names = world.fill(3, cls=("corrupt", "short"))
        plan = world.plan(CORRUPT)
        for name in names:
            (world.path / os.fsdecode(name)).write_bytes(b"written anew")
        run = world.service.start_run(int(plan.id), actor="test")
        assert (run.verdict, run.skipped) == ("nothing_to_do", {"changed": 3})
        assert list((world.path / ".tierkeeper/quarantine").iterdir()) == []

    def test_waits_for_the_disk_do_not_grow_with_every_chunk(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world = World(tmp_path, chunk=10)
        world.fill(3 * CHUNKS_AT_ONCE * 10, cls=("corrupt", "short"))
        plan = world.plan(CORRUPT)
        with world.db.read() as session:
            chunks = session.scalar(select(func.count()).select_from(PlanChunk))
        assert chunks is not None
        turns: list[int] = []
        real = Journal.turn

        def turn(self: Journal, kind: str, chunks: Sequence[Chunk], tally: RunTally | None) -> None:
            turns.append(len(chunks))
            real(self, kind, chunks, tally)
            with world.db.read() as session:
                opened = session.scalar(select(func.count()).where(CleanupIntent.settled_at.is_(None)))
            assert opened == len(chunks), "all intents of a batch are committed before it begins"

        monkeypatch.setattr(Journal, "turn", turn)
        run = world.service.start_run(int(plan.id), actor="test")
        assert run.removed.records == 3 * CHUNKS_AT_ONCE * 10
        assert sum(turns) == chunks
        assert len(turns) == -(-chunks // CHUNKS_AT_ONCE) + 1
        world.db.dispose()

    def test_nothing_to_do(self, world: World) -> None:
        world.fill(3)
        run = world.run(CORRUPT)
        assert (run.state, run.verdict, run.removed.records) == ("succeeded", "nothing_to_do", 0)

    def test_a_run_of_a_policy_plans_for_itself(self, world: World) -> None:
        world.fill(2, cls=("corrupt", "empty"))
        policy = world.policy(CORRUPT)
        run = world.service.start_policy_run(policy, actor="test")
        assert run.verdict == "succeeded"
        assert run.plan_id is not None
        assert world.service.get_plan(int(run.plan_id)).state == "succeeded"
        assert world.service.get_policy(policy).last_run is not None

    def test_a_plan_runs_once(self, world: World) -> None:
        world.fill(1, cls=("corrupt", "short"))
        plan = world.plan(CORRUPT)
        world.service.start_run(int(plan.id), actor="test")
        with pytest.raises(Conflict, match="was run already"):
            world.service.start_run(int(plan.id), actor="test")

    def test_an_expired_plan_is_refused(self, world: World) -> None:
        world.fill(1, cls=("corrupt", "short"))
        plan = world.plan(CORRUPT)
        world.clock.forward(3601)
        with pytest.raises(Conflict, match="expired"):
            world.service.start_run(int(plan.id), actor="test")
        assert world.names() == {name_of(0)}

    def test_what_changed_since_the_plan_stays(self, world: World) -> None:
        names = world.fill(4, cls=("corrupt", "short"))
        plan = world.plan(CORRUPT)
        replaced, grown, gone, _ = (world.path / os.fsdecode(n) for n in names)
        replaced.unlink()
        replaced.write_bytes(b"new")
        with grown.open("ab") as file:
            file.write(b"more")
        gone.unlink()
        run = world.service.start_run(int(plan.id), actor="test")
        assert run.skipped == {"changed": 2, "vanished": 1}
        assert world.names() == {names[0], names[1]}
        assert replaced.read_bytes() == b"new"

    def test_a_record_of_another_class_now_stays(self, world: World) -> None:
        names = world.fill(2, cls=("corrupt", "short"))
        plan = world.plan(CORRUPT)
        world.inventory.classes[names[0]] = ("current", None)
        run = world.service.start_run(int(plan.id), actor="test")
        assert run.skipped == {"reclassified": 1}
        assert world.names() == {names[0]}

    def test_a_late_poll_is_waited_for_before_wrong_records_are_left_and_derived_ones_go(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(passes, "_LATE_POLLS_LOOK", 0.001)
        names = world.fill(2, cls=("incompatible", "other_layout"))
        plan = world.plan([{"kind": "incompatible"}])
        looks = iter([False, False, True])
        known = dict(world.inventory.classes)

        def in_time() -> bool:
            if there := next(looks, True):
                world.inventory.classes.update(known)
            return there

        world.inventory.classes.update(dict.fromkeys(names, ("unverified", "mixed_layouts")))
        world.inventory.in_time = in_time
        run = world.service.start_run(int(plan.id), actor="test")
        assert (run.removed.records, run.skipped, world.names()) == (2, {}, set())

    def test_polls_that_never_come_leave_the_records_and_the_run_says_so(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(passes, "_LATE_POLLS_LOOK", 10.0)
        monkeypatch.setattr(passes.time, "sleep", lambda _seconds: None)
        names = world.fill(2, cls=("incompatible", "other_layout"))
        plan = world.plan([{"kind": "incompatible"}])
        world.inventory.classes.update(dict.fromkeys(names, ("unverified", "mixed_layouts")))
        world.inventory.in_time = lambda: False
        run = world.service.start_run(int(plan.id), actor="test")
        assert (run.skipped, world.names()) == ({"reclassified": 2}, set(names))
        assert any("2 planned records were left alone" in note and "run it again" in note for note in run.notes)

    def test_a_record_used_since_the_plan_stays_when_use_counts(self, world: World) -> None:
        names = world.fill(2, age=40 * 86_400.0)
        plan = world.plan([{"kind": "unused", "for": "14d"}])
        assert plan.records == 2
        path = world.path / os.fsdecode(names[0])
        os.utime(path, ns=(int(world.clock() * 1e9), path.stat().st_mtime_ns))
        # utime moves ctime too: that alone already tells. The access time is what this is about.
        run = world.service.start_run(int(plan.id), actor="test")
        assert sum(run.skipped.values()) == 1
        assert world.names() == {names[0]}

    def test_delete_frees_the_name_and_the_space(self, world: World) -> None:
        world.fill(5, cls=("corrupt", "short"))
        run = world.run(CORRUPT, removal="delete")
        assert run.removed.records == 5
        assert run.in_quarantine.records == 0
        assert world.quarantined() == set()

    def test_hash_sub_directories(self, world: World) -> None:
        name = name_of(1)
        digest = name.split(b"@")[3].split(b".")[0]
        nested = digest[:2] + b"/" + digest[2:4] + b"/" + name
        world.write(nested)
        world.inventory.classes[nested] = ("corrupt", "short")
        run = world.run(CORRUPT)
        assert run.removed.records == 1
        assert world.quarantined() == {nested}
        world.service.restore(int(run.id), None, actor="test")
        assert world.names() == {nested}

    def test_limits_stop_it_and_say_so(self, world: World) -> None:
        world.fill(10, cls=("corrupt", "short"))
        run = world.run(CORRUPT, limits={"max_records": 4})
        assert run.verdict == "stopped_at_limit"
        assert run.removed.records == 4
        assert "max_records" in run.notes[0]

    def test_overlap_is_refused(self, world: World) -> None:
        world.fill(1, cls=("corrupt", "short"))
        policy = world.policy(CORRUPT)
        scan = world.inventory.refresh
        refused: list[str] = []

        def in_the_middle(store_id: int, check: Callable[[], None]) -> None:
            with pytest.raises(Conflict) as caught:
                world.service.start_policy_run(policy, actor="other")
            refused.append(caught.value.detail)
            scan(store_id, check)

        world.inventory.refresh = in_the_middle  # type: ignore[method-assign]
        run = world.service.start_policy_run(policy, actor="test")
        assert "cleanup run 1 of this store is running" in refused[0]
        assert run.verdict == "succeeded"


class TestNumbers:
    """planned + added = removed + skipped + failed + not reached, always."""

    def test_of_a_run_that_is_cancelled_in_the_middle(self, tmp_path: Path) -> None:
        world = World(tmp_path, chunk=10)
        world.fill(50, cls=("corrupt", "short"))
        plan = world.plan(CORRUPT)
        first = world.service.plan_records(int(plan.id), page_size=1, page_token=None).items[0]
        (world.path / first.name).unlink()
        judge = world.inventory.classify_now
        judged: list[int] = []

        def cancel_later(store_id: int, facts: Sequence[FileFact]) -> list[tuple[str, str | None]]:
            judged.append(len(facts))
            if len(judged) == 3:
                world.service.cancel_run(1, actor="test")
            return judge(store_id, facts)

        world.inventory.classify_now = cancel_later  # type: ignore[method-assign]
        world.service.start_run(int(plan.id), actor="test")
        run = world.adds_up(1)
        assert (run.state, run.planned.records, run.skipped) == ("cancelled", 50, {"vanished": 1})
        assert (run.removed.records, run.not_reached) == (19, 30)
        world.db.dispose()

    def test_of_a_run_whose_plan_is_forgotten(self, world: World) -> None:
        world.fill(3, cls=("corrupt", "short"))
        run = world.run(CORRUPT, removal="delete")
        world.clock.forward(100 * 86_400)
        assert world.service.retire(world.clock()) == 1
        kept = world.service.get_run(int(run.id))
        assert (kept.plan_id, kept.planned.records, kept.removed.records, kept.not_reached) == (None, 3, 3, 0)

    def test_free_space_is_said_to_be_others_too(self, world: World) -> None:
        world.fill(2, cls=("corrupt", "short"))
        run = world.run(CORRUPT, removal="delete")
        assert run.deleted_bytes == 128
        assert run.freed_note is not None
        assert run.freed_note.startswith("the run deleted 128 B")

    @pytest.mark.parametrize(
        ("measured", "deleted", "says"),
        [
            (0, 0, "the run deleted nothing (quarantine frees nothing)"),
            (10**9, 10**9, "the run deleted 1.0 GB"),
            (-5 * 10**9, 10**9, "the run deleted 1.0 GB; others, or the panel's own files on this file system, "),
            (3 * 10**9, 0, "the run deleted nothing (quarantine frees nothing); others freed about 3.0 GB meanwhile"),
        ],
    )
    def test_what_neighbours_did_is_no_work_of_the_run(self, measured: int, deleted: int, says: str) -> None:
        assert freed_note(measured, deleted).startswith(says)


def test_a_tests_own_records_are_housekeeping(world: World) -> None:
    world.write(name_of(1, salt="tk-7-a"))
    body = FilterPlanInput(filter={"q": "@tk-7-"}, removal="delete")
    plan = world.service.start_filter_plan(world.store_id, body, actor="test", housekeeping=True)
    assert plan.origin == "housekeeping"
    run = world.service.start_run(int(plan.id), actor="test")
    assert (run.trigger, run.removed.records) == ("housekeeping", 1)


class TestFilterPlan:
    def test_takes_what_matches(self, world: World) -> None:
        names = world.fill(5)
        plan = world.service.start_filter_plan(
            world.store_id, FilterPlanInput(filter={"q": os.fsdecode(names[2])[20:60]}), actor="test"
        )
        assert plan.records == 1
        run = world.service.start_run(int(plan.id), actor="test")
        assert world.quarantined() == {names[2]}
        assert run.by_reason["current"].records == 1

    def test_tells_by_class_and_reason_what_was_picked(self, world: World) -> None:
        world.fill(3, cls=("corrupt", "short"))
        world.fill(2, first=10, cls=("incompatible", "other_layout"))
        world.fill(1, first=20)
        plan = world.service.start_filter_plan(world.store_id, FilterPlanInput(filter={"q": "@"}), actor="test")
        kinds = {"short": 3, "other_layout": 2, "current": 1}
        assert {key: n.records for key, n in plan.by_reason.items()} == kinds
        for key, number in kinds.items():
            page = world.service.plan_records(int(plan.id), page_size=10, page_token=None, reason=key)
            assert len(page.items) == number
        run = world.service.start_run(int(plan.id), actor="test")
        assert {key: n.records for key, n in run.by_reason.items()} == kinds

    @pytest.mark.parametrize(
        "given",
        [
            {},
            {"class": "foreign"},
            {"clas": "corrupt"},
            {"class": ""},
            {"class": "corrupt", "older_than": " "},
            {"model": []},
        ],
    )
    def test_refuses_what_says_nothing_or_too_much(self, world: World, given: dict[str, Any]) -> None:
        with pytest.raises(InvalidInput, match="filter"):
            world.service.start_filter_plan(world.store_id, FilterPlanInput(filter=given), actor="test")

    def test_unknown_store(self, world: World) -> None:
        with pytest.raises(NotFound):
            world.service.start_filter_plan(99, FilterPlanInput(filter={"class": "corrupt"}), actor="test")


class TestRestoreAndPurge:
    def test_restore_brings_everything_back_byte_for_byte_and_holds_it(self, world: World) -> None:
        names = world.fill(30, cls=("corrupt", "short"))
        before = {n: (world.path / os.fsdecode(n)).read_bytes() for n in names}
        times = {n: (world.path / os.fsdecode(n)).stat().st_mtime_ns for n in names}
        run = world.run(CORRUPT)
        job = world.service.restore(int(run.id), None, actor="test")
        assert (job.state, job.records) == ("succeeded", 30)
        assert {n: (world.path / os.fsdecode(n)).read_bytes() for n in names} == before
        assert {n: (world.path / os.fsdecode(n)).stat().st_mtime_ns for n in names} == times
        assert set(world.inventory.back) == set(names)
        after = world.service.get_run(int(run.id))
        assert (after.in_quarantine.records, after.restored_records) == (0, 30)
        assert list((world.path / ".tierkeeper" / "quarantine").iterdir()) == []
        # the next schedule leaves them alone
        world.inventory.refresh(world.store_id, lambda: None)
        again = world.plan(CORRUPT)
        assert (again.records, again.held_back["restored"].records) == (0, 30)

    def test_restore_never_goes_over_an_existing_name(self, world: World) -> None:
        names = world.fill(2, cls=("corrupt", "short"))
        run = world.run(CORRUPT)
        newer = world.path / os.fsdecode(names[0])
        newer.write_bytes(b"written meanwhile")
        job = world.service.restore(int(run.id), None, actor="test")
        assert (job.records, job.skipped) == (1, {"exists": 1})
        assert newer.read_bytes() == b"written meanwhile"
        assert world.quarantined() == {names[0]}
        assert world.service.get_run(int(run.id)).in_quarantine.records == 1

    def test_its_progress_has_a_total(self, world: World) -> None:
        world.fill(5, cls=("corrupt", "short"))
        run = world.run(CORRUPT)
        item = world.service.run_records(int(run.id), page_size=1, page_token=None).items[0]
        some = world.service.restore(int(run.id), SelectionInput(record_ids=[item.id]), actor="test")
        assert (some.progress.done, some.progress.total) == (1, 1)
        rest = world.service.restore(int(run.id), None, actor="test")
        assert (rest.progress.done, rest.progress.total) == (4, 4)

    def test_restore_of_some_records(self, world: World) -> None:
        world.fill(5, cls=("corrupt", "short"))
        run = world.run(CORRUPT)
        page = world.service.run_records(int(run.id), page_size=2, page_token=None)
        chosen = [item.id for item in page.items]
        job = world.service.restore(int(run.id), SelectionInput(record_ids=chosen), actor="test")
        assert job.records == 2
        assert world.names() == {item.name.encode() for item in page.items}

    def test_ids_of_the_inventory_work_too(self, world: World) -> None:
        world.fill(3, cls=("corrupt", "short"))
        run = world.run(CORRUPT)
        item = world.service.run_records(int(run.id), page_size=1, page_token=None).items[0]
        assert item.record_id is not None
        job = world.service.restore(int(run.id), SelectionInput(record_ids=[item.record_id]), actor="test")
        assert job.records == 1

    @pytest.mark.parametrize("body", [{"record_ids": ["../x"]}, {"filter": {"clas": "corrupt"}}])
    def test_bad_selections_name_the_field(self, world: World, body: dict[str, object]) -> None:
        world.fill(1, cls=("corrupt", "short"))
        run = world.run(CORRUPT)
        with pytest.raises(InvalidInput, match=r"record_ids\[0\]|filter\.clas"):
            world.service.restore(int(run.id), SelectionInput.model_validate(body), actor="test")

    def test_purge_by_filter_then_all(self, world: World) -> None:
        world.fill(2, cls=("corrupt", "short"))
        world.fill(3, first=50, cls=("corrupt", "empty"))
        run = world.run(CORRUPT)
        job = world.service.purge(int(run.id), SelectionInput(filter={"reason": "empty"}), actor="test")
        assert job.records == 3
        job = world.service.purge(int(run.id), None, actor="test")
        assert job.records == 2
        view = world.service.get_run(int(run.id))
        assert (view.purged.records, view.in_quarantine.records, view.removed.records) == (5, 0, 5)
        assert world.quarantined() == set()

    def test_expiry(self, world: World) -> None:
        world.fill(2, cls=("corrupt", "short"))
        run = world.run(CORRUPT, quarantine_for="7d")
        assert run.purge_after is not None
        assert world.service.purge_expired(world.clock() + 6 * 86_400) == 0
        assert world.service.purge_expired(world.clock() + 8 * 86_400) == 1
        assert world.quarantined() == set()
        assert world.service.purge_expired(world.clock() + 9 * 86_400) == 0

    def test_expiry_of_a_store_that_is_away_is_tried_again_later(self, world: World) -> None:
        world.fill(1, cls=("corrupt", "short"))
        world.run(CORRUPT, quarantine_for="1d")
        away = world.base / "away"
        world.path.rename(away)
        world.clock.forward(2 * 86_400)
        assert world.service.purge_expired(world.clock()) == 1
        (job,) = world.service.list_quarantine_jobs(page_size=10, page_token=None).items
        assert job.state == "failed"
        world.clock.forward(60)
        assert world.service.purge_expired(world.clock()) == 0
        away.rename(world.path)
        world.clock.forward(3600)
        assert world.service.purge_expired(world.clock()) == 1
        assert world.quarantined() == set()

    def test_quarantine_page_tells_what_waits(self, world: World) -> None:
        world.fill(3, cls=("corrupt", "short"))
        run = world.run(CORRUPT, name="nightly")
        view = world.service.quarantine(world.store_id, page_size=100, page_token=None)
        (entry,) = view.items
        assert (entry.run_id, entry.policy_name, entry.records, entry.bytes) == (run.id, "nightly", 3, 192)
        assert (view.records, view.bytes) == (3, 192)

    def test_a_new_panel_reads_the_manifest_and_restores(self, world: World, tmp_path: Path) -> None:
        names = world.fill(4, cls=("corrupt", "short"))
        world.run(CORRUPT)
        other = World(tmp_path, url=f"sqlite:///{tmp_path / 'other.db'}")
        try:
            (entry,) = other.service.quarantine(other.store_id, page_size=10, page_token=None).items
            assert (entry.run_id, entry.records, entry.readable) == (None, 4, True)
            adopted = other.service.adopt_quarantine(other.store_id, entry.folder, actor="test")
            assert adopted.in_quarantine.records == 4
            job = other.service.restore(int(adopted.id), None, actor="test")
            assert job.records == 4
            assert other.names() == set(names)
        finally:
            other.db.dispose()


class TestAnotherDirectoryInItsPlace:
    """A store that is not mounted, or was replaced, says of nothing that it is gone."""

    @pytest.fixture
    def moved(self, world: World) -> Iterator[tuple[World, int, set[bytes]]]:
        """A run of which all waits in quarantine, whose store has an empty directory in its place."""
        names = set(world.fill(6, cls=("corrupt", "short")))
        run = world.run(CORRUPT)
        world.path.rename(world.base / "real")
        world.path.mkdir()
        yield world, int(run.id), names

    @pytest.mark.parametrize("kind", ["restore", "purge"])
    def test_nothing_is_touched_and_all_goes_on_waiting(self, moved: tuple[World, int, set[bytes]], kind: str) -> None:
        world, run_id, names = moved
        job = getattr(world.service, kind)(run_id, None, actor="test")
        assert job.state == "failed"
        assert "is its file system mounted" in (job.error or "")
        assert world.service.get_run(run_id).in_quarantine.records == 6
        # Mounted again, it is as if nothing had been asked.
        (world.path / ".tierkeeper" / "lock").unlink(missing_ok=True)
        (world.path / ".tierkeeper").rmdir()
        world.path.rmdir()
        (world.base / "real").rename(world.path)
        assert world.quarantined() == names
        job = world.service.restore(run_id, None, actor="test")
        assert (job.state, job.records) == ("succeeded", 6)
        assert world.names() == names

    def test_intents_of_a_crash_stay_open(self, moved: tuple[World, int, set[bytes]]) -> None:
        world, run_id, _ = moved
        with world.db.write() as session:
            session.execute(update(CleanupIntent).where(CleanupIntent.run_id == run_id).values(settled_at=None))
        before = world.states(run_id)
        world.service._recovery.recover_run(run_id)
        assert world.states(run_id) == before
        with world.db.read() as session:
            assert session.scalar(select(func.count()).where(CleanupIntent.settled_at.is_(None)))

    def test_a_copy_in_its_place_puts_nothing_back_and_ends_nothing(self, world: World) -> None:
        names = set(world.fill(4, cls=("corrupt", "short")))
        run_id = int(world.run(CORRUPT).id)
        world.path.rename(world.base / "real")
        shutil.copytree(world.base / "real", world.path)  # other inodes: not the files that were put there
        job = world.service.restore(run_id, None, actor="test")
        assert (job.state, job.records, job.skipped) == ("succeeded", 0, {"changed": 4})
        assert job.failed[0].message.startswith("what lies in quarantine")
        assert world.service.get_run(run_id).in_quarantine.records == 4
        shutil.rmtree(world.path)
        (world.base / "real").rename(world.path)
        job = world.service.restore(run_id, None, actor="test")
        assert (job.records, job.skipped) == (4, {})
        assert world.names() == names

    def test_a_copy_in_its_place_is_not_purged_and_ends_nothing(self, world: World) -> None:
        world.fill(4, cls=("corrupt", "short"))
        run_id = int(world.run(CORRUPT).id)
        world.path.rename(world.base / "real")
        shutil.copytree(world.base / "real", world.path)
        job = world.service.purge(run_id, None, actor="test")
        assert (job.state, job.records, job.skipped) == ("succeeded", 0, {"changed": 4})
        assert len(world.quarantined()) == 4
        assert world.service.get_run(run_id).in_quarantine.records == 4
        shutil.rmtree(world.path)
        (world.base / "real").rename(world.path)
        job = world.service.purge(run_id, None, actor="test")
        assert (job.records, job.skipped) == (4, {})
        assert world.service.get_run(run_id).purged.records == 4

    def test_a_purge_by_the_clock_that_met_a_copy_waits_a_day(self, world: World) -> None:
        world.fill(2, cls=("corrupt", "short"))
        world.run(CORRUPT, quarantine_for="1d")
        world.path.rename(world.base / "real")
        shutil.copytree(world.base / "real", world.path)
        now = world.clock() + 86_401
        world.clock.forward(86_401)
        assert world.service.purge_expired(now) == 1
        assert world.service.purge_expired(now + 3_700) == 0
        world.clock.forward(86_401)
        assert world.service.purge_expired(now + 86_401) == 1

    def test_what_was_deleted_by_hand_in_the_right_directory_has_vanished(self, world: World) -> None:
        world.fill(3, cls=("corrupt", "short"))
        run = world.run(CORRUPT)
        shutil.rmtree(world.path / ".tierkeeper" / "quarantine")
        job = world.service.restore(int(run.id), None, actor="test")
        assert (job.state, job.records, job.skipped) == ("succeeded", 0, {"vanished": 3})
        assert world.service.get_run(int(run.id)).in_quarantine.records == 0
