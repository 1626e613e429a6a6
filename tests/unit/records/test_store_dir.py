"""Access to a store's directory: no link followed, nothing outside touched, whatever happens under it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from app.errors import StoreError
from app.fleet import mounts
from app.records.store_dir import StoreDirectory
from app.records.summary import mount_view
from tests.unit.records.disk import NOW, write


def names(directory: StoreDirectory) -> set[bytes]:
    return {fact.name for batch in directory.walk(batch=3) for fact in batch}


class TestWalk:
    def test_everything_but_links_targets_and_our_own_folder(self, tmp_path: Path) -> None:
        root = tmp_path / "l2"
        for name in ("a", "x/b", "x/y/c", ".tierkeeper/d", "x/.tierkeeper/e"):
            write(root, name)
        for number in range(10):
            write(root, f"many/{number}")
        (tmp_path / "outside").mkdir()
        write(tmp_path, "outside/secret")
        (root / "out").symlink_to(tmp_path / "outside", target_is_directory=True)
        (root / os.fsdecode(b"\xff\n")).touch()
        with StoreDirectory.open(str(root)) as directory:
            found = names(directory)
            assert found == {b"a", b"x/b", b"x/y/c", b"out", b"\xff\n", *(b"many/%d" % n for n in range(10))}
            (link,) = [fact for batch in directory.walk() for fact in batch if fact.name == b"out"]
            assert not link.regular

    def test_facts_are_those_of_the_kernel(self, tmp_path: Path) -> None:
        path = write(tmp_path, "x/a", 123, mtime=NOW, atime=NOW + 5)
        os.link(path, tmp_path / "x" / "b")
        found = path.stat()
        with StoreDirectory.open(str(tmp_path)) as directory:
            fact = directory.stat(b"x/a")
            assert fact is not None
            assert fact == next(f for batch in directory.walk() for f in batch if f.name == b"x/a")
        assert (fact.size, fact.mtime_ns, fact.atime_ns) == (123, NOW * 1e9, (NOW + 5) * 1e9)
        assert (fact.ctime_ns, fact.inode, fact.device, fact.nlink) == (
            found.st_ctime_ns,
            found.st_ino,
            found.st_dev,
            2,
        )

    def test_vanishing_files_and_folders_are_skipped(self, tmp_path: Path) -> None:
        for number in range(20):
            write(tmp_path, f"d{number % 4}/{number}")
        with StoreDirectory.open(str(tmp_path)) as directory:
            walk = directory.walk(batch=2)
            first = next(walk)
            for path in list(tmp_path.rglob("*")):
                if path.is_file():
                    path.unlink()
            for path in list(tmp_path.iterdir()):
                path.rmdir()
            rest = [fact for batch in walk for fact in batch]
        assert len(first) == 2
        assert len(rest) < 20

    def test_an_unreadable_folder_is_told_and_the_rest_goes_on(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(tmp_path, "shut/a")
        write(tmp_path, "open/b")
        real = os.open

        def refuse(path: object, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            if path == b"shut":
                raise PermissionError(errno.EACCES, "Permission denied")
            return real(path, flags, mode, dir_fd=dir_fd)  # type: ignore[arg-type]

        monkeypatch.setattr(os, "open", refuse)
        told: dict[bytes, str] = {}
        with StoreDirectory.open(str(tmp_path)) as directory:
            found = [fact.name for batch in directory.walk(on_unreadable=told.__setitem__) for fact in batch]
        assert found == [b"open/b"]
        assert list(told) == [b"shut"]
        assert "permission" in told[b"shut"]

    def test_a_folder_that_became_a_link_is_not_followed(self, tmp_path: Path) -> None:
        root, outside = tmp_path / "l2", tmp_path / "outside"
        write(root, "d/a")
        write(outside, "secret")
        with StoreDirectory.open(str(root)) as directory:
            (root / "d" / "a").unlink()
            (root / "d").rmdir()
            (root / "d").symlink_to(outside, target_is_directory=True)
            with pytest.raises(OSError) as caught, directory.parent(b"d/secret"):
                pass
            assert caught.value.errno in (errno.ELOOP, errno.ENOTDIR)
            with pytest.raises(OSError):
                directory.open_folder(b"d")

    @pytest.mark.parametrize("name", [b"..", b"../x", b"a/../b", b"", b"a/", b".", b"a//b", b"./a"])
    def test_no_way_out_by_name(self, tmp_path: Path, name: bytes) -> None:
        write(tmp_path, "l2/a/b")
        write(tmp_path, "x")
        with (
            StoreDirectory.open(str(tmp_path / "l2")) as directory,
            pytest.raises(OSError) as caught,
            directory.parent(name),
        ):
            pass
        assert caught.value.errno == errno.EINVAL

    def test_the_descriptor_stays_the_same_directory(self, tmp_path: Path) -> None:
        write(tmp_path, "l2/a")
        with StoreDirectory.open(str(tmp_path / "l2")) as directory:
            assert directory.still_there()
            (tmp_path / "l2").rename(tmp_path / "moved")
            assert not directory.still_there()
            write(tmp_path, "l2/b")
            assert not directory.still_there()
            assert names(directory) == {b"a"}
            identity = directory.identity
        with pytest.raises(StoreError, match="another directory"):
            StoreDirectory.open(str(tmp_path / "l2"), expected=identity)

    def test_a_file_that_is_not_there_has_no_facts(self, tmp_path: Path) -> None:
        with StoreDirectory.open(str(tmp_path)) as directory:
            assert directory.stat(b"nothing") is None
            assert directory.stat(b"no/thing") is None


class TestOwnFolder:
    def test_the_clock_is_measured_and_leaves_nothing_behind(self, tmp_path: Path) -> None:
        import time

        with StoreDirectory.open(str(tmp_path)) as directory:
            probe = directory.clock_probe(time.time)
            assert probe.measured
            assert abs(probe.difference) < 1
            late = directory.clock_probe(lambda: time.time() - 100)
            assert late.difference == pytest.approx(100, abs=2)
            assert late.margin == pytest.approx(100, abs=2)
        assert list((tmp_path / ".tierkeeper").iterdir()) == []
        assert (tmp_path / ".tierkeeper").stat().st_mode & 0o777 == 0o700

    def test_where_nothing_can_be_written_two_seconds_are_allowed(self, tmp_path: Path) -> None:
        (tmp_path / ".tierkeeper").write_text("a file stands in the way")
        with StoreDirectory.open(str(tmp_path)) as directory:
            probe = directory.clock_probe(lambda: 0.0)
        assert (probe.measured, probe.margin) == (False, 2.0)


@pytest.mark.parametrize(
    ("fs_type", "options", "told"),
    [
        ("ext4", "rw,relatime", "relatime"),
        ("xfs", "rw,noatime,nodiratime", "noatime"),
        ("ext4", "rw,nodiratime", "strict"),
        ("nfs4", "rw,relatime", "unknown"),  # its server decides
        ("fuse.juicefs", "rw", "unknown"),
        ("nfs", "rw,noatime", "noatime"),
    ],
)
def test_access_times_by_the_mount_that_holds_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fs_type: str, options: str, told: str
) -> None:
    """Mounts as the kernel lists them: outer ones, one with the same beginning, one hidden by the last."""
    lines = [
        "22 1 8:1 / / rw,strictatime shared:1 - ext4 /dev/sda1 rw",
        f"30 22 8:2 / {tmp_path} rw,noatime shared:2 - btrfs /dev/sdb rw",
        f"31 22 8:3 / {tmp_path} {options} shared:3 - {fs_type} /dev/sdc rw",
        f"32 22 8:4 / {tmp_path}-other rw,noatime - ext4 /dev/sdd rw",
    ]
    table = tmp_path / "mountinfo"
    table.write_text("\n".join(lines))
    monkeypatch.setattr(mounts, "MOUNTS", table)
    with StoreDirectory.open(str(tmp_path)) as directory:
        mount = directory.mount()
    assert (mount.fs_type, mount.mount_point, mount.access_times) == (fs_type, str(tmp_path), told)
    note = mount_view(mount).note or ""
    assert (fs_type in note) == (told == "unknown")
    table.unlink()
    with StoreDirectory.open(str(tmp_path)) as directory:
        assert directory.mount().access_times == "unknown"


def test_mount_facts(tmp_path: Path) -> None:
    with StoreDirectory.open(str(tmp_path)) as directory:
        mount = directory.mount()
    assert mount.fs_type
    assert mount.mount_point
    assert str(tmp_path).startswith(mount.mount_point)
    assert mount.access_times in ("strict", "relatime", "noatime")
    assert mount.total_bytes
    assert mount.free_bytes is not None
    assert 0 < mount.free_bytes < mount.total_bytes
    assert mount.block_size
