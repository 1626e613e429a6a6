"""Two panels, two processes, one store (R7)."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from app.cleanup.disk import StoreRoot
from app.cleanup.lock import StoreLock, StoreLocked
from app.errors import StoreError
from tests.unit.cleanup.support import Clock, World

HOLDER = """
import sys
from app.cleanup.disk import StoreRoot
from app.cleanup.lock import StoreLock
with StoreRoot(sys.argv[1]) as root:
    with StoreLock(root, owner="other:1:2", work="cleanup run 7", clock=lambda: 1796000000.0):
        print("held", flush=True)
        sys.stdin.readline()
"""


def hold(path: Path) -> subprocess.Popen[bytes]:
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(HOLDER), str(path)], stdin=-1, stdout=-1)
    assert child.stdout is not None
    assert child.stdout.readline() == b"held\n"
    return child


def take(path: Path) -> None:
    with StoreRoot(str(path)) as root, StoreLock(root, owner="me", work="test", clock=Clock()):
        pass


def test_the_second_process_is_told_who_holds_it(tmp_path: Path) -> None:
    with hold(tmp_path) as child:
        with pytest.raises(StoreLocked, match=r"cleanup run 7 of other:1:2 .* since 2026-11-30T") as caught:
            take(tmp_path)
        assert caught.value.status == 409
        child.communicate(b"\n")
    take(tmp_path)


def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    with hold(tmp_path) as child:
        child.kill()
        child.wait()
        take(tmp_path)


def test_two_threads_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    with (
        StoreRoot(str(tmp_path)) as root,
        StoreLock(root, owner="a", work="one", clock=Clock()),
        pytest.raises(StoreLocked, match="one of a"),
    ):
        take(tmp_path)


def test_a_removed_lock_file_does_not_let_two_in(tmp_path: Path) -> None:
    with StoreRoot(str(tmp_path)) as root, StoreLock(root, owner="a", work="one", clock=Clock()):
        (tmp_path / ".tierkeeper" / "lock").unlink()
        take(tmp_path)  # the new file is another lock: that is what its remover asked for
    take(tmp_path)


@pytest.mark.parametrize("trap", ["link", "directory", "fifo"])
def test_traps_in_place_of_the_lock(tmp_path: Path, trap: str) -> None:
    own = tmp_path / ".tierkeeper"
    own.mkdir()
    if trap == "link":
        (own / "lock").symlink_to(tmp_path / "target")
    elif trap == "directory":
        (own / "lock").mkdir()
    else:
        os.mkfifo(own / "lock")
    with pytest.raises((StoreError, StoreLocked)):
        take(tmp_path)
    assert not (tmp_path / "target").exists()


def test_garbage_in_the_lock_file_is_no_obstacle(tmp_path: Path) -> None:
    own = tmp_path / ".tierkeeper"
    own.mkdir()
    (own / "lock").write_bytes(b"\xff\x00 not json" * 100)
    take(tmp_path)


def test_a_run_against_another_panel_fails_and_touches_nothing(world: World) -> None:
    names = world.fill(2, cls=("corrupt", "short"))
    plan = world.plan([{"kind": "corrupt"}])
    with hold(world.path) as child:
        run = world.service.start_run(int(plan.id), actor="test")
        child.communicate(b"\n")
    assert (run.state, run.verdict) == ("failed", "failed")
    assert "cleanup run 7 of other:1:2" in (run.error or "")
    assert world.names() == set(names)
