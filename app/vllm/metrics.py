"""What an engine's ``/metrics`` counts. Totals run over its data parallel ranks (label ``engine``) and models.

vLLM answers classic text or OpenMetrics, depending on its front end; older names (V0, ``gpu_`` prefixes) are read too.
None means "no such series": counters of features that are off do not exist.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from app.wire.exposition import Samples, parse_metrics
from app.wire.fields import integer, whole_number_text

__all__ = ["CacheConfig", "EngineLoad", "EngineMetrics", "Samples", "engine_load", "engine_metrics", "parse_metrics"]

_IN_PROCESS: Final = "lmcache:"
#: The few lines of a scrape that tell an engine's load, found without taking the others apart.
_LOAD_LINES: Final = re.compile(
    rb"^vllm[:_](?:num_requests_running|num_requests_waiting|kv_cache_usage_perc|gpu_cache_usage_perc)[ {].*$", re.M
)
_IN_PROCESS_PLAIN: Final = "lmcache_"
#: Series of the connector to a cache server, which has the same beginning where colons are written as underscores.
_OF_THE_CONNECTOR: Final = "lmcache_mp_"


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """``vllm:cache_config_info`` of one engine process (needs no dev mode). Tokens and bytes.

    `capacity_tokens` is what the KV cache of the GPU holds; `declared_bytes` the memory it was given, which an override
    of the block count makes too large. `labels` are all facts as printed (``"None"`` for unset).
    """

    engine: str
    block_size: int | None
    effective_block_size: int | None
    num_gpu_blocks: int | None
    cache_dtype: str | None
    capacity_tokens: int | None
    declared_bytes: int | None
    enable_prefix_caching: bool | None
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What an engine is busy with at one moment: requests, and the share of its KV cache in use (0-1)."""

    running: float | None = None
    waiting: float | None = None
    kv_cache_usage: float | None = None


@dataclass(frozen=True)
class EngineMetrics:
    """Counters (since the engine's start) and gauges of one scrape. Tokens, requests, seconds, ratios 0-1, bytes."""

    process_start_time: float | None
    resident_bytes: float | None
    cpu_seconds: float | None
    running: float | None
    waiting: float | None
    preemptions: float | None
    kv_cache_usage: float | None
    prefix_cache_queries: float | None
    prefix_cache_hits: float | None
    external_queries: float | None
    external_hits: float | None
    prompt_tokens: float | None
    prompt_tokens_cached: float | None
    generation_tokens: float | None
    requests_succeeded: float | None
    finished_requests: float | None
    finished_prompt_tokens: float | None
    finished_generated_tokens: float | None
    ttft_sum: float | None
    ttft_count: float | None
    e2e_sum: float | None
    e2e_count: float | None
    queue_sum: float | None
    queue_count: float | None
    prefill_sum: float | None
    prefill_count: float | None
    lookup_seconds_sum: float | None
    lookup_seconds_count: float | None
    prompt_tokens_by_source: Mapping[str, float]
    cached_tokens_by_source: Mapping[str, float]
    requests_by_reason: Mapping[str, float]
    waiting_by_reason: Mapping[str, float]
    cache_configs: tuple[CacheConfig, ...]
    model_names: tuple[str, ...]
    in_process: Mapping[str, float]

    @property
    def load(self) -> EngineLoad:
        """Its load alone."""
        return EngineLoad(self.running, self.waiting, self.kv_cache_usage)

    @property
    def any_vllm_series(self) -> bool:
        """Whether this is the scrape of a vLLM at all."""
        return self.running is not None or bool(self.cache_configs) or self.prefix_cache_queries is not None

    @property
    def finished(self) -> tuple[float | None, float | None, float | None]:
        """Requests that ended, with their prompt and generated tokens: three that are counted at one instant."""
        return self.finished_requests, self.finished_prompt_tokens, self.finished_generated_tokens

    @property
    def external_prompt_tokens(self) -> float | None:
        """Prompt tokens that a KV connector supplied."""
        return self.prompt_tokens_by_source.get("external_kv_transfer")

    @property
    def capacity_tokens(self) -> int | None:
        """Tokens that the KV caches of all ranks hold together, None as soon as one is unknown."""
        return _sum([config.capacity_tokens for config in self.cache_configs])

    @property
    def block_size(self) -> int | None:
        """The block size where all ranks agree."""
        sizes = {config.block_size for config in self.cache_configs}
        return sizes.pop() if len(sizes) == 1 else None

    @property
    def cache_dtype(self) -> str | None:
        """The KV cache dtype setting (``auto``, ``fp8``, …) where all ranks agree."""
        dtypes = {config.cache_dtype for config in self.cache_configs}
        return dtypes.pop() if len(dtypes) == 1 else None

    @property
    def num_gpu_blocks(self) -> int | None:
        """Blocks of all ranks together."""
        return _sum([config.num_gpu_blocks for config in self.cache_configs])


_TOTALS: Final[Mapping[str, tuple[str, ...]]] = {
    "running": ("num_requests_running",),
    "waiting": ("num_requests_waiting",),
    "preemptions": ("num_preemptions_total",),
    "prefix_cache_queries": ("prefix_cache_queries_total", "gpu_prefix_cache_queries_total"),
    "prefix_cache_hits": ("prefix_cache_hits_total", "gpu_prefix_cache_hits_total"),
    "external_queries": ("external_prefix_cache_queries_total",),
    "external_hits": ("external_prefix_cache_hits_total",),
    "prompt_tokens": ("prompt_tokens_total",),
    "prompt_tokens_cached": ("prompt_tokens_cached_total",),
    "generation_tokens": ("generation_tokens_total",),
    "requests_succeeded": ("request_success_total",),
    "finished_requests": ("request_prompt_tokens_count",),
    "finished_prompt_tokens": ("request_prompt_tokens_sum",),
    "finished_generated_tokens": ("request_generation_tokens_sum",),
    "ttft_sum": ("time_to_first_token_seconds_sum",),
    "ttft_count": ("time_to_first_token_seconds_count",),
    "e2e_sum": ("e2e_request_latency_seconds_sum",),
    "e2e_count": ("e2e_request_latency_seconds_count",),
    "queue_sum": ("request_queue_time_seconds_sum",),
    "queue_count": ("request_queue_time_seconds_count",),
    "prefill_sum": ("request_prefill_time_seconds_sum",),
    "prefill_count": ("request_prefill_time_seconds_count",),
    "lookup_seconds_sum": ("lmcache_mp_lookup_duration_seconds_sum",),
    "lookup_seconds_count": ("lmcache_mp_lookup_duration_seconds_count",),
}


def engine_metrics(samples: Samples) -> EngineMetrics:
    """Take the panel's fields out of one scrape. Raises TargetError ``unreadable`` for malformed labels.

    `in_process` holds the totals of ``lmcache:*`` series: LMCache running inside this vLLM instead of as a server.
    """
    # Python's OpenMetrics exposition writes vllm_… for what the classic one calls vllm:…
    colon = any(name.startswith("vllm:") for name in samples.names())
    prefix = "vllm:" if colon else "vllm_"
    totals = {
        field: next((samples.total(prefix + name) for name in names if prefix + name in samples), None)
        for field, names in _TOTALS.items()
    }
    usage = next((name for name in ("kv_cache_usage_perc", "gpu_cache_usage_perc") if prefix + name in samples), "")
    models = (labels.get("model_name", "") for labels in samples.labels_of(f"{prefix}num_requests_running"))
    own = {
        spelt: value
        for name in samples.names()
        if (spelt := _in_process(name, colon)) is not None and (value := samples.total(name)) is not None
    }
    return EngineMetrics(
        process_start_time=samples.start_time(),
        resident_bytes=samples.total("process_resident_memory_bytes"),
        cpu_seconds=samples.total("process_cpu_seconds_total"),
        kv_cache_usage=samples.ratio(prefix + usage),
        prompt_tokens_by_source=samples.total_by(f"{prefix}prompt_tokens_by_source_total", "source"),
        cached_tokens_by_source=samples.total_by(f"{prefix}prompt_tokens_cached_by_source_total", "source"),
        requests_by_reason=samples.total_by(f"{prefix}request_success_total", "finished_reason"),
        waiting_by_reason=samples.total_by(f"{prefix}num_requests_waiting_by_reason", "reason"),
        cache_configs=tuple(_cache_config(labels) for labels in samples.labels_of(f"{prefix}cache_config_info")),
        model_names=tuple(dict.fromkeys(name for name in models if name)),
        in_process=own,
        **totals,
    )


def engine_load(body: bytes, content_type: str | None = None) -> EngineLoad:
    """The load alone out of a scrape, in a small part of the time that all of it takes."""
    return engine_metrics(parse_metrics(b"\n".join(_LOAD_LINES.findall(body)), content_type)).load


def _in_process(name: str, colon: bool) -> str | None:
    """The name of a series of LMCache inside this engine, spelt with a colon; None for any other series."""
    if name.startswith(_IN_PROCESS):
        return name
    if colon or not name.startswith(_IN_PROCESS_PLAIN) or name.startswith(_OF_THE_CONNECTOR):
        return None
    return _IN_PROCESS + name.removeprefix(_IN_PROCESS_PLAIN)


def _cache_config(labels: Mapping[str, str]) -> CacheConfig:
    block_size = whole_number_text(labels.get("block_size"))
    blocks = whole_number_text(labels.get("num_gpu_blocks"))
    tokens = whole_number_text(labels.get("kv_cache_size_tokens"))
    if tokens is None and block_size is not None and blocks is not None:
        tokens = integer(block_size * blocks)
    return CacheConfig(
        engine=labels.get("engine", ""),
        block_size=block_size,
        effective_block_size=whole_number_text(labels.get("effective_attention_block_size")),
        num_gpu_blocks=blocks,
        cache_dtype=_set(labels.get("cache_dtype")),
        capacity_tokens=tokens,
        declared_bytes=whole_number_text(labels.get("kv_cache_memory_bytes")),
        enable_prefix_caching={"True": True, "False": False}.get(labels.get("enable_prefix_caching", "")),
        labels=labels,
    )


def _set(value: str | None) -> str | None:
    return None if value in (None, "", "None") else value


def _sum(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
