"""Health: what one poll speaks for, and damping."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.telemetry.health import (
    EngineSeen,
    ServerContext,
    ServerSeen,
    State,
    damp,
    duration,
    judge_engine,
    judge_server,
    polls_needed,
)

FINE = ServerSeen(
    http_up=True,
    slow=False,
    healthcheck_ok=True,
    healthcheck_error=None,
    status_read=True,
    status_error=None,
    is_healthy=True,
    unhealthy_parts=(),
    warnings=(),
    engines_registered=1,
    metrics_error=None,
    config_error=None,
)
ENGINE = EngineSeen(http_up=True, slow=False, health_ok=True, health_error=None, metrics_error=None, models_error=None)


class TestServer:
    def test_all_well(self) -> None:
        judged = judge_server(FINE)
        assert (judged.state, judged.http_up, judged.engine_up, judged.engines_registered) == ("healthy", True, True, 1)

    def test_no_answer_is_unreachable_with_the_reason(self) -> None:
        seen = replace(
            FINE,
            http_up=False,
            healthcheck_ok=None,
            healthcheck_error="GET http://x/healthcheck: connection refused",
            status_read=False,
            is_healthy=None,
            engines_registered=None,
        )
        judged = judge_server(seen)
        assert (judged.state, judged.http_up, judged.engine_up) == ("unreachable", False, None)
        assert "connection refused" in judged.reason

    @pytest.mark.parametrize(
        ("change", "state", "words", "engine_up"),
        [
            ({"healthcheck_ok": False, "healthcheck_error": "no engine"}, "unhealthy", "no engine", False),
            ({"is_healthy": False}, "unhealthy", "is_healthy: false", False),
            ({"is_healthy": False, "unhealthy_parts": ("a.b",)}, "unhealthy", "a.b", False),
            ({"unhealthy_parts": ("storage_manager.l2_adapters[0]",)}, "degraded", "l2_adapters[0]", False),
            ({"engines_registered": 0}, "degraded", "no engine is registered", True),
            ({"status_read": False, "status_error": "not JSON", "is_healthy": None}, "degraded", "not JSON", None),
            ({"healthcheck_ok": None, "healthcheck_error": "a web page"}, "degraded", "a web page", True),
            ({"metrics_error": "malformed line 3"}, "degraded", "/metrics", True),
            ({"config_error": "answered 500"}, "degraded", "/config", True),
            ({"warnings": ("l2_adapters[0]: no status",)}, "healthy", "health unknown of", None),
            ({"engines_registered": None}, "healthy", "not told", True),
        ],
    )
    def test_each_trouble(self, change: dict[str, object], state: str, words: str, engine_up: bool | None) -> None:
        judged = judge_server(replace(FINE, **change))  # type: ignore[arg-type]
        assert judged.state == state
        assert words in judged.reason
        assert judged.engine_up is engine_up

    def test_an_unproven_data_path_alone_does_not_degrade(self) -> None:
        assert judge_server(FINE, ServerContext()).state == "healthy"

    def test_nobody_back_after_a_restart(self) -> None:
        nobody = replace(FINE, engines_registered=0)
        told = judge_server(nobody, ServerContext(engines_before=1, restarted_seconds_ago=127.0))
        assert told.reason == "restarted 2 m 07 s ago, engine not back yet"

    def test_the_silent_restart_says_that_nothing_is_cached(self) -> None:
        nobody = replace(FINE, engines_registered=0)
        told = judge_server(nobody, ServerContext(engines_before=1, restarted_seconds_ago=30.0, engines_up=1))
        assert told.state == "degraded"
        assert "1 of its engines run" in told.reason
        assert "nothing is cached" in told.reason


class TestEngine:
    @pytest.mark.parametrize(
        ("change", "state", "words"),
        [
            ({}, "healthy", "answers"),
            ({"http_up": False, "health_error": "refused"}, "unreachable", "refused"),
            ({"health_ok": False, "health_error": "the engine core is dead"}, "unhealthy", "core is dead"),
            ({"metrics_error": "not metrics"}, "degraded", "/metrics"),
            ({"models_error": "a web page"}, "degraded", "/v1/models"),
            ({"health_ok": None, "health_error": "answered 404"}, "degraded", "/health"),
        ],
    )
    def test_each_state(self, change: dict[str, object], state: str, words: str) -> None:
        judged = judge_engine(replace(ENGINE, **change))  # type: ignore[arg-type]
        assert judged.state == state
        assert words in judged.reason


def follow(states: list[State], needed: int) -> list[State]:
    """The states in force after each of these judgements."""
    current: State = "unknown"
    candidate: State | None = None
    count = 0
    shown: list[State] = []
    for judged in states:
        after = damp(current, judged, candidate, count, needed=needed)
        assert after.changed == (after.state != current)
        current, candidate, count = after.state, after.candidate, after.count
        shown.append(current)
    return shown


class TestDamping:
    def test_the_first_poll_sets_it(self) -> None:
        assert follow(["unreachable"], 3) == ["unreachable"]

    def test_one_bad_poll_changes_nothing(self) -> None:
        assert follow(["healthy", "unreachable", "healthy", "unreachable", "healthy"], 2) == ["healthy"] * 5

    def test_so_many_in_a_row_change_it(self) -> None:
        assert follow(["healthy", "degraded", "degraded"], 2)[-1] == "degraded"
        assert follow(["healthy", "unreachable", "unreachable"], 3)[-1] == "healthy"

    def test_never_twice_the_same_is_not_healthy_for_ever(self) -> None:
        assert follow(["healthy", "unreachable", "degraded", "unhealthy"], 3)[-1] == "unhealthy"

    @given(
        st.lists(st.sampled_from(["healthy", "degraded", "unhealthy", "unreachable"]), min_size=1),
        st.integers(min_value=1, max_value=3),
    )
    def test_a_state_that_lasts_is_shown_after_at_most_three_polls(self, history: list[State], needed: int) -> None:
        for lasting in ("healthy", "unreachable"):
            assert follow([*history, lasting, lasting, lasting], needed)[-1] == lasting

    def test_slow_gets_one_poll_more(self) -> None:
        down = replace(FINE, http_up=False, status_read=False)
        assert polls_needed(judge_server(replace(down, slow=True))) == 3
        assert polls_needed(judge_server(down)) == 2


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.6, "1 m 00 s"), (127, "2 m 07 s"), (3661, "1 h 01 m"), (90000, "1 d 1 h"), (-5, "0 s")],
)
def test_durations_in_sentences(seconds: float, text: str) -> None:
    assert duration(seconds) == text
