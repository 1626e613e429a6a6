"""What this host shows of itself: memory, addresses, mounts, and a real write."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from app.checks import host
from app.checks.facts import WriteProbe
from app.checks.host import StoreFacts
from app.records.store_dir import StoreDirectory
from app.wire import own_host


class TestMemory:
    def test_total_available_and_the_limit_of_the_container(self, tmp_path: Path) -> None:
        (tmp_path / "meminfo").write_text("MemTotal:       1024 kB\nMemFree: 1 kB\nMemAvailable:    512 kB\n")
        (tmp_path / "memory.max").write_text("262144\n")
        found = host.memory(tmp_path, tmp_path)
        assert found is not None
        assert (found.total_bytes, found.available_bytes, found.limit_bytes) == (2**20, 2**19, 2**18)
        assert found.usable_bytes == 2**18

    def test_no_limit_and_no_proc(self, tmp_path: Path) -> None:
        (tmp_path / "meminfo").write_text("MemTotal: 1024 kB\n")
        (tmp_path / "memory.max").write_text("max\n")
        found = host.memory(tmp_path, tmp_path)
        assert found is not None
        assert found.limit_bytes is None
        assert host.memory(tmp_path / "nothing", tmp_path) is None

    def test_this_host_has_memory(self) -> None:
        found = host.memory()
        assert found is not None
        assert 0 < found.available_bytes <= found.total_bytes


class TestAddresses:
    def test_only_addresses_beyond_loopback(self, tmp_path: Path) -> None:
        (tmp_path / "net").mkdir()
        (tmp_path / "net" / "fib_trie").write_text(
            "Main:\n  |-- 10.0.0.0\n     /8 universe UNICAST\n  |-- 10.0.0.5\n     /32 host LOCAL\n"
            "  |-- 127.0.0.1\n     /32 host LOCAL\n  |-- 10.0.0.255\n     /32 link BROADCAST\n"
        )
        (tmp_path / "net" / "if_inet6").write_text(
            "00000000000000000000000000000001 01 80 10 80 lo\n20010db8000000000000000000000007 02 40 00 80 eth0\n"
            "fe80000000000000000000000000ab01 02 40 20 80 eth0\n"
        )
        assert own_host.own_addresses(tmp_path) == ("10.0.0.5", "2001:db8::7")

    @pytest.mark.parametrize(
        ("name", "local"),
        [
            ("127.0.0.1", True),
            ("localhost", True),
            ("[::1]", True),
            ("10.0.0.5", True),
            ("10.0.0.6", False),
            ("a.b", False),
        ],
    )
    def test_local_or_not(self, name: str, local: bool) -> None:
        assert own_host.is_local(name, ("10.0.0.5",)) is local


def facts_of(path: Path, temp_dir: str | None) -> StoreFacts:
    with StoreDirectory.open(str(path)) as directory:
        return host.store_facts(directory, temp_dir)


def probe(path: Path, temp_dir: str | None, *, direct: bool, size: int, block_size: int | None) -> WriteProbe:
    with StoreDirectory.open(str(path)) as directory:
        return host.write_probe(directory, temp_dir, direct=direct, size=size, block_size=block_size)


class TestDirectories:
    @pytest.mark.parametrize("path", ["/etc", "/etc/x", "/proc/self", "relative", "/tmp/../etc", "/", "/tmp/a\0b"])
    def test_places_that_are_never_touched(self, path: str) -> None:
        assert host.usable_directory(path) is not None

    def test_missing_file_and_link(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        (tmp_path / "link").symlink_to(tmp_path)
        assert "not on this host" in (host.usable_directory(str(tmp_path / "gone")) or "")
        assert "no directory" in (host.usable_directory(str(tmp_path / "file")) or "")
        assert "no directory" in (host.usable_directory(str(tmp_path / "link")) or "")
        assert host.usable_directory(str(tmp_path)) is None

    def test_facts_of_a_directory(self, tmp_path: Path) -> None:
        (tmp_path / ".tmp").mkdir()
        found = facts_of(tmp_path, ".tmp")
        assert found.block_size is not None
        assert found.temp_same_device is True
        assert found.fs_type
        assert facts_of(tmp_path, "../outside").temp_same_device is None

    def test_memory_file_systems_are_told(self) -> None:
        if not Path("/dev/shm").is_dir():
            pytest.skip("no /dev/shm here")
        assert facts_of(Path("/dev/shm"), None).fs_type == "tmpfs"


class TestWriteProbe:
    @pytest.mark.parametrize("direct", [False, True])
    def test_a_write_leaves_nothing(self, tmp_path: Path, direct: bool) -> None:
        (tmp_path / ".tmp").mkdir()
        found = probe(tmp_path, ".tmp", direct=direct, size=30000, block_size=4096)
        assert (found.state, found.size, found.direct) == ("written", 32768, direct), found
        assert sorted(p.name for p in tmp_path.iterdir()) == [".tmp"]
        assert list((tmp_path / ".tmp").iterdir()) == []

    def test_without_nameless_files_it_still_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = os.open

        def no_tmpfile(path: object, flags: int, *rest: object, **more: object) -> int:
            if flags & os.O_TMPFILE == os.O_TMPFILE:
                raise OSError(errno.EOPNOTSUPP, "not here")
            return real(path, flags, *rest, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(host.os, "open", no_tmpfile)
        found = probe(tmp_path, None, direct=False, size=10, block_size=512)
        assert found.state == "written", found
        assert list((tmp_path / ".tierkeeper").iterdir()) == []

    def test_what_the_file_system_refuses_is_told(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, "full")

        monkeypatch.setattr(host.os, "pwrite", full)
        found = probe(tmp_path, None, direct=False, size=10, block_size=512)
        assert (found.state, found.errno_name) == ("refused", "ENOSPC")


class TestLogs:
    def test_the_last_start_of_a_long_log(self, tmp_path: Path) -> None:
        path = tmp_path / "vllm.log"
        noise = b"x" * 3_000_000
        path.write_bytes(
            b"non-default args: {first}\n" + noise + b"\nnon-default args: {second}\nafter\n" + noise[:100]
        )
        text = host.read_log(path, b"non-default args: {")
        assert "{second}" in text
        assert "{first}" not in text

    def test_a_log_longer_than_what_is_read_gives_its_start_and_its_end(self, tmp_path: Path) -> None:
        path = tmp_path / "vllm.log"
        path.write_bytes(b"MARKER first\n" + b"".join(b"line %07d\n" % number for number in range(100_000)))
        text = host.read_log(path, b"MARKER", most=10_000)
        lines = text.splitlines()
        assert lines[0] == "MARKER first"
        assert lines[-1] == "line 0099999"
        assert len(text) <= 10_001

    def test_a_marker_across_two_blocks(self, tmp_path: Path) -> None:
        path = tmp_path / "log"
        path.write_bytes(b"a" * (2**20 + 70_000) + b"MARKER" + b"b" * (2**20 - 3))
        assert "MARKER" in host.read_log(path, b"MARKER")

    def test_a_log_without_the_marker_is_read_from_its_beginning(self, tmp_path: Path) -> None:
        path = tmp_path / "log"
        path.write_text("first line\nlast line\n")
        assert host.read_log(path, b"MARKER") == "first line\nlast line\n"

    def test_devices_and_pipes_are_refused(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
            with pytest.raises(OSError):
                host.read_log(path, b"x")
