"""Layouts that change or mix, and the proof that the cache is right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from app.acceptance.tables import AcceptanceRun, Canary
from app.sandbox import EngineSpec, KVLayout, ServerSpec
from tests.unit.alerts.support import Panel, staged

FLOAT16 = EngineSpec(layout=KVLayout(dtype="float16"))


def test_two_layouts_of_one_model_at_one_server(tmp_path: Path) -> None:
    engines = [EngineSpec(), FLOAT16]
    with staged(tmp_path, engines=engines) as stage:
        for engine in (0, 1):
            stage.ask(which=1, engine=engine)
        stage.run(120, 30)
        assert "mixed_layouts" in stage.pending()  # it may still be an engine that only just restarted
        stage.run(60, 30)
        alarm = stage.firing()["mixed_layouts"]
        assert alarm.severity == "critical"
        assert "bfloat16, chunk 64" in alarm.sentence
        assert "float16, chunk 64" in alarm.sentence
        assert set(stage.firing()) == {"mixed_layouts"}


def test_an_engine_that_restarts_with_another_layout_is_a_change_and_no_mix(tmp_path: Path) -> None:
    with staged(tmp_path, servers=[ServerSpec(reap_timeout_seconds=60)]) as stage:
        stage.run(60, 30, each=lambda: stage.ask(which=1))
        assert stage.fact("layout_change").state == "quiet"
        stage.control.restart("engine/0", dtype="float16")
        fired: set[str] = set()
        for _ in range(12):
            stage.ask(which=1)
            stage.tick(30)
            fired |= set(stage.firing())
        assert fired == {"layout_changed"}
        assert "dtype: bfloat16 → float16" in stage.firing()["layout_changed"].sentence
        # An hour later the change is no news; that nothing has proven the cache since is.
        stage.clock.now += 3600
        stage.run(60, 30, each=lambda: stage.ask(which=1))
        assert set(stage.firing()) == {"layout_unproven"}
        stage.fleet.mark_data_path(stage.server_ids[0], stage.clock.now, right=True, by="acceptance run 1")
        stage.tick()
        assert stage.firing() == {}


def test_an_engine_that_restarts_with_the_same_layout_changes_nothing(tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        stage.run(60, 30, each=lambda: stage.ask(which=1))
        stage.control.restart("engine/0")
        stage.run(300, 30, each=lambda: stage.ask(which=1))
        assert stage.fact("layout_change").state == "quiet"
        assert stage.firing() == {}


def test_an_engine_that_never_pinged_leaves_its_context_for_an_hour(tmp_path: Path) -> None:
    """It restarted with another layout before its first request: the old context is a leftover, not a mix."""
    with staged(tmp_path) as stage:
        stage.run(60, 30)
        stage.control.restart("engine/0", dtype="float16")
        stage.run(600, 30)
        assert len(stage.fleet.get_server(stage.server_ids[0]).layouts) == 2
        assert set(stage.firing()) == {"layout_changed"}


def test_two_servers_over_one_directory_and_two_layouts_in_it(tmp_path: Path) -> None:
    engines = [EngineSpec(server=0), replace(FLOAT16, server=1)]
    with staged(tmp_path, servers=2, engines=engines) as stage:
        stage.run(210, 30)
        assert set(stage.firing()) == {"shared_directory", "mixed_layouts_in_store"}
        assert "cache-0, cache-1 write into" in stage.firing()["shared_directory"].sentence
        assert "both write records of /models/tiny-llama" in stage.firing()["shared_directory"].sentence
        mixed = stage.firing()["mixed_layouts_in_store"]
        assert "cache-1: float16, chunk 64" in mixed.sentence


def test_two_servers_of_one_host_that_name_the_same_path_without_a_store(tmp_path: Path) -> None:
    with staged(tmp_path, servers=2, engines=2, store=False) as stage:
        stage.run(120, 30)
        alarm = stage.firing()["shared_directory"]
        assert (alarm.target_kind, alarm.target_name) == ("server", "cache-0")
        assert alarm.part == str(stage.sandbox.store_path)
        assert alarm.page == f"/servers/{stage.server_ids[0]}"
        stage.control.kill("server/1")
        stage.run(240, 30)
        assert "shared_directory" not in stage.firing()  # one writer is no danger


def acceptance_run(panel: Panel, number: int, verdict: str, at: float) -> None:
    with panel.db.write() as session:
        session.add(
            AcceptanceRun(
                id=number,
                state="succeeded",
                created_at=at,
                finished_at=at,
                engine_id=1,
                server_id=None,
                engine_name="gpu-0",
                server_name="cache-0",
                run_key=f"k{number}",
                profile="quick",
                verdict=verdict,
                headline="answers differ" if verdict == "fail" else "all right",
                deadline_seconds=60.0,
            )
        )


def test_a_failed_acceptance_run_until_one_passes(tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        acceptance_run(stage, 1, "pass", stage.clock.now)
        stage.tick()
        assert stage.firing() == {}
        acceptance_run(stage, 2, "fail", stage.clock.now)
        acceptance_run(stage, 3, "invalid", stage.clock.now)  # proves nothing either way
        stage.tick()
        alarm = stage.firing()["acceptance_failed"]
        assert "acceptance run 2 of gpu-0" in alarm.sentence
        assert "answers differ" in alarm.sentence
        acceptance_run(stage, 4, "pass_with_near_ties", stage.clock.now)
        stage.tick()
        assert stage.firing() == {}


def canary(panel: Panel, name: str, outcome: str) -> None:
    with panel.db.write() as session:
        session.add(
            Canary(
                engine_id=1,
                name=name,
                salt=f"tk-{name}",
                content={"text": "x"},
                max_tokens=4,
                answer={},
                created_at=0.0,
                created_by="t",
                last_outcome=outcome,
                last_checked_at=panel.clock.now,
            )
        )


def test_lost_wrong_and_drifted_canaries_are_three_alarms(tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        canary(stage, "a", "ok")
        canary(stage, "b", "never")
        stage.tick()
        assert stage.firing() == {}
        assert stage.fact("canaries", "engine").numbers["canaries"] == 1
        canary(stage, "c", "lost")
        stage.tick()
        assert set(stage.firing()) == {"canary_lost"}
        assert "1 of 2 canaries have lost their records: c" in stage.firing()["canary_lost"].sentence
        canary(stage, "e", "drift")
        stage.tick()
        assert set(stage.firing()) == {"canary_lost", "canary_drift"}
        assert stage.firing()["canary_drift"].sentence.endswith("otherwise than when they were kept: e")
        canary(stage, "d", "wrong")
        stage.tick()
        assert {"canary_lost", "canary_wrong"} <= set(stage.firing())
        assert stage.firing()["canary_wrong"].sentence.endswith("otherwise than the engine computes: d")
