"""Command lines, unit files and compose files, read and judged before anything is started."""

from __future__ import annotations

import pytest

from app.checks.base import Finding
from app.checks.commands import check_texts, read_commands

SHELL = r"""
# the cache server
export PYTHONHASHSEED=0
lmcache server --host 127.0.0.1 --port 5555 --http-host 0.0.0.0 --http-port=8080 --chunk-size 48 \
  --l1-size-gb 20 --eviction-policy LRU --eviction-ratio 0.99 \
  --l2-adapter '{"type": "fs_native", "base_path": "/srv/kv", "use_odirect": true, "max_capacity_gb": 4000}'

VLLM_LOGGING_LEVEL=DEBUG HF_TOKEN=hf_abcdefghijklmnop vllm serve /models/qwen --block-size 32 --port 8000 \
  --max-num-batched-tokens 8k --kv-transfer-config '{"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both",
  "kv_connector_extra_config": {"lmcache.mp.port": 5556, "lmcache.mp.heartbeat_interval": 60}}'
"""

COMPOSE = """
services:
  lmcache:
    image: lmcache/standalone
    network_mode: host
    command: lmcache server --l1-size-gb 10 --eviction-policy LRU
    environment: {LMCACHE_MAX_LOCAL_DISK_SIZE: "250", API_KEY: abcdef}
    healthcheck: {test: [CMD, curl, -f, "http://127.0.0.1:8080/healthcheck"]}
  vllm:
    image: vllm/vllm-openai:v0.32.0
    network_mode: host
    depends_on: [lmcache]
    command: ["vllm", "serve", "/models/qwen", "--kv-transfer-config",
              '{"kv_connector":"LMCacheMPConnector","kv_role":"kv_both"}']
"""

UNIT = """
[Unit]
Description=LMCache
[Service]
Environment=LMCACHE_LOG_LEVEL=DEBUG
Environment="PYTHONHASHSEED=0"
ExecStart=/opt/venv/bin/lmcache server --l1-size-gb 4 \\
    --eviction-policy LRU --chunk-size 256
Restart=on-failure
"""


def by_id(found: list[Finding]) -> dict[str, Finding]:
    return {item.check_id: item for item in reversed(found)}


class TestShell:
    def test_both_programs_with_their_environment(self) -> None:
        found = read_commands(SHELL)
        server, engine = found.first("server"), found.first("engine")
        assert server is not None
        assert engine is not None
        assert server.options.count("chunk_size") == 48
        assert server.environment["PYTHONHASHSEED"] == "0"
        assert engine.options.positional == ("/models/qwen",)
        assert engine.options.count("max_num_batched_tokens") == 8000
        assert engine.environment["HF_TOKEN"] == "(hidden)"
        assert found.problems == ()

    def test_verdicts_before_a_start(self) -> None:
        found = by_id(check_texts(commands=SHELL))
        for check_id in (
            "chunk_size_multiple",
            "open_port",
            "capacity_without_eviction",
            "heartbeat",
            "engine_registered",
        ):
            assert found[check_id].verdict == "fail", check_id
        assert found["eviction_ratio"].verdict == "warn"
        assert found["log_level"].verdict == "warn"
        assert found["mq_timeout"].verdict == "ok"

    @pytest.mark.parametrize(
        "text",
        [
            "vllm serve '/models/x",
            'lmcache server --l1-size-gb 1 --eviction-policy LRU --l2-adapter "{type: fs}"',
            "vllm serve /m --kv-transfer-config '{\"kv_connector\":'",
            "services: [",
            "services:\n  a: {image: '",
        ],
    )
    def test_what_cannot_be_read_is_a_fail_and_no_crash(self, text: str) -> None:
        found = by_id(check_texts(commands=text))
        assert found["readable_settings"].verdict == "fail"

    @pytest.mark.parametrize(
        "text",
        ["", "\x00\x01", "ls -la", "rm -rf / # vllm serve", "a" * 100_000, "services: 5", "&x [*x]", "docker run"],
    )
    def test_anything_else_is_no_crash(self, text: str) -> None:
        assert isinstance(check_texts(commands=text), list)

    def test_a_dollar_is_never_expanded(self) -> None:
        found = read_commands("vllm serve $(touch /tmp/owned) --port `id`")
        assert found.first("engine") is not None


class TestDocker:
    def test_options_image_and_command(self) -> None:
        found = read_commands(
            "docker run -d --rm --gpus all --name lmc --network host --ipc=host -v /srv/kv:/srv/kv -e API_KEY=abc "
            "lmcache/standalone:v0.5.6 lmcache server --l1-size-gb 4 --eviction-policy LRU\n"
            "docker run -d --name vllm --gpus all --network=host --ipc=host --entrypoint vllm "
            "vllm/vllm-openai:latest serve /models/a --port 8000\n"
        )
        server, engine = found.containers
        assert (server.name, server.role, server.image) == ("lmc", "server", "lmcache/standalone:v0.5.6")
        assert (server.ipc, server.network, server.environment) == ("host", "host", {"API_KEY": "(hidden)"})
        assert (engine.role, engine.image) == ("engine", "vllm/vllm-openai:latest")
        program = found.first("engine")
        assert program is not None
        assert program.options.positional == ("/models/a",)
        assert (
            by_id(check_texts(commands="docker run --ipc=host vllm/vllm-openai:latest --model x"))["image_tag"].verdict
            == "warn"
        )


class TestCompose:
    def test_services_and_verdicts(self) -> None:
        found = read_commands(COMPOSE)
        server, engine = found.containers
        assert server.has_health_check
        assert server.environment["API_KEY"] == "(hidden)"
        assert engine.waits_for == (("lmcache", "service_started"),)
        verdicts = by_id(check_texts(commands=COMPOSE))
        assert verdicts["start_order"].verdict == "warn"
        assert verdicts["container_sharing"].verdict == "fail"
        assert verdicts["image_tag"].verdict == "warn"
        assert verdicts["leftover_variables"].verdict == "warn"


class TestUnits:
    def test_exec_start_over_two_lines(self) -> None:
        found = read_commands(UNIT)
        server = found.first("server")
        assert server is not None
        assert server.options.count("chunk_size") == 256
        assert server.environment == {"LMCACHE_LOG_LEVEL": "DEBUG", "PYTHONHASHSEED": "0"}
        assert by_id(check_texts(commands=UNIT))["log_level"].verdict == "warn"


class TestLogsAndEnvironments:
    def test_a_log_alone(self) -> None:
        from tests.unit.checks.support import capture

        found = by_id(check_texts(engine_log=capture("logs/vllm-startup.log")))
        assert found["prompt_tokens_details"].verdict == "ok"

    def test_an_environment_alone(self) -> None:
        found = by_id(check_texts(environment="LMCACHE_LOCAL_DISK=file:///kv\nLMCACHE_EXTRA_CONFIG={"))
        assert found["readable_settings"].verdict == "fail"
        assert found["disk_limit_per_rank"].verdict == "fail"
        assert found["hash_algorithm"].verdict == "fail"
