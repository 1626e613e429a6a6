"""One poll of an engine, turned into what is stored: view values, samples, judgement, facts for its server. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.fleet.schemas import EngineFactsView, L0View, PrefixCacheView
from app.fleet.targets import EngineTarget
from app.lmcache.in_process_metrics import MULTIPROC_MISSING
from app.telemetry import in_process, load, rates, window
from app.telemetry.contexts import Witness
from app.telemetry.event_counters import engine_events
from app.telemetry.health import EngineSeen, Judgement, judge_engine
from app.telemetry.memory import EngineMemory
from app.telemetry.metrics import INTERVAL, REQUESTS
from app.telemetry.rates import CounterPoint
from app.telemetry.window import Slice
from app.vllm.facts import checked_settings
from app.vllm.metrics import EngineMetrics
from app.vllm.polling import EngineReading

_TOKENS = ("local_tokens", "external_tokens", "recomputed_tokens")


@dataclass(frozen=True)
class EnginePoll:
    """The outcome of one poll. `samples`: series name → value; a series that is missing is not known now."""

    memory: EngineMemory
    samples: Mapping[str, float]
    judgement: Judgement


def read_engine(
    reading: EngineReading,
    target: EngineTarget,
    memory: EngineMemory,
    *,
    now: float,
    interval: float,
    bytes_per_token: int | None = None,
) -> EnginePoll:
    """What one poll adds to what was known. `now` is the time at its end, `interval` the poll interval, seconds.

    `bytes_per_token`: of its context at the cache server, where that is known.
    """
    start = reading.process_start_time
    if start is not None and start != memory.process_start:
        memory = replace(memory, process_start=start, facts={})
    memory = _follow_facts(reading, target, memory)
    memory, deltas, seconds = _follow_counters(reading, memory, now, interval)
    judgement = judge_engine(_seen(reading))
    complete = reading.health is not None and reading.metrics is not None
    values = {
        **memory.values,
        "http_up": judgement.http_up,
        "last_error": next(
            (r for r in (reading.health_reason, reading.metrics_reason, reading.models_reason) if r), None
        ),
        "prefix_cache": _prefix_cache(memory, reading),
    }
    if reading.http_up:
        values |= _known(reading, memory, bytes_per_token)
    if reading.metrics is not None:
        values["load"] = load.engine_view(reading.metrics, deltas, seconds, now, memory.values.get("load") or {})
        values["in_process"] = in_process.view(reading.metrics, memory.facts.get("connector"), memory.window)
    values["warnings"] = _warnings(reading, target, memory)
    memory = replace(memory, values=values, polled_at=now, scraped_at=now if complete else memory.scraped_at)
    return EnginePoll(memory, _samples(reading, judgement, deltas, seconds), judgement)


def witness(target: EngineTarget, memory: EngineMemory) -> Witness:
    """What this engine's present process says of itself, for the contexts of its server."""
    facts = memory.facts
    return Witness(
        engine_id=target.id,
        model_names=frozenset(memory.models),
        process_start=memory.process_start,
        dtype=facts.get("dtype"),
        kv_cache_dtype=facts.get("kv_cache_dtype"),
        block_size=facts.get("block_size"),
        quantization=facts.get("quantization"),
        draft_layers=facts.get("draft_layers"),
        engine_version=facts.get("engine_version"),
        model_revision=facts.get("revision"),
        tokenizer=facts.get("tokenizer"),
    )


# ---- what changes from poll to poll ----


def _follow_facts(reading: EngineReading, target: EngineTarget, memory: EngineMemory) -> EngineMemory:
    """Facts by witness: ``/server_info``, then ``/metrics``, then what the operator entered for this very process."""
    found: dict[str, Any] = {}
    sources: dict[str, str] = {}

    def take(source: str, facts: Mapping[str, Any]) -> None:
        for name, value in facts.items():
            if value is not None and found.get(name) is None:
                found[name], sources[name] = value, source

    info, metrics = reading.facts, reading.metrics
    if info is not None:
        take(
            "/server_info",
            {
                "dtype": info.dtype,
                "kv_cache_dtype": info.kv_cache_dtype,
                "block_size": info.block_size,
                "prefix_caching": info.enable_prefix_caching,
                "revision": info.revision,
                "quantization": info.quantization,
                "draft_layers": info.draft_layers,
                "tokenizer": info.tokenizer,
                "model": info.model,
                "connector": info.kv_connector,
                "settings": checked_settings(info),
            },
        )
    if metrics is not None and metrics.cache_configs:
        take(
            "/metrics",
            {
                "kv_cache_dtype": metrics.cache_dtype,
                "block_size": metrics.block_size,
                "prefix_caching": metrics.cache_configs[0].enable_prefix_caching,
            },
        )
    take("/version", {"engine_version": reading.version})
    entered_for = target.entered_for
    if target.entered_facts and entered_for is not None and entered_for == memory.process_start:
        take("entered by hand", target.entered_facts)
    # A poll that could not read a part keeps what this process said before.
    before = {k: v for k, v in memory.facts.items() if k != "sources" and k not in found and v is not None}
    kept_sources = {k: v for k, v in dict(memory.facts.get("sources") or {}).items() if k in before}
    by_hand = {k for k, v in kept_sources.items() if v == "entered by hand"}  # entered facts can be taken back
    facts = {**{k: v for k, v in before.items() if k not in by_hand}, **found}
    facts["sources"] = {**{k: v for k, v in kept_sources.items() if k not in by_hand}, **sources}
    return replace(memory, facts=facts, models=_models(reading, facts) or memory.models)


def _models(reading: EngineReading, facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Every name the engine's model may be registered under: LMCache uses the path given to vLLM."""
    names = [str(facts["model"])] if facts.get("model") else []
    for card in reading.models or ():
        if card.parent is None:
            names.extend(name for name in (card.root, card.id) if name)
    return tuple(dict.fromkeys(names))


def _follow_counters(
    reading: EngineReading, memory: EngineMemory, now: float, interval: float
) -> tuple[EngineMemory, dict[str, float | None], float | None]:
    kept = window.expire(memory.window, now)
    if reading.metrics is None:
        return replace(memory, window=kept), {}, None
    point = CounterPoint(now, (None, reading.process_start_time), _counters(reading.metrics))
    before = rates.base_for(memory.counters, point, interval, window.WINDOW_SECONDS)
    deltas: dict[str, float | None] = {}
    seconds: float | None = None
    if before is not None:
        deltas = rates.increments(before, point)
        seconds = point.at - before.at
        names = (*_TOKENS, "external_queries")
        own = {name: deltas.get(name) for name in names} | in_process.in_window(deltas)
        kept = window.push(kept, Slice(before.at, point.at, own))
    return replace(memory, counters=point, window=kept), deltas, seconds


def _counters(metrics: EngineMetrics) -> dict[str, float | None]:
    """Prompt tokens by where they came from; on an engine without that metric put together from its older counters."""
    sources = metrics.prompt_tokens_by_source
    local, external = sources.get("local_cache_hit"), sources.get("external_kv_transfer")
    computed = sources.get("local_compute")
    if not sources:
        local = metrics.prefix_cache_hits
        external = metrics.external_hits if metrics.external_queries is not None else 0.0
        if None not in (metrics.prompt_tokens, local, external):
            computed = max(0.0, (metrics.prompt_tokens or 0.0) - (local or 0.0) - (external or 0.0))
    return {
        "local_tokens": local,
        "external_tokens": external,
        "recomputed_tokens": computed,
        "external_queries": metrics.external_queries,
        "preemptions": metrics.preemptions,
        **dict(zip(REQUESTS, metrics.finished, strict=True)),
        **engine_events(metrics),
        **load.engine_counters(metrics),
        **in_process.counters(metrics),
    }


# ---- health, views, samples ----


def _seen(reading: EngineReading) -> EngineSeen:
    failed = [reading.error_kinds[part] for part in ("health", "metrics") if part in reading.error_kinds]
    return EngineSeen(
        http_up=reading.http_up,
        slow=bool(failed) and set(failed) <= {"timeout"},
        health_ok=None if reading.health is None else reading.health.ok,
        health_error=reading.health.reason if reading.health is not None else reading.health_reason,
        metrics_error=reading.metrics_reason,
        models_error=reading.models_reason,
    )


def _prefix_cache(memory: EngineMemory, reading: EngineReading) -> dict[str, Any]:
    local, external, computed = (window.total(memory.window, name) for name in _TOKENS)
    if local is None or external is None or computed is None:
        reason = reading.metrics_reason or "one reading so far: a rate needs two polls"
        return PrefixCacheView(reason=reason).model_dump()
    everything, asked = local + external + computed, external + computed
    return PrefixCacheView(
        local_hit_rate=local / everything if everything else None,
        external_hit_rate=external / asked if asked else None,
        external_share=external / everything if everything else None,
        recomputed_share=computed / everything if everything else None,
        window_seconds=window.covered_seconds(memory.window),
        reason=None if everything else "no prompt tokens in the window",
    ).model_dump()


def _known(reading: EngineReading, memory: EngineMemory, bytes_per_token: int | None) -> dict[str, Any]:
    """The view values that this poll could read; the others keep their last ones."""
    found: dict[str, Any] = {
        "reset_available": reading.reset_available,
        "reset_reason": _why_no_reset(reading),
        "facts": _facts_view(memory),
    }
    if reading.version is not None:
        found["version"] = reading.version
    if memory.process_start is not None:
        found["process_start"] = memory.process_start
    if reading.models is not None:
        base = [card for card in reading.models if card.parent is None]
        found["model_names"] = [card.id for card in base]
        found["model_roots"] = list(dict.fromkeys(card.root or card.id for card in base))
        found["max_model_len"] = reading.max_model_len
    metrics = reading.metrics
    if metrics is not None:
        found["l0"] = _l0_view(metrics, bytes_per_token)
        found["running"] = _whole(metrics.running)
        found["waiting"] = _whole(metrics.waiting)
        found["preemptions"] = _whole(metrics.preemptions)
        found["connector"] = _connector(reading, metrics, memory)
    return found


def _why_no_reset(reading: EngineReading) -> str | None:
    if reading.reset_available:
        return None
    if reading.reset_available is False:
        return "dev mode is off: start the engine with VLLM_SERVER_DEV_MODE=1 to let its prefix cache be reset"
    return reading.facts_reason or "not asked yet"


def _l0_view(metrics: EngineMetrics, bytes_per_token: int | None) -> dict[str, Any]:
    configs = metrics.cache_configs
    declared = [config.declared_bytes for config in configs]
    overridden = any(config.labels.get("num_gpu_blocks_override") not in (None, "None") for config in configs)
    tokens = metrics.capacity_tokens
    total: int | None = None
    if bytes_per_token is not None and tokens is not None:
        total = tokens * bytes_per_token
    elif declared and not overridden and None not in declared:
        # With an override of the block count the declared memory is larger than what the blocks take.
        total = sum(size or 0 for size in declared)
    reason = None if configs else "the engine's /metrics has no vllm:cache_config_info"
    if reason is None and metrics.kv_cache_usage is None:
        reason = "the engine's /metrics tells no KV cache usage from 0 to 1"
    return L0View(
        capacity_tokens=tokens,
        capacity_bytes=total,
        usage_ratio=metrics.kv_cache_usage,
        reason=reason,
    ).model_dump()


def _connector(reading: EngineReading, metrics: EngineMetrics, memory: EngineMemory) -> bool | None:
    """Whether a KV connector is attached, as far as can be told."""
    if memory.facts.get("connector"):
        return True
    if metrics.lookup_seconds_count is not None or metrics.in_process:
        return True
    if (metrics.external_queries or 0) > 0:
        return True
    return False if reading.facts is not None else None


def _facts_view(memory: EngineMemory) -> dict[str, Any]:
    facts = memory.facts
    names = ("dtype", "kv_cache_dtype", "block_size", "prefix_caching", "revision")
    sources = dict(facts.get("sources") or {})
    return EngineFactsView(
        **{name: facts.get(name) for name in names},
        settings={k: v for k, v in dict(facts.get("settings") or {}).items() if v is not None},
        sources={n: sources[n] for n in names if n in sources},
    ).model_dump()


def _warnings(reading: EngineReading, target: EngineTarget, memory: EngineMemory) -> list[str]:
    found: list[str] = []
    if reading.http_up and memory.facts.get("prefix_caching") is False:
        found.append("prefix caching is off in this engine: nothing is reused, in L0 or from the cache server")
    if target.entered_facts and memory.process_start is not None and target.entered_for != memory.process_start:
        found.append("the facts entered by hand are of a former process of this engine; enter them anew")
    if reading.metrics is not None and reading.metrics.in_process:
        found.append("LMCache runs inside this engine (lmcache:* metrics): no cache server is involved")
    if in_process.missing(reading.metrics, memory.facts.get("connector")):
        found.append(f"LMCache runs inside this engine ({memory.facts['connector']}). {MULTIPROC_MISSING}")
    return found


def _samples(
    reading: EngineReading, judgement: Judgement, deltas: Mapping[str, float | None], seconds: float | None
) -> dict[str, float]:
    metrics = reading.metrics
    values: dict[str, float | None] = {"up": 1.0 if judgement.http_up else 0.0}
    if judgement.http_up:
        values["poll_seconds"] = reading.duration_seconds
    if metrics is not None:
        values["running"], values["waiting"] = metrics.running, metrics.waiting
        values["kv_usage_ratio"] = metrics.kv_cache_usage
        values["resident_bytes"] = metrics.resident_bytes
        values |= in_process.samples(metrics)
    if seconds is not None:
        values[INTERVAL] = seconds
        values |= {name: deltas.get(name) for name in (*_TOKENS, "preemptions", *REQUESTS)}
        values |= load.engine_samples(deltas)
        values |= {name: deltas.get(name) for name in in_process.COUNTERS}
    return {name: float(value) for name, value in values.items() if value is not None}


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
