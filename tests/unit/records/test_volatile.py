"""A store in memory begins anew with each restart: it is followed, where nothing can be lost by that."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.audit.tables import AuditEvent
from app.records import volatile
from app.records.same_store import KnownDirectory
from app.records.scan_work import inventory_lock
from app.records.store_dir import StoreDirectory, open_store
from app.records.store_directories import WouldBeginAnew
from app.records.tables import StoreDirectoryRow
from app.telemetry.store_look import Looks
from tests.unit.records.room import Room
from tests.unit.records.test_same_store import fill, scan, unmount

SHM = Path("/dev/shm")


@pytest.fixture
def on_memory(monkeypatch: pytest.MonkeyPatch, stores_on_disk: None) -> None:
    monkeypatch.setattr(volatile, "VOLATILE", frozenset({"tmpfs", "ramfs"}))


@pytest.fixture
def room(on_memory: None) -> Iterator[Room]:
    """A scanned store of twenty records on a real tmpfs."""
    if not os.access(SHM, os.W_OK):
        pytest.skip("no tmpfs at /dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="tierkeeper-test-", dir=SHM))
    made = Room(folder)
    fill(made)
    made.clock.now = time.time() - 60  # the scan was a minute ago
    made.scan()
    yield made
    made.close()
    shutil.rmtree(folder)


@pytest.fixture
def remounted(room: Room, monkeypatch: pytest.MonkeyPatch) -> Room:
    """What only root can do for real: the known directory was another tmpfs's root, and a mount begins here now."""
    monkeypatch.setattr(StoreDirectory, "is_mount_root", lambda _: True)
    of_another_mount(room)
    return room


def of_another_mount(room: Room) -> None:
    with room.db.write() as session:
        session.get_one(StoreDirectoryRow, 1).identity = "4242:1"


def told(room: Room) -> list[dict[str, object]]:
    with room.db.read() as session:
        return [dict(e.detail) for e in session.query(AuditEvent).filter_by(action="store.began_anew")]


def age(room: Room, seconds: float) -> None:
    """The last scan was that many seconds ago."""
    with room.db.write() as session:
        session.get_one(StoreDirectoryRow, 1).seen_at = time.time() - seconds


class TestFollowed:
    @pytest.fixture(autouse=True)
    def _mounted(self, remounted: Room) -> None:
        """Each of these is a mount that began anew."""

    def test_an_empty_one_by_a_scan(self, room: Room) -> None:
        was = room.records.directories.view(1).known
        unmount(room)
        assert scan(room) == ("succeeded", None)
        last = room.records.list_scans(page_size=1, page_token=None).items[0]
        assert (last.rescan, last.records, last.vanished) == (False, 0, 0)
        view = room.records.directories.view(1)
        assert view.state == "same" and view.began_anew_at is not None
        assert told(room) == [{"from": was, "to": view.found, "fs_type": "tmpfs"}]
        assert (room.root / ".tierkeeper" / "store").is_file()

    async def test_one_with_fresh_records_only_by_a_scan(self, room: Room) -> None:
        unmount(room)
        names = {room.record(number, 5_000) for number in range(5)}  # their times are set back: nothing rests on them
        look = await Looks(room.records.directories.trouble).at(room.fleet.store_target(1))
        assert look.usable is True
        view = room.records.directories.view(1)
        assert view.state == "another" and "the next scan follows it" in (view.reason or "")
        with pytest.raises(WouldBeginAnew):
            open_store(room.fleet.store_target(1))
        # Who only looks changed nothing.
        assert {path.name for path in room.root.iterdir()} == names
        assert room.records.summary(1).records == 20
        assert told(room) == []
        assert scan(room) == ("succeeded", None)
        assert room.records.summary(1).records == 5
        assert len(told(room)) == 1

    def test_each_time(self, room: Room) -> None:
        for count in (1, 2):
            shutil.rmtree(unmount(room))
            assert scan(room) == ("succeeded", None)
            assert len(told(room)) == count
            of_another_mount(room)
            age(room, 60)

    @pytest.mark.parametrize(
        ("known", "found", "another"),
        [
            ("40:1", (41, 1), True),
            ("40:1", (40, 1), True),  # a reboot gave the new one the number of the old
            ("40:7", (41, 1), False),  # it was a folder, and may lie hidden under the new mount
            ("40:7", (40, 9), False),  # renamed within one tmpfs
            ("40:7", (41, 9), True),  # a kernel that numbers all of them together
        ],
    )
    def test_whether_the_known_one_went_with_its_mount(
        self, room: Room, known: str, found: tuple[int, int], another: bool
    ) -> None:
        unmount(room)
        with StoreDirectory.open(str(room.root)) as directory:
            directory.device, directory.inode = found
            row = KnownDirectory(known, None, "tmpfs", time.time() - 60)
            assert volatile._was_another_mount(directory, row) is another


class TestRefused:
    def refused(self, room: Room) -> None:
        before = sorted(room.root.rglob("*"))
        state, error = scan(room)
        assert state == "failed" and "is not the directory that the last scan knew" in (error or "")
        assert sorted(room.root.rglob("*")) == before
        assert told(room) == []
        assert room.records.summary(1).records == 20

    def test_a_folder_renamed_within_one_tmpfs(self, room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(StoreDirectory, "is_mount_root", lambda _: True)
        unmount(room)
        room.record(1, 10)
        self.refused(room)

    def test_a_mount_point_in_another_tmpfs(self, room: Room) -> None:
        of_another_mount(room)
        unmount(room)
        room.record(1, 10)  # its time of change is new
        self.refused(room)

    def test_while_something_of_the_store_is_kept(self, remounted: Room) -> None:
        unmount(remounted)
        remounted.records.directories.on_follow(lambda store_id: store_id == 1)
        self.refused(remounted)

    def test_one_that_holds_what_was_there_before_the_last_scan(self, room: Room, remounted: Room) -> None:
        unmount(room)
        room.record(1, 10)
        age(room, -5)
        self.refused(room)

    def test_an_empty_one_that_is_older(self, room: Room, remounted: Room) -> None:
        """The mount point of a tmpfs that is away, in another tmpfs."""
        unmount(room)
        age(room, -5)
        self.refused(room)

    @pytest.mark.parametrize("ours", ["store", "quarantine"])
    def test_one_with_something_of_ours(self, room: Room, remounted: Room, ours: str) -> None:
        unmount(room)
        (room.root / ".tierkeeper" / ours).mkdir(parents=True)
        self.refused(room)

    def test_an_unmounted_one_shows_the_disk_below(self, on_memory: None, tmp_path: Path) -> None:
        room = Room(tmp_path)
        try:
            fill(room)
            room.clock.now = time.time() - 60
            room.scan()
            with room.db.write() as session:
                session.get_one(StoreDirectoryRow, 1).fs_type = "tmpfs"
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("app.records.store_dir.StoreDirectory.fs_type", lambda _: "ext4")
                unmount(room)
                self.refused(room)
        finally:
            room.close()

    def test_a_disk_that_was_known_and_memory_that_lies_there(self, room: Room, remounted: Room) -> None:
        with room.db.write() as session:
            session.get_one(StoreDirectoryRow, 1).fs_type = "ext4"
        unmount(room)
        self.refused(room)

    def test_while_a_scan_is_under_way_somewhere(self, remounted: Room) -> None:
        unmount(remounted)
        with inventory_lock(remounted.settings.data_dir / "inventory" / "store-1.db"):
            self.refused(remounted)


def test_the_kind_is_that_of_the_open_directory(room: Room) -> None:
    with StoreDirectory.open(str(room.root)) as directory:
        assert directory.fs_type() == "tmpfs"
