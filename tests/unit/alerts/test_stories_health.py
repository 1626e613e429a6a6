"""Targets that fall silent, lie or come back, told over real sockets with a clock that is moved."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import urllib.request
from http.client import HTTPException
from pathlib import Path

from app.sandbox import EngineSpec, ServerSpec
from tests.unit.alerts.support import Stage, staged


def busy(stage: Stage) -> None:
    """Some traffic: one prompt seen before, one new."""
    stage.ask(which=1)
    stage.ask()


def test_all_is_well_and_nothing_fires(tmp_path: Path) -> None:
    """A quarter of an hour of mixed traffic over two servers and three engines: all that can be judged is judged ok."""
    engines = [EngineSpec(server=0), EngineSpec(server=0), EngineSpec(server=1, model_path="/models/other")]
    with staged(tmp_path, servers=2, engines=engines) as stage:
        stage.control.server(1).spec = stage.control.server(1).spec  # the second one has the same settings
        for minute in range(15):
            for engine in range(3):
                stage.ask(which=minute % 4, engine=engine)
                stage.ask(engine=engine)
            if minute == 5:
                stage.clear_l1()
                stage.reset()
            if minute == 10:
                stage.scan()
            stage.run(60, 30)
            # Two servers over one directory are worth an alarm of their own; nothing else is.
            assert set(stage.firing()) | set(stage.pending()) <= {"shared_directory"}, stage.firing()
        judged = {f.fact: f.state for f in stage.alerts.facts().items if f.state != "quiet"}
        unknown = {name for name, state in judged.items() if state == "unknown"}
        assert unknown == {"time_to_full"}  # it takes two scans
        assert {name for name, state in judged.items() if state == "bad"} == {"shared_directory"}
        assert {"stores_failing", "l1_thrash", "hit_rate", "hit_rate_check", "cache_bypassed"} <= set(judged)


def test_a_dead_server_raises_one_alarm_not_ten(tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        stage.run(60, each=lambda: busy(stage))
        stage.control.kill("server/0")
        seen: set[str] = set()
        for _ in range(30):  # a quarter of an hour, with traffic that goes past the cache
            busy(stage)
            stage.tick(30)
            seen |= set(stage.firing())
        assert seen == {"server_unreachable"}
        alarm = stage.firing()["server_unreachable"]
        assert alarm.severity == "critical"
        assert "refused" in alarm.sentence
        assert alarm.sentence.startswith("no answer: ")
        stage.control.start("server/0")
        stage.run(180, 30, each=lambda: busy(stage))
        assert stage.firing() == {}
        over = stage.alerts.list_alerts(page_size=100, page_token=None, state=["resolved"], fired=True).items
        assert [a.rule for a in over] == ["server_unreachable"]
        changes = [(c.old_state, c.new_state) for c in stage.alerts.get_alert(int(over[0].id)).changes]
        assert changes == [(None, "pending"), ("pending", "firing"), ("firing", "resolved")]


def test_when_nothing_answers_the_panel_says_that_it_is_blind(tmp_path: Path) -> None:
    with staged(tmp_path, engines=2) as stage:
        stage.run(60, 30, each=lambda: busy(stage))
        stage.control.kill("engine/1")
        stage.run(150, 30)
        assert set(stage.firing()) == {"engine_unreachable"}  # one of three: the panel sees well enough
        for component in ("server/0", "engine/0"):
            stage.control.kill(component)
        stage.run(300, 30)
        fired = set(stage.firing())
        assert fired == {"panel_blind"}
        held = stage.alerts.list_alerts(page_size=50, page_token=None, state=["firing", "pending"]).items
        assert {a.rule for a in held if a.explained_by is not None} >= {"server_unreachable", "engine_unreachable"}


def test_a_server_that_says_it_is_unwell(tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        stage.run(30)
        stage.control.misbehave("server/0", status_unhealthy=True)
        stage.run(120, 30)
        assert set(stage.firing()) == {"server_unhealthy"}
        stage.control.behave()
        stage.run(120, 30)
        assert stage.firing() == {}


def test_a_server_with_an_answer_that_cannot_be_read(tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        stage.run(30)
        stage.control.misbehave("server/0", garbage=True, paths="/metrics")
        stage.run(300, 30)
        assert set(stage.firing()) == {"server_degraded"}
        assert "/metrics" in stage.firing()["server_degraded"].sentence


def test_old_values_are_told_where_nothing_else_explains_them(tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        stage.run(30)

        def poll_only(kind: str) -> None:
            stage.clock.now += 30
            poll = stage.poller.poll_engine_now if kind == "engine" else stage.poller.poll_server_now
            asyncio.run(poll(1))
            stage.alerts.evaluate()

        for _ in range(5):
            poll_only("engine")
        assert set(stage.firing()) == {"server_values_stale", "store_look_stale"}
        assert "2 m 00 s old" in stage.firing()["server_values_stale"].sentence
        stage.tick()
        stage.run(90, 30)
        assert stage.firing() == {}
        for _ in range(5):
            stage.clock.now += 30
            stage.alerts.evaluate()
        assert set(stage.firing()) == {"polling_stopped"}  # the cause of all that is old


def test_old_values_of_one_engine_beside_another_that_is_polled(tmp_path: Path) -> None:
    with staged(tmp_path, engines=2, store=False) as stage:
        stage.run(30)
        for _ in range(5):
            stage.clock.now += 30
            asyncio.run(stage.poller.poll_engine_now(stage.engine_ids[0]))
            stage.alerts.evaluate()
        assert set(stage.firing()) == {"server_values_stale", "engine_values_stale"}
        assert stage.firing()["engine_values_stale"].target_name == "gpu-1"
        stage.run(120, 30)
        assert stage.firing() == {}


def test_an_engine_that_gives_no_answer(tmp_path: Path) -> None:
    with staged(tmp_path, servers=[ServerSpec(registration_grace_seconds=120)]) as stage:
        stage.run(60, 30, each=lambda: busy(stage))
        stage.control.kill("engine/0")
        stage.run(900, 30)
        # The server has reaped it and nobody uses it: that is explained, too.
        assert set(stage.firing()) == {"engine_unreachable"}
        assert stage.fact("registration").numbers["registered"] == 0
        stage.control.start("engine/0")
        stage.run(180, 30, each=lambda: busy(stage))
        assert stage.firing() == {}


def test_an_engine_whose_health_is_an_error(tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        stage.run(30)
        stage.control.misbehave("engine/0", status=503, paths="/health")
        stage.run(120, 30)
        assert set(stage.firing()) == {"engine_unhealthy"}


def test_an_engine_whose_answers_cannot_be_read(tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        stage.run(30)
        stage.control.misbehave("engine/0", status=500, paths="/metrics")
        stage.run(300, 30)
        assert set(stage.firing()) == {"engine_degraded"}


def test_requests_that_hang_behind_a_forgetful_server(tmp_path: Path) -> None:
    """Engine-driven transfers and a server that restarted: the engine holds its requests while /health is 200."""
    servers = [ServerSpec(transfer_mode="engine_driven")]
    with staged(tmp_path, servers=servers) as stage:
        stage.run(90, 30)
        assert "requests_hang" not in stage.firing()  # idle is not hanging
        stage.control.restart("server/0")
        body = b'{"model": "tiny-llama", "prompt": [7, 8, 9], "max_tokens": 1, "stream": true}'
        request = urllib.request.Request(
            f"{stage.sandbox.engine_url}/v1/completions", body, {"Content-Type": "application/json"}
        )

        def wait() -> None:
            with contextlib.suppress(OSError, HTTPException):
                urllib.request.urlopen(request, timeout=30).read()

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        while stage.control.engine().running == 0:
            pass
        stage.run(300, 30)
        # One alarm for the cause; the hanging requests are part of it.
        assert set(stage.firing()) == {"restart_unnoticed"}
        hang = stage.fact("requests_hang", "engine")
        assert (hang.numbers["held"], hang.numbers["moved"], hang.state) == (1.0, 0.0, "bad")
        stage.fleet.delete_server(stage.server_ids[0], actor="t")
        stage.run(240, 30)
        assert "requests_hang" in stage.firing()  # where the cause is out of sight it fires itself
        stage.control.kill("engine/0")
        thread.join(10)
