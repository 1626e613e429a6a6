"""Whoever opens a store's directory looks first whether it is the store's, and refuses another one whole."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import app
from app.acceptance import own_records
from app.benchmark.fill import Filler, sweep
from app.checks import gather
from app.checks.gather import ServerRequest
from app.fleet.targets import StoreTarget
from app.records.store_dir import StoreDirectory, open_store
from app.records.store_directories import AnotherDirectory
from app.records.store_summary import access_times_of
from tests.unit.records.room import Room
from tests.unit.records.test_same_store import fill, unmount

APP = Path(app.__file__).parent
#: Who opens a directory without `open_store`, and why that is right.
OTHERS = {
    ("checks/gather.py", "_store"): "a directory that no registered store stands for; registered ones by open_store",
    ("cleanup/disk.py", "__enter__"): "checked by what store_root gives it",
    ("records/directory_scan.py", "scan_unregistered"): "no registered store",
    ("records/scans.py", "_run"): "checks it itself: it has to know whether one is known yet",
    ("records/store_dir.py", "open_store"): "checks it",
    ("records/store_directories.py", "accept"): "a person says that it is the store",
    ("records/store_directories.py", "trouble"): "asks whether it is",
    ("records/store_directories.py", "view"): "shows what lies there",
}


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    made = Room(tmp_path)
    yield made
    made.close()


def calls(matches: Callable[[ast.Call], bool]) -> set[tuple[str, str]]:
    """(file, function) of the calls in the program that match."""
    found = set()
    for path in sorted(APP.rglob("*.py")):
        text = path.read_text()
        if not any(word in text for word in ("StoreDirectory", "StoreRoot", "store.path", "target.path")):
            continue
        for function in ast.walk(ast.parse(text)):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for call in ast.walk(function):
                    if isinstance(call, ast.Call) and matches(call):
                        found.add((str(path.relative_to(APP)), function.name))
    return found


def test_the_list_of_openers_is_complete() -> None:
    assert calls(lambda call: ast.unparse(call.func) in ("StoreDirectory.open", "StoreDirectory")) == set(OTHERS)
    assert calls(lambda call: ast.unparse(call.func) == "StoreRoot") == {("cleanup/disk.py", "store_root")}
    # Nobody goes round them by a store's path.
    by_path = calls(
        lambda call: (
            ast.unparse(call.func).split(".")[0] in ("os", "Path", "shutil", "open")
            and any(ast.unparse(given) in ("store.path", "self.store.path", "target.path") for given in call.args)
        )
    )
    assert by_path == set()


def filler(store: StoreTarget) -> Filler:
    return Filler(store, "/models/tiny", 1 << 24 | 1 << 8, "tk-x-fill", written=3)


def probed(store: StoreTarget) -> None:
    """The checks: what is refused there is a reason, never an error."""
    adapter = SimpleNamespace(base_path=store.server_path, relative_tmp_dir=None, use_odirect=False)
    request = ServerRequest("s", "http://h:1", stores={store.server_path: (store, ())})
    look = gather._store(request, SimpleNamespace(local=True), adapter, (4096,), True)  # type: ignore[arg-type]
    if look.refused:
        assert look.facts is None and look.probe is None
        raise AnotherDirectory(look.unseen_reason or "")
    assert look.probe is not None and look.probe.state == "written"


OPENERS: dict[str, Callable[[StoreTarget], Any]] = {
    "itself": lambda store: open_store(store).close(),
    "a run's records": lambda store: own_records.find([store], "tk-"),
    "their checksums": lambda store: own_records.with_checksums([store], own_records.OwnRecords(())),
    "fill: counting": lambda store: filler(store).count(),
    "fill: room": lambda store: filler(store).short_of(1),
    "fill: writing": lambda store: filler(store).fill(5),
    "fill: removing": lambda store: filler(store).remove(),
    "fill: after a crash": lambda store: sweep(store, "tk-x-fill"),
    "checks": probed,
}


@pytest.mark.parametrize("name", OPENERS)
def test_another_directory_is_refused_and_nothing_is_written_there(room: Room, name: str) -> None:
    fill(room)
    room.scan()
    store = room.fleet.store_targets()[0]
    OPENERS[name](store)
    unmount(room)
    with pytest.raises(AnotherDirectory, match="is not the directory that the last scan knew"):
        OPENERS[name](store)
    assert list(room.root.iterdir()) == []


def test_what_a_page_tells_of_the_mount_is_not_that_of_another_directory(room: Room) -> None:
    fill(room)
    room.scan()
    assert room.records.summary(1).filesystem.total_bytes is not None
    unmount(room)
    assert access_times_of(room.fleet.store_target(1)) == "unknown"
    told = room.records.summary(1).filesystem
    assert told.total_bytes is None
    assert "not the directory that the last scan knew" in (told.reason or "")


def test_a_store_that_was_never_scanned_is_opened(room: Room) -> None:
    unmount(room)
    with open_store(room.fleet.store_target(1)) as directory:
        assert isinstance(directory, StoreDirectory)
