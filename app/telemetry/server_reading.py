"""One poll of a cache server, turned into what is stored: view values, samples, judgement, observation. Pure.

A part that could not be read keeps its last value, with its age: slow is not down, and old is not unknown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from app.fleet.schemas import CrossCheckView
from app.lmcache.layouts import expected_object_bytes
from app.lmcache.metrics import ServerMetrics
from app.lmcache.polling import ServerReading
from app.telemetry import contexts, hit_rate, lights, load, rates, window
from app.telemetry.contexts import Context, Witness
from app.telemetry.event_counters import server_events
from app.telemetry.health import Judgement, ServerContext, ServerSeen, judge_server
from app.telemetry.memory import ServerMemory
from app.telemetry.metrics import INTERVAL, L2_RECORDS
from app.telemetry.observation import Observed
from app.telemetry.rates import CounterPoint
from app.telemetry.server_views import NEVER_EVICTS, hit_rate_view, known_values, layout_json, warnings_of
from app.telemetry.window import Slice

_NOT_THERE = re.compile(r" answered (404|405):")


@dataclass(frozen=True)
class EnginesSeen:
    """What the poller knows of this server's engines, by their own last polls.

    `starts`: {engine row id: process start or None}; `external_tokens` and `external_queries`: tokens in the window,
    None where no engine told.
    """

    witnesses: Sequence[Witness] = ()
    starts: Mapping[str, float | None] | None = None
    up: int = 0
    external_tokens: float | None = None
    external_queries: float | None = None


@dataclass(frozen=True)
class HostLook:
    """What the panel's own host says, for servers that run on it: `stalled_seconds` as in `host`, or why it is None."""

    stalled_seconds: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class ServerPoll:
    """The outcome of one poll. `samples`: series name → value; a series that is missing is not known now."""

    memory: ServerMemory
    samples: Mapping[str, float]
    judgement: Judgement
    observed: Observed


def read_server(
    reading: ServerReading,
    memory: ServerMemory,
    engines: EnginesSeen,
    *,
    now: float,
    interval: float,
    host: HostLook | None = None,
) -> ServerPoll:
    """What one poll adds to what was known. `now` is the time at its end, `interval` the poll interval, seconds;
    `host` is None for a server on another host."""
    memory = _follow_process(reading, memory, now)
    memory = _follow_contexts(reading, memory, engines, now)
    memory, deltas, seconds = _follow_counters(reading, memory, now, interval, host)
    seen, context = _seen(reading), _context(memory, engines, now)
    judgement = judge_server(seen, context)
    rate = hit_rate.hit_rate(memory.window, _why_no_rate(reading, memory))
    check = hit_rate.cross_check(rate, engines.external_tokens, engines.external_queries)
    complete = reading.status is not None and (reading.metrics is not None or _metrics_absent(reading))
    values = {
        **memory.values,
        "http_up": judgement.http_up,
        "engine_up": judgement.engine_up,
        "engines_registered": judgement.engines_registered,
        "lights": lights.with_since(lights.lights_of(seen, judgement, context), memory.values.get("lights"), now),
        "last_error": _last_error(reading),
        "restarted_at": memory.restarted_at,
        "hit_rate": hit_rate_view(rate),
        "hit_rate_check": CrossCheckView(
            state=check.state, reason=check.reason, external_tokens=check.external_tokens
        ).model_dump(),
        "layouts": [layout_json(s) for s in memory.layouts],
        "warnings": warnings_of(reading, deltas, metrics_absent=_metrics_absent(reading)),
    }
    if reading.http_up:
        values |= known_values(reading)
    if reading.metrics is not None:
        values["load"] = load.server_view(
            reading.metrics,
            deltas,
            seconds,
            now,
            memory.values.get("load") or {},
            shares_host=host is not None,
            pressure_reason=host.reason if host is not None else None,
        )
    memory = replace(memory, values=values, polled_at=now, scraped_at=now if complete else memory.scraped_at)
    return ServerPoll(
        memory=memory,
        samples=_samples(reading, judgement, deltas, seconds),
        judgement=judgement,
        observed=_observed(reading, memory, engines, now),
    )


# ---- what changes from poll to poll ----


def _follow_process(reading: ServerReading, memory: ServerMemory, now: float) -> ServerMemory:
    """Notices a restart: another instance id or process start than the last one seen."""
    if reading.status is not None and reading.status.engines_registered is not None:
        count: int | None = reading.status.engines_registered
        memory = replace(memory, engines_back=memory.engines_back or bool(count))
    else:
        count = memory.last_engines
    process = (reading.instance_id, reading.process_start_time)
    if process == (None, None):
        return memory
    before = CounterPoint(0.0, memory.process, {})
    if rates.same_process(before, CounterPoint(0.0, process, {})) is False:
        memory = replace(
            memory,
            restarted_at=process[1] if process[1] is not None else now,
            engines_before=memory.last_engines,
            engines_back=bool(reading.status and reading.status.engines_registered),
            contexts={},
        )
        memory = replace(memory, process=process)
    else:
        known = tuple(new if new is not None else old for new, old in zip(process, memory.process, strict=True))
        memory = replace(memory, process=(known[0], known[1]))  # type: ignore[arg-type]
    return replace(memory, last_engines=count)


def _follow_contexts(reading: ServerReading, memory: ServerMemory, engines: EnginesSeen, now: float) -> ServerMemory:
    if reading.status is None:
        return memory
    found = contexts.complete(reading.layouts(), memory.contexts, engines.witnesses, now)
    return replace(memory, contexts=found, layouts=contexts.remember(memory.layouts, found, now))


def _follow_counters(
    reading: ServerReading, memory: ServerMemory, now: float, interval: float, host: HostLook | None
) -> tuple[ServerMemory, dict[str, float | None], float | None]:
    """The counters' increments since the last scrape and the seconds they cover (none after a gap)."""
    kept = window.expire(memory.window, now)
    if reading.metrics is None:
        return replace(memory, window=kept), {}, None
    counters = _counters(reading.metrics) | load.server_counters(
        reading.metrics, host.stalled_seconds if host else None
    )
    point = CounterPoint(now, (reading.instance_id, reading.process_start_time), counters)
    before = rates.base_for(memory.counters, point, interval, window.WINDOW_SECONDS)
    deltas: dict[str, float | None] = {}
    seconds: float | None = None
    if before is not None:
        deltas = rates.increments(before, point)
        seconds = point.at - before.at
        deltas["l2_store_bytes"] = _stored_bytes(before, point, deltas, reading, memory.contexts)
        lookups = {
            "requested": deltas.get("requested_tokens"),
            "hit": deltas.get("hit_tokens"),
            "l1": deltas.get("l1_hit_tokens"),
            "l2": deltas.get("l2_hit_tokens"),
        }
        if lookups["requested"] is not None and lookups["hit"] is not None:
            kept = window.push(kept, Slice(before.at, point.at, lookups))
    return replace(memory, counters=point, window=kept), deltas, seconds


def _counters(metrics: ServerMetrics) -> dict[str, float | None]:
    """Counters under the names of their series. Lookup series appear with the first lookup: absent is none so far,
    unless the scrape holds nothing of LMCache at all. The split is a newer series: absent beside hits is unknown."""
    readable = metrics.any_lmcache_series
    requested = metrics.lookup_requested_tokens
    hit = metrics.lookup_hit_tokens
    if readable:
        requested = 0.0 if requested is None else requested
        hit = 0.0 if hit is None else hit
    split_known = hit == 0.0 or metrics.lookup_hit_l1_tokens is not None or metrics.lookup_hit_l2_tokens is not None

    def split(value: float | None) -> float | None:
        return value if value is not None else 0.0 if split_known and hit is not None else None

    evicted = metrics.l1_evicted_chunks
    return {
        "requested_tokens": requested,
        "hit_tokens": hit,
        "l1_hit_tokens": split(metrics.lookup_hit_l1_tokens),
        "l2_hit_tokens": split(metrics.lookup_hit_l2_tokens),
        "l1_evicted_chunks": 0.0 if evicted is None and readable else evicted,
        "l2_stored_chunks": metrics.l2_store_completed_chunks,
        "l2_stored_records": _stored_records(metrics),
        "l2_loaded_records": _loaded_records(metrics, split(metrics.lookup_hit_l2_tokens)),
        "l2_usage_bytes": metrics.l2_usage_total_bytes,
        "event_bus_dropped": metrics.event_bus_dropped,
        **server_events(metrics),
    }


def _stored_records(metrics: ServerMetrics) -> float | None:
    """Records written to L2. Absent is none so far only while L1 has none either: an older LMCache does not count."""
    stored = metrics.l2_store_completed_chunks
    if stored is None and metrics.any_lmcache_series:
        nothing = not metrics.l1_write_chunks or metrics.l2_store_submitted_chunks == 0
        return 0.0 if nothing else None
    return stored


def _loaded_records(metrics: ServerMetrics, l2_hits: float | None) -> float | None:
    """Records read back from L2. Absent is none so far only where no look-up was answered from L2 either."""
    loaded = metrics.l2_load_completed_chunks
    if loaded is None and metrics.any_lmcache_series and not metrics.l2_load_submitted_chunks:
        return 0.0 if l2_hits == 0 else None
    return loaded


def _stored_bytes(
    before: CounterPoint,
    point: CounterPoint,
    deltas: Mapping[str, float | None],
    reading: ServerReading,
    known: Mapping[str, Context],
) -> float | None:
    """Bytes stored into L2: the growth of the server's own byte count where nothing evicts, else chunks times size."""
    adapters = reading.config.adapters if reading.config is not None else ()
    evicting = any(a.eviction is not False and a.type not in NEVER_EVICTS for a in adapters)
    old, new = before.values.get("l2_usage_bytes"), point.values.get("l2_usage_bytes")
    fell = old is not None and new is not None and new < old and rates.same_process(before, point) is not False
    if adapters and not evicting and not fell and deltas.get("l2_usage_bytes") is not None:
        return deltas["l2_usage_bytes"]
    chunks = deltas.get("l2_stored_chunks")
    if chunks is None:
        return None
    if chunks == 0:
        return 0.0
    sizes = {expected_object_bytes(c.layout, g.index) for c in known.values() for g in c.layout.groups}
    size = sizes.pop() if len(sizes) == 1 else None
    return None if size is None else chunks * size


# ---- health ----


def _seen(reading: ServerReading) -> ServerSeen:
    status = reading.status
    failed = [reading.error_kinds[part] for part in ("health", "status", "metrics") if part in reading.error_kinds]
    return ServerSeen(
        http_up=reading.http_up,
        slow=bool(failed) and set(failed) <= {"timeout"},
        healthcheck_ok=None if reading.health is None else reading.health.ok,
        healthcheck_error=reading.health.reason if reading.health is not None else reading.health_reason,
        status_read=status is not None,
        status_error=reading.status_reason,
        is_healthy=None if status is None else status.is_healthy,
        unhealthy_parts=() if status is None else status.unhealthy_parts,
        warnings=() if status is None else status.warnings,
        engines_registered=None if status is None else status.engines_registered,
        metrics_error=None if reading.metrics is not None or _metrics_absent(reading) else reading.metrics_reason,
        config_error=None if _is_not_there(reading.config_reason) else reading.config_reason,
    )


def _context(memory: ServerMemory, engines: EnginesSeen, now: float) -> ServerContext:
    waiting = memory.restarted_at is not None and not memory.engines_back
    return ServerContext(
        engines_before=memory.engines_before,
        restarted_seconds_ago=max(0.0, now - memory.restarted_at) if waiting and memory.restarted_at else None,
        engines_up=engines.up,
    )


def _metrics_absent(reading: ServerReading) -> bool:
    """Whether there simply is no ``/metrics`` here (pushed elsewhere, on another port, switched off)."""
    if reading.pushes_metrics or (reading.config is not None and reading.config.metrics_enabled is False):
        return True
    return reading.metrics is None and _is_not_there(reading.metrics_reason)


def _is_not_there(reason: str | None) -> bool:
    return reason is not None and _NOT_THERE.search(reason) is not None


def _last_error(reading: ServerReading) -> str | None:
    reasons = (reading.health_reason, reading.status_reason, reading.metrics_reason, reading.config_reason)
    return next((reason for reason in reasons if reason), None)


def _why_no_rate(reading: ServerReading, memory: ServerMemory) -> str:
    if reading.metrics is None:
        return reading.metrics_reason or "/metrics was not read"
    if not reading.metrics.any_lmcache_series:
        return "this server's /metrics holds no lmcache_mp series"
    if memory.counters is None or memory.counters.values.get("requested_tokens") is None:
        return "this server counts no lookups"
    return "one reading so far: a rate needs two polls"


def _samples(
    reading: ServerReading, judgement: Judgement, deltas: Mapping[str, float | None], seconds: float | None
) -> dict[str, float]:
    status, metrics = reading.status, reading.metrics
    values: dict[str, float | None] = {"up": 1.0 if judgement.http_up else 0.0}
    if judgement.http_up:
        values["poll_seconds"] = reading.duration_seconds
    if status is not None:
        values["l1_used_bytes"] = status.l1_used_bytes
        values["l1_usage_ratio"] = status.l1_usage_ratio
        values["l1_object_count"] = status.l1_object_count
        values["engines_registered"] = status.engines_registered
    if metrics is not None:
        values["l2_usage_bytes"] = metrics.l2_usage_total_bytes
        values["resident_bytes"] = metrics.resident_bytes
    if seconds is not None:
        values[INTERVAL] = seconds
        tokens = ("requested_tokens", "hit_tokens", "l1_hit_tokens", "l2_hit_tokens")
        chunks = ("l1_written_chunks", "l1_evicted_chunks")
        values |= {name: deltas.get(name) for name in (*tokens, *chunks, "l2_store_bytes", *L2_RECORDS)}
        values |= load.server_samples(deltas)
    return {name: float(value) for name, value in values.items() if value is not None}


def _observed(reading: ServerReading, memory: ServerMemory, engines: EnginesSeen, now: float) -> Observed:
    offset = _clock_offset(reading, now)
    if reading.status is None:
        return Observed(at=now, ok=False, reason=reading.status_reason or "no /status", clock_offset=offset)
    metrics = reading.metrics
    return Observed(
        at=now,
        ok=True,
        instance_id=reading.instance_id,
        process_start=reading.process_start_time,
        lmcache_version=reading.version,
        contexts={ident: json.loads(context.layout.to_json()) for ident, context in sorted(memory.contexts.items())},
        engine_starts=dict(engines.starts or {}),
        engine_ids=None if metrics is None else tuple(sorted(metrics.engine_ids)),
        drained=reading.status.store_drained,
        clock_offset=offset,
        reap_timeout_seconds=reading.status.reap_timeout_seconds,
    )


def _clock_offset(reading: ServerReading, now: float) -> float | None:
    """The panel's clock minus the server's; the Date header has whole seconds, so it is right to half a second."""
    if reading.server_date is None:
        return None
    date, received = reading.server_date
    at_receipt = now - max(0.0, reading.started_at + reading.duration_seconds - received)
    return round(at_receipt - (date + 0.5), 3)
