"""Servers and engines that lose each other while every health light is green."""

from __future__ import annotations

from pathlib import Path

from app.sandbox import EngineSpec, ServerSpec
from tests.unit.alerts.support import staged


def test_a_restart_inside_the_heartbeat_is_told_within_two_minutes(tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        stage.run(60, 30)
        stage.control.restart("server/0")  # before the engine's first request: no heartbeat will ever notice
        stage.tick()
        assert stage.firing() == {}  # a server that only just started is given a minute
        stage.run(60, 10)
        assert set(stage.firing()) == {"restart_unnoticed"}
        alarm = stage.firing()["restart_unnoticed"]
        assert "gpu-0 did not register again" in alarm.sentence
        # Requests make it certain, and raise nothing else.
        stage.run(600, 30, each=stage.ask)
        assert set(stage.firing()) == {"restart_unnoticed"}
        assert "lookups were turned away" in stage.firing()["restart_unnoticed"].sentence
        stage.control.restart("engine/0")
        stage.run(300, 30, each=stage.ask)
        assert stage.firing() == {}


def test_a_restart_that_the_heartbeat_notices_raises_nothing(tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        stage.ask()  # heartbeats begin with the first store
        stage.run(60, 10)
        stage.control.kill("server/0")
        stage.run(30, 10)
        stage.control.start("server/0")
        fired: set[str] = set()
        for _ in range(30):
            stage.ask()
            stage.tick()
            fired |= set(stage.firing())
        assert fired == set()


def test_an_engine_unknown_to_panel_and_server(tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        stage.fleet.delete_engine(stage.engine_ids[0], actor="t")
        stage.run(120, 30, each=stage.ask)
        assert stage.firing() == {}
        stage.control.restart("server/0")
        stage.run(600, 30, each=stage.ask)
        assert set(stage.firing()) == {"engine_silent"}  # and not "nobody uses this server" as well
        assert "does not know" in stage.firing()["engine_silent"].sentence


def test_a_registered_engine_that_is_lost(tmp_path: Path) -> None:
    """The message thread is dead (HTTP to the ZeroMQ port), HTTP is well; the engine's context is reaped."""
    with staged(tmp_path, servers=[ServerSpec(reap_timeout_seconds=60)]) as stage:
        stage.run(120, 30, each=stage.ask)
        stage.control.misbehave("server/0", mq_dead=True)
        fired: set[str] = set()
        for _ in range(30):
            stage.ask()
            stage.tick(30)
            fired |= set(stage.firing())
        assert stage.fleet.get_server(stage.server_ids[0]).health.http_up is True
        assert fired == {"engine_not_registered"}
        assert "missing: gpu-0" in stage.firing()["engine_not_registered"].sentence


def test_an_engine_that_restarted_is_registered_again_and_raises_nothing(tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        stage.run(60, 30, each=stage.ask)
        stage.control.restart("engine/0")
        fired: set[str] = set()
        for _ in range(12):
            stage.ask()
            stage.tick(30)
            fired |= set(stage.firing())
        assert fired == set()


def test_a_server_that_nobody_uses(tmp_path: Path) -> None:
    with staged(tmp_path, engines=0) as stage:
        stage.run(270, 30)
        assert set(stage.pending()) == {"nobody_registered"}
        stage.run(90, 30)
        assert set(stage.firing()) == {"nobody_registered"}


def test_an_engine_that_works_without_its_cache_while_every_light_is_green(tmp_path: Path) -> None:
    with staged(tmp_path, servers=[ServerSpec(reap_timeout_seconds=86400)]) as stage:
        stage.run(360, 30, each=stage.ask)
        assert stage.fact("cache_bypassed", "engine").state == "ok"
        stage.control.misbehave("server/0", mq_dead=True)
        stage.run(480, 30, each=stage.ask)
        health = stage.fleet.get_server(stage.server_ids[0]).health
        assert (health.state, health.engines_registered) == ("healthy", 1)
        assert set(stage.firing()) == {"cache_bypassed"}
        assert "made 0 lookups" in stage.firing()["cache_bypassed"].sentence
        stage.control.behave()
        stage.control.restart("engine/0")
        stage.run(480, 30, each=stage.ask)
        assert stage.firing() == {}


def test_an_idle_engine_bypasses_nothing(tmp_path: Path) -> None:
    with staged(tmp_path, engines=[EngineSpec(), EngineSpec(server=None)]) as stage:
        stage.run(600, 30, each=lambda: stage.ask(engine=1))  # the other one has no connector at all
        assert stage.firing() == {}
