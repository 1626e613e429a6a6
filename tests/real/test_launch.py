"""Generated launch commands: the real programs' parsers take all of them, and one set starts and proves itself."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.checks.assemble import Texts
from app.checks.direct import check_targets
from app.checks.gather import EngineRequest, ServerRequest
from app.launch.schemas import LaunchView
from tests.real.panel import Panel
from tests.real.stack import build
from tests.real.stack.clients import Engine
from tests.real.stack.commands import QUIET
from tests.real.stack.control import RealStack
from tests.unit.launch.support import generate
from tests.unit.launch.test_launch import VARIANTS

PARSER = Path(__file__).with_name("parse_commands.py")


def parsed(server: list[list[str]], engine: list[list[str]]) -> list[list[str]]:
    """What the real parsers say of these command lines."""
    with build.in_use() as environment:
        done = subprocess.run(
            [environment.program("python"), str(PARSER)],
            input=json.dumps({"server": server, "engine": engine}),
            env=RealStack.clean_environment() | QUIET,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-3000:]
    found: list[list[str]] = json.loads(lines[-1].removeprefix("RESULT "))
    return found


def test_the_real_parsers_take_every_generated_command_line() -> None:
    views = [generate(**changes) for changes in VARIANTS.values()]
    server = [view.server_argv for view in views]
    engine = [argv for view in views for argv in (view.engine_argv_a, view.engine_argv_b)]
    wrong = ["--no-such-option-of-any-program", "1"]
    found = parsed([*server, ["lmcache", "server", *wrong]], [*engine, ["vllm", "serve", "/m", *wrong]])
    servers = [said for role, said in found if role == "server"]
    engines = [said for role, said in found if role == "engine"]
    assert set(servers[:-1]) == {"ok"}
    assert set(engines[:-1]) == {"ok"}, engines
    assert "SystemExit" in servers[-1]  # the parsers were really asked
    assert "SystemExit" in engines[-1]


@dataclass(frozen=True)
class Launched:
    """A server and an engine that were started with generated commands."""

    stack: RealStack
    view: LaunchView
    server_url: str
    engine_url: str


@pytest.fixture(scope="module")
def launched() -> Iterator[Launched]:
    """Scenario B of a generated set, started word by word; only the programs' paths and quiet variables are added."""
    with RealStack() as stack:
        ports = {name: stack.free_port() for name in ("message", "http", "engine")}
        view = generate(
            device="cpu",
            server={"l1_gib": 0.25, "chunk_size": 64, "port": ports["message"], "http_port": ports["http"]},
            engine={
                "model": str(stack.environment.model),
                "served_model_name": "tiny-llama",
                "port": ports["engine"],
                "dtype": "bfloat16",
                "max_model_len": 4096,
                "max_num_seqs": 8,
                "block_size": 32,
                "dev_mode": True,
                "extra_args": ["--enforce-eager", "--num-gpu-blocks-override", "512"],
                "environment": {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"},
            },
            store={"base_path": str(stack.directory / "generated")},
        )
        server_url, engine_url = (f"http://127.0.0.1:{ports[name]}" for name in ("http", "engine"))
        assert view.base_path is not None
        Path(view.base_path).mkdir(parents=True)

        def answers(url: str) -> bool:
            try:
                return httpx.get(url, timeout=10, trust_env=False).status_code == 200
            except httpx.HTTPError:
                return False

        lmcache, vllm = stack.environment.program("lmcache"), stack.environment.program("vllm")
        stack.start_program(
            "generated-server",
            [lmcache, *view.server_argv[1:]],
            view.server_environment,
            lambda: answers(f"{server_url}/healthcheck"),
        )
        stack.start_program(
            "generated-engine",
            [vllm, *view.engine_argv_b[1:]],
            view.engine_environment | {"VLLM_CACHE_ROOT": str(stack.environment.cache / "vllm")},
            lambda: answers(f"{engine_url}/health"),
            seconds=240,
        )
        yield Launched(stack, view, server_url, engine_url)


def test_what_was_generated_passes_the_checks_when_it_runs(launched: Launched) -> None:
    log = next(launched.stack.directory.glob("generated-engine-*.log")).read_text(errors="replace")
    result = check_targets(
        ServerRequest("generated", launched.server_url),
        EngineRequest("generated", launched.engine_url, texts=Texts(log=log)),
    )
    assert result.unreachable == ()
    assert [item for item in result.findings if item.verdict == "fail"] == []
    verdicts = {item.check_id: str(item.verdict) for item in result.findings}
    for check_id in (
        "chunk_size_multiple",
        "transfer_mode",
        "engine_registered",
        "write_probe",
        "prompt_tokens_details",
    ):
        assert verdicts[check_id] == "ok", check_id


def test_what_was_generated_passes_an_acceptance_run(launched: Launched) -> None:
    engine = Engine(launched.engine_url, "tiny-llama")
    assert engine.complete(list(range(40, 140)), salt="first", timeout=480).status == 200
    panel = Panel(launched.stack)
    try:
        server = panel.post("/servers", {"url": launched.server_url, "name": "generated"})
        engine_id = panel.post("/engines", {"url": launched.engine_url, "name": "e", "server_id": server["id"]})["id"]
        store: dict[str, Any] = {"path": launched.view.base_path, "server_ids": [server["id"]], "confirm": True}
        panel.post("/stores", store)
        panel.wait_polled(server["id"])
        run = panel.work(
            "/acceptance-runs",
            {
                "engine_id": engine_id,
                "profile": "quick",
                "arms": ["cold", "warm", "external_l1", "external_l2"],
                "deadline_seconds": 900,
            },
            seconds=900,
        )
        assert run["verdict"] in ("pass", "pass_with_near_ties"), run["reasons"]
    finally:
        panel.stop()
    assert any(Path(launched.view.base_path or "").glob("*.data"))
