"""What the real servers of published versions answer is read right (captured by `make test-versions`, no GPU)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.lmcache.client import LMCacheClient, ServerReading, poll_server
from app.telemetry.memory import ServerMemory
from app.telemetry.server_reading import EnginesSeen, read_server

FIXTURES = Path(__file__).parents[2] / "fixtures" / "lmcache-versions"
OUTCOMES: dict[str, dict[str, Any]] = json.loads((FIXTURES / "outcomes.json").read_text())
STARTED = [version for version, outcome in OUTCOMES.items() if outcome["started"]]
README = (Path(__file__).parents[3] / "README.md").read_text("utf-8")
#: Each server was started with --chunk-size 64 --l1-size-gb 0.125 --eviction-policy LRU, one `fs` adapter from 0.4.2.
L1_BYTES = 2**27
FIRST_WITH_FS = (0, 4, 2)
#: Before it /status has no list of adapters, and /conf prints only what the adapter is, not where it writes.
FIRST_THAT_NAMES_THE_DIRECTORY = (0, 4, 3)


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


class Replay:
    """Answers as one version's server gave them; `asked` lists what was asked."""

    def __init__(self, version: str) -> None:
        self.folder = FIXTURES / version
        self.index: dict[str, dict[str, Any]] = json.loads((self.folder / "index.json").read_text())
        self.asked: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.path)
        known = self.index.get(request.url.path)
        assert known is not None, f"{request.url.path} was not captured"
        body = (self.folder / known["file"]).read_bytes() if known["file"] else b'{"detail":"Not Found"}'
        return httpx.Response(
            known["status"], headers={"content-type": known["content_type"]}, stream=httpx.ByteStream(body)
        )


async def read(version: str) -> tuple[ServerReading, Replay]:
    replay = Replay(version)
    async with LMCacheClient("http://cache:8080", transport=httpx.MockTransport(replay)) as client:
        return await poll_server(client), replay


def test_enough_versions_were_started() -> None:
    assert len(STARTED) >= 3
    for version, outcome in OUTCOMES.items():
        assert outcome["started"] or outcome["reason"], version


def test_the_readme_names_the_supported_range() -> None:
    assert f"LMCache {STARTED[0]} to {STARTED[-1]}" in README


@pytest.mark.parametrize("version", STARTED)
async def test_health_l1_queue_and_version(version: str) -> None:
    reading, _ = await read(version)
    assert reading.error_kinds == {}
    assert (reading.http_up, reading.health is not None and reading.health.ok) == (True, True)
    status = reading.status
    assert status is not None
    assert (status.is_healthy, status.unhealthy_parts, status.warnings) == (True, (), ())
    assert (status.chunk_size, status.hash_algorithm) == (64, "blake3")
    assert (status.l1_total_bytes, status.l1_used_bytes, status.l1_usage_ratio) == (L1_BYTES, 0, 0.0)
    assert status.l1_object_count == 0
    assert (status.trigger_watermark, status.eviction_ratio, status.eviction_policy) == (0.8, 0.2, "LRU")
    assert status.engines_registered == 0
    assert status.store_drained is True
    assert reading.version is None or reading.version.startswith(version)


@pytest.mark.parametrize("version", STARTED)
async def test_counters_of_a_fresh_server_are_none_so_far_and_never_missing(version: str) -> None:
    reading, _ = await read(version)
    metrics = reading.metrics
    assert metrics is not None
    assert metrics.process_start_time is not None
    assert metrics.process_start_time > 1.7e9
    assert metrics.resident_bytes is not None
    assert metrics.cpu_seconds is not None
    assert metrics.lookups == ()
    poll = read_server(reading, ServerMemory(), EnginesSeen(), now=metrics.process_start_time + 60, interval=10.0)
    assert poll.judgement.state == "degraded"
    assert "no engine is registered" in poll.judgement.reason
    assert (poll.judgement.http_up, poll.judgement.engine_up) == (True, True)
    assert poll.observed.ok
    assert poll.observed.drained is True
    assert poll.memory.values["l1"]["capacity_bytes"] == L1_BYTES


@pytest.mark.parametrize("version", [v for v in STARTED if number(v) >= FIRST_WITH_FS])
async def test_the_adapter_and_its_directory(version: str) -> None:
    reading, _ = await read(version)
    assert reading.config is not None
    metrics = reading.metrics
    assert metrics is not None
    start = metrics.process_start_time or 0.0
    poll = read_server(reading, ServerMemory(), EnginesSeen(), now=start + 60, interval=10.0)
    adapters = poll.memory.values["l2"]
    assert [adapter["adapter"] for adapter in adapters] == ["fs"]
    assert adapters[0]["evicts"] is False
    if number(version) >= FIRST_THAT_NAMES_THE_DIRECTORY:
        assert adapters[0]["base_path"] == "/srv/kv"


@pytest.mark.parametrize("version", STARTED)
async def test_an_old_server_is_asked_the_new_path_only_once(version: str) -> None:
    reading, replay = await read(version)
    missing = [path for path in replay.asked if replay.index[path]["status"] == 404]
    replay.asked.clear()
    async with LMCacheClient("http://cache:8080", transport=httpx.MockTransport(replay)) as client:
        client.paths.update(reading.paths)
        again = await poll_server(client)
    assert again.status is not None
    repeated = {path for path in replay.asked if replay.index[path]["status"] == 404}
    # What no path answers is asked for again: it may come with the next version of the server.
    assert repeated <= set(missing)
    assert not repeated & {"/config", "/conf", "/status", "/api/status", "/healthcheck"}
