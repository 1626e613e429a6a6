"""The demo's store, its traffic and its specs."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from app.sandbox import Latency, Sandbox, SandboxConfig, TrafficShape, demo_specs
from app.sandbox.model import unpack
from app.sandbox.seeding import DAY, RETIRED_MODEL, SeedReport
from app.sandbox.traffic import Prompts, Traffic
from tests.unit.sandbox.support import START, Clock, Driver, key_of

CURRENT = re.compile(r"[^@/]+@0x[0-9a-f]{8}@[0-9a-f]@[0-9a-f]{64}(@[^@/]+)?\.data")
LEGACY = re.compile(r"[^@/]+@0x[0-9a-f]{8}@[0-9a-f]{64}(@[^@/]+)?\.data")


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Sandbox, SeedReport, float]:
    servers, engines, config = demo_specs(START)
    sandbox = Sandbox(tmp_path_factory.mktemp("demo"), servers=servers, engines=engines, clock=Clock(), config=config)
    began = time.process_time()
    report = sandbox.seed_demo()
    return sandbox, report, time.process_time() - began


def stats(sandbox: Sandbox, names: list[str]) -> list[os.stat_result]:
    return [(sandbox.store_path / name).stat() for name in names]


def test_it_is_small_and_quick(seeded: tuple[Sandbox, SeedReport, float]) -> None:
    sandbox, report, seconds = seeded
    files = [p for p in sandbox.store_path.rglob("*") if p.is_file()]
    assert len(files) == sum(report.counts.values()) <= 2000
    assert sum(p.stat().st_size for p in files) == report.bytes < 40_000_000
    assert seconds < 3


def test_everything_a_newcomer_should_see_is_there(seeded: tuple[Sandbox, SeedReport, float]) -> None:
    _, report, _ = seeded
    assert set(report.counts) == {
        *("current", "stale", "incompatible", "retired_model", "short", "empty", "temporary", "legacy_name", "foreign")
    }
    assert report.counts["short"] >= 10
    assert report.counts["incompatible"] >= 300
    names = [n for kind in ("current", "stale", "incompatible") for n in report.files[kind]]
    assert any(n.count("@") == 4 for n in names)  # some with a salt
    assert {key_of(Path(n))["model_name"] for n in names} == {"/models/atlas-8b-instruct", "/models/atlas-coder-3b"}


def test_names_have_their_forms(seeded: tuple[Sandbox, SeedReport, float]) -> None:
    _, report, _ = seeded
    for kind in ("current", "stale", "incompatible", "retired_model", "short", "empty"):
        assert all(CURRENT.fullmatch(n) for n in report.files[kind]), kind
    assert all(LEGACY.fullmatch(n) and not CURRENT.fullmatch(n) for n in report.files["legacy_name"])
    folder = [n for n in report.files["temporary"] if n.startswith(".tmp/")]
    beside = [n for n in report.files["temporary"] if "/" not in n]
    assert folder
    assert beside
    assert all(CURRENT.fullmatch(n.removeprefix(".tmp/")) for n in folder)
    assert all(n.endswith(".tmp") and CURRENT.fullmatch(n.removesuffix(".tmp") + ".data") for n in beside)
    assert not any(CURRENT.fullmatch(n) or LEGACY.fullmatch(n) for n in report.files["foreign"])


def test_sizes_and_ages_are_what_makes_them_so(seeded: tuple[Sandbox, SeedReport, float]) -> None:
    sandbox, report, _ = seeded
    trial = next(e for e in report.epochs if e.layout.dtype == "float16" and e.model_path != RETIRED_MODEL)
    assert trial.end == report.layout_changed_at
    live = {s.st_size for s in stats(sandbox, report.files["current"])}
    assert live == {64 * 256}
    assert {s.st_size for s in stats(sandbox, report.files["incompatible"])} == live
    assert {s.st_size for s in stats(sandbox, report.files["empty"])} == {0}
    assert all(0 < s.st_size < 64 * 256 for s in stats(sandbox, report.files["short"]))
    assert all(s.st_mtime < trial.start for s in stats(sandbox, report.files["current"]))
    assert all(trial.start < s.st_mtime < (trial.end or 0) for s in stats(sandbox, report.files["incompatible"]))
    assert all(s.st_atime <= START - 5 * DAY for s in stats(sandbox, report.files["stale"]))
    assert all(s.st_atime > START - 2 * DAY for s in stats(sandbox, report.files["current"]))
    assert all(s.st_mtime < START - 600 for s in stats(sandbox, report.files["empty"] + report.files["temporary"]))


def test_the_epochs_tell_the_same_story(seeded: tuple[Sandbox, SeedReport, float]) -> None:
    sandbox, report, _ = seeded
    live = [e for e in report.epochs if e.end is None]
    assert [e.layout for e in live] == [e.spec.layout for e in sandbox.world.engines]
    first = [(e.layout.dtype, e.end) for e in report.epochs if e.model_path == live[0].model_path]
    assert [dtype for dtype, _ in first] == ["bfloat16", "float16", "bfloat16"]
    assert [end for _, end in first][1:] == [report.layout_changed_at, None]
    retired = next(e for e in report.epochs if e.model_path == RETIRED_MODEL)
    assert all(retired.start <= s.st_mtime <= (retired.end or 0) for s in stats(sandbox, report.files["retired_model"]))
    assert sandbox.world.engines[0].spec.started_at is not None
    assert sandbox.world.engines[0].spec.started_at > report.layout_changed_at


def test_the_bytes_are_numbers_of_their_dtype(seeded: tuple[Sandbox, SeedReport, float]) -> None:
    sandbox, report, _ = seeded
    for kind, dtype in (("current", "bfloat16"), ("incompatible", "float16")):
        data = (sandbox.store_path / report.files[kind][0]).read_bytes()
        assert max(abs(x) for x in unpack(dtype, data)) < 4


def test_a_plain_sandbox_can_be_seeded_too(box: Driver) -> None:
    report = box.sandbox.seed_demo()
    assert report.layout_changed_at < START
    assert report.bytes < 60_000_000
    assert box.ask(300).status == 200
    assert all((box.sandbox.store_path / n).exists() for n in report.files["current"])


# --- traffic ---


def test_the_pool_is_bounded_and_shared() -> None:
    prompts = Prompts(TrafficShape())
    seen = {tuple(prompts.next().tokens) for _ in range(1500)}
    assert len(seen) <= 160
    first, same_prefix = prompts.numbered(0), prompts.numbered(6)
    assert first.tokens[:400] == same_prefix.tokens[:400]
    assert first.tokens != same_prefix.tokens
    assert Prompts(TrafficShape()).numbered(3) == prompts.numbered(3)
    assert prompts.numbered(11).salt == "tenant-b"
    assert first.salt == ""


def test_the_rate_swings() -> None:
    shape = TrafficShape(requests_per_second=2.0)
    rates = [Traffic([], shape, lambda: 0.0).rate(t) for t in range(0, 900, 10)]
    assert min(rates) > 0
    assert max(rates) > 2.5
    assert min(rates) < 1.5


async def test_traffic_is_real_and_ends_when_told(tmp_path: Path) -> None:
    async with Sandbox(tmp_path, engines=2) as sandbox:
        traffic = sandbox.traffic(TrafficShape(requests_per_second=200, prefix_tokens=100, tail_tokens=60))
        deadline = time.monotonic() + 10
        while traffic.sent < 30:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        traffic.stop()
        counted = [e.metrics.total("vllm:request_success_total") for e in sandbox.world.engines]
        assert min(counted) >= 5
        assert list(sandbox.store_path.glob("*.data"))
    assert traffic.failed == 0


async def test_traffic_survives_a_dead_engine(tmp_path: Path) -> None:
    async with Sandbox(tmp_path) as sandbox:
        await sandbox.control.arun("kill", "engine")
        traffic = sandbox.traffic(TrafficShape(requests_per_second=200))
        deadline = time.monotonic() + 10
        while traffic.failed < 3:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        await sandbox.control.arun("start", "engine")
        before = sandbox.world.engines[0].metrics.total("vllm:request_success_total")
        while sandbox.world.engines[0].metrics.total("vllm:request_success_total") <= before:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)


def test_priming_fills_the_tiers_of_the_demo(make: Callable[..., Driver]) -> None:
    servers, engines, config = demo_specs(START)
    box = make(servers=servers, engines=engines, config=config)
    box.sandbox.prime(25)
    box.clock.pass_(1)
    status = box.status()
    assert status["storage_manager"]["l1_manager"]["memory_usage_ratio"] > 0.3
    m = box.server_metrics()
    assert 0.2 < m["lmcache_mp_lookup_hit_tokens_total"] / m["lmcache_mp_lookup_requested_tokens_total"] < 0.95
    assert m["lmcache_mp_l2_store_completed_objects_chunks_total"] > 50


def test_the_demo_answers_take_a_realistic_time(tmp_path: Path) -> None:
    assert demo_specs(START)[2] == SandboxConfig(latency=Latency.realistic())
    spec = Latency.realistic()
    cold, l2, l1, l0 = (spec.prefill(*n) for n in ((1000, 0, 0), (40, 0, 960), (40, 960, 0), (8, 0, 0)))
    assert cold > 1.0 > l2 > l1 > l0


def test_threads_can_start_traffic(make: Callable[..., Driver]) -> None:
    box = make()
    traffic = box.sandbox.traffic(TrafficShape(requests_per_second=300, prefix_tokens=80, tail_tokens=30))
    deadline = time.monotonic() + 10
    while box.engine_metrics()["vllm:prompt_tokens_total"] == 0:
        assert time.monotonic() < deadline
    traffic.stop()
    assert httpx.get(box.sandbox.engine_url + "/health", trust_env=False).status_code == 200
