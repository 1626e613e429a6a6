"""A short chaos run on the sandbox; `make chaos` runs half an hour. The disk it fills is a small one of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.sandbox import SandboxThread
from tests.support.chaos import SandboxStack, run_chaos

SECONDS = float(os.environ.get("CHAOS_SECONDS", "20"))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 128 MB where this user may mount one; else a folder, and no disk is filled."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128m", "tmpfs", str(place)], capture_output=True, check=False
    )
    yield place
    if mounted.returncode == 0:
        subprocess.run(["umount", "--lazy", str(place)], check=False)


@pytest.mark.slow
@pytest.mark.timeout(900 + 2 * SECONDS)
def test_nothing_is_lost_and_nothing_wrong_is_deleted(tmp_path: Path, disk: Path) -> None:
    with SandboxThread(disk / "sandbox") as sandbox:
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
