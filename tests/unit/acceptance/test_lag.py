"""Pages of counters that lag: what an honest engine's and server's /metrics tell late makes no run invalid."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.acceptance.schemas import AcceptanceRunView
from app.sandbox import EngineSpec, ServerSpec
from tests.unit.acceptance.conftest import PACE, Panel, PanelMaker

#: As behind a cache that keeps a page for so many seconds; a run waits for more.
KEPT = 0.4
PATIENT = replace(PACE, counters=3.0, lag=5.0, still=0.6)
ARMS = ["cold", "warm", "external_l1", "external_l2", "mixed", "shared_prefix", "changed_head"]


def late(panel: Panel, *components: str) -> None:
    for component in components:
        panel.sandbox.control.misbehave(component, metrics_kept_seconds=KEPT)


def said(run: AcceptanceRunView) -> list[tuple[str, str | None]]:
    return [(f.code, f.arm) for f in run.findings if f.severity != "note"]


class TestAPageThatIsKept:
    @pytest.mark.parametrize("who", [("engine",), ("server",), ("engine", "server")])
    def test_every_arm_is_judged_as_without_it(self, make_panel: PanelMaker, who: tuple[str, ...]) -> None:
        panel = make_panel(pace=PATIENT)
        late(panel, *who)
        run = panel.run(arms=ARMS, lengths=[150, 210])
        assert (run.verdict, said(run)) == ("pass", [])

    @pytest.mark.parametrize(
        "sandbox",
        [
            {"engines": [EngineSpec(prompt_tokens_details=False, cached_token_stats=False)]},
            {"servers": [ServerSpec(transfer_mode="engine_driven")]},
        ],
    )
    def test_where_evidence_rests_on_counters(self, make_panel: PanelMaker, sandbox: dict[str, Any]) -> None:
        panel = make_panel(pace=PATIENT, **sandbox)
        late(panel, "engine", "server")
        run = panel.run()
        assert (run.verdict, said(run)) == ("pass", [])

    def test_right_after_another_run(self, make_panel: PanelMaker) -> None:
        panel = make_panel(pace=PATIENT)
        late(panel, "engine", "server")
        assert panel.run(arms=["warm"]).verdict == "pass"
        run = panel.run(arms=["external_l1"])
        assert (run.verdict, said(run)) == ("pass", [])

    def test_what_is_wrong_is_still_found(self, make_panel: PanelMaker) -> None:
        panel = make_panel(pace=PATIENT)
        late(panel, "engine", "server")
        panel.sandbox.control.misbehave("engine", reset_lasts=2)
        run = panel.run(profile="quick", arms=["external_l1"])
        assert ("counters_disagree", "external_l1") in said(run)
