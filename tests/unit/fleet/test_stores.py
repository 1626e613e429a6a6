"""Stores: which directories may be one, what is proven by record names, defaults from the server's configuration."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.errors import Conflict, InvalidInput
from app.fleet import directories, mounts
from app.fleet.live import EngineLive, ServerLive
from app.fleet.schemas import EngineCreate, L2View, ServerCreate, StoreCreate, StorePatch, StoreView
from app.fleet.stores import Stores
from tests.unit.fleet.support import Bench

MODEL = "/models/tiny-llama"
HASH = "ab" * 32


def record(model: str = MODEL, number: int = 0, *, legacy: bool = False, salt: str = "") -> str:
    group = "" if legacy else "0@"
    tail = f"@{salt}" if salt else ""
    return f"{model.replace('/', '-SEP-')}@0x01000100@{group}{number:04x}{HASH[4:]}{tail}.data"


def fill(directory: Path, *names: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        (directory / name).write_bytes(b"x")
    return directory


def add_server(bench: Bench, *base_paths: str, models: tuple[str, ...] = (MODEL,), temp: str = ".tmp") -> str:
    number = len(bench.live.servers)
    server = bench.fleet.create_server(ServerCreate(url=f"http://10.0.0.{number + 1}:8080"), actor="a")
    bench.live.servers[int(server.id)] = ServerLive(
        polled_at=bench.clock.now,
        l2=tuple(
            L2View(
                adapter="fs",
                base_path=path,
                relative_tmp_dir=temp,
                usage_bytes=None,
                max_capacity_bytes=None,
                evicts=False,
                store_id=None,
            )
            for path in base_paths
        ),
        model_names=frozenset(models),
        live_model_names=frozenset(models),
    )
    return server.id


def create(bench: Bench, path: Path | str, **more: object) -> StoreView:
    return bench.fleet.create_store(StoreCreate.model_validate({"path": str(path), **more}), actor="user:admin")


def refused(bench: Bench, path: Path | str, **more: object) -> tuple[str, str]:
    """Field and sentence of the refusal; nothing was saved."""
    before = bench.fleet.list_stores(page_size=100, page_token=None).items
    with pytest.raises((InvalidInput, Conflict)) as caught:
        create(bench, path, **more)
    assert bench.fleet.list_stores(page_size=100, page_token=None).items == before
    assert len(caught.value.errors) == 1
    return caught.value.errors[0].field, caught.value.errors[0].message


class TestPlaces:
    def test_what_is_no_usable_directory(self, bench: Bench, tmp_path: Path) -> None:
        fill(tmp_path / "d", "file")
        for path, words in (
            (tmp_path / "missing", "does not exist"),
            (tmp_path / "d" / "file", "is not a directory"),
            (tmp_path / "d" / "file" / "deeper", "is not a directory"),
            ("relative/path", "not absolute"),
            ("/a\0b", "NUL"),
        ):
            field, message = refused(bench, path)
            assert field == "path"
            assert words in message

    def test_an_unreadable_one(self, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        directory = fill(tmp_path / "d")
        real = os.scandir

        def scandir(path: str) -> object:
            if str(path) == str(directory):
                raise PermissionError(13, "Permission denied", str(path))
            return real(path)

        monkeypatch.setattr(os, "scandir", scandir)
        assert "cannot be read by the panel's user" in refused(bench, directory)[1]

    def test_root_home_system_and_the_panels_own(self, bench: Bench, tmp_path: Path) -> None:
        home = fill(tmp_path / "home" / "me")
        bench.fleet._stores = Stores(bench.fleet._context, home=home)
        own = fill(bench.data_dir / "backups")
        for path, words in (
            ("/", "'/' cannot be a store"),
            (home, "home directory"),
            (home.parent, "home directory"),
            ("/etc", "system directory"),
            ("/proc/self", "system directory"),
            (bench.data_dir, "own data directory"),
            (own, "own data directory"),
            (tmp_path, "home directory"),
        ):
            field, message = refused(bench, path)
            assert (field, words in message) == ("path", True), message
        inside_home = fill(home / "kv" / "l2")
        assert create(bench, inside_home).path == str(inside_home)

    def test_what_holds_the_data_directory(self, bench: Bench, tmp_path: Path) -> None:
        with pytest.raises(InvalidInput, match="own data directory"):
            directories.refuse_places(str(tmp_path), data_dir=bench.data_dir, home=Path("/nowhere"))

    def test_the_sandboxes_directory_below_the_data_directory_is_allowed(self, bench: Bench) -> None:
        path = fill(bench.data_dir / "sandbox" / "l2")
        assert create(bench, path).path == str(path)
        assert refused(bench, bench.data_dir / "sandbox")[0] == "path"

    def test_inside_around_or_the_same_as_another_store(self, bench: Bench, tmp_path: Path) -> None:
        first = fill(tmp_path / "kv" / "l2")
        create(bench, first, name="first")
        (tmp_path / "link").symlink_to(first)
        for path, words in (
            (first, "already registered as the store 'first'"),
            (f"{first}/", "already registered"),
            (tmp_path / "link", "already registered"),
            (fill(first / "deeper"), "lies inside the store 'first'"),
            (first.parent, "holds the store 'first'"),
        ):
            field, message = refused(bench, path)
            assert (field, words in message) == ("path", True), message
        neighbour = fill(tmp_path / "kv" / "l2-other")
        assert create(bench, neighbour).name == "l2-other"

    @pytest.mark.parametrize(
        ("bound", "words"),
        [("", "already registered as"), ("/deeper", "lies inside"), ("/..", "holds the store"), ("-other", None)],
    )
    def test_what_is_bound_from_a_store_is_no_other_one(
        self, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, words: str | None
    ) -> None:
        first, elsewhere = fill(tmp_path / "kv" / "l2"), fill(tmp_path / "elsewhere")
        create(bench, first, name="first")
        table = tmp_path / "mountinfo"  # binding needs root: what the kernel would say of it
        root = os.path.normpath(f"{first}{bound}")
        table.write_text(f"1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 8:1 {root} {elsewhere} rw - ext4 /dev/a rw\n")
        monkeypatch.setattr(mounts, "MOUNTS", table)
        if words is None:
            assert create(bench, elsewhere, name="second").name == "second"
        else:
            field, message = refused(bench, elsewhere)
            assert (field, words in message, "'first'" in message) == ("path", True, True), message

    def test_a_symbolic_link_is_followed_once_and_for_all(self, bench: Bench, tmp_path: Path) -> None:
        real = fill(tmp_path / "real")
        (tmp_path / "link").symlink_to(real)
        assert create(bench, tmp_path / "link").path == str(real)


class TestProof:
    def test_files_but_no_record(self, bench: Bench, tmp_path: Path) -> None:
        directory = fill(tmp_path / "photos", "a.jpg", "b.jpg")
        field, message = refused(bench, directory, confirm=True)
        assert field == "path"
        assert "none of the 2 files" in message

    def test_records_of_the_servers_model_prove_another_name_of_the_directory(
        self, bench: Bench, tmp_path: Path
    ) -> None:
        server = add_server(bench, "/data/l2", temp="tmp/")
        directory = fill(tmp_path / "l2", record(), record(number=1, salt="t"), "stray.txt")
        view = create(bench, directory, server_id=server)
        assert (view.path, view.server_path, view.server_ids) == (str(directory), "/data/l2", [server])
        assert (view.temp_dir, view.kind, view.name) == ("tmp", "lmcache_fs", "l2")
        assert bench.fleet.get_server(int(server)).l2[0].store_id == view.id
        assert bench.fleet.get_server(int(server)).store_ids == [view.id]

    def test_the_engines_model_counts_too(self, bench: Bench, tmp_path: Path) -> None:
        server = add_server(bench, "/data/l2", models=())
        engine = bench.fleet.create_engine(EngineCreate(url="http://10.0.1.1:8000", server_id=server), actor="a")
        bench.live.engines[int(engine.id)] = EngineLive(model_roots=(MODEL,))
        assert create(bench, fill(tmp_path / "l2", record()), server_id=server).server_path == "/data/l2"

    def test_records_of_other_models_only(self, bench: Bench, tmp_path: Path) -> None:
        server = add_server(bench, "/data/l2")
        directory = fill(tmp_path / "l2", record("/models/other"))
        for confirm in (False, True):
            field, message = refused(bench, directory, server_id=server, confirm=confirm)
            assert field == "path"
            assert "'/models/other'" in message
            assert repr(MODEL) in message

    def test_older_records_in_the_very_directory_of_the_server(self, bench: Bench, tmp_path: Path) -> None:
        directory = fill(tmp_path / "l2", record("/models/former"))
        server = add_server(bench, str(directory))
        field, message = refused(bench, directory, server_id=server)
        assert (field, "confirm: true" in message) == ("path", True)
        assert create(bench, directory, server_id=server, confirm=True).server_path == str(directory)

    def test_an_empty_directory(self, bench: Bench, tmp_path: Path) -> None:
        same = fill(tmp_path / "same")
        server = add_server(bench, str(same), "/data/l2")
        assert create(bench, same, server_id=server).server_path == str(same)
        other = fill(tmp_path / "other")
        field, message = refused(bench, other, server_id=server, server_path="/data/l2")
        assert (field, "is empty" in message) == ("confirm", True)
        assert create(bench, other, server_id=server, server_path="/data/l2", confirm=True).server_path == "/data/l2"

    def test_other_peoples_ground_needs_a_word(self, bench: Bench, tmp_path: Path) -> None:
        """A directory of homes has no file at its top: nothing says that it is not just empty, but what lies there."""
        homes = tmp_path / "homes"
        fill(homes / "olga", "letter.txt")
        fill(homes / "anna", "photo.jpg")
        field, message = refused(bench, homes)
        assert field == "confirm"
        assert "'olga'" in message and "'anna'" in message
        assert create(bench, homes, confirm=True).path == str(homes), "the way out it names is one"

    def test_a_few_records_among_many_other_files(self, bench: Bench, tmp_path: Path) -> None:
        mixed = fill(tmp_path / "mixed", record(), "a.txt", "b.txt")
        field, message = refused(bench, mixed)
        assert (field, "2 of the 3" in message) == ("confirm", True)
        assert create(bench, mixed, confirm=True).path == str(mixed)

    def test_a_fresh_file_system_is_empty(self, bench: Bench, tmp_path: Path) -> None:
        disk = tmp_path / "disk"
        (disk / "lost+found").mkdir(parents=True)
        assert create(bench, disk).path == str(disk)

    def test_a_server_that_is_down(self, bench: Bench, tmp_path: Path) -> None:
        """Nothing is known of it: its directory is what the path says, unless another name is given."""
        server = bench.fleet.create_server(ServerCreate(url="http://10.0.0.9:8080"), actor="a").id
        directory = fill(tmp_path / "l2", record())
        field, message = refused(bench, directory, server_id=server, server_path="/data/l2")
        assert (field, "no model of its servers is known" in message) == ("confirm", True)
        view = create(bench, directory, server_ids=[server])
        assert (view.server_path, view.temp_dir) == (str(directory), None)

    def test_a_server_added_a_moment_ago_is_read_first(self, bench: Bench, tmp_path: Path) -> None:
        server = bench.fleet.create_server(ServerCreate(url="http://10.0.0.9:8080"), actor="a").id
        asked: list[int] = []

        def refresh(server_id: int) -> None:
            asked.append(server_id)
            adapter = L2View(
                adapter="fs",
                base_path="/data/l2",
                usage_bytes=None,
                max_capacity_bytes=None,
                evicts=False,
                store_id=None,
            )
            bench.live.servers[server_id] = ServerLive(l2=(adapter,), model_names=frozenset({MODEL}))

        bench.fleet.attach_refresh(refresh)
        view = create(bench, fill(tmp_path / "l2", record()), server_id=server)
        assert (asked, view.server_path) == ([int(server)], "/data/l2")
        create(bench, fill(tmp_path / "l3", record()), server_id=server)
        assert asked == [int(server)]

    def test_a_server_path_the_configuration_does_not_name(self, bench: Bench, tmp_path: Path) -> None:
        server = add_server(bench, "/data/l2")
        field, message = refused(bench, fill(tmp_path / "l2", record()), server_id=server, server_path="/data/l3")
        assert (field, "'/data/l2'" in message) == ("server_path", True)

    def test_several_adapters_must_be_told_apart(self, bench: Bench, tmp_path: Path) -> None:
        directory = fill(tmp_path / "l2", record())
        server = add_server(bench, "/data/a", "/data/b")
        assert refused(bench, directory, server_id=server)[0] == "server_path"
        assert create(bench, directory, server_id=server, server_path="/data/b/").server_path == "/data/b"

    def test_records_in_hash_folders_and_temporary_ones_are_seen(self, bench: Bench, tmp_path: Path) -> None:
        server = add_server(bench, "/data/l2")
        directory = tmp_path / "l2"
        fill(directory / "ab" / "cd", record())
        assert create(bench, directory, server_id=server).path == str(directory)
        other = tmp_path / "l3"
        fill(other / ".tmp", record())
        assert create(bench, other, server_id=server).path == str(other)

    def test_our_own_folder_is_not_looked_at(self, bench: Bench, tmp_path: Path) -> None:
        directory = tmp_path / "l2"
        fill(directory / ".tierkeeper" / "quarantine", "manifest.json")
        assert create(bench, directory).path == str(directory)

    def test_a_model_with_the_separator_in_its_name(self, bench: Bench, tmp_path: Path) -> None:
        odd = "/models/a-SEP-b"
        server = add_server(bench, "/data/l2", models=(odd,))
        assert create(bench, fill(tmp_path / "l2", record(odd)), server_id=server).server_path == "/data/l2"

    def test_only_a_sample_is_looked_at(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(directories, "MAX_ENTRIES", 10)
        seen = directories.look(str(fill(tmp_path / "l2", *(record(number=n) for n in range(25)))))
        assert (seen.files, seen.records, seen.truncated) == (10, 10, True)


class TestInput:
    def test_servers_that_do_not_exist(self, bench: Bench, tmp_path: Path) -> None:
        directory = fill(tmp_path / "l2")
        assert refused(bench, directory, server_id="77")[0] == "server_ids"
        assert refused(bench, directory, server_ids=["../1"])[0] == "server_ids"
        server = add_server(bench)
        assert refused(bench, directory, server_id=server, server_ids=[server])[0] == "server_id"

    @pytest.mark.parametrize("temp_dir", ["/abs", "../up", ".", "a/../..", "a\0"])
    def test_a_temporary_directory_outside(self, bench: Bench, tmp_path: Path, temp_dir: str) -> None:
        assert refused(bench, fill(tmp_path / "l2"), temp_dir=temp_dir)[0] == "temp_dir"

    def test_a_hostile_configuration_does_not_lead_outside(self, bench: Bench, tmp_path: Path) -> None:
        directory = fill(tmp_path / "l2")
        server = add_server(bench, str(directory), temp="../../etc")
        assert create(bench, directory, server_id=server).temp_dir is None

    def test_names_are_free_or_refused(self, bench: Bench, tmp_path: Path) -> None:
        create(bench, fill(tmp_path / "a" / "l2"))
        second = create(bench, fill(tmp_path / "b" / "l2"))
        assert second.name == str(tmp_path / "b" / "l2")[:120]
        assert refused(bench, fill(tmp_path / "c"), name="L2")[0] == "name"


class TestPatch:
    def test_other_servers_are_proven_anew(self, bench: Bench, tmp_path: Path) -> None:
        one, two = add_server(bench, "/data/l2"), add_server(bench, "/data/l2", models=("/models/other",))
        store = create(bench, fill(tmp_path / "l2", record()), server_id=one)
        ident = int(store.id)
        view = bench.fleet.patch_store(ident, StorePatch(server_ids=[one, two]), actor="a", if_match='"1"')
        assert (view.server_ids, view.revision) == ([one, two], 2)
        with pytest.raises(InvalidInput, match="records in"):
            bench.fleet.patch_store(ident, StorePatch(server_ids=[two]), actor="a")
        assert bench.fleet.store_target(ident).server_ids == (int(one), int(two))
        assert [t.id for t in bench.fleet.store_targets(int(two))] == [ident]
        assert bench.fleet.list_stores(page_size=9, page_token=None, server_id=int(two)).items[0].id == store.id

    def test_name_labels_and_temp_dir(self, bench: Bench, tmp_path: Path) -> None:
        store = create(bench, fill(tmp_path / "l2"), temp_dir=".tmp")
        body = StorePatch.model_validate({"name": "fast", "labels": {"tier": "nvme"}, "temp_dir": None})
        view = bench.fleet.patch_store(int(store.id), body, actor="a")
        assert (view.name, view.labels, view.temp_dir) == ("fast", {"tier": "nvme"}, None)

    def test_forgetting_touches_no_file(self, bench: Bench, tmp_path: Path) -> None:
        directory = fill(tmp_path / "l2", record())
        store = create(bench, directory)
        bench.fleet.delete_store(int(store.id), actor="a")
        assert [p.name for p in directory.iterdir()] == [record()]
        assert [a for a, *_ in bench.audited()] == ["store.create", "store.delete"]


def test_labels_group_stores_and_filter_their_list(bench: Bench, tmp_path: Path) -> None:
    for name, labels in (("a", {"zone": "b"}), ("b", {"zone": "bb"}), ("c", {"zone": "b"})):
        path = fill(tmp_path / name)
        bench.fleet.create_store(StoreCreate(path=str(path), name=name, labels=labels, confirm=True), actor="a")
    assert bench.fleet.labels("store") == [("zone=b", 2), ("zone=bb", 1)]
    first = bench.fleet.list_stores(page_size=1, page_token=None, label="zone=b")
    assert [s.name for s in first.items] == ["a"]
    rest = bench.fleet.list_stores(page_size=1, page_token=first.next_page_token, label="zone=b")
    assert [s.name for s in rest.items] == ["c"]
    with pytest.raises(InvalidInput, match="KEY=VALUE"):
        bench.fleet.list_stores(page_size=1, page_token=None, label="zone")
