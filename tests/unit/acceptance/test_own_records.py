"""The run's own records on disk: found by salt, summed, and never through a link."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.acceptance.evidence import RecordsEvidence
from app.acceptance.own_records import compare_looks, find, try_find, with_checksums
from app.errors import StoreError
from app.fleet.targets import StoreTarget

HASH = "ab" * 32


def target(path: Path, store_id: int = 1) -> StoreTarget:
    return StoreTarget(store_id, "s", str(path), str(path), ".tmp", "lmcache_fs", (1,))


def record(path: Path, salt: str, *, number: int = 0, rank: str = "01000100", content: bytes = b"x" * 64) -> Path:
    made = path / f"-SEP-models-SEP-m@0x{rank}@0@{number:02x}{HASH[2:]}@{salt}.data"
    made.write_bytes(content)
    return made


class TestFind:
    def test_only_finished_records_of_the_salt(self, tmp_path: Path) -> None:
        (tmp_path / ".tmp").mkdir()
        mine = [record(tmp_path, "tk-run1-p01", number=i) for i in range(3)]
        record(tmp_path, "tk-run2-p01")
        record(tmp_path / ".tmp", "tk-run1-p02")
        (tmp_path / "notes@tk-run1-p01.data").write_text("not a record")
        (tmp_path / f"m@0x01000100@0@{'cd' * 32}@tk-run1-p09.data").symlink_to(mine[0])
        found = find([target(tmp_path)], "tk-run1-")
        assert sorted(r.name for r in found.records) == [p.name for p in mine]
        assert found.bytes == 3 * 64
        assert found.records[0].key.model_name == "/models/m"

    def test_chunks_count_once_whatever_the_number_of_ranks(self, tmp_path: Path) -> None:
        for rank in ("02000200", "02010201"):
            for number in range(4):
                record(tmp_path, "tk-run1-p01", number=number, rank=rank)
        found = find([target(tmp_path)], "tk-run1-")
        assert len(found.records) == 8
        assert found.chunks_of("tk-run1-p01") == 4
        assert found.chunks_of("tk-run1-p02") == 0
        assert len(found.keys(["tk-run1-p01"])) == 8
        assert found.of(["tk-run1-p02"]).records == ()

    def test_a_directory_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(StoreError):
            find([target(tmp_path / "gone")], "tk-")
        assert try_find([target(tmp_path / "gone")], "tk-")[0] is None
        assert try_find([], "tk-") == (None, "no store with a directory is registered for this server")

    def test_gives_up_when_told(self, tmp_path: Path) -> None:
        record(tmp_path, "tk-run1-p01")
        assert find([target(tmp_path)], "tk-run1-", stop=lambda: True).records == ()


class TestLooks:
    def test_what_became_of_them(self, tmp_path: Path) -> None:
        paths = [record(tmp_path, "tk-run1-p01", number=i) for i in range(4)]
        stores = [target(tmp_path)]
        before = with_checksums(stores, find(stores, "tk-run1-"))
        assert before.checksums and all(r.sha256 for r in before.records)
        paths[0].unlink()
        paths[1].write_bytes(b"y" * 64)
        paths[2].write_bytes(b"x" * 32)
        record(tmp_path, "tk-run1-p01", number=9)
        after = with_checksums(stores, find(stores, "tk-run1-"))
        became = compare_looks(before, after)
        assert became.lost == (paths[0].name,)
        assert became.changed == (paths[1].name, paths[2].name)
        assert not became.intact
        assert compare_looks(before, before).intact

    def test_our_reading_is_no_use_of_the_record(self, tmp_path: Path) -> None:
        path = record(tmp_path, "tk-run1-p01")
        os.utime(path, (1_700_000_000, 1_790_000_000))  # older than its writing: any reading would move it
        before = path.stat()
        summed = with_checksums([target(tmp_path)], find([target(tmp_path)], "tk-run1-"))
        assert summed.records[0].sha256
        assert (path.stat().st_atime_ns, path.stat().st_ctime_ns) == (before.st_atime_ns, before.st_ctime_ns)

    def test_large_sets_are_compared_by_size_and_say_so(self, tmp_path: Path) -> None:
        record(tmp_path, "tk-run1-p01")
        stores = [target(tmp_path)]
        looked = with_checksums(stores, find(stores, "tk-run1-"), limit=10)
        assert not looked.checksums
        assert compare_looks(looked, looked).checksums is False

    def test_batches_add_up(self) -> None:
        one = RecordsEvidence(2, 20, lost=("a",))
        both = one.merged(RecordsEvidence(3, 30, changed=("b",), checksums=False))
        assert both == RecordsEvidence(5, 50, ("a",), ("b",), False)
