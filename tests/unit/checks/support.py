"""Facts for rules: the captured answers of a real server and a real engine, with one thing changed at a time."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.checks.base import Finding
from app.checks.evaluate import evaluate
from app.checks.facts import EngineSide, Facts, HostMemory, ServerSide, StoreSide, WriteProbe
from app.checks.rules import ALL
from app.lmcache.configuration import ServerConfig, parse_config
from app.lmcache.metrics import ServerMetrics, parse_metrics, server_metrics
from app.lmcache.status import ServerStatus, parse_status
from app.vllm.client import ModelCard
from app.vllm.facts import EngineFacts, parse_server_info
from app.vllm.metrics import CacheConfig, EngineMetrics, engine_metrics
from app.vllm.startup_log import StartupFacts

CAPTURES = Path(__file__).parents[2] / "fixtures" / "captures"
GIB = 2**30
MODEL = "/models/tiny-llama"


def capture(name: str) -> str:
    return (CAPTURES / name).read_text("utf-8")


@functools.cache
def config() -> ServerConfig:
    return parse_config(json.loads(capture("server-with-engine/config.json")))


@functools.cache
def status() -> ServerStatus:
    return parse_status(json.loads(capture("server-with-engine/status.json")), "0.5.6")


@functools.cache
def metrics() -> ServerMetrics:
    return server_metrics(parse_metrics(capture("server-with-engine/metrics.txt").encode(), "text/plain"))


@functools.cache
def engine_facts() -> EngineFacts:
    return parse_server_info(json.loads(capture("engine/with-lmcache.server_info.config_json.json")))


@functools.cache
def engine_counters() -> EngineMetrics:
    return engine_metrics(parse_metrics(capture("engine/with-lmcache.metrics.txt").encode(), "text/plain"))


def server(**changes: Any) -> ServerSide:
    """The captured server; `config`, `status` and `metrics` may be dicts of changed fields."""
    side = ServerSide(
        name="cache-a",
        url="http://127.0.0.1:8080",
        reachable=True,
        local=True,
        version="0.5.6-g3e11e108",
        config=config(),
        status=status(),
        metrics=metrics(),
    )
    return _changed(side, changes)


def engine(**changes: Any) -> EngineSide:
    """The captured engine; `facts` and `metrics` may be dicts of changed fields."""
    side = EngineSide(
        name="engine-a",
        url="http://127.0.0.1:8000",
        reachable=True,
        local=True,
        version="0.32.0",
        models=(ModelCard("tiny-llama", MODEL, 4096),),
        facts=engine_facts(),
        metrics=engine_counters(),
    )
    return _changed(side, changes)


def _changed(side: Any, changes: dict[str, Any]) -> Any:
    resolved = {
        name: replace(getattr(side, name), **value) if isinstance(value, dict) and name in _NESTED else value
        for name, value in changes.items()
    }
    return replace(side, **resolved)


_NESTED = ("config", "status", "metrics", "facts")


def store(**changes: Any) -> StoreSide:
    """The captured adapter's directory on a disk of its own; `adapter` may be a dict of changed fields."""
    side = StoreSide(
        adapter=config().adapters[0],
        path="/srv/kv/l2",
        fs_type="ext4",
        mount_point="/srv/kv",
        device="/dev/nvme1n1",
        block_size=4096,
        total_bytes=1000 * GIB,
        free_bytes=600 * GIB,
        temp_same_device=True,
        probe=WriteProbe("written", "written", True, 32768),
        record_sizes=(32768,),
        policies=("keep the disk free",),
    )
    if isinstance(changes.get("adapter"), dict):
        changes["adapter"] = replace(side.adapter, **changes["adapter"])
    return replace(side, **changes)


def facts(**changes: Any) -> Facts:
    """A pair that works: the captures, 64 GiB of memory, one engine."""
    pair = Facts(
        server=server(),
        engine=engine(),
        stores=(store(),),
        memory=HostMemory(64 * GIB, 48 * GIB),
        engines_of_server=1,
    )
    return replace(pair, **changes)


def hybrid_engine(block: int = 784, batched: int = 1567, mode: str = "align", **changes: Any) -> EngineSide:
    """An engine with a hybrid model, shaped after vLLM's cache_config_info and its start-up log."""
    side = engine()
    assert side.metrics is not None
    assert side.facts is not None
    labels = {
        **side.metrics.cache_configs[0].labels,
        "mamba_cache_mode": mode,
        "mamba_block_size": str(block),
        "mamba_page_size_padded": "3211264",
    }
    cache = replace(side.metrics.cache_configs[0], block_size=block, effective_block_size=block, labels=labels)
    return replace(
        side,
        models=(ModelCard("hybrid", "/models/hybrid", 32768),),
        facts=replace(
            side.facts, model="/models/hybrid", block_size=block, max_num_batched_tokens=batched, mamba_cache_mode=mode
        ),
        metrics=replace(side.metrics, cache_configs=(cache,)),
        log=StartupFacts(attention_block_size=block, group_tokens_per_block=(block, block), starts=1),
        **changes,
    )


def with_cache_config(side: EngineSide, **changes: Any) -> EngineSide:
    """The engine with another ``vllm:cache_config_info``."""
    assert side.metrics is not None
    caches: tuple[CacheConfig, ...] = tuple(replace(item, **changes) for item in side.metrics.cache_configs)
    return replace(side, metrics=replace(side.metrics, cache_configs=caches))


def of(check_id: str, given: Facts) -> list[Finding]:
    """The findings of one rule."""
    rule = next(rule for rule in ALL if rule.id == check_id)
    return list(rule.check(given))


def one(check_id: str, given: Facts) -> Finding:
    """The only finding of one rule."""
    found = of(check_id, given)
    assert len(found) == 1, found
    return found[0]


def verdicts(findings: Iterable[Finding]) -> dict[str, str]:
    return {item.check_id: str(item.verdict) for item in findings}


def all_of(given: Facts) -> list[Finding]:
    return evaluate(given)
