"""What the panel tells of a real server, poll by poll: eviction pressure, a restart that nobody notices, a kill, and
the way back; and that its charts are the server's own numbers.

One story, one poll a second. A recorder between panel and server keeps every answer, so that the charts can be computed
again from them, independently of the panel's code.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from tests.real.panel import Panel
from tests.real.recorder import Tape, recording
from tests.real.restarter import serving
from tests.real.stack.clients import prompt, wait_until
from tests.real.stack.control import RealStack

#: Longer than any restart of the server takes on a busy machine: this engine cannot notice one.
DEAF_SECONDS = 300.0
HEARTBEAT = 10.0
#: 327 chunks of 32 KiB: some twenty prompts fill it.
SMALL_L1 = 0.01


def _epoch(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


class Story:
    """The panel with one server behind a recorder and one engine."""

    def __init__(self, stack: RealStack, panel: Panel, url: str, tape: Tape) -> None:
        self.stack, self.panel, self.tape = stack, panel, tape
        self.server_id = panel.post("/servers", {"name": "story", "url": url})["id"]
        body = {"name": "teller", "url": stack.engine().url, "server_id": self.server_id}
        self.engine_id = panel.post("/engines", body)["id"]

    def health(self) -> dict[str, Any]:
        found: dict[str, Any] = self.panel.get(f"/servers/{self.server_id}")["health"]
        return found

    def until(self, what: str, holds: Callable[[dict[str, Any]], object], seconds: float = 60) -> dict[str, Any]:
        last: dict[str, Any] = {}

        def look() -> object:
            nonlocal last
            last = self.health()
            return holds(last)

        wait_until(what, look, seconds, every=0.5)
        return last

    def firing(self) -> dict[str, dict[str, Any]]:
        return {item["rule"]: item for item in self.panel.items("/alerts", state="firing")}

    def points(self, metric: str) -> list[tuple[float, float]]:
        """The chart's points as they were polled, without its gaps."""
        start = datetime.fromtimestamp(time.time() - 3600).astimezone().isoformat()
        answer = self.panel.get(f"/servers/{self.server_id}/samples", metric=metric, step=1, **{"from": start})
        return [(_epoch(at), value) for at, value in answer["points"] if value is not None]

    def changes(self) -> list[tuple[str, str]]:
        """(state, reason) of the server's health changes, oldest first."""
        items = self.panel.items("/health-changes", target_kind="server", target_id=self.server_id)
        return [(item["new_state"], item["reason"]) for item in items][::-1]


def test_the_story_of_a_server(session_stack: RealStack) -> None:
    stack = session_stack
    stack.stop()
    fresh = stack.directory / "l2-telemetry"
    fresh.mkdir()
    stack.start(
        server={"l2_path": fresh, "l1_gb": SMALL_L1, "reap_timeout": 4 * DEAF_SECONDS},
        engine={"heartbeat": DEAF_SECONDS, "dtype": "bfloat16", "dev_mode": True},
    )
    tape = Tape()
    panel = Panel(stack)
    try:
        with serving(recording(stack.server.url, tape)) as url:
            story = Story(stack, panel, url, tape)
            story.until("healthy", lambda h: h["state"] == "healthy" and h["engines_registered"] == 1)
            _pressure(story)
            _unnoticed_restart(story)
            _re_registration(story)
            _kill(story)
            _charts(story)
    finally:
        panel.stop()
        stack.stop()


def _pressure(story: Story) -> None:
    """Prompts that L1 cannot hold: it evicts, and says so; what comes back is a hit."""
    engine = story.stack.engine()
    for seed in range(26):
        assert engine.complete(prompt(1000, 700 + seed), salt="story").status == 200
    again = prompt(1000, 725)

    def read_back() -> bool:
        # A full L1 that has not evicted yet drops a store, and stores are written behind: a miss stores it anew.
        engine.empty_l0()
        return engine.complete(again, salt="story").external == 960

    wait_until("a prompt read back from under pressure", read_back, 60, every=1)
    wait_until("evictions on the chart", lambda: any(v > 0 for _, v in story.points("l1_evicted_per_second")), 30)
    wait_until("a hit on the chart", lambda: any(v > 0 for _, v in story.points("hit_rate")), 30)
    assert story.health()["state"] == "healthy"


def _unnoticed_restart(story: Story) -> None:
    """Killed and started again between two heartbeats: all lights of the server are green, and nothing is cached."""
    stack = story.stack
    stack.restart_server(0, hard=True)
    told = story.until("degraded", lambda h: h["state"] == "degraded" and h["http_up"])
    assert (told["engine_up"], told["engines_registered"]) == (True, 0)
    assert "no engine is registered, though 1 of its engines run" in told["reason"]
    assert "restarted" in told["reason"]
    wait_until("the alarm", lambda: "restart_unnoticed" in story.firing(), 120, every=1)
    # One alarm for the cause, not one for each of its effects.
    assert "engine_not_registered" not in story.firing()
    assert "server_unreachable" not in story.firing()
    restarted = _epoch(story.panel.get(f"/servers/{story.server_id}")["restarted_at"])
    assert abs(restarted - story.tape.metrics[-1][1]["process_start_time_seconds"]) < 0.01


def _re_registration(story: Story) -> None:
    """The engine is restarted, as the alarm says: it registers anew and all is well."""
    story.stack.restart_engine(hard=True, heartbeat=HEARTBEAT)
    told = story.until("registered again", lambda h: h["state"] == "healthy")
    assert told["engines_registered"] == 1
    wait_until("the alarm is over", lambda: "restart_unnoticed" not in story.firing(), 120, every=1)


def _kill(story: Story) -> None:
    """Killed, away for more than two heartbeats, and back: unreachable, back without its engine, then healthy."""
    stack = story.stack
    before = len(story.changes())
    killed = time.time()
    with stack.without_server(hard=True):
        story.until("unreachable", lambda h: h["state"] == "unreachable")
        since = _epoch(story.health()["since"])
        assert -1 <= since - killed < 60, "told within a few polls"
    story.until("healthy", lambda h: h["state"] == "healthy")
    states = [state for state, _ in story.changes()[before:]]
    assert states[0] == "unreachable"
    assert states[-1] == "healthy"
    reasons = " | ".join(reason for state, reason in story.changes()[before:] if state == "degraded")
    if "degraded" in states:  # on a quick machine the engine is back before two polls have seen the server without it
        assert "engine not back yet" in reasons or "no engine is registered" in reasons
    engine = stack.engine()
    assert engine.complete(prompt(600, 900), salt="after").status == 200
    wait_until("stored again", lambda: stack.records(salt="after"), 30)
    story.panel.wait_polled(story.server_id, 3)


def _charts(story: Story) -> None:
    """Every point of the charts, from the answers that the panel was given, to the last digit."""
    tape = story.tape
    used = story.points("l1_used_bytes")
    assert len(used) > 60
    for at, value in used:
        status = tape.status_at(at)
        assert status is not None
        assert value == status["storage_manager"]["l1_manager"]["memory_used_bytes"], at
    registered = story.points("engines_registered")
    assert {value for _, value in registered} == {0.0, 1.0}
    for at, value in registered:
        status = tape.status_at(at)
        assert status is not None
        assert value == len(status["registered_gpu_ids"]), at
    # Increments that lie between two scrapes too far apart (the server was away) are nobody's: no point there.
    expected = tape.hit_rates()
    shown = story.points("hit_rate")
    assert shown
    unseen = list(expected)
    for at, value in shown:
        until = [item for item in unseen if item[0] <= at]
        assert until, (at, shown, expected)
        scrape, rate = max(until)
        assert value == rate, (at, scrape)
        unseen.remove((scrape, rate))
    assert len(unseen) <= 2, unseen
    # The light 'HTTP up' is dark exactly while the recorder found nobody.
    dark = [at for at, value in story.points("up") if value == 0.0]
    assert dark
    for at in dark:
        assert any(abs(at - refused) < 8 for refused in tape.refused), at
