"""`l2_garbage`, the fault behind `tierkeeper demo --fault l2-garbage`: right from L1, wrong from L2."""

from __future__ import annotations

import pytest

from app.acceptance import fixes
from app.commands.demo import FAULTS, demo
from app.errors import InvalidInput
from app.sandbox.misbehaviour import Faults
from app.settings import Settings
from tests.unit.acceptance.conftest import PanelMaker, make_panel

__all__ = ["make_panel"]


def test_a_run_fails_at_l2_and_blames_what_reads_files_that_did_not_change(make_panel: PanelMaker) -> None:
    panel = make_panel()
    panel.sandbox.control.misbehave("server", **FAULTS["l2-garbage"][1])
    run = panel.run()
    assert run.verdict == "fail"
    found = next(f for f in run.findings if f.code == "answer_differs")
    assert found.arm == "external_l2"
    assert found.fix is not None
    assert run.evidence["records"]["changed"] == []
    assert found.fix.startswith(fixes.WRONG_READ)


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_of_the_demo_is_one_of_the_sandbox(name: str) -> None:
    faults = Faults()
    faults.apply(**FAULTS[name][1])
    assert faults != Faults()


def test_an_unknown_fault_names_those_there_are() -> None:
    with pytest.raises(InvalidInput) as caught:
        demo(Settings(), fault="gremlins")
    assert "l2-garbage" in caught.value.detail
