"""Times in words, and how the panel can be let see what an engine does not tell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.checks.effective import how_to_see, human_seconds, set_seconds
from tests.unit.checks.support import engine, engine_facts


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0, "0 s"), (1.5, "1.5 s"), (45, "45 s"), (60, "1 min"), (90, "90 s"), (300, "5 min"), (3600, "1 h"),
        (5400, "90 min"), (9000, "2.5 h"), (86400, "24 h"), (2_592_000, "30 days"),
    ],
)  # fmt: skip
def test_seconds_in_words(seconds: float, told: str) -> None:
    assert human_seconds(seconds) == told


def test_a_setting_keeps_the_number_that_is_written() -> None:
    assert set_seconds(300.0) == "5 min (300 s)"
    assert set_seconds(45.0) == "45 s"


def test_dev_mode_is_advised_only_where_it_is_off() -> None:
    assert "VLLM_SERVER_DEV_MODE=1" in how_to_see(engine(facts=None))
    assert "VLLM_SERVER_DEV_MODE=1" in how_to_see(None)
    silent = replace(engine(), facts=replace(engine_facts(), kv_connector=None, connector_options={}))
    assert "VLLM_SERVER_DEV_MODE" not in how_to_see(silent)
    assert "/server_info is open" in how_to_see(silent)
    assert how_to_see(replace(silent, planned=True)) == "name it in the engine's command line"
