"""Scans of a directory that is no store: what they say where another volume lies there under the same numbers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from app.records.directory_scan import scan_unregistered
from app.records.schemas import SummaryView
from app.records.store_dir import StoreDirectory
from tests.unit.records.disk import NOW, record


@pytest.fixture
def roots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every directory has the numbers of a file system's root."""
    opened = StoreDirectory.__init__

    def as_root(self: StoreDirectory, path: str, fd: int) -> None:
        opened(self, path, fd)
        self.inode = 2

    monkeypatch.setattr(StoreDirectory, "__init__", as_root)


def scan(root: Path) -> tuple[SummaryView, bool]:
    view, outcome = scan_unregistered(
        str(root), root.with_name("inventory.db"), clock=lambda: float(NOW), poll_seconds=10.0
    )
    return view, outcome.rescan


def fill(root: Path, first: int, count: int = 6) -> None:
    root.mkdir(exist_ok=True)
    for number in range(first, first + count):
        record(root, number, mtime=NOW - 10_000)


def test_another_root_with_the_same_numbers_is_told_and_inventoried_anew(roots: None, tmp_path: Path) -> None:
    root = tmp_path / "l2"
    fill(root, 0)
    scan(root)
    shutil.rmtree(root)
    fill(root, 20, 3)
    view, rescan = scan(root)
    assert [alarm for alarm in view.alarms if "other records under the same device:inode" in alarm]
    assert (rescan, view.records, view.eviction.vanished_records) == (False, 3, 0)


def test_the_same_root_is_compared_with_what_it_held(roots: None, tmp_path: Path) -> None:
    root = tmp_path / "l2"
    fill(root, 0)
    scan(root)
    next(iter(root.iterdir())).unlink()
    view, rescan = scan(root)
    assert not [alarm for alarm in view.alarms if "not the directory" in alarm]
    assert (rescan, view.records, view.eviction.vanished_records) == (True, 5, 1)


def test_a_copy_is_compared_with_what_was_copied(tmp_path: Path) -> None:
    root = tmp_path / "l2"
    fill(root, 0)
    scan(root)
    shutil.copytree(root, tmp_path / "copy")
    shutil.rmtree(root)
    (tmp_path / "copy").rename(root)
    assert scan(root)[1] is True
