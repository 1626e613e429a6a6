"""A short chaos run on the sandbox; `make chaos` runs half an hour. `CHAOS_DISK` names a small file system to fill."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.sandbox import SandboxThread
from tests.support.chaos import SandboxStack, run_chaos

SECONDS = float(os.environ.get("CHAOS_SECONDS", "20"))


@pytest.mark.slow
@pytest.mark.timeout(900 + 2 * SECONDS)
def test_nothing_is_lost_and_nothing_wrong_is_deleted(tmp_path: Path) -> None:
    base = Path(os.environ.get("CHAOS_DISK", str(tmp_path)))
    with SandboxThread(base / "sandbox") as sandbox:
        sandbox.prime(20)
        sandbox.traffic()
        told = run_chaos(SandboxStack(sandbox), tmp_path / "var", seconds=SECONDS)
    print(dict(told.done))
    assert told.wrong == []
    assert told.tokens
    assert sum(told.done.values()) > 0
