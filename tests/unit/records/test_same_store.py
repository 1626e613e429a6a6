"""Is the directory at a store's path still the store? The rule, and what a scan and the service make of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.audit.tables import AuditEvent
from app.errors import Conflict, InvalidInput, StoreError
from app.fleet import mounts
from app.fleet.tables import Store
from app.records.inventory_file import Inventory
from app.records.same_store import FoundDirectory, KnownDirectory, is_same, read_mark, sample_of, set_mark
from app.records.scan_work import inventory_lock
from app.records.store_dir import StoreDirectory
from app.records.tables import StoreDirectoryRow
from app.telemetry.store_look import Looks
from tests.unit.records.room import Room

A, B = "a" * 32, "b" * 32


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    made = Room(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("known", "found", "same"),
    [
        # After a reboot devices have other numbers; the mark tells.
        (KnownDirectory("8:2", A, "ext4"), FoundDirectory("9:2", 2, A), True),
        # An empty mount point, with and without a mark known.
        (KnownDirectory("8:2", A, "ext4"), FoundDirectory("1:77", 77, None, (0, 64)), False),
        (KnownDirectory("8:2", None, "ext4"), FoundDirectory("1:77", 77, None, (0, 64)), False),
        (KnownDirectory("8:2", None, None), FoundDirectory("1:77", 77, None, (0, 0)), False),
        # Another volume with the same numbers.
        (KnownDirectory("8:2", A, "ext4"), FoundDirectory("8:2", 2, B), False),
        (KnownDirectory("8:2", A, "ext4"), FoundDirectory("8:2", 2, None, (0, 64)), False),
        # Somebody removed our folder.
        (KnownDirectory("8:9999", A, "ext4"), FoundDirectory("8:9999", 9999, None), True),
        (KnownDirectory("8:2", A, "ext4"), FoundDirectory("8:2", 2, None, (40, 64)), True),
        (KnownDirectory("8:2", A, "ext4"), FoundDirectory("8:2", 2, None, (0, 0)), True),
        # A root that cannot be marked (mounted read-only): its numbers prove nothing, the records do.
        (KnownDirectory("7:2", None, "ext4"), FoundDirectory("7:2", 2, None, (0, 64)), False),
        (KnownDirectory("7:256", None, "btrfs"), FoundDirectory("7:256", 256, None, (31, 64)), False),
        (KnownDirectory("7:2", None, "ext4"), FoundDirectory("7:2", 2, B, (0, 64)), False),
        (KnownDirectory("7:2", None, "ext4"), FoundDirectory("7:2", 2, None, (32, 64)), True),
        (KnownDirectory("7:2", None, "ext4"), FoundDirectory("7:2", 2, None, (0, 0)), True),
        (KnownDirectory("7:2", None, "ext4"), FoundDirectory("7:2", 2, None, None), False),
        (KnownDirectory("7:2", A, "ext4"), FoundDirectory("7:2", 2, None, None), False),
        (KnownDirectory("7:9999", None, "ext4"), FoundDirectory("7:9999", 9999, None), True),
        # Without marks the records tell: half of them, unchanged.
        (KnownDirectory("8:2", None, "nfs4"), FoundDirectory("9:2", 2, None, (32, 64)), True),
        (KnownDirectory("8:2", None, "nfs4"), FoundDirectory("9:2", 2, None, (31, 64)), False),
        (KnownDirectory("8:2", None, "nfs4"), FoundDirectory("9:2", 2, B, (64, 64)), True),
    ],
)
def test_what_proves_and_what_disproves(known: KnownDirectory, found: FoundDirectory, same: bool) -> None:
    assert is_same(known, found) is same


class TestMark:
    def test_is_made_once_and_kept(self, tmp_path: Path) -> None:
        with StoreDirectory.open(str(tmp_path)) as directory:
            assert read_mark(directory) is None and not list(tmp_path.iterdir())
            mark = set_mark(directory)
            assert mark is not None and set_mark(directory) == mark == read_mark(directory)
        assert [path.name for path in (tmp_path / ".tierkeeper").iterdir()] == ["store"]

    @pytest.mark.parametrize("trap", ["link", "fifo", "folder", "words", "empty"])
    def test_what_is_no_mark_is_none_and_stays(self, tmp_path: Path, trap: str) -> None:
        (tmp_path / ".tierkeeper").mkdir()
        path = tmp_path / ".tierkeeper" / "store"
        (tmp_path / "elsewhere").write_text(A)
        if trap == "link":
            path.symlink_to(tmp_path / "elsewhere")
        elif trap == "fifo":
            os.mkfifo(path)
        elif trap == "folder":
            path.mkdir()
        else:
            path.write_text("a store of mine" if trap == "words" else "")
        with StoreDirectory.open(str(tmp_path)) as directory:
            assert read_mark(directory) is None
            assert set_mark(directory) is None
        assert [found.name for found in (tmp_path / ".tierkeeper").iterdir()] == ["store"]


def unmount(room: Room) -> Path:
    """The store's volume goes, its empty mount point stays; returns where the volume is meanwhile."""
    away = room.root.with_name("volume")
    room.root.rename(away)
    room.root.mkdir()
    return away


def scan(room: Room) -> tuple[str, str | None]:
    view = room.records.start_scan(1, actor="test")
    return view.state, view.error


def fill(room: Room, count: int = 20) -> None:
    for number in range(count):
        room.record(number, 5_000, salt="s" if number % 3 == 0 else "")


class TestScan:
    def test_an_empty_mount_point_is_refused_and_nothing_is_written(self, room: Room) -> None:
        fill(room)
        room.scan()
        known = f"{room.root.stat().st_dev}:{room.root.stat().st_ino}"
        away = unmount(room)
        state, error = scan(room)
        assert state == "failed" and error is not None
        found = f"{room.root.stat().st_dev}:{room.root.stat().st_ino}"
        for part in (str(room.root), known, found, "20 records", "empty", "mount it", "--accept-directory"):
            assert part in error
        assert list(room.root.iterdir()) == []
        assert room.records.summary(1).records == 20
        # Mounted again: the same store as before.
        room.root.rmdir()
        away.rename(room.root)
        assert scan(room) == ("succeeded", None)
        assert room.records.list_scans(page_size=1, page_token=None).items[0].vanished == 0

    def test_the_servers_same_names_in_the_mount_point_prove_nothing(self, room: Room) -> None:
        fill(room)
        room.scan()
        unmount(room)
        for number in range(20):
            room.record(number, 10, salt="s" if number % 3 == 0 else "")
        state, error = scan(room)
        assert state == "failed" and "20 entries" in (error or "")
        assert not (room.root / ".tierkeeper").exists()

    def test_a_copy_is_the_store_and_nothing_vanished(self, room: Room) -> None:
        fill(room)
        room.scan()
        away = unmount(room)
        room.root.rmdir()
        shutil.copytree(away, room.root, symlinks=True)
        assert scan(room) == ("succeeded", None)
        last = room.records.list_scans(page_size=1, page_token=None).items[0]
        assert (last.rescan, last.vanished, last.records) == (True, 0, 20)
        # The facts of a plan are those of the directory that is there now.
        with Inventory.require(room.settings.data_dir / "inventory" / "store-1.db") as inventory:
            meta = inventory.meta()
        here = room.root.stat()
        assert (meta["directory"], meta["device"]) == (f"{here.st_dev}:{here.st_ino}", str(here.st_dev))

    def test_numbers_that_changed_in_a_reboot_are_no_other_store(self, room: Room) -> None:
        fill(room)
        room.scan()
        with room.db.write() as session:
            session.get_one(StoreDirectoryRow, 1).identity = "12345:2"
        assert scan(room) == ("succeeded", None)
        with room.db.read() as session:
            row = session.get_one(StoreDirectoryRow, 1)
        assert row.identity == f"{room.root.stat().st_dev}:{room.root.stat().st_ino}"

    @pytest.mark.parametrize("mounted", [True, False])
    def test_a_store_scanned_by_an_older_version_is_known_by_its_inventory(self, room: Room, mounted: bool) -> None:
        fill(room)
        room.scan()
        with room.db.write() as session:
            session.delete(session.get_one(StoreDirectoryRow, 1))
        shutil.rmtree(room.root / ".tierkeeper")
        away = unmount(room)
        if mounted:
            room.root.rmdir()
            shutil.copytree(away, room.root, symlinks=True)
        assert scan(room)[0] == ("succeeded" if mounted else "failed")

    def test_a_first_scan_marks_the_directory(self, room: Room) -> None:
        assert room.records.directories.view(1).state == "not_known_yet"
        assert scan(room) == ("succeeded", None)
        view = room.records.directories.view(1)
        assert (view.state, view.known) == ("same", view.found)
        assert (room.root / ".tierkeeper" / "store").is_file()

    def test_a_store_emptied_in_place_is_an_empty_store(self, room: Room) -> None:
        fill(room)
        room.scan()
        for path in room.root.iterdir():
            if path.is_file():
                path.unlink()
        assert scan(room) == ("succeeded", None)
        assert room.records.summary(1).records == 0


class TestUnmarkedRoot:
    """A volume that is mounted read-only has no mark of ours. Its root's inode is that of every other volume's."""

    @pytest.fixture
    def room(self, room: Room, monkeypatch: pytest.MonkeyPatch) -> Room:
        opened = StoreDirectory.__init__

        def as_root(self: StoreDirectory, path: str, fd: int) -> None:
            opened(self, path, fd)
            self.inode = 2

        monkeypatch.setattr(StoreDirectory, "__init__", as_root)
        monkeypatch.setattr("app.records.store_directories.set_mark", lambda _: None)
        fill(room)
        room.scan()
        return room

    def test_another_volume_with_the_same_numbers_is_refused(self, room: Room) -> None:
        unmount(room)
        for number in range(20, 40):
            room.record(number, 5_000)
        state, error = scan(room)
        assert state == "failed" and "is not the directory that the last scan knew" in (error or "")
        assert room.records.summary(1).records == 20

    def test_the_same_volume_is_scanned_again(self, room: Room) -> None:
        room.record(30, 10)
        assert scan(room) == ("succeeded", None)
        assert room.records.list_scans(page_size=1, page_token=None).items[0].rescan is True

    def test_a_lost_inventory_proves_nothing_until_a_person_says_so(self, room: Room) -> None:
        (room.settings.data_dir / "inventory" / "store-1.db").unlink()
        with room.db.write() as session:
            session.get_one(StoreDirectoryRow, 1).seen_at -= 1  # the clock stands still: the scan ended after that
        state, error = scan(room)
        assert state == "failed" and "the inventory that its records could be compared with is lost" in (error or "")
        room.clock.now += 1
        assert room.records.directories.accept(1, None, actor="ann").state == "same"
        assert scan(room) == ("succeeded", None)

    def test_an_accepted_one_is_scanned_and_known(self, room: Room) -> None:
        unmount(room)
        room.record(50, 10)
        room.clock.now += 1
        room.records.directories.accept(1, None, actor="ann")
        room.clock.now += 1
        assert scan(room) == ("succeeded", None)
        assert scan(room) == ("succeeded", None)


class TestTwoStores:
    """Another store's directory at a store's path, as a bind mount makes it."""

    @pytest.fixture
    def other(self, room: Room) -> Path:
        path = room.root.with_name("other")
        path.mkdir()
        with room.db.write() as session:
            session.add(Store(id=2, name="other", path=str(path), server_path=str(path), created_at=0))
        fill(room)
        room.scan()
        return path

    def refused(self, room: Room) -> None:
        view = room.records.start_scan(2, actor="test")
        assert view.state == "failed" and "is the directory of the store 'disk'" in (view.error or "")
        with pytest.raises(StoreError, match="is the directory of the store 'disk'"):
            room.records.directories.accept(2, None, actor="ann")

    def test_the_others_mark_is_refused(self, room: Room, other: Path) -> None:
        other.rmdir()
        shutil.copytree(room.root, other)
        self.refused(room)
        assert scan(room) == ("succeeded", None)
        (other / ".tierkeeper" / "store").unlink()  # the way out, for a copy
        assert room.records.start_scan(2, actor="test").state == "succeeded"

    def test_the_others_place_is_refused_where_there_is_no_mark(
        self, room: Room, other: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table = room.root.with_name("mountinfo")
        table.write_text(f"1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 8:1 {room.root} {other} rw - ext4 /dev/a rw\n")
        monkeypatch.setattr(mounts, "MOUNTS", table)
        self.refused(room)
        assert list(other.iterdir()) == []
        assert scan(room) == ("succeeded", None)

    def test_a_directory_of_its_own_is_scanned(self, room: Room, other: Path) -> None:
        assert room.records.start_scan(2, actor="test").state == "succeeded"


class TestAccepting:
    def test_a_person_says_that_it_is_the_store_now(self, room: Room) -> None:
        fill(room)
        room.scan()
        unmount(room)
        view = room.records.directories.view(1)
        assert view.state == "another" and view.reason is not None
        with pytest.raises(InvalidInput, match="found: '1:2' is not what lies at"):
            room.records.directories.accept(1, "1:2", actor="ann")
        assert list(room.root.iterdir()) == []
        assert room.records.directories.accept(1, view.found, actor="ann").state == "same"
        assert room.records.summary(1).state == "never_scanned"
        assert scan(room) == ("succeeded", None)
        last = room.records.list_scans(page_size=1, page_token=None).items[0]
        assert (last.rescan, last.records, last.vanished) == (False, 0, 0)
        with room.db.read() as session:
            event = session.query(AuditEvent).filter_by(action="store.accept_directory").one()
        assert (event.actor, event.detail["from"], event.detail["to"]) == ("ann", view.known, view.found)

    def test_the_volume_that_comes_back_then_is_another_one(self, room: Room) -> None:
        fill(room)
        room.scan()
        away = unmount(room)
        room.records.directories.accept(1, None, actor="ann")
        room.root.rename(room.root.with_name("mountpoint"))
        away.rename(room.root)
        state, error = scan(room)
        assert state == "failed" and "its mark is another store's" in (error or "")

    def test_nothing_to_accept_changes_nothing(self, room: Room) -> None:
        fill(room)
        room.scan()
        room.records.directories.accept(1, None, actor="ann")
        assert room.records.summary(1).records == 20
        with room.db.read() as session:
            assert session.query(AuditEvent).filter_by(action="store.accept_directory").count() == 0

    def test_not_while_a_scan_is_under_way(self, room: Room) -> None:
        room.scan()
        unmount(room)
        with inventory_lock(room.settings.data_dir / "inventory" / "store-1.db"), pytest.raises(Conflict):
            room.records.directories.accept(1, None, actor="ann")


class TestOthers:
    async def test_the_poller_says_that_the_store_cannot_be_used(self, room: Room) -> None:
        fill(room)
        room.scan()
        target = room.fleet.store_target(1)
        looks = Looks(room.records.directories.trouble)
        assert (await looks.at(target)).usable is True
        unmount(room)
        look = await looks.at(target)
        assert look.usable is False and "not the directory that the last scan knew" in (look.reason or "")
        assert look.free_bytes is None
        room.root.rmdir()
        assert (await looks.at(target)).reason == "the directory is gone (or its mount is)"

    def test_a_missing_directory_says_so(self, room: Room) -> None:
        room.scan()
        shutil.rmtree(room.root)
        assert room.records.directories.view(1).state == "unreadable"
        with pytest.raises(StoreError, match="does not exist"):
            room.records.directories.accept(1, None, actor="ann")

    def test_a_sample_is_from_all_over(self, room: Room) -> None:
        fill(room, 200)
        room.scan()
        with Inventory.require(room.settings.data_dir / "inventory" / "store-1.db") as inventory:
            found = sample_of(inventory)
        assert len(found) == 64
        assert all((room.root / os.fsdecode(record.name)).is_file() for record in found)
