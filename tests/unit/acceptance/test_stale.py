"""A pass grows stale with every setting that the checks know of either side, and with nothing else."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from app.acceptance.history import differences, latest, setting_name
from app.acceptance.schemas import AcceptanceRunView, LatestView
from app.checks.facts import EngineSide, ServerSide
from app.checks.ledger import engine_settings, server_settings
from app.fleet.schemas import EngineFactsView, ServerView
from app.lmcache.client import LMCacheClient
from app.lmcache.polling import ServerReading, poll_server
from app.telemetry.server_views import known_values
from app.vllm.client import EngineReading, VLLMClient, poll_engine
from app.vllm.facts import EngineFacts, checked_settings, parse_server_info
from tests.unit.acceptance.conftest import Panel
from tests.unit.acceptance.test_history import engine_view, server_view
from tests.unit.wire.raw_http import capture

PORTS = {"http_port", "message_port", "prometheus_port"}


def polled(panel: Panel) -> tuple[EngineReading, ServerReading]:
    async def both() -> tuple[EngineReading, ServerReading]:
        async with VLLMClient(panel.sandbox.engine_url) as vllm, LMCacheClient(panel.sandbox.server_url) as lmcache:
            return await poll_engine(vllm), await poll_server(lmcache)

    return asyncio.run(both())


def server_now(panel: Panel, run: AcceptanceRunView, settings: dict[str, Any]) -> ServerView:
    return server_view(panel, run.frozen["layout_fingerprint"], settings=settings)


def standing(panel: Panel, run: AcceptanceRunView, **now: Any) -> LatestView:
    settings = {**run.frozen["settings"], **now.get("engine", {})}
    server = {**run.frozen["server_settings"], **now.get("server", {})}
    engine = engine_view(panel, facts=EngineFactsView(settings=settings))
    return latest(engine, server_now(panel, run, server), run, run)


@pytest.fixture
def passed(panel: Panel) -> AcceptanceRunView:
    run = panel.run(arms=["cold", "warm"])
    assert run.verdict == "pass", run.reasons
    return run


def another(value: object) -> object:
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    return f"{value}-other"


def test_every_checked_setting_of_the_server_makes_it_stale(panel: Panel, passed: AcceptanceRunView) -> None:
    assert standing(panel, passed).state == "fresh"
    frozen = passed.frozen["server_settings"]
    assert len(frozen) > 30
    for name, value in frozen.items():
        if name == "chunk_size" or name in PORTS:  # the first is compared as the server's own
            continue
        view = standing(panel, passed, server={name: another(value)})
        assert (view.state, [d.field for d in view.changed]) == ("stale", [f"server_settings.{name}"])
        assert view.reason == f"{setting_name(f'server_settings.{name}')} changed since the last pass"


def test_where_the_server_listens_does_not(panel: Panel, passed: AcceptanceRunView) -> None:
    frozen = passed.frozen["server_settings"]
    assert frozen.keys() >= PORTS
    view = standing(panel, passed, server={name: another(frozen[name]) for name in PORTS})
    assert (view.state, view.changed) == ("fresh", [])


@pytest.fixture
def told(passed: AcceptanceRunView) -> AcceptanceRunView:
    """The pass, as of an engine that tells everything (`/server_info` of a real one)."""
    facts = parse_server_info(json.loads(capture("engine/with-lmcache.server_info.config_json.json")))
    return passed.model_copy(update={"frozen": {**passed.frozen, "settings": checked_settings(facts)}})


def test_every_checked_setting_of_the_engine_makes_it_stale(panel: Panel, told: AcceptanceRunView) -> None:
    assert standing(panel, told).state == "fresh"
    known = {name: value for name, value in told.frozen["settings"].items() if value is not None}
    assert len(known) > 20
    for name, value in known.items():
        if name == "connector_options":
            continue
        view = standing(panel, told, engine={name: another(value)})
        assert (view.state, [d.field for d in view.changed]) == ("stale", [f"settings.{name}"])


def test_every_option_of_the_connector_makes_it_stale_also_a_new_and_a_missing_one(
    panel: Panel, told: AcceptanceRunView
) -> None:
    options = told.frozen["settings"]["connector_options"]
    assert options
    for changed in (
        {**options, next(iter(options)): "other"},
        {**options, "lmcache.mp.brand_new": "x"},
        {k: v for k, v in options.items() if k != next(iter(options))},
    ):
        view = standing(panel, told, engine={"connector_options": changed})
        assert view.state == "stale"
        assert len(view.changed) == 1
        assert view.reason.startswith("connector option lmcache.mp.")


def test_an_engine_that_leaves_its_options_out_has_not_changed_them(panel: Panel, told: AcceptanceRunView) -> None:
    text_form = checked_settings(EngineFacts(kv_connector="LMCacheMPConnector"))
    assert text_form["connector_options"] is None
    settings = {**told.frozen["settings"], "connector_options": None}
    assert standing(panel, told, engine=settings).state == "fresh"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("l2_adapter[0].type", "fs_native", "L2 adapter 1 type"),
        ("l2_adapter[0].base_path", "/elsewhere", "L2 adapter 1 base path"),
        ("l2_adapter[0].use_odirect", False, "L2 adapter 1 use odirect"),
        ("l2_adapter[0].eviction_config", "LRU", "L2 adapter 1 eviction config"),
        ("l2_adapters", 2, "number of L2 adapters"),
        ("eviction_policy", "FIFO", "eviction policy"),
    ],
)
def test_a_changed_adapter_is_called_by_its_name(
    panel: Panel, passed: AcceptanceRunView, name: str, value: object, words: str
) -> None:
    assert standing(panel, passed, server={name: value}).reason == f"{words} changed since the last pass"


def test_many_changes_are_counted(panel: Panel, passed: AcceptanceRunView) -> None:
    names = [n for n in passed.frozen["server_settings"] if n.startswith("l2_adapter[0].")][:6]
    view = standing(panel, passed, server=dict.fromkeys(names, "other"))
    assert view.reason.endswith("and 2 more changed since the last pass")
    assert len(view.changed) == 6


def test_what_polls_keep_is_what_runs_freeze(panel: Panel, passed: AcceptanceRunView) -> None:
    engine, server = polled(panel)
    assert known_values(server)["settings"] == passed.frozen["server_settings"]
    assert engine.facts is not None
    assert checked_settings(engine.facts) == passed.frozen["settings"]


def test_a_server_restarted_with_another_adapter_or_eviction(panel: Panel, passed: AcceptanceRunView) -> None:
    panel.sandbox.control.restart("server", relative_tmp_dir="tmp", trigger_watermark=0.5)
    settings = known_values(polled(panel)[1])["settings"]
    view = latest(
        engine_view(panel, facts=EngineFactsView(settings=passed.frozen["settings"])),
        server_now(panel, passed, settings),
        passed,
        passed,
    )
    fields = {d.field.removeprefix("server_settings.") for d in view.changed}
    assert {"l2_adapter[0].relative_tmp_dir", "trigger_watermark"} <= fields
    assert view.state == "stale"


def test_no_setting_of_the_checks_is_forgotten(panel: Panel, passed: AcceptanceRunView) -> None:
    """The ledger of the checks and a pass go by one list; what they leave out is new with every start, or kept
    beside the settings."""
    engine, server = polled(panel)
    checks = server_settings(ServerSide("s", version=server.version, config=server.config, status=server.status))
    missing = {name for name, value in checks.items() if value is not None} - set(passed.frozen["server_settings"])
    assert missing == {"version"}
    checks = engine_settings(EngineSide("e", version=engine.version, facts=engine.facts))
    frozen = passed.frozen["settings"]
    assert {n for n, v in checks.items() if v is not None} - set(frozen) <= {
        "version", "model", "served_model_name", "num_gpu_blocks"
    }  # fmt: skip


def test_a_run_from_before_settings_of_servers_were_kept_stays_as_it_is(
    panel: Panel, passed: AcceptanceRunView
) -> None:
    old = passed.model_copy(update={"frozen": {k: v for k, v in passed.frozen.items() if k != "server_settings"}})
    server = server_now(panel, passed, {"l2_adapter[0].base_path": "/elsewhere"})
    engine = engine_view(panel, facts=EngineFactsView(settings=passed.frozen["settings"]))
    assert latest(engine, server, old, old).state == "fresh"


def test_a_setting_that_was_unset_and_is_set_is_a_change() -> None:
    complete = EngineFacts(max_num_seqs=8)
    before, after = (
        {"settings": checked_settings(f)} for f in (complete, EngineFacts(max_num_seqs=8, quantization="fp8"))
    )
    assert [d.field for d in differences(before, after)] == ["settings.quantization"]
    # Without the complete form nobody knows whether it was set before.
    vague = {"settings": checked_settings(EngineFacts())}
    assert differences(vague, after) == []
