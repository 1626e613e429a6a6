"""`tierkeeper scan` in processes of their own, without a panel."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app import migrate
from app.clock import system_clock
from app.fleet.schemas import StoreCreate
from app.settings import load_settings
from app.wiring import build_services
from tests.unit.records.disk import NOW, record


def run(data: Path, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TIERKEEPER_")}
    root = Path(__file__).parents[3]
    return subprocess.run(
        [sys.executable, "-m", "app", "scan", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd or data.parent,
        env={**environment, "TIERKEEPER_DATA_DIR": str(data), "PYTHONPATH": str(root)},
    )


def summary(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_directory_is_scanned_and_scanned_again(tmp_path: Path) -> None:
    root, data = tmp_path / "l2", tmp_path / "var"
    for number in range(5):
        record(root, number, mtime=NOW - 10_000 * number)
    record(root, 9, 0, mtime=1_700_000_000)
    before = sorted(root.iterdir())
    first = summary(run(data, str(root), "--json"))
    assert (first["records"], first["bytes"]) == (6, 5 * 32768)
    assert first["by_reason"]["empty"] == {"records": 1, "bytes": 0}
    (root / before[0].name).unlink()
    second = summary(run(data, str(root), "--json"))
    assert second["records"] == 5
    assert second["eviction"]["vanished_records"] == 1
    assert sorted(root.iterdir()) == before[1:], "nothing is written into the directory"
    shown = run(data, "l2", cwd=tmp_path)
    assert shown.returncode == 0 and "not the directory" not in shown.stdout
    assert "5 records" in shown.stdout
    # As the pages tell it: what is used of what can be used, and what is free.
    assert re.search(r"^  \S+ \w?B of \S+ \w?B, \d+% used, \S+ \w?B free, as df counts", shown.stdout, re.M)
    root.rename(tmp_path / "away")
    root.mkdir()
    other = run(data, "l2", cwd=tmp_path)
    assert "! not the directory of the last scan" in other.stdout and "0 records" in other.stdout


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("./nowhere", "DIRECTORY"),
        ("nobody", "neither a store"),
        ("./f", "not a"),
        ("", "is empty"),
        ("/", "the whole machine"),
    ],
)
def test_what_is_neither_store_nor_directory_is_a_usage_error(tmp_path: Path, target: str, words: str) -> None:
    (tmp_path / "f").touch()
    done = run(tmp_path / "var", target)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_another_directory_at_a_stores_path_is_refused_and_accepted_by_saying_so(tmp_path: Path) -> None:
    root, data = tmp_path / "l2", tmp_path / "var"
    record(root, 1)
    settings = load_settings({"TIERKEEPER_DATA_DIR": str(data)})
    data.mkdir()
    services = build_services(settings, system_clock)
    migrate.upgrade(services.db, data)
    services.fleet.create_store(StoreCreate(path=str(root), name="kv"), actor="test")
    services.db.dispose()
    assert summary(run(data, "kv", "--json"))["records"] == 1
    root.rename(tmp_path / "away")
    root.mkdir()
    refused = run(data, "kv")
    assert refused.returncode == 3 and "--accept-directory" in refused.stderr
    assert list(root.iterdir()) == []
    accepted = run(data, "kv", "--accept-directory", "--json")
    assert "accepted: the store is" in accepted.stderr
    assert summary(accepted)["records"] == 0
    again = run(data, "kv", "--accept-directory", "--json")
    assert again.returncode == 0 and "nothing to accept" in again.stderr
    plain = run(data, str(root), "--accept-directory")
    assert plain.returncode == 2 and "name the store" in plain.stderr
