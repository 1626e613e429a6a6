"""Moving single files: what is never touched, what races do, and what an unwilling disk says."""

from __future__ import annotations

import errno
import os
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.cleanup import openers, removal
from app.cleanup.disk import StoreRoot, signed
from app.cleanup.items import ItemRow
from app.cleanup.quarantine import folder_path
from app.cleanup.removal import purge, remove, restore, settle
from app.errors import StoreError
from tests.unit.cleanup.support import World, name_of

NAME = name_of(1)
QUARANTINE = folder_path("run-1")
CORRUPT = [{"kind": "corrupt"}]


def item_of(
    path: Path, name: bytes = NAME, *, delete: bool = False, why: str = "corrupt", cls: str = "corrupt"
) -> ItemRow:
    found = (path / os.fsdecode(name)).lstat()
    return ItemRow(
        1,
        name,
        found.st_size,
        found.st_mtime_ns,
        found.st_ctime_ns,
        found.st_atime_ns,
        signed(found.st_ino),
        found.st_dev,
        cls,
        "short",
        why,
        "delete" if delete else "quarantine",
        None,
        1,
    )


@pytest.fixture
def root(tmp_path: Path) -> Iterator[StoreRoot]:
    (tmp_path / os.fsdecode(NAME)).write_bytes(b"record")
    with StoreRoot(str(tmp_path)) as opened:
        yield opened


def inside(root: StoreRoot, name: bytes = NAME) -> Path:
    return Path(root.path) / os.fsdecode(QUARANTINE) / os.fsdecode(name)


def outside(root: StoreRoot, name: bytes = NAME) -> Path:
    return Path(root.path) / os.fsdecode(name)


class TestRemove:
    def test_quarantines(self, root: StoreRoot) -> None:
        assert remove(root, QUARANTINE, item_of(Path(root.path))).state == "quarantined"
        assert inside(root).read_bytes() == b"record"
        assert not outside(root).exists()

    def test_deletes(self, root: StoreRoot) -> None:
        assert remove(root, QUARANTINE, item_of(Path(root.path), delete=True)).state == "deleted"
        assert not inside(root).exists()
        assert not outside(root).exists()

    @pytest.mark.parametrize("field", ["size", "mtime_ns", "ctime_ns", "inode"])
    def test_any_other_fact_means_changed(self, root: StoreRoot, field: str) -> None:
        item = item_of(Path(root.path))
        other = item._replace(**{field: getattr(item, field) + 1})
        assert remove(root, QUARANTINE, other).state == "changed"
        assert outside(root).read_bytes() == b"record"

    def test_another_device(self, root: StoreRoot) -> None:
        item = item_of(Path(root.path))
        assert remove(root, QUARANTINE, item._replace(device=item.device + 1)).state == "other_device"

    def test_hard_links_stay(self, root: StoreRoot, tmp_path: Path) -> None:
        os.link(outside(root), tmp_path / "second")
        assert remove(root, QUARANTINE, item_of(Path(root.path))).state == "linked"
        assert outside(root).exists()

    def test_use_counts_only_for_records_that_are_right(self, root: StoreRoot) -> None:
        item = item_of(Path(root.path))
        earlier = item._replace(atime_ns=item.atime_ns - 1)
        assert remove(root, QUARANTINE, earlier._replace(why="unused")).state == "used"
        assert remove(root, QUARANTINE, earlier).state == "quarantined"

    @pytest.mark.parametrize(
        "name", [b"../x@1", b"a/../b", b"/etc/passwd", b".", b"..", b"", b"a/", b".tierkeeper/lock", b".tierkeeper"]
    )
    def test_names_that_lead_elsewhere(self, root: StoreRoot, name: bytes) -> None:
        item = item_of(Path(root.path))._replace(name=name)
        assert remove(root, QUARANTINE, item).state in ("failed", "vanished")
        assert outside(root).exists()

    def test_a_link_in_the_way_is_not_followed(self, root: StoreRoot, tmp_path_factory: pytest.TempPathFactory) -> None:
        elsewhere = tmp_path_factory.mktemp("elsewhere")
        (elsewhere / os.fsdecode(NAME)).write_bytes(b"outside")
        os.symlink(elsewhere, Path(root.path) / "ab")
        item = item_of(elsewhere)._replace(name=b"ab/" + NAME)
        assert remove(root, QUARANTINE, item).state in ("not_regular", "vanished")
        assert (elsewhere / os.fsdecode(NAME)).exists()


class TestRaces:
    """Somebody else acts between two of our system calls."""

    def at(self, monkeypatch: pytest.MonkeyPatch, call: str, act: object, *, before: bool = True) -> None:
        real = getattr(os, call)
        done: list[int] = []

        def hooked(*args: object, **more: object) -> object:
            if done:
                return real(*args, **more)
            done.append(1)
            if before:
                act()  # type: ignore[operator]
                return real(*args, **more)
            result = real(*args, **more)
            act()  # type: ignore[operator]
            return result

        monkeypatch.setattr(removal.os, call, hooked)

    def test_replaced_before_the_rename_goes_back(self, root: StoreRoot, monkeypatch: pytest.MonkeyPatch) -> None:
        item = item_of(Path(root.path))

        def replace() -> None:
            new = Path(root.path) / "tmp"
            new.write_bytes(b"newer!")
            new.rename(outside(root))

        self.at(monkeypatch, "rename", replace)
        assert remove(root, QUARANTINE, item).state == "changed"
        assert outside(root).read_bytes() == b"newer!"
        assert not inside(root).exists()

    def test_replaced_twice_keeps_the_newest_in_place(self, root: StoreRoot, monkeypatch: pytest.MonkeyPatch) -> None:
        item = item_of(Path(root.path))

        def replace() -> None:
            outside(root).unlink()
            outside(root).write_bytes(b"second")

        self.at(monkeypatch, "rename", replace)
        self.at(monkeypatch, "link", lambda: outside(root).write_bytes(b"third"))
        found = remove(root, QUARANTINE, item)
        assert (found.state, found.errno) == ("left_behind", errno.EEXIST)
        assert outside(root).read_bytes() == b"third"
        assert inside(root).read_bytes() == b"second"

    def test_read_during_the_rename_goes_back_when_use_counts(
        self, root: StoreRoot, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        item = item_of(Path(root.path), why="unused")

        def read() -> None:
            found = inside(root).stat()
            os.utime(inside(root), ns=(found.st_atime_ns + 10**9, found.st_mtime_ns))

        self.at(monkeypatch, "rename", read, before=False)
        assert remove(root, QUARANTINE, item).state == "used"
        assert outside(root).exists()

    def test_replaced_by_a_directory_goes_back(self, root: StoreRoot, monkeypatch: pytest.MonkeyPatch) -> None:
        item = item_of(Path(root.path))

        def replace() -> None:
            outside(root).unlink()
            outside(root).mkdir()
            (outside(root) / "child").write_bytes(b"x")

        self.at(monkeypatch, "rename", replace)
        assert remove(root, QUARANTINE, item).state == "not_regular"
        assert (outside(root) / "child").read_bytes() == b"x"

    def test_without_hard_links_it_goes_back_by_rename(self, root: StoreRoot, monkeypatch: pytest.MonkeyPatch) -> None:
        item = item_of(Path(root.path))

        def no_links(*args: object, **more: object) -> None:
            raise OSError(errno.EPERM, "no links here")

        monkeypatch.setattr(removal.os, "link", no_links)
        assert remove(root, QUARANTINE, item).state == "quarantined"
        assert restore(root, QUARANTINE, item).state == "restored"
        assert outside(root).read_bytes() == b"record"
        assert remove(root, QUARANTINE, item_of(Path(root.path))).state == "quarantined"
        outside(root).write_bytes(b"newer")
        assert restore(root, QUARANTINE, item).state == "exists"
        assert outside(root).read_bytes() == b"newer"


class TestSettle:
    """Every instant at which a removal can be cut off."""

    def test_before_anything(self, root: StoreRoot) -> None:
        assert settle(root, QUARANTINE, item_of(Path(root.path))).state == "in_place"

    def test_after_the_rename(self, root: StoreRoot) -> None:
        item = item_of(Path(root.path))
        root.folder(QUARANTINE, create=True)
        outside(root).rename(inside(root))
        assert settle(root, QUARANTINE, item).state == "quarantined"
        assert settle(root, QUARANTINE, item._replace(action="delete")).state == "deleted"
        assert not inside(root).exists()
        assert settle(root, QUARANTINE, item._replace(action="delete")).state == "deleted"
        assert settle(root, QUARANTINE, item).state == "vanished"

    def test_between_link_and_unlink(self, root: StoreRoot) -> None:
        item = item_of(Path(root.path))
        root.folder(QUARANTINE, create=True)
        os.link(outside(root), inside(root))
        assert settle(root, QUARANTINE, item).state == "in_place"
        assert outside(root).exists()
        assert not inside(root).exists()

    def test_recreated_after_the_rename(self, root: StoreRoot) -> None:
        item = item_of(Path(root.path))
        root.folder(QUARANTINE, create=True)
        outside(root).rename(inside(root))
        outside(root).write_bytes(b"newer")
        assert settle(root, QUARANTINE, item).state == "quarantined"
        assert outside(root).read_bytes() == b"newer"

    @pytest.mark.parametrize("action", ["quarantine", "delete"])
    @pytest.mark.parametrize("why", ["unused", "capacity", "filter"])
    def test_who_reads_a_file_in_quarantine_does_not_use_the_record(
        self, root: StoreRoot, why: str, action: str
    ) -> None:
        item = item_of(Path(root.path))._replace(why=why, action=action)
        root.folder(QUARANTINE, create=True)
        outside(root).rename(inside(root))
        moved = inside(root).stat()
        os.utime(inside(root), ns=(moved.st_ctime_ns + 3600 * 10**9, moved.st_mtime_ns))  # a backup, an hour later
        assert settle(root, QUARANTINE, item).state == ("deleted" if action == "delete" else "quarantined")
        assert not outside(root).exists()

    def test_use_between_the_plan_and_the_rename_still_counts(self, root: StoreRoot) -> None:
        item = item_of(Path(root.path))
        item = item._replace(why="unused", atime_ns=item.atime_ns - 10**9)  # it was read after it was planned
        root.folder(QUARANTINE, create=True)
        outside(root).rename(inside(root))
        assert settle(root, QUARANTINE, item).state == "used"
        assert outside(root).exists()

    def test_what_is_not_ours_in_quarantine_goes_back(self, root: StoreRoot) -> None:
        item = item_of(Path(root.path))
        root.folder(QUARANTINE, create=True)
        outside(root).unlink()
        inside(root).write_bytes(b"another")
        assert settle(root, QUARANTINE, item).state == "changed"
        assert outside(root).read_bytes() == b"another"


class TestRestoreAndPurge:
    def test_restore_refuses_what_was_tampered_with(self, root: StoreRoot) -> None:
        item = item_of(Path(root.path))
        remove(root, QUARANTINE, item)
        inside(root).write_bytes(b"tampered")
        assert restore(root, QUARANTINE, item).state == "changed"
        assert purge(root, QUARANTINE, item).state == "changed"
        assert not outside(root).exists()

    def test_restore_of_what_never_left(self, root: StoreRoot) -> None:
        assert restore(root, QUARANTINE, item_of(Path(root.path))).state == "restored"

    def test_restore_cut_off_between_link_and_unlink(self, root: StoreRoot) -> None:
        item = item_of(Path(root.path))
        remove(root, QUARANTINE, item)
        os.link(inside(root), outside(root))
        assert restore(root, QUARANTINE, item).state == "restored"
        assert not inside(root).exists()
        assert outside(root).stat().st_nlink == 1

    def test_purge(self, root: StoreRoot) -> None:
        item = item_of(Path(root.path))
        remove(root, QUARANTINE, item)
        assert purge(root, QUARANTINE, item).state == "purged"
        assert purge(root, QUARANTINE, item).state == "vanished"


class TestOpeners:
    def look(self, path: Path) -> bool:
        fd = os.open(path, os.O_PATH)
        try:
            return openers.open_elsewhere(fd)
        finally:
            os.close(fd)

    def test_a_writer_is_seen_a_reader_is_not(self, tmp_path: Path) -> None:
        path = tmp_path / "f"
        path.write_bytes(b"x")
        assert not self.look(path)
        with path.open("ab"):
            assert self.look(path)
        with path.open("rb"):
            assert not self.look(path)

    def test_without_leases_proc_tells(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "f"
        path.write_bytes(b"x")
        monkeypatch.setattr(openers, "_writer_by_lease", lambda fd: None)
        assert not self.look(path)
        with subprocess.Popen(
            ["/bin/sh", "-c", f"exec 3>>{path}; echo ready; read line"], stdin=-1, stdout=-1
        ) as child:
            assert child.stdout is not None
            child.stdout.readline()
            assert self.look(path)
            child.communicate(b"\n")

    def test_a_temporary_file_that_is_being_written_stays(self, world: World) -> None:
        name = NAME.replace(b".data", b".tmp")
        path = world.write(name, age=7200)
        closed = world.write(name_of(2).replace(b".data", b".tmp"), age=7200)
        world.clock.now = path.stat().st_ctime + 7200
        with path.open("ab"):
            run = world.run([{"kind": "temporary", "older_than": "1h"}])
        assert run.skipped == {"open": 1}
        assert path.exists()
        assert not closed.exists()


class TestNastyDirectory:
    def test_nothing_but_named_records_is_touched(self, world: World, tmp_path: Path) -> None:
        outside_file = tmp_path / "precious"
        outside_file.write_bytes(b"do not touch")
        real = world.fill(3, cls=("corrupt", "short"))
        nasty: list[bytes] = []

        def record(number: int, salt: str = "") -> Path:
            name = name_of(number, salt=salt)
            nasty.append(name)
            world.inventory.classes[name] = ("corrupt", "short")
            return world.path / os.fsdecode(name)

        record(10).symlink_to(outside_file)
        record(11).symlink_to("/nonexistent")
        os.link(outside_file, record(12))
        record(13).mkdir()
        os.mkfifo(record(14))
        with socket.socket(socket.AF_UNIX) as listener:
            here = Path.cwd()
            os.chdir(world.path)
            try:
                listener.bind("s")
                Path("s").rename(record(15).name)
            finally:
                os.chdir(here)
        os.mknod(record(16), stat.S_IFCHR | 0o600, os.makedev(1, 3))
        os.mknod(record(17), stat.S_IFBLK | 0o600, os.makedev(7, 250))
        os.symlink(tmp_path, world.path / "ab")
        odd = [
            "newline\nin it",
            'quote\'s "and"',
            "<img src=x onerror=alert(1)>",
            "\u202egnp",
            "-rf",
            "$(id)",
            "=1+1",
            "ü" * 60,
        ]
        for number, salt in enumerate(odd, start=30):
            name = name_of(number, salt=salt)
            world.write(name, b"odd")
            world.inventory.classes[name] = ("corrupt", "short")
            real.append(name)
        invalid = name_of(60).replace(b".data", b"@\xff\xfe.data")
        world.write(invalid)
        plain = [b"README", b".hidden", b"core.1", b"x@y@z.data", b"lost+found/keep"]
        for name in plain:
            world.write(name)
        # as if the inventory had been fooled about every one of them
        world.inventory.refresh(world.store_id, lambda: None)
        run = world.run(CORRUPT)
        assert run.removed.records == len(real)
        assert world.quarantined() == set(real)
        left = world.names()
        assert set(plain) | {invalid} <= left
        assert outside_file.read_bytes() == b"do not touch"
        for name in nasty:
            assert os.path.lexists(world.path / os.fsdecode(name)), name
        assert run.failed_total == 0
        job = world.service.restore(int(run.id), None, actor="test")
        assert job.records == len(real)
        view = world.service.quarantine(world.store_id, page_size=10, page_token=None)
        assert (view.items, view.records) == ([], 0)

    @pytest.mark.parametrize(
        ("name", "make", "found"),
        [
            (".tierkeeper", lambda path: path.write_bytes(b"mine"), "a file"),
            (".tierkeeper", os.mkfifo, "no directory (a fifo, a socket or a device)"),
            (".tierkeeper", lambda path: path.symlink_to("/nowhere"), "a symbolic link to '/nowhere'"),
            (".tierkeeper/quarantine", lambda path: path.write_bytes(b"mine"), "a file"),
        ],
    )
    def test_what_is_in_the_way_is_named_with_its_path_and_the_way_out(
        self, world: World, name: str, make: Callable[[Path], object], found: str
    ) -> None:
        world.fill(1, cls=("corrupt", "short"))
        (world.path / name).parent.mkdir(exist_ok=True)
        make(world.path / name)
        plan = world.service.start_policy_plan(world.policy(CORRUPT), actor="test")
        assert plan.state == "failed"
        with pytest.raises(StoreError) as refused, StoreRoot(str(world.path)) as root:
            root.quarantine()
        for sentence in (plan.error or "", str(refused.value)):
            assert f"{world.path}/{name} is {found}, " in sentence
            assert f"move it away (mv {world.path}/{name} somewhere else), then try again" in sentence
            assert "nothing was touched" in sentence
        assert name_of(0) in world.names()

    def test_our_own_folder_replaced_by_a_link(self, world: World, tmp_path: Path) -> None:
        world.fill(1, cls=("corrupt", "short"))
        plan = world.plan(CORRUPT)
        trap = tmp_path / "trap"
        trap.mkdir()
        (world.path / ".tierkeeper").symlink_to(trap)
        run = world.service.start_run(int(plan.id), actor="test")
        assert (run.state, run.verdict) == ("failed", "failed")
        assert run.error is not None
        assert f"{world.path}/.tierkeeper is a symbolic link to '{trap}'" in run.error
        assert f"move it away (mv {world.path}/.tierkeeper " in run.error
        assert list(trap.iterdir()) == []
        assert world.names() == {NAME.replace(NAME, name_of(0)), b".tierkeeper"} - {b".tierkeeper"}


class TestUnwillingDisk:
    def test_immutable_files_are_reported_and_skipped(self, world: World) -> None:
        names = world.fill(3, cls=("corrupt", "short"))
        stuck = world.path / os.fsdecode(names[1])
        if subprocess.run(["chattr", "+i", stuck], check=False, capture_output=True).returncode:
            pytest.skip("this file system has no immutable flag")
        try:
            # the flag moves ctime: it was there before the plan
            run = world.run(CORRUPT)
        finally:
            subprocess.run(["chattr", "-i", stuck], check=True)
        assert (run.verdict, run.removed.records, run.failed_total) == ("insufficient", 2, 1)
        assert run.failed[0].name == os.fsdecode(names[1])
        assert run.failed[0].errno == errno.EPERM
        assert "could not be removed" in run.notes[0]

    @pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC, errno.EIO, errno.EDQUOT])
    def test_errors_of_the_disk_are_counted_one_by_one(
        self, world: World, monkeypatch: pytest.MonkeyPatch, code: int
    ) -> None:
        names = world.fill(4, cls=("corrupt", "short"))
        plan = world.plan(CORRUPT)
        real = os.rename

        def rename(source: bytes, target: bytes, **more: int) -> None:
            if source in names[:2]:
                raise OSError(code, os.strerror(code))
            real(source, target, **more)

        monkeypatch.setattr(removal.os, "rename", rename)
        run = world.service.start_run(int(plan.id), actor="test")
        assert (run.removed.records, run.failed_total) == (2, 2)
        assert {f.errno for f in run.failed} == {code}

    def test_all_failing_is_failed(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        world.fill(2, cls=("corrupt", "short"))
        plan = world.plan(CORRUPT)

        def rename(*args: object, **more: object) -> None:
            raise OSError(errno.EROFS, "Read-only file system")

        monkeypatch.setattr(removal.os, "rename", rename)
        run = world.service.start_run(int(plan.id), actor="test")
        assert (run.state, run.verdict) == ("succeeded", "failed")

    def test_a_full_disk_gives_up_the_reserve_and_deletes(self, world: World) -> None:
        mount = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(world.path)], check=False, capture_output=True
        )
        if mount.returncode:
            pytest.skip("needs to mount a file system")
        try:
            own = world.path / ".tierkeeper"
            own.mkdir()
            (own / "reserve").write_bytes(b"\0" * 65536)
            names = world.fill(20, cls=("corrupt", "short"))
            filler = world.path / "filler"
            with pytest.raises(OSError, match="No space"), filler.open("wb", buffering=0) as file:
                while True:
                    file.write(b"\0" * 4096)
            world.inventory.refresh(world.store_id, lambda: None)
            run = world.run(CORRUPT, removal="delete")
            assert (run.verdict, run.removed.records) == ("succeeded", 20)
            assert not world.names() & set(names)
            assert filler.exists()
            assert (run.freed_bytes_measured or 0) > 0
        finally:
            subprocess.run(["umount", "-l", str(world.path)], check=True)

    def test_a_full_disk_without_reserve_refuses_to_start(self, world: World) -> None:
        mount = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(world.path)], check=False, capture_output=True
        )
        if mount.returncode:
            pytest.skip("needs to mount a file system")
        try:
            names = world.fill(20, cls=("corrupt", "short"))
            with pytest.raises(OSError, match="No space"), (world.path / "filler").open("wb", buffering=0) as file:
                while True:
                    file.write(b"\0" * 4096)
            run = world.run(CORRUPT, removal="delete")
            assert (run.state, run.verdict, run.removed.records) == ("failed", "failed", 0)
            assert run.error is not None
            assert "space" in run.error.lower()
            assert "free a few kilobytes by hand, then run again" in run.error
            assert world.names() >= set(names)
        finally:
            subprocess.run(["umount", "-l", str(world.path)], check=True)


class TestStoreItself:
    def test_replaced_between_plan_and_run(self, world: World) -> None:
        names = world.fill(2, cls=("corrupt", "short"))
        plan = world.plan(CORRUPT)
        world.path.rename(world.base / "moved")
        world.path.mkdir()
        for name in names:
            world.write(name, b"innocent")
        run = world.service.start_run(int(plan.id), actor="test")
        assert (run.state, run.verdict) == ("failed", "failed")
        assert "is not the directory that was planned for" in (run.error or "")
        assert world.names() == set(names)
        assert not (world.path / ".tierkeeper" / "quarantine").exists()

    def test_replaced_while_it_runs(self, tmp_path: Path) -> None:
        world = World(tmp_path, chunk=5)
        try:
            names = world.fill(20, cls=("corrupt", "short"))
            plan = world.plan(CORRUPT)
            judge = world.inventory.classify_now
            batches: list[int] = []

            def swap(store_id: int, facts: object) -> object:
                batches.append(1)
                if len(batches) == 3:
                    world.path.rename(world.base / "moved")
                    world.path.mkdir()
                    world.write(names[-1], b"innocent")
                return judge(store_id, facts)  # type: ignore[arg-type]

            world.inventory.classify_now = swap  # type: ignore[method-assign, assignment]
            run = world.service.start_run(int(plan.id), actor="test")
            assert (run.state, run.verdict) == ("failed", "failed")
            assert "nothing else was touched" in (run.error or "")
            # the batch that was under way ended in the directory that was planned for
            assert run.removed.records == 15
            assert world.names() == {names[-1]}
            assert (world.path / os.fsdecode(names[-1])).read_bytes() == b"innocent"
        finally:
            world.db.dispose()

    def test_unmounted_or_gone(self, world: World) -> None:
        world.fill(1, cls=("corrupt", "short"))
        plan = world.plan(CORRUPT)
        world.path.rename(world.base / "moved")
        run = world.service.start_run(int(plan.id), actor="test")
        assert (run.state, run.verdict) == ("failed", "failed")

    def test_missing_store_is_a_sentence(self, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match="does not exist"), StoreRoot(str(tmp_path / "nowhere")):
            pass
