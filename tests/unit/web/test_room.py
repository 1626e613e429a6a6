"""The room of a file system is counted as df counts it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from app.disk_room import Room, room, together
from app.fleet.schemas import FilesystemView
from app.telemetry.store_reading import look_at_store


def fs(total: int | None, free: int | None, used: int | None = None) -> FilesystemView:
    return FilesystemView(total_bytes=total, free_bytes=free, used_bytes=used)


def test_what_is_reserved_is_neither_used_nor_free() -> None:
    found = room(fs(271, 81, 28))
    assert found == Room(used=28, free=81, reserved=162)
    assert found is not None
    assert found.whole == 109
    assert found.ratio == pytest.approx(28 / 109)


def test_a_reading_from_before_counts_what_is_not_free_as_used() -> None:
    assert room(fs(100, 40)) == Room(used=60, free=40, reserved=0)


@pytest.mark.parametrize(("total", "free"), [(None, None), (None, 5), (5, None), (0, 0)])
def test_what_was_not_measured_is_unknown(total: int | None, free: int | None) -> None:
    assert room(fs(total, free, 1)) is None


def test_nothing_that_can_be_used_has_no_share() -> None:
    found = room(fs(10, 0, 0))
    assert found is not None
    assert found.ratio is None


def test_several_file_systems_are_added() -> None:
    assert together([Room(1, 2, 3), Room(10, 20)]) == Room(11, 22, 3)
    assert together([]) is None


@pytest.mark.skipif(shutil.which("df") is None, reason="needs df")
def test_the_panel_and_df_agree(tmp_path: Path) -> None:
    told = subprocess.run(
        ["df", "-B1", "--output=used,avail,pcent", str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "LC_ALL": "C"},
    ).stdout.splitlines()[1]
    used, free, percent = told.replace("%", "").split()
    look = look_at_store(str(tmp_path))
    found = room(fs(look.total_bytes, look.free_bytes, look.used_bytes))
    assert found is not None
    # Others write meanwhile.
    assert found.used == pytest.approx(int(used), rel=0.02)
    assert found.free == pytest.approx(int(free), rel=0.02)
    assert found.ratio is not None
    assert abs(found.ratio * 100 - int(percent)) <= 1.5
