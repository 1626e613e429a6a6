"""A short chaos run on the sandbox and a small disk of its own. On real servers: `tests/real/test_chaos.py`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.sandbox import SandboxThread
from tests.support.chaos import SandboxStack, run_chaos
from tests.support.disk import small_disk

SECONDS = float(os.environ.get("CHAOS_SECONDS", "20"))


@pytest.mark.slow
@pytest.mark.timeout(900 + 2 * SECONDS)
def test_nothing_is_lost_and_nothing_wrong_is_deleted(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, 128), SandboxThread(disk / "sandbox") as sandbox:
        sandbox.prime(20)
        sandbox.traffic()
        stack = SandboxStack(sandbox)
        told = run_chaos(stack, tmp_path / "var", seconds=SECONDS)
        expected = {"kill panel", "kill server", "kill engine", "quarantined"}
        expected |= {"fill disk"} if stack.can_fill() else set()
    print(dict(told.done))
    assert told.wrong == []
    assert told.tokens
    assert {name for name, count in told.done.items() if count} == expected
