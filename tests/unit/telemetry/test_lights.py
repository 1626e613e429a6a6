"""Each light has its own reason, and the time since when it is so."""

from __future__ import annotations

from dataclasses import replace

import httpx
import pytest

from app.clock import iso
from app.telemetry.health import ServerContext, ServerSeen, judge_server
from app.telemetry.lights import Light, lights_of, with_since
from app.telemetry.live import _lights
from tests.unit.telemetry.support import Bench, captured_server
from tests.unit.telemetry.test_health import FINE

SILENT = replace(
    FINE,
    http_up=False,
    healthcheck_ok=None,
    healthcheck_error="connection refused",
    status_read=False,
    is_healthy=None,
    engines_registered=None,
)


def lights(seen: ServerSeen, context: ServerContext | None = None) -> dict[str, Light]:
    context = context or ServerContext()
    return lights_of(seen, judge_server(seen, context), context)


def test_all_well() -> None:
    assert lights(FINE) == {
        "http_up": Light(True, "the server answers over HTTP"),
        "engine_up": Light(True, "is_healthy, and so is every inner part"),
        "engines_registered": Light(True, "1 engine registered"),
    }


def test_of_a_silent_server_only_its_silence_is_known() -> None:
    found = lights(SILENT)
    assert found["http_up"] == Light(False, "connection refused")
    assert [found[name].value for name in ("engine_up", "engines_registered")] == [None, None]
    assert "gives no answer" in found["engine_up"].reason


@pytest.mark.parametrize(
    ("change", "value", "words"),
    [
        ({"healthcheck_ok": False, "healthcheck_error": "no engine"}, False, "/healthcheck says: no engine"),
        ({"is_healthy": False}, False, "is_healthy: false"),
        ({"unhealthy_parts": ("storage_manager.l1_manager",)}, False, "storage_manager.l1_manager"),
        ({"warnings": ("l2_adapters[0]: no status",)}, None, "not known of l2_adapters[0]: no status"),
        ({"status_read": False, "status_error": "not JSON", "is_healthy": None}, None, "not JSON"),
        ({"is_healthy": None}, None, "does not tell is_healthy"),
    ],
)
def test_the_cache_engine(change: dict[str, object], value: bool | None, words: str) -> None:
    seen = replace(FINE, **change)  # type: ignore[arg-type]
    found = lights(seen)["engine_up"]
    assert found.value is value
    assert found.value is judge_server(seen).engine_up
    assert words in found.reason


def test_registered_engines_have_a_reason_of_their_own() -> None:
    """Whatever else is wrong: the light of a broken part does not speak for this one."""
    broken = replace(FINE, is_healthy=False, unhealthy_parts=("a.b",), engines_registered=0)
    back = ServerContext(engines_before=1, restarted_seconds_ago=127.0)
    assert lights(broken, back)["engines_registered"] == Light(False, "restarted 2 m 07 s ago, engine not back yet")
    assert lights(replace(FINE, engines_registered=None))["engines_registered"].value is None
    unread = replace(FINE, engines_registered=None, status_read=False, status_error="timed out")
    assert "timed out" in lights(unread)["engines_registered"].reason


def test_since_is_the_poll_in_which_it_became_so() -> None:
    first = with_since(lights(FINE), None, 100.0)
    assert {light["since"] for light in first.values()} == {100.0}
    second = with_since(lights(replace(FINE, engines_registered=0)), first, 110.0)
    assert [second[name]["since"] for name in ("http_up", "engine_up", "engines_registered")] == [100.0, 100.0, 110.0]
    third = with_since(lights(SILENT), second, 120.0)
    assert {light["since"] for light in third.values()} == {120.0}
    # another reason for the same value is no change; what was stored in another form counts as not seen before
    more = with_since(lights(replace(FINE, engines_registered=2)), first, 130.0)
    assert more["engines_registered"] == {"value": True, "reason": "2 engines registered", "since": 100.0}
    assert with_since(lights(FINE), {"http_up": 7, "engine_up": {"value": True}}, 140.0)["engine_up"]["since"] == 140.0
    assert with_since(lights(FINE), {"http_up": {"value": True, "since": 999.0}}, 150.0)["http_up"]["since"] == 150.0


def test_what_was_stored_in_another_form_is_left_out() -> None:
    assert _lights([1]) == ()
    assert _lights({"http_up": 3, "other": {"value": True, "reason": "x"}, "engine_up": {"value": None}}) == ()


async def test_they_are_kept_over_polls_and_shown(bench: Bench) -> None:
    server_id = bench.add_server(captured_server())
    await bench.tick()
    began = bench.clock.now
    await bench.tick()
    found = {light.name: light for light in bench.fleet.get_server(server_id).health.lights}
    assert found["engine_up"].reason == "is_healthy, and so is every inner part"
    assert found["engines_registered"].reason == "1 engine registered"
    assert {found[name].since for name in ("http_up", "engine_up", "engines_registered")} == {iso(began)}
    bench.targets["http://cache:8080"].answers["/status"] = httpx.ReadTimeout("too slow")
    await bench.tick()
    found = {light.name: light for light in bench.fleet.get_server(server_id).health.lights}
    assert (found["http_up"].value, found["http_up"].since) == (True, iso(began))
    assert (found["engine_up"].value, found["engine_up"].since) == (None, iso(bench.clock.now))
    assert "/status gives no usable answer" in found["engine_up"].reason
