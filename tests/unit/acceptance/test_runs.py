"""Whole runs against the sandbox."""

from __future__ import annotations

from tests.unit.acceptance.conftest import Panel


class TestPass:
    def test_a_healthy_stack_passes(self, panel: Panel) -> None:
        run = panel.run()
        assert run.verdict == "pass", run.reasons
