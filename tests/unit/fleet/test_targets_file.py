"""TARGETS_FILE: applied by name, again and again; errors name line and field, and change nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from app.errors import Conflict, InvalidInput, TierkeeperError
from app.fleet import targets_file, targets_reading
from app.fleet.schemas import ServerCreate
from tests.unit.fleet.support import Bench

ENVIRONMENT = {"RACK2_LMCACHE_KEY": "s3cret"}
EXAMPLE = Path(__file__).parents[3] / "deploy" / "targets.example.yaml"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "targets.yaml"
    path.write_text(text)
    return path


def apply(bench: Bench, path: Path) -> targets_file.Report:
    return targets_file.apply(bench.fleet, path, environment=ENVIRONMENT)


class TestApply:
    def test_the_example_file_applies_and_applies_again(self, bench: Bench, tmp_path: Path) -> None:
        store = tmp_path / "l2"
        store.mkdir()
        text = EXAMPLE.read_text().replace("/srv/kv/l2", str(store)).replace("server_path: /data/l2", "confirm: true")
        stored: list[tuple[Mapping[str, Any], str]] = []

        def keep(values: Mapping[str, Any], actor: str) -> None:
            stored.append((values, actor))

        path = write(tmp_path, text)
        first = targets_file.apply(bench.fleet, path, policies=keep, environment=ENVIRONMENT)
        assert first.created == {
            "server": ["rack-1", "rack-2"],
            "engine": ["rack-1-engine", "rack-2-engine"],
            "store": ["rack-1-l2"],
        }
        rack2 = bench.fleet.server_target(bench.fleet.find("server", "rack-2"))
        assert (rack2.url, rack2.api_key) == ("https://gpu-2.internal:443/lmcache", "s3cret")
        assert bench.fleet.get_engine(bench.fleet.find("engine", "rack-1-engine")).server_link == "given"
        values, actor = stored[0]
        assert (values["name"], values["store_id"], actor) == ("nightly", "1", "targets-file")
        assert "store" not in values
        trail = bench.audited()
        again = targets_file.apply(bench.fleet, path, policies=keep, environment=ENVIRONMENT)
        assert (again.created, again.changed) == ({}, {})
        assert bench.audited() == trail
        trail_actors = {event.actor for event in bench.audit.list_events(page_size=50, page_token=None).items}
        assert trail_actors == {"targets-file"}

    def test_differences_are_changed_and_others_left_alone(self, bench: Bench, tmp_path: Path) -> None:
        bench.fleet.create_server(ServerCreate(url="http://gpu-9:8080", name="by-hand"), actor="user:admin")
        apply(bench, write(tmp_path, "servers: [{name: A, url: 'http://gpu-1:8080', labels: {zone: b}}]"))
        report = apply(bench, write(tmp_path, "servers: [{name: a, url: 'http://gpu-2:8080'}]"))
        assert report.changed == {"server": ["a"]}
        view = bench.fleet.get_server(bench.fleet.find("server", "A"))
        assert (view.url, view.labels) == ("http://gpu-2:8080", {"zone": "b"})
        assert [s.name for s in bench.fleet.list_servers(page_size=9, page_token=None).items] == ["A", "by-hand"]

    def test_another_way_of_writing_an_address_is_no_change(self, bench: Bench, tmp_path: Path) -> None:
        apply(bench, write(tmp_path, "servers: [{name: A, url: 'http://GPU-1:80/'}]"))
        assert apply(bench, write(tmp_path, "servers: [{name: A, url: 'http://gpu-1'}]")).changed == {}

    def test_a_guessed_link_becomes_a_given_one(self, bench: Bench, tmp_path: Path) -> None:
        apply(bench, write(tmp_path, "servers: [{name: S, url: 'http://s'}]\nengines: [{name: E, url: 'http://e'}]"))
        engine, server = bench.fleet.find("engine", "E"), bench.fleet.find("server", "S")
        bench.fleet.relink_engines({engine: ["/m"]}, {server: ["/m"]})
        report = apply(bench, write(tmp_path, "engines: [{name: E, url: 'http://e', server: s}]"))
        assert report.changed == {"engine": ["E"]}
        assert bench.fleet.get_engine(engine).server_link == "given"

    def test_a_store_whose_mount_is_late_does_not_fail_the_start(self, bench: Bench, tmp_path: Path) -> None:
        directory = tmp_path / "l2"
        directory.mkdir()
        path = write(tmp_path, f"stores: [{{name: S, path: {directory}}}]")
        apply(bench, path)
        directory.rmdir()
        assert apply(bench, path).unchanged == {"store": ["S"]}

    def test_an_empty_file_declares_nothing(self, bench: Bench, tmp_path: Path) -> None:
        for text in ("", "# nothing\n", "servers:\nengines: []\n"):
            assert apply(bench, write(tmp_path, text)).created == {}


BAD = [
    ("servers: [", "not YAML"),
    ("- a\n- b\n", "must hold servers:"),
    ("server: []\n", "server: is not a field of this section"),
    ("servers:\n  - name: A\n", "line 2, servers[0].url: is missing"),
    ("servers:\n  - name: A\n    url: ftp://x\n", "line 3, servers[0].url: 'ftp://x' must start with"),
    ("servers:\n  - name: A\n    url: http://x\n    colour: red\n", "line 4, servers[0].colour: is not a field"),
    ("servers:\n  - name: A\n    url: 5\n", "line 3, servers[0].url"),
    ("servers:\n  - name: A\n    url: http://x\n    name: B\n", "'name' stands here twice"),
    (
        "servers:\n  - {name: A, url: 'http://x'}\n  - {name: a, url: 'http://y'}\n",
        "line 3, servers[1].name: 'a' is declared twice (first in line 2)",
    ),
    (
        "servers:\n  - {name: A, url: 'http://x'}\n  - {name: B, url: 'http://x:80'}\n",
        "line 3, servers[1].url: http://x:80 is already registered as the server 'A'",
    ),
    ("servers:\n  - name: A\n    url: http://x\n    api_key_env: NOPE\n", "line 4, servers[0].api_key_env"),
    ("servers:\n  - {name: A, url: 'http://x', api_key_env: E, api_key: k}\n", "not both"),
    ("engines:\n  - name: E\n    url: http://x\n    server: nobody\n", "line 4, engines[0].server: there is no server"),
    ("stores:\n  - name: S\n    path: /nowhere/at/all\n", "line 3, stores[0].path: '/nowhere/at/all' does not exist"),
    ("stores:\n  - name: S\n    path: /\n", "line 3, stores[0].path: '/' cannot be a store"),
    ("policies:\n  - name: P\n", "line 2, policies[0]: policies cannot be declared here"),
    ("a: &a [*a]\n", "nests too deeply"),
    ("servers: {name: A}\n", "line 1, servers"),
    ("x: !!python/name:os.system ''\n", "not YAML"),
]


class TestErrors:
    @pytest.mark.parametrize(("text", "words"), BAD)
    def test_name_file_line_and_field(self, bench: Bench, tmp_path: Path, text: str, words: str) -> None:
        with pytest.raises((InvalidInput, Conflict)) as caught:
            apply(bench, write(tmp_path, text))
        assert words in caught.value.detail, caught.value.detail
        assert "targets.yaml" in caught.value.detail

    def test_nothing_is_changed_by_a_file_that_is_wrong_further_down(self, bench: Bench, tmp_path: Path) -> None:
        text = "servers:\n  - {name: A, url: 'http://x'}\nengines:\n  - {name: E}\n"
        with pytest.raises(TierkeeperError, match=r"line 4, engines\[0\].url"):
            apply(bench, write(tmp_path, text))
        assert bench.fleet.server_targets() == []

    def test_a_store_keeps_its_path(self, bench: Bench, tmp_path: Path) -> None:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
        apply(bench, write(tmp_path, f"stores: [{{name: S, path: {tmp_path / 'one'}}}]"))
        with pytest.raises(InvalidInput, match="a store keeps its path"):
            apply(bench, write(tmp_path, f"stores: [{{name: S, path: {tmp_path / 'two'}}}]"))

    def test_a_file_that_cannot_be_read(self, bench: Bench, tmp_path: Path) -> None:
        with pytest.raises(InvalidInput, match="cannot be read"):
            apply(bench, tmp_path / "missing.yaml")
        (tmp_path / "latin.yaml").write_bytes(b"\xff\xfe\xfa")
        with pytest.raises(InvalidInput, match="UTF-8"):
            apply(bench, tmp_path / "latin.yaml")
        (tmp_path / "huge.yaml").write_bytes(b"#" * (targets_reading.MAX_BYTES + 1))
        with pytest.raises(InvalidInput, match="larger"):
            apply(bench, tmp_path / "huge.yaml")

    def test_a_key_is_not_repeated_in_errors(self, bench: Bench, tmp_path: Path) -> None:
        with pytest.raises(InvalidInput) as caught:
            apply(bench, write(tmp_path, "servers: [{name: A, url: 'http://x', api_key: 'my secret'}]"))
        assert "my secret" not in caught.value.detail
