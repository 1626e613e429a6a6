"""Checks on the real stack: none fails as it is meant to be started, and at least ten fail for real when it is not.

Most of what can be wrong is in the server alone, which starts in seconds; the engine is the session's.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from app.checks.assemble import Texts
from app.checks.base import Finding
from app.checks.direct import check_targets
from app.checks.gather import EngineRequest, ServerRequest
from app.lmcache.status import parse_status
from app.sizing.schemas import ModelInput
from app.sizing.service import model_view
from tests.real.panel import OWN_CODE, PROGRAM
from tests.real.stack.control import RealStack

#: Warnings that a good start on a test machine has, and why.
EXPLAINED = {
    "growth_bounded": "the fs adapter never evicts, and these tests have no cleanup policy",
    "store_device": "the temporary directory lies on the root file system (or on tmpfs where /tmp is one)",
    "mq_timeout": "some tests shorten it",
    "start_order": "a test before may have restarted the server under the engine",
    "prompt_tokens_details": "told by the start-up log only",
    "odirect_alignment": "where the file system has larger blocks than the tiny model's records",
}


def engine_log(stack: RealStack) -> str:
    return stack.engine_program().log.read_text(errors="replace")


def server_url(stack: RealStack) -> str:
    return f"http://127.0.0.1:{stack.server.port}"


def engine_request(stack: RealStack) -> EngineRequest:
    port = stack.engine_program().argv[stack.engine_program().argv.index("--port") + 1]
    return EngineRequest("engine", f"http://127.0.0.1:{port}", texts=Texts(log=engine_log(stack)))


def failed(findings: list[Finding]) -> dict[str, Finding]:
    return {item.check_id: item for item in findings if item.verdict == "fail"}


def test_nothing_fails_when_started_as_meant(stack: RealStack) -> None:
    # The first answer collects facts of the host; on a busy one that takes longer than the checks wait.
    assert stack.engine().get("/server_info", timeout=600).status_code == 200
    result = check_targets(ServerRequest("server", server_url(stack)), engine_request(stack))
    assert result.unreachable == ()
    assert failed(list(result.findings)) == {}
    warned = {item.check_id for item in result.findings if item.verdict in ("warn", "unknown")}
    assert warned <= set(EXPLAINED), [item for item in result.findings if item.check_id in warned - set(EXPLAINED)]
    fine = {item.check_id for item in result.findings if item.verdict == "ok"}
    assert fine >= {
        "reachable", "engine_registered", "version_pair", "connector_class", "kv_role", "transfer_mode", "isolated_ipc",
        "heartbeat", "chunk_size_multiple", "prefix_caching", "l1_size", "l1_host_memory", "unified_memory",
        "eviction_ratio", "eviction_watermark", "workers", "write_probe", "temp_dir", "shared_directory",
        "hash_algorithm", "record_names", "metrics", "prometheus_port", "open_port", "log_level",
        "unverified_territory",
    }  # fmt: skip
    assert list(stack.l2.glob("**/*probe*")) == []


@dataclass(frozen=True)
class Wrong:
    """A real server that is started as wrongly as it still starts."""

    url: str
    log: Path
    directory: Path


@pytest.fixture(scope="module")
def wrong(session_stack: RealStack) -> Iterator[Wrong]:
    stack = session_stack
    directory = Path(tempfile.mkdtemp(prefix="tierkeeper-checks-", dir="/dev/shm"))
    message, http = stack.free_port(), stack.free_port()
    adapter = {"type": "fs_native", "base_path": str(directory), "use_odirect": True, "max_capacity_gb": 4000}
    argv = [
        stack.environment.program("lmcache"), "server", "--host", "127.0.0.1", "--port", str(message),
        "--http-host", "0.0.0.0", "--http-port", str(http), "--run-script-api-enabled", "--chunk-size", "48",
        "--l1-size-gb", "0.25", "--l1-init-size-gb", "1", "--eviction-policy", "noop",
        "--eviction-trigger-watermark", "1.0", "--eviction-ratio", "0.99", "--hash-algorithm", "builtin",
        "--supported-transfer-mode", "engine_driven", "--isolated-ipc", "--disable-metrics",
        "--prometheus-port", "9191",
        "--l2-adapter", json.dumps(adapter),
    ]  # fmt: skip
    url = f"http://127.0.0.1:{http}"
    program = stack.start_program("wrong-server", argv, {"LMCACHE_LOG_LEVEL": "DEBUG"}, lambda: healthy(url))
    try:
        yield Wrong(url, program.log, directory)
    finally:
        stack.end_program(program)
        shutil.rmtree(directory, ignore_errors=True)


def healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthcheck", timeout=10, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def test_more_than_ten_checks_fail_for_real(stack: RealStack, wrong: Wrong) -> None:
    server = ServerRequest("wrong", wrong.url, texts=Texts(log=wrong.log.read_text(errors="replace")))
    result = check_targets(server, engine_request(stack))
    found = failed(list(result.findings))
    assert set(found) >= {
        "engine_registered", "transfer_mode", "isolated_ipc", "chunk_size_multiple", "eviction_ratio",
        "eviction_watermark", "store_device", "capacity_without_eviction", "hash_algorithm", "metrics", "open_port",
    }  # fmt: skip
    assert len(found) >= 10
    assert "tmpfs" in found["store_device"].evidence
    assert "48" in found["chunk_size_multiple"].evidence
    assert "--chunk-size 64" in found["chunk_size_multiple"].fix
    assert "run" in found["open_port"].evidence
    warned = {item.check_id for item in result.findings if item.verdict == "warn"}
    assert warned >= {"prometheus_port", "log_level", "growth_bounded"}


def test_two_servers_on_one_directory(stack: RealStack) -> None:
    message, http = stack.free_port(), stack.free_port()
    adapter = {"type": "fs", "base_path": str(stack.l2), "relative_tmp_dir": ".tmp", "use_odirect": True}
    argv = [
        stack.environment.program("lmcache"), "server", "--host", "127.0.0.1", "--port", str(message),
        "--http-port", str(http), "--chunk-size", "128", "--l1-size-gb", "0.1", "--l1-init-size-gb", "1",
        "--eviction-policy", "LRU", "--l2-adapter", json.dumps(adapter),
    ]  # fmt: skip
    url = f"http://127.0.0.1:{http}"
    program = stack.start_program("second-server", argv, {}, lambda: healthy(url))
    try:
        result = check_targets(ServerRequest("server", server_url(stack)), None, others=[ServerRequest("second", url)])
    finally:
        stack.end_program(program)
    found = failed(list(result.findings))
    assert "second: 128; here 64" in found["shared_directory"].evidence


def test_swapped_addresses_are_recognised_on_the_real_programs(stack: RealStack) -> None:
    engine = ServerRequest("server", engine_request(stack).url)
    result = check_targets(engine, EngineRequest("engine", server_url(stack)))
    assert result.unreachable == ()
    assert {(item.check_id, item.fix) for item in result.findings} == {("reachable", "swap the two addresses")}


def test_sizing_says_what_the_real_server_reports(stack: RealStack) -> None:
    """Bytes of a token from the model's config.json against the layout that the real engine registered."""
    config = json.loads((stack.environment.model / "config.json").read_text())
    answer = httpx.get(f"{server_url(stack)}/status", timeout=60, trust_env=False)
    layouts = list(parse_status(answer.json()).contexts.values())
    assert layouts
    for layout in layouts:
        model = model_view(ModelInput(config={**config, "dtype": layout.dtype}))
        assert model.rank_bytes_per_token == layout.bytes_per_token


def test_the_command_on_the_real_stack(stack: RealStack, wrong: Wrong) -> None:
    def run(*arguments: str) -> tuple[int, list[dict[str, str]]]:
        done = subprocess.run(
            [PROGRAM, "check", *arguments, "--json"],
            env=stack.clean_environment() | OWN_CODE,
            cwd=stack.directory,
            capture_output=True,
            text=True,
            timeout=480,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, json.loads(done.stdout)["checks"]

    code, good = run("--server", server_url(stack), "--engine", engine_request(stack).url)
    assert (code, [item for item in good if item["verdict"] == "fail"]) == (0, [])
    code, bad = run("--server", wrong.url)
    assert code == 1
    assert bad[0]["verdict"] == "fail"
    assert set(bad[0]) >= {"id", "verdict", "subject", "title", "evidence", "fix", "source"}
    code, _ = run("--server", "http://127.0.0.1:9")
    assert code == 3
