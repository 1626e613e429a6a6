"""R4: L2, L1, L0, and again; what cannot be cleared stays an open episode until a later run closes it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from app.cleanup.tiers import Mark
from app.lmcache.object_keys import encode_model
from app.records.facts import FileFact
from tests.unit.cleanup.support import MODEL, START, World, key_of, name_of

WRONG = [{"kind": "incompatible"}, {"kind": "corrupt"}, {"kind": "derived"}]
OTHER = ("incompatible", "other_layout")


def steps(run: object) -> list[tuple[str, str]]:
    return [(s.name, s.state) for s in run.steps]  # type: ignore[attr-defined]


class TestOrder:
    def test_l2_then_l1_then_l0_then_l1_again(self, world: World) -> None:
        world.fill(5, cls=OTHER)
        world.calls.l1 = {key_of(n) for n in range(5)} | {key_of(99)}
        seen: list[int] = []
        world.calls.on_delete = lambda: seen.append(len(world.names()))
        run = world.run(WRONG)
        assert run.verdict == "succeeded"
        assert world.calls.log == ["l1 5", "l0 done", "l1 5"]
        assert seen == [0, 0], "L2 first"
        assert world.calls.l1 == {key_of(99)}
        assert steps(run) == [
            ("l2", "done"),
            ("l1", "done"),
            ("l0", "done"),
            ("l2_again", "done"),
            ("l1_again", "done"),
        ]
        assert "6 objects before and 1 after" in run.steps[1].detail
        assert world.inventory.cleared_models == [(encode_model(MODEL), world.clock())]
        assert world.service.episodes(world.store_id) == []

    @pytest.mark.parametrize("reason", ["empty", "short"])
    def test_damage_that_no_engine_can_have_read_is_l2_only(self, world: World, reason: str) -> None:
        world.fill(2, cls=("corrupt", reason))
        assert world.run(WRONG).verdict == "succeeded"
        assert world.calls.log == []

    @pytest.mark.parametrize(
        "cls",
        [
            OTHER,
            ("incompatible", "declared"),
            ("incompatible", "other_size"),
            ("corrupt", "long"),
            ("unverified", "derived"),
        ],
    )
    def test_everything_an_engine_may_have_read_wrongly_goes_the_whole_way(
        self, world: World, cls: tuple[str, str]
    ) -> None:
        world.fill(2, cls=cls)
        world.run(WRONG)
        assert world.calls.log == ["l1 2", "l0 done", "l1 2"]

    def test_a_model_that_no_engine_serves_is_l2_only(self, world: World) -> None:
        world.fill(2, cls=OTHER)
        world.calls.served = frozenset({"/models/other"})
        run = world.run(WRONG)
        assert (run.verdict, world.calls.log) == ("succeeded", [])
        assert steps(run) == [("l2", "done"), ("l1", "skipped")]

    def test_records_that_are_right_leave_the_caches_alone(self, world: World) -> None:
        world.fill(3, age=40 * 86_400)
        assert world.run([{"kind": "unused", "for": "14d"}]).removed.records == 3
        assert world.calls.log == []

    def test_keys_carry_salt_and_the_servers_own_spelling(self, world: World) -> None:
        model = "/models/with-SEP-in-it"
        world.calls.served = frozenset({model})
        name = name_of(1, model=model, salt="tenant")
        world.write(name)
        world.inventory.classes[name] = OTHER
        world.calls.l1 = {key_of(1, model=model, salt="tenant")}
        assert world.run(WRONG).verdict == "succeeded"
        assert world.calls.l1 == set()


class TestPolling:
    def test_a_busy_engine_is_polled_until_it_is_done(self, world: World) -> None:
        world.fill(1, cls=OTHER)
        world.calls.busy = 7
        assert world.run(WRONG).verdict == "succeeded"
        assert world.calls.log.count("l0 busy") == 7
        assert world.slept == 3.5

    def test_an_engine_that_stays_busy_is_given_up_after_the_deadline(self, world: World) -> None:
        world.fill(1, cls=OTHER)
        world.calls.busy = 10**6
        run = world.run(WRONG)
        assert run.verdict == "insufficient"
        assert "too busy" in run.notes[0]
        assert world.slept < 130

    def test_locked_objects_are_waited_for(self, world: World) -> None:
        world.fill(1, cls=OTHER)
        world.calls.locked = 3
        assert world.run(WRONG).verdict == "succeeded"
        assert world.calls.log[:4] == ["l1 1"] * 4

    def test_stores_under_way_are_waited_for_but_not_for_ever(self, world: World) -> None:
        world.fill(1, cls=OTHER)
        world.calls.stores_waiting = 8
        assert world.run(WRONG).verdict == "succeeded"
        assert 0 < world.slept < 10
        world.fill(1, cls=OTHER, first=5)
        world.inventory.refresh(world.store_id, lambda: None)
        world.calls.stores_waiting = 10**6
        run = world.run(WRONG)
        assert run.verdict == "succeeded"
        assert "stores to L2 under way" in run.steps[1].detail

    def test_objects_locked_for_ever(self, world: World) -> None:
        world.fill(1, cls=OTHER)
        world.calls.locked = 10**6
        run = world.run(WRONG)
        assert run.verdict == "insufficient"
        assert "locked by transfers" in run.notes[0]

    def test_a_cancel_while_an_engine_is_busy(self, world: World) -> None:
        world.fill(1, cls=OTHER)
        world.calls.busy = 10**6
        world.calls.on_reset = lambda: world.slept > 3 and world.service.cancel_run(1, actor="test")  # type: ignore[assignment, return-value]
        run = world.run(WRONG)
        assert (run.state, run.verdict) == ("cancelled", None)
        assert world.adds_up(run.id).removed.records == 1
        (episode,) = world.service.episodes(world.store_id)
        assert episode.run_ids == [run.id]


class TestInsufficient:
    def test_without_dev_mode_the_way_out_is_said_and_the_next_run_after_a_restart_closes_it(
        self, world: World
    ) -> None:
        world.fill(3, cls=OTHER)
        world.calls.dev_mode = False
        policy = world.policy(WRONG)
        run = world.service.start_policy_run(policy, actor="test")
        assert run.verdict == "insufficient"
        assert run.notes == ["restart gpu to clear its GPU cache, then run again"]
        (episode,) = world.service.episodes(world.store_id)
        assert episode.model_name == MODEL
        assert world.inventory.cleared_models == []

        world.clock.forward(600)
        again = world.service.start_policy_run(policy, actor="test")
        assert again.verdict == "insufficient", "nothing has happened yet"

        # the dirty engine has written a wrong record anew, under an old key
        world.write(name_of(1), b"laundered", age=0)
        world.inventory.classes[name_of(1)] = ("unverified", "derived")
        world.clock.forward(600)
        world.calls.engine_start = world.clock()
        world.clock.forward(60)
        closing = world.service.start_policy_run(policy, actor="test")
        assert closing.verdict == "succeeded"
        assert world.names() == set()
        assert world.service.episodes(world.store_id) == []
        assert [m for m, _ in world.inventory.cleared_models] == [encode_model(MODEL)]
        assert world.service.start_policy_run(policy, actor="test").verdict == "nothing_to_do"

    def test_a_restart_before_the_removal_does_not_count(self, world: World) -> None:
        world.fill(1, cls=OTHER)
        world.calls.dev_mode = False
        world.calls.engine_start = world.clock() - 5
        assert world.run(WRONG).verdict == "insufficient"

    def test_new_wrong_records_need_a_restart_after_them(self, world: World) -> None:
        policy = world.policy(WRONG)
        world.fill(1, cls=OTHER)
        world.calls.dev_mode = False
        assert world.service.start_policy_run(policy, actor="test").verdict == "insufficient"
        world.calls.engine_start = world.clock() + 100
        world.clock.forward(200)
        # wrong again by a second change: the engine may have read these since its restart
        world.fill(1, first=50, cls=OTHER)
        assert world.service.start_policy_run(policy, actor="test").verdict == "insufficient"

    def test_a_skewed_clock_of_the_engines_host_does_not_fool_it(self) -> None:
        mark = Mark(1000.0, {"engine:1": 5000.0, "engine:2": None})
        assert not mark.restarted("engine:1", 5000.4)
        assert mark.restarted("engine:1", 5100.0)
        assert not mark.restarted("engine:2", 1003.0)
        assert mark.restarted("engine:2", 1010.0)
        assert not mark.restarted("engine:1", None)

    @pytest.mark.parametrize(("who", "sentence"), [("engine", "gpu"), ("server", "cache does not answer")])
    def test_who_does_not_answer_is_named(self, world: World, who: str, sentence: str) -> None:
        world.fill(1, cls=OTHER)
        world.calls.down = {who}
        run = world.run(WRONG)
        assert (run.verdict, run.removed.records) == ("insufficient", 1)
        assert any(sentence in note for note in run.notes)

    def test_an_engine_that_is_not_registered_is_never_assumed_away(self, tmp_path: Path) -> None:
        world = World(tmp_path, servers=False)
        try:
            from app.fleet.tables import Server, StoreServer

            with world.db.write() as session:
                server = Server(name="cache", url="http://127.0.0.1:1", created_at=START, health_since=START)
                session.add(server)
                session.flush()
                session.add(StoreServer(store_id=world.store_id, server_id=server.id))
            world.fill(1, cls=OTHER)
            run = world.run(WRONG)
            assert run.verdict == "insufficient"
            assert f"an engine of {MODEL} on cache is not registered here (or not linked to it)" in run.notes[0]
        finally:
            world.db.dispose()

    def test_a_second_engine_behind_the_server(self, world: World) -> None:
        world.fill(1, cls=OTHER)
        world.calls.registered = 2
        assert world.run(WRONG).verdict == "insufficient"

    def test_the_context_of_an_engines_last_process_is_not_taken_for_a_second_engine(self, world: World) -> None:
        world.fill(1, cls=OTHER)
        world.calls.registered = 2
        world.calls.engine_start = world.clock() - 30
        assert world.run(WRONG).verdict == "succeeded"

    def test_an_answer_that_says_nothing_is_not_believed(self, world: World) -> None:
        world.fill(1, cls=OTHER)

        async def reset(engine: object) -> object:
            from app.cleanup.tiers import Reset

            return Reset("unknown", "answers nothing whatever happened")

        world.calls.reset = reset  # type: ignore[method-assign, assignment]
        assert world.run(WRONG).verdict == "insufficient"


class TestLaundering:
    """C8: what a dirty engine writes anew while the run goes on."""

    def judge(self, world: World) -> None:
        """Everything written after the start of the test is derived until the caches were cleared."""
        born = world.clock.now

        def of(name: bytes, fact: FileFact) -> tuple[str, str | None]:
            if fact.mtime_ns >= int(born * 1e9) - 1:
                return "unverified", "derived"
            return OTHER

        world.inventory.judge = of

    def test_what_came_back_under_the_same_keys_goes_again(self, world: World) -> None:
        names = world.fill(4, cls=OTHER)
        self.judge(world)
        wrote: list[int] = []

        def dirty_engine() -> None:
            if not wrote:
                wrote.append(1)
                for name in names[:2]:
                    world.write(name, b"wrong again", age=0)

        world.calls.on_reset = dirty_engine
        run = world.run([{"kind": "incompatible"}])
        assert run.verdict == "succeeded"
        assert world.names() == set()
        assert run.by_reason["recreated"].records == 2
        assert run.removed.records == 6
        assert (run.planned.records, run.added.records) == (4, 2)
        world.adds_up(run.id)
        assert "2 records had come back" in run.steps[-2].detail
        # both generations of a name wait side by side
        job = world.service.restore(int(run.id), None, actor="test")
        assert job.records == 4
        assert job.skipped == {"exists": 2}

    def test_what_came_back_is_the_reason_to_reset_again(self, world: World) -> None:
        names = world.fill(1, cls=OTHER)
        self.judge(world)
        resets: list[int] = []

        def dirty_engine() -> None:
            resets.append(1)
            if len(resets) == 1:
                world.write(names[0], b"wrong again", age=0)

        world.calls.on_reset = dirty_engine
        assert world.run([{"kind": "incompatible"}]).verdict == "succeeded"
        assert len(resets) == 2

    def test_a_record_that_is_proven_right_now_stays(self, world: World) -> None:
        names = world.fill(1, cls=OTHER)

        def clean_engine() -> None:
            world.write(names[0], b"right", age=0)
            world.inventory.classes[names[0]] = ("current", None)

        world.calls.on_reset = clean_engine
        run = world.run([{"kind": "incompatible"}])
        assert (run.verdict, run.removed.records) == ("succeeded", 1)
        assert (world.path / os.fsdecode(names[0])).read_bytes() == b"right"

    def test_what_was_written_after_the_caches_were_clean_stays(self, world: World) -> None:
        names = world.fill(1, cls=OTHER)
        self.judge(world)
        beat = world.calls.on_delete
        calls: list[int] = []

        def late_writer() -> None:
            calls.append(1)
            if len(calls) == 2:  # the second pass over L1: L0 has been reset before
                path = world.write(names[0], b"computed anew", age=0)
                future = path.stat().st_mtime_ns + 10**9
                os.utime(path, ns=(future, future))
            beat()

        world.calls.on_delete = late_writer
        run = world.run([{"kind": "incompatible"}])
        assert (run.verdict, run.removed.records) == ("succeeded", 1)
        assert (world.path / os.fsdecode(names[0])).read_bytes() == b"computed anew"

    def test_derived_records_under_new_keys_go_in_the_same_run_where_the_policy_takes_them(self, world: World) -> None:
        world.fill(3, cls=OTHER)
        self.judge(world)
        late = [name_of(70), name_of(71)]
        world.calls.l1 = {key_of(71)}

        def dirty_engine() -> None:
            for name in late:
                if name not in world.quarantined():
                    world.write(name, b"behind a wrong prefix", age=0)

        world.calls.on_reset = dirty_engine
        run = world.run(WRONG)
        assert run.verdict == "succeeded"
        assert world.names() == set()
        assert run.by_reason["derived"].records == 2
        assert world.calls.l1 == set()
        world.adds_up(run.id)

    def test_its_own_scan_is_told_first_what_the_run_removed(self, world: World) -> None:
        """Else the scan takes it for vanished: the adapter would seem to evict."""
        names = world.fill(5, cls=OTHER)
        self.judge(world)
        told: list[int] = []
        scan = world.inventory.refresh

        def listen(store_id: int, check_cancel: Callable[[], None]) -> None:
            told.append(len(world.inventory.gone))
            scan(store_id, check_cancel)

        world.inventory.refresh = listen  # type: ignore[method-assign]
        run = world.run(WRONG)
        assert run.verdict == "succeeded"
        assert told[0] == 0
        assert set(told[1:]) == {5}, "the scans after the first pass"
        assert sorted(world.inventory.gone) == sorted(names), "each once"

    def test_without_derived_in_the_policy_they_stay_for_another_one(self, world: World) -> None:
        world.fill(1, cls=OTHER)
        self.judge(world)
        world.calls.on_reset = lambda: world.write(name_of(70), b"behind a wrong prefix", age=0) and None
        run = world.run([{"kind": "incompatible"}])
        assert world.names() == {name_of(70)}
        assert run.verdict == "succeeded"
        assert run.notes[0].startswith(f"1 record of {MODEL} that is wrong, or may be (derived), lies in the store yet")
        assert world.inventory.cleared_models == [], "engines go on reading it"

    def test_wrong_records_that_a_run_leaves_keep_what_is_behind_them_derived(self, world: World) -> None:
        """C8: the clearing of L2 is complete only when none of them is left, whatever kept the run from it."""
        world.fill(4, cls=OTHER)
        run = world.run(WRONG, limits={"max_records": 1})
        assert run.verdict == "stopped_at_limit"
        assert world.calls.log == ["l1 1", "l0 done", "l1 1"]
        assert run.notes[0].startswith(f"3 records of {MODEL} that are wrong")
        assert steps(run)[-1] == ("verify", "waiting")
        assert world.inventory.cleared_models == []
        world.inventory.holds[sorted(world.names())[0]] = "restored"
        assert "1 record of" in world.run(WRONG).notes[0], "put back by hand, and read again"
        assert world.inventory.cleared_models == []
        world.inventory.holds.clear()
        assert "in the store yet" not in "".join(world.run(WRONG).notes)
        assert [model for model, _ in world.inventory.cleared_models] == [encode_model(MODEL)]

    def test_a_run_with_nothing_wrong_to_take_tells_derived_ones_that_are_left(self, world: World) -> None:
        names = world.fill(3, cls=("unverified", "derived"))
        run = world.run([{"kind": "incompatible"}])
        assert run.verdict == "nothing_to_do"
        assert [note for note in run.notes if note.startswith("3 records of this store may be wrong (derived")]
        assert not [note for note in world.run([{"kind": "derived"}]).notes if "derived" in note]
        for name in names:
            world.inventory.classes[name] = ("unverified", "derived")
            world.write(name)
            world.inventory.holds[name] = "canary"
        assert not [note for note in world.run([{"kind": "incompatible"}]).notes if "derived" in note]

    def test_what_a_canary_keeps_is_read_by_nobody_else(self, world: World) -> None:
        names = world.fill(2, cls=OTHER)
        world.inventory.holds[names[1]] = "canary"
        assert "in the store yet" not in "".join(world.run(WRONG).notes)
        assert [model for model, _ in world.inventory.cleared_models] == [encode_model(MODEL)]

    def test_a_crash_after_the_first_pass_is_finished_by_the_next_run(self, world: World) -> None:
        world.fill(2, cls=OTHER)
        policy = world.policy(WRONG)

        def dies() -> None:
            raise KeyboardInterrupt

        world.calls.on_delete = dies
        with pytest.raises(KeyboardInterrupt):
            world.service.start_policy_run(policy, actor="test")
        world.calls.on_delete = lambda: None
        assert world.names() == set()
        # as after the process's end: its row says running, its owner is gone
        from sqlalchemy import update

        from app.cleanup.tables import CleanupRun

        with world.db.write() as session:
            session.execute(update(CleanupRun).values(owner=f"{os.uname().nodename}:1:1"))
        run = world.service.start_policy_run(policy, actor="test")
        assert run.verdict == "succeeded"
        assert world.calls.log == ["l1 2", "l0 done", "l1 2"]
        assert world.service.get_run(1).state == "interrupted"
        assert world.service.episodes(world.store_id) == []
