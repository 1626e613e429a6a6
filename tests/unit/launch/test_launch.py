"""Launch commands: A and B differ in the connector only, every form says the same words, hostile input is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from app.checks.commands import read_commands
from app.commands.launch import LaunchOptions, checker, launch_command
from app.errors import InvalidInput, NotFound
from app.launch.pair import filled
from app.launch.schemas import EngineInput, LaunchInput, ServerInput
from app.launch.service import LaunchService
from app.sandbox import SandboxThread
from tests.unit.checks.support import config as captured_config
from tests.unit.fleet.support import Bench
from tests.unit.launch.support import (
    MODEL,
    compose_words,
    form,
    generate,
    shell_words,
    text_of,
    unit_words,
)

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "cpu": {"device": "cpu"},
    "isolated": {"images": {"isolated": True, "models_dir": "/models"}},
    "isolated-cpu": {"device": "cpu", "images": {"isolated": True}},
    "hybrid": {"engine": {"hybrid_block_tokens": 784}},
    "native-disk": {"store": {"adapter": "fs_native", "capacity_gib": 500.0, "base_path": "/data/kv"}},
    "no-disk": {"store": None},
    "engine-driven": {"server": {"transfer_mode": "engine_driven"}, "device": "cpu"},
    "auto": {"server": {"transfer_mode": "auto"}},
    "parallel": {"engine": {"tensor_parallel": 4, "dev_mode": True}, "server": {"workers": 4}},
    "remote": {"server": {"host": "10.0.0.5", "http_host": "127.0.0.1", "instance_id": "kv-1"}},
    "odd-words": {
        "engine": {
            "model": '/models/it\'s $HOME `id` 100% \\ "x"',
            "extra_args": ["--revision", "a $b %c 'd'"],
            "environment": {"NOTE": '50% of $PATH "quoted"'},
        }
    },
}


@pytest.mark.parametrize("name", VARIANTS)
class TestEveryVariant:
    def test_the_two_scenarios_differ_in_the_connector_only(self, name: str) -> None:
        view = generate(**VARIANTS[name])
        assert view.engine_argv_b[: len(view.engine_argv_a)] == view.engine_argv_a
        assert view.engine_argv_b[len(view.engine_argv_a) :] == view.difference
        assert view.difference[0] == "--kv-transfer-config"
        assert json.loads(view.difference[1])["kv_connector"] == "LMCacheMPConnector"

    def test_every_form_says_the_same_words(self, name: str) -> None:
        view = generate(**VARIANTS[name])
        assert shell_words(text_of(view, "engine.sh")) == view.engine_argv_b
        assert shell_words(text_of(view, "engine-alone.sh")) == view.engine_argv_a
        assert unit_words(text_of(view, "vllm.service"))[1:] == view.engine_argv_b[1:]
        assert unit_words(text_of(view, "lmcache-server.service"))[1:] == view.server_argv[1:]
        engine, server = compose_words(view, "vllm"), compose_words(view, "lmcache")
        if "isolated" not in name:
            assert engine == view.engine_argv_b
            assert server[1:] == view.server_argv[1:]
        else:
            assert "lmcache" in json.loads(engine[-1])["kv_connector_extra_config"]["lmcache.mp.host"]
            assert server[server.index("--host") + 1] == "0.0.0.0"

    def test_our_own_checks_find_no_fault(self, name: str) -> None:
        view = generate(**VARIANTS[name])
        assert view.checks
        assert [item for item in view.checks if item.verdict == "fail"] == []

    def test_scripts_are_shell(self, name: str) -> None:
        view = generate(**VARIANTS[name])
        shell = shutil.which("sh")
        assert shell is not None
        for item in view.files:
            if item.name.endswith(".sh"):
                done = subprocess.run([shell, "-n"], input=item.text, capture_output=True, text=True, check=False)
                assert done.returncode == 0, (item.name, done.stderr)


class TestWhatRuns:
    """What a running pair has and these commands must not repeat."""

    def taken(self, **config: Any) -> tuple[LaunchInput, list[str]]:
        reading = SimpleNamespace(config=replace(captured_config(), **config), layouts=dict)
        return filled(form(server={"l1_gib": 4.0}), reading, None)  # type: ignore[arg-type]

    def test_a_watermark_or_ratio_that_our_own_checks_refuse(self) -> None:
        body, notes = self.taken(trigger_watermark=1.0, eviction_ratio=0.99)
        assert (body.server.watermark, body.server.eviction_ratio) == (0.8, 0.2)
        assert "server.watermark = 1.0 as it runs now is not repeated: it must be less than 1.0" in notes
        assert any(note.startswith("server.eviction_ratio = 0.99") for note in notes)

    def test_a_chunk_size_that_does_not_fit(self) -> None:
        body, notes = self.taken(chunk_size=40)
        assert body.server.chunk_size is None
        assert any("no multiple of 16" in note for note in notes)

    def test_a_directory_that_was_offered_before_is_not_nested(self) -> None:
        (adapter,) = captured_config().adapters
        body, _ = self.taken(adapters=(replace(adapter, base_path="/data/kv/Qwen-0123456789abcdef", type="fs"),))
        assert body.server.store is not None
        assert body.server.store.base_path == "/data/kv"

    def test_what_was_given_stays(self) -> None:
        body, _ = self.taken(l1_size_bytes=2**40)
        assert body.server.l1_gib == 4.0


class TestSets:
    def test_every_form_is_judged(self) -> None:
        seen: list[str] = []
        LaunchService(check=lambda text: seen.append(text) or []).generate(form())  # type: ignore[func-returns-value]
        assert len(seen) == 4
        for text in seen:
            assert {program.role for program in read_commands(text).programs} == {"server", "engine"}, text

    def test_each_rank_gets_a_transfer_thread(self) -> None:
        argv = generate(engine={"tensor_parallel": 4}).server_argv
        assert argv[argv.index("--max-workers") + 1] == "4"

    def test_the_order_is_gated_by_health(self) -> None:
        view = generate()
        services = yaml.safe_load(text_of(view, "compose.yaml"))["services"]
        assert services["vllm"]["depends_on"]["lmcache"]["condition"] == "service_healthy"
        assert services["lmcache"]["healthcheck"]["test"][0] == "CMD"
        assert "depends_on" not in yaml.safe_load(text_of(view, "compose-engine-alone.yaml"))["services"]["vllm"]
        script = text_of(view, "start.sh")
        assert script.index("lmcache server") < script.index("/healthcheck") < script.index("vllm serve")
        unit = text_of(view, "vllm.service")
        assert "ExecStartPre=/usr/bin/curl" in unit
        assert "After=network-online.target lmcache-server.service" in unit

    def test_a_server_unit_stays_down_longer_than_two_heartbeats(self) -> None:
        unit = text_of(generate(engine={"heartbeat_seconds": 20.0}), "lmcache-server.service")
        assert "RestartSec=50" in unit

    @pytest.mark.parametrize("name", ["stop.sh", "docker-stop.sh", "compose-stop.sh", "systemd-stop.sh"])
    def test_the_tear_down_ends_the_engine_first(self, name: str) -> None:
        text = text_of(generate(), name)
        assert text.index("vllm") < max(text.rfind("lmcache"), text.rfind(" down "))

    def test_each_layout_has_its_own_directory(self) -> None:
        paths = {
            generate(engine={"dtype": dtype}, server={"chunk_size": chunk}).base_path
            for dtype in ("bfloat16", "float16")
            for chunk in (256, 512)
        }
        assert len(paths) == 4
        assert all(path is not None and path.startswith("/srv/lmcache/Qwen2.5-7B-") for path in paths)
        shared = generate(store={"per_layout": False})
        assert shared.base_path == "/srv/lmcache"
        assert any("share one directory" in note for note in shared.notes)

    def test_a_model_name_never_leaves_the_directory(self) -> None:
        for model in ("../../etc", "/models/..", "org/..", "/"):
            path = generate(engine={"model": model}).base_path
            assert path is not None
            assert path.startswith("/srv/lmcache/")
            assert "/../" not in path
            assert path.count("/") == 3

    def test_hybrid_models_get_what_they_need(self) -> None:
        view = generate(engine={"hybrid_block_tokens": 544})
        assert view.server_argv[view.server_argv.index("--chunk-size") + 1] == "544"
        assert "--separate-object-groups" in view.server_argv
        engine = view.engine_argv_a
        assert engine[engine.index("--max-num-batched-tokens") + 1] == "1087"
        assert engine[engine.index("--mamba-cache-mode") + 1] == "align"

    def test_l1_is_never_first_larger_than_whole(self) -> None:
        for size in (0.25, 1.0, 50.0):
            argv = generate(server={"l1_gib": size}).server_argv
            assert float(argv[argv.index("--l1-size-gb") + 1]) == size

    def test_a_chunk_that_does_not_fit_is_refused_with_a_better_one(self) -> None:
        with pytest.raises(InvalidInput, match="use 1568"):
            generate(engine={"hybrid_block_tokens": 784}, server={"chunk_size": 1000})

    def test_a_capacity_needs_an_adapter_that_evicts(self) -> None:
        with pytest.raises(InvalidInput, match="fs_native"):
            generate(store={"capacity_gib": 10.0})
        argv = generate(**VARIANTS["native-disk"]).server_argv
        adapter = json.loads(argv[argv.index("--l2-adapter") + 1])
        assert adapter["eviction"]["eviction_policy"] == "LRU"
        assert adapter["max_capacity_gb"] == 500.0


HOSTILE: list[tuple[dict[str, Any], str]] = [
    ({"engine": {"model": "--model"}}, "engine.model"),
    ({"engine": {"model": "a\nb"}}, "engine.model"),
    ({"engine": {"model": "a\x00b"}}, "engine.model"),
    ({"engine": {"model": "a\u202eb"}}, "engine.model"),
    ({"engine": {"served_model_name": "-x"}}, "engine.served_model_name"),
    ({"engine": {"host": "127.0.0.1; reboot"}}, "engine.host"),
    ({"engine": {"dtype": "auto --port 1"}}, "engine.dtype"),
    ({"engine": {"extra_args": ["model"]}}, "engine.extra_args[0]"),
    ({"engine": {"extra_args": ["--port", "1"]}}, "engine.extra_args[0]"),
    ({"engine": {"extra_args": ["--kv-transfer-config={}"]}}, "engine.extra_args[0]"),
    ({"engine": {"extra_args": ["--x", "a\nb"]}}, "engine.extra_args[1]"),
    ({"engine": {"extra_args": ["-x"]}}, "engine.extra_args[0]"),
    ({"engine": {"environment": {"A=B": "x"}}}, "engine.environment"),
    ({"engine": {"environment": {"A": "x\ny"}}}, "engine.environment.A"),
    ({"server": {"host": "$(id)"}}, "server.host"),
    ({"server": {"instance_id": "a b"}}, "server.instance_id"),
    ({"store": {"base_path": "relative"}}, "server.store.base_path"),
    ({"store": {"base_path": "/srv/../etc"}}, "server.store.base_path"),
    ({"store": {"base_path": "/srv:/etc"}}, "server.store.base_path"),
    ({"store": {"base_path": "/"}}, "server.store.base_path"),
    ({"store": {"temp_dir": "../x"}}, "server.store.temp_dir"),
    ({"images": {"server": "image; rm -rf /"}}, "images.server"),
    ({"images": {"engine": "--privileged"}}, "images.engine"),
    ({"images": {"server_program": "sh -c x"}}, "images.server_program"),
    ({"images": {"models_dir": "/a:/b"}}, "images.models_dir"),
    ({"units": {"user": "root\nExecStart=/bin/sh"}}, "units.user"),
    ({"units": {"engine_program": "vllm"}}, "units.engine_program"),
]


@pytest.mark.parametrize(("changes", "field"), HOSTILE, ids=lambda value: str(value)[:60])
def test_hostile_input_is_refused_and_the_field_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        generate(**json.loads(json.dumps(changes)))
    assert caught.value.errors[0].field == field


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=40), st.text(max_size=20))
def test_any_text_is_refused_or_arrives_unchanged(model: str, value: str) -> None:
    body = form(engine={"model": model or "x", "extra_args": ["--note", value or "x"]})
    try:
        view = LaunchService(check=lambda _: []).generate(body)
    except InvalidInput:
        return
    for words in (
        shell_words(text_of(view, "engine.sh")),
        compose_words(view, "vllm"),
        unit_words(text_of(view, "vllm.service")),
    ):
        assert words[2] == body.engine.model
        assert words[words.index("--note") + 1] == body.engine.extra_args[1]
        assert words[1:] == view.engine_argv_b[1:]


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxThread]:
    with SandboxThread(tmp_path_factory.mktemp("sandbox")) as running:
        yield running


class TestPairs:
    def test_what_runs_fills_what_is_left_open(self, tmp_path: Path, sandbox: SandboxThread) -> None:
        from app.fleet.schemas import EngineCreate, ServerCreate

        bench = Bench(tmp_path)
        server_id = bench.fleet.create_server(ServerCreate(url=sandbox.server_url, name="s"), actor="t").id
        body = EngineCreate(url=sandbox.engine_url, name="e", server_id=server_id)
        engine_id = bench.fleet.create_engine(body, actor="t").id
        engine = sandbox.sandbox.world.engines[0].spec
        service = LaunchService(check=checker, fleet=bench.fleet)
        view = service.generate(form(engine={"model": engine.model_path}, engine_id=engine_id))
        argv = view.engine_argv_a
        assert argv[argv.index("--dtype") + 1] == engine.layout.dtype
        assert argv[argv.index("--max-model-len") + 1] == str(engine.max_model_len)
        assert view.fingerprint_of == "layout registered at the server"
        assert view.base_path is not None
        assert view.base_path.endswith(view.fingerprint or "-")
        assert any("as it runs now" in note for note in view.notes)
        other = service.generate(form(engine={"model": engine.model_path, "dtype": "float16"}, server_id=server_id))
        assert other.fingerprint_of == "what these commands declare"
        with pytest.raises(NotFound):
            service.generate(form(server_id="99"))
        bench.db.dispose()

    def test_a_registered_pair_is_enough(self, tmp_path: Path, sandbox: SandboxThread) -> None:
        from app.fleet.schemas import EngineCreate, ServerCreate

        bench = Bench(tmp_path)
        server_id = bench.fleet.create_server(ServerCreate(url=sandbox.server_url, name="s"), actor="t").id
        body = EngineCreate(url=sandbox.engine_url, name="e", server_id=server_id)
        engine_id = bench.fleet.create_engine(body, actor="t").id
        service = LaunchService(check=checker, fleet=bench.fleet)
        view = service.generate(LaunchInput(engine_id=engine_id))
        engine = sandbox.sandbox.world.engines[0].spec
        assert view.engine_argv_a[2] == engine.model_path
        argv = view.server_argv
        assert float(argv[argv.index("--l1-size-gb") + 1]) > 0
        assert any(note.startswith("server.chunk_size = ") for note in view.notes)
        assert {item.id: item.verdict for item in view.checks}["chunk_size_multiple"] == "ok"
        assert any("keeps its records in" in note for note in view.notes)
        assert any(note == "device = cpu as it runs now" for note in view.notes)
        assert [item for item in view.checks if item.verdict == "fail"] == []
        with pytest.raises(InvalidInput, match=r"engine\.model: is needed"):
            service.generate(LaunchInput(server=ServerInput(l1_gib=1.0)))
        with pytest.raises(InvalidInput, match=r"server\.l1_gib: is needed"):
            service.generate(LaunchInput(engine=EngineInput(model=MODEL)))
        bench.db.dispose()

    def test_ids_without_a_fleet(self) -> None:
        with pytest.raises(InvalidInput, match="server_id"):
            generate(server_id="1")


class TestCommand:
    def test_print_write_and_json(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert launch_command(LaunchOptions(model=MODEL, l1_gib=20)) == 0
        printed = capsys.readouterr()
        assert "lmcache server" in printed.out
        assert "note:" in printed.err
        assert launch_command(LaunchOptions(model=MODEL, l1_gib=20, output=str(tmp_path / "out"))) == 0
        assert (tmp_path / "out" / "start.sh").stat().st_mode & 0o111
        assert (tmp_path / "out" / "compose.yaml").exists()
        capsys.readouterr()
        assert launch_command(LaunchOptions(model=MODEL, l1_gib=20, as_json=True)) == 0
        assert json.loads(capsys.readouterr().out)["difference"][0] == "--kv-transfer-config"

    def test_a_form_from_a_file(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "form.json"
        path.write_text(json.dumps({"server": {"l1_gib": 4}, "engine": {"model": MODEL, "dtype": "float16"}}))
        assert launch_command(LaunchOptions(form=str(path), chunk_size=512, only="compose")) == 0
        assert "'512'" in capsys.readouterr().out

    @pytest.mark.parametrize(
        "options",
        [
            LaunchOptions(),
            LaunchOptions(model=MODEL),
            LaunchOptions(model=MODEL, l1_gib=1, only="cloud"),
            LaunchOptions(form="/gone"),
            LaunchOptions(model=MODEL, l1_gib=-1),
        ],
        ids=["nothing", "no-l1", "form", "file", "range"],
    )
    def test_usage(self, options: LaunchOptions) -> None:
        with pytest.raises(InvalidInput):
            launch_command(options)
