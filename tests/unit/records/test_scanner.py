"""Scanning: what is on the disk is what the inventory says, after any change, and only changes are written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.errors import Conflict, StoreError
from app.lmcache.object_keys import format_name
from app.records.facts import display_name
from app.records.filters import RecordFilter
from app.records.inventory_file import Inventory
from app.records.query import Reader
from app.records.scan_work import ScanOutcome, inventory_lock, scan_directory
from app.records.scanner import Totals
from app.records.store_dir import Entries, StoreDirectory
from tests.unit.records.disk import NOW, NS, blind, key, record, write


def scan(root: Path, database: Path, temp_dirs: tuple[str, ...] = (), **options: object) -> ScanOutcome:
    with StoreDirectory.open(str(root)) as directory:
        return scan_directory(
            directory,
            database,
            clock=lambda: NOW,
            context_of=lambda _probe: blind(),
            temp_dirs=temp_dirs,
            tick=lambda _files: None,
            probe_clock=False,
            **options,  # type: ignore[arg-type]
        )


def listed(database: Path) -> dict[str, tuple[int, int, int]]:
    """Name -> size, mtime and inode, as the inventory has it."""
    with Inventory.require(database) as inventory:
        rows = list(Reader(inventory, round(NOW * NS)).stream(RecordFilter()))
        for cohort in inventory.cohorts().values():
            mine = [row for row in rows if row.cohort.id == cohort.id]
            assert (cohort.records, cohort.bytes) == (len(mine), sum(row.size for row in mine))
            assert all(cohort.min_mtime <= row.mtime <= cohort.max_mtime for row in mine)
            assert all(cohort.min_size <= row.size <= cohort.max_size for row in mine)
    assert len({row.name for row in rows}) == len(rows)
    return {row.name: (row.size, row.mtime, row.inode) for row in rows}


def on_disk(root: Path) -> dict[str, tuple[int, int, int]]:
    found = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            facts = path.stat()
            found[str(path.relative_to(root))] = (facts.st_size, facts.st_mtime_ns, facts.st_ino)
    return found


class TestFirstScan:
    def test_lists_records_of_every_form_and_counts_the_rest(self, tmp_path: Path) -> None:
        root, database = tmp_path / "l2", tmp_path / "i.db"
        root.mkdir()
        names = [
            format_name(key(1)),
            format_name(key(2, group=None)),
            format_name(key(3, salt="tenant-ä")),
            format_name(key(4, model="other", group=17)),
            format_name(key(5)).replace(".data", ".tmp"),
            ".tmp/" + format_name(key(6)),
            "stage/" + format_name(key(7)),
            f"{key(8).chunk_hash_hex[:2]}/{key(8).chunk_hash_hex[2:4]}/" + format_name(key(8)),
        ]
        for name in names:
            write(root, name)
        foreign = ["README", "sub/" + format_name(key(9)), "ff/" + format_name(key(10)), format_name(key(11)) + "x"]
        for name in foreign:
            write(root, name, 7)
        write(root, ".tierkeeper/quarantine/r1/" + format_name(key(12)))
        outcome = scan(root, database, ("stage",))
        assert set(listed(database)) == set(names)
        assert (outcome.totals.records, outcome.totals.foreign, outcome.totals.foreign_bytes) == (8, 4, 28)
        assert set(outcome.totals.examples) == set(foreign)
        assert not outcome.rescan

    def test_names_of_any_bytes_and_links_are_only_counted(self, tmp_path: Path) -> None:
        root = tmp_path / "l2"
        root.mkdir()
        (root / os.fsdecode(b"\xff\xfe@0x01000100@0@" + b"ab" * 32 + b".data")).touch()
        (root / "a\nb<script>").touch()
        (tmp_path / "outside").touch()
        (root / format_name(key(1))).symlink_to(tmp_path / "outside")
        (root / "dir").symlink_to(tmp_path, target_is_directory=True)
        os.mkfifo(root / format_name(key(2)))
        totals = scan(root, tmp_path / "i.db").totals
        assert (totals.records, totals.foreign) == (0, 5)
        assert "\\xff\\xfe@0x01000100" in "".join(totals.examples)
        assert display_name(b"\xff") == "\\xff"

    def test_a_scan_that_is_stopped_leaves_nothing(self, tmp_path: Path) -> None:
        root = tmp_path / "l2"
        record(root, 1)

        def stop(_files: int) -> None:
            raise KeyboardInterrupt

        with StoreDirectory.open(str(root)) as directory, pytest.raises(KeyboardInterrupt):
            scan_directory(
                directory,
                tmp_path / "i.db",
                clock=lambda: NOW,
                context_of=lambda _probe: blind(),
                temp_dirs=(),
                tick=stop,
                probe_clock=False,
            )
        assert Inventory.open(tmp_path / "i.db") is None
        assert [path.name for path in tmp_path.iterdir() if path.suffix == ".building"] == []

    def test_an_empty_directory_has_an_empty_inventory(self, tmp_path: Path) -> None:
        (tmp_path / "l2").mkdir()
        assert scan(tmp_path / "l2", tmp_path / "i.db").totals == Totals()
        assert listed(tmp_path / "i.db") == {}

    def test_two_scans_at_once_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "l2").mkdir()
        with inventory_lock(tmp_path / "i.db") as mine:
            assert mine
            with pytest.raises(Conflict):
                scan(tmp_path / "l2", tmp_path / "i.db")


class TestReScan:
    def test_nothing_changed_writes_nothing(self, tmp_path: Path) -> None:
        root, database = tmp_path / "l2", tmp_path / "i.db"
        for number in range(50):
            record(root, number)
        scan(root, database)
        before = listed(database)
        outcome = scan(root, database)
        assert outcome.rescan
        assert (outcome.totals.added, outcome.totals.changed, outcome.totals.vanished) == (0, 0, 0)
        assert listed(database) == before == on_disk(root)

    def test_ids_stay(self, tmp_path: Path) -> None:
        root, database = tmp_path / "l2", tmp_path / "i.db"
        for number in range(20):
            record(root, number)
        scan(root, database)

        def ids() -> dict[str, int]:
            with Inventory.require(database) as inventory:
                return {r.name: r.id for r in Reader(inventory, 0).stream(RecordFilter())}

        before = ids()
        record(root, 5, 100)
        record(root, 99)
        scan(root, database)
        after = ids()
        assert {name: after[name] for name in before} == before

    def test_what_lies_in_an_unreadable_folder_is_not_gone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        root, database = tmp_path / "l2", tmp_path / "i.db"
        folders = {}
        for number in range(6):
            folder = key(number).chunk_hash_hex[:2]
            folders[folder] = write(root, f"{folder}/{format_name(key(number))}")
        scan(root, database)
        shut = sorted(folders)[0]
        real = StoreDirectory.open_folder

        def refuse(self: StoreDirectory, relative: bytes, *, create: bool = False) -> int:
            if relative == shut.encode():
                raise PermissionError(13, "Permission denied")
            return real(self, relative, create=create)

        monkeypatch.setattr(StoreDirectory, "open_folder", refuse)
        outcome = scan(root, database)
        assert outcome.totals.vanished == 0
        assert len(listed(database)) == 6
        assert outcome.unreadable == [
            f"'{shut}' cannot be read by the panel's user; give it read and search permission"
        ]

    def test_another_directory_under_the_path_starts_anew(self, tmp_path: Path) -> None:
        root, database = tmp_path / "l2", tmp_path / "i.db"
        record(root, 1)
        scan(root, database)
        with Inventory.require(database) as inventory:
            (old_id,) = (row.id for row in Reader(inventory, 0).stream(RecordFilter()))
        root.rename(tmp_path / "old")
        record(root, 2)
        outcome = scan(root, database)
        assert not outcome.rescan
        assert (outcome.totals.vanished, set(listed(database))) == (0, {format_name(key(2))})
        with Inventory.require(database) as inventory:
            assert [row.id for row in Reader(inventory, 0).stream(RecordFilter())] > [old_id]

    def test_a_damaged_inventory_is_made_anew(self, tmp_path: Path) -> None:
        root, database = tmp_path / "l2", tmp_path / "i.db"
        record(root, 1)
        scan(root, database)
        database.write_bytes(b"not a database at all" * 400)
        assert not scan(root, database).rescan
        assert listed(database) == on_disk(root)


_CHANGES = st.lists(
    st.tuples(st.sampled_from(["add", "delete", "rewrite", "touch", "resize"]), st.integers(0, 40)), max_size=30
)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 40), st.lists(_CHANGES, min_size=1, max_size=4), st.booleans())
def test_after_any_changes_the_inventory_is_the_disk(
    first: int, rounds: list[list[tuple[str, int]]], small_batches: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        if small_batches:
            # Batches fall out of step all the time.
            patch.setattr("app.records.scanner.BATCH", 3)
            patch.setattr("app.records.scan_work.BATCH", 3)
        root, database = Path(folder, "l2"), Path(folder, "i.db")
        root.mkdir()
        for number in range(first):
            record(root, number, salt="s" if number % 5 == 0 else "")
        scan(root, database)
        assert listed(database) == on_disk(root)
        for changes in rounds:
            before = listed(database)
            for what, number in changes:
                path = root / format_name(key(number, salt="s" if number % 5 == 0 else ""))
                if what == "delete":
                    path.unlink(missing_ok=True)
                elif what == "add" or path.exists():
                    sizes = {"add": 32768, "rewrite": 32768, "touch": 32768, "resize": 100 + number}
                    if what == "rewrite":
                        path.unlink()
                    write(root, path.name, sizes[what], mtime=NOW - 100 - number)
            outcome = scan(root, database)
            after = on_disk(root)
            assert listed(database) == after
            assert outcome.totals.added == len(after.keys() - before.keys())
            assert outcome.totals.vanished == len(before.keys() - after.keys())


def _listed_in_another_order(patch: pytest.MonkeyPatch, seed: int) -> None:
    """A file system that lists a flat directory as it likes: in no order that was seen before."""
    listing = StoreDirectory.walk_entries

    def walk_entries(self: StoreDirectory, *, batch: int = 4096, **options: Any) -> Iterator[tuple[str, Entries]]:
        found = [entry for _, entries in listing(self, **options) for entry in entries]
        Random(seed).shuffle(found)
        for at in range(0, len(found), batch):
            yield "", found[at : at + batch]

    patch.setattr(StoreDirectory, "walk_entries", walk_entries)


@settings(max_examples=60)
@given(st.integers(0, 60), st.lists(st.tuples(st.integers(0, 2**20), st.sets(st.integers(0, 60))), max_size=3))
# Rows that were matched ahead can fill a batch of their own: what was deleted behind it is gone all the same.
@example(31, [(0, {0, 1, 2, 3, 10, 20})])
def test_in_whatever_order_a_directory_is_listed_the_inventory_is_the_disk(
    first: int, rounds: list[tuple[int, set[int]]]
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("app.records.scanner.BATCH", 3)
        patch.setattr("app.records.scan_work.BATCH", 3)
        root, database = Path(folder, "l2"), Path(folder, "i.db")
        root.mkdir()
        for number in range(first):
            record(root, number)
        scan(root, database)
        for seed, deleted in rounds:
            before = on_disk(root)
            for number in deleted:
                (root / format_name(key(number))).unlink(missing_ok=True)
            with patch.context() as shuffled:
                _listed_in_another_order(shuffled, seed)
                outcome = scan(root, database)
            after = on_disk(root)
            assert listed(database) == after
            assert (outcome.totals.added, outcome.totals.vanished) == (0, len(before) - len(after))


def test_a_missing_or_linked_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "file").touch()
    for name, words in (("nowhere", "does not exist"), ("link", "links are not followed"), ("file", "not a directory")):
        with pytest.raises(StoreError, match=words):
            StoreDirectory.open(str(tmp_path / name))
