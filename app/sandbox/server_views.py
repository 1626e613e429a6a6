"""The answers of a cache server as JSON-able values and metrics text, shaped as LMCache 0.5.6 shapes them."""

from __future__ import annotations

from typing import Any

from app.sandbox.config import KVLayout
from app.sandbox.exposition import MetricSet
from app.sandbox.server import CacheServer
from app.sandbox.server_counters import L1_TAG, L2_NAME

Json = dict[str, Any]


def status(server: CacheServer, now: float) -> Json:
    """`GET /status`."""
    spec = server.spec
    healthy = not server.faults.status_unhealthy
    adapters = 1 if server.l2 is not None else 0
    waiting, in_flight = server.pending
    l1 = _l1_manager(server, healthy)
    store = {
        "is_healthy": healthy,
        "thread_alive": healthy,
        "pending_keys_count": waiting,
        "in_flight_task_count": in_flight,
        "num_l2_adapters": adapters,
        "num_active_adapters": adapters,
        "num_draining_adapters": 0,
    }
    eviction = {
        "is_healthy": True,
        "thread_alive": True,
        "eviction_policy": spec.eviction_policy,
        "trigger_watermark": spec.trigger_watermark,
        "eviction_ratio": spec.eviction_ratio,
    }
    prefetch = {
        "is_healthy": True,
        "thread_alive": True,
        "max_in_flight": 8,
        "submission_queue_size": 0,
        "pending_queue_size": 0,
        "in_flight_request_count": 0,
        "lookup_phase_count": 0,
        "load_phase_count": 0,
        "completed_results_count": 0,
        "num_l2_adapters": adapters,
        "num_active_adapters": adapters,
        "num_draining_adapters": 0,
    }
    manager: Json = {
        "is_healthy": healthy,
        "l1_managers": {L1_TAG: l1},
        "store_controllers": {L1_TAG: store},
        "l1_eviction_controllers": {L1_TAG: eviction},
        "prefetch_controller": prefetch,
        "l2_eviction_controller": {"is_healthy": True, "thread_alive": True, "adapters": []},
        "l2_adapters": [_adapter_status(server)] if adapters else [],
        "num_l2_adapters": adapters,
        "l1_usage": [server.l1.used, server.l1.capacity],
        "l1_capacity_bytes_by_backend": {"dram": server.l1.capacity},
        "l1_manager": l1,
        "store_controller": store,
        "l1_eviction_controller": eviction,
    }
    return {
        "is_healthy": healthy,
        "engine_type": "MPCacheServer",
        "chunk_size": spec.chunk_size,
        "hash_algorithm": "blake3",
        "active_sessions": 0,
        "storage_manager": manager,
        "active_prefetch_jobs": 0,
        "active_p2p_lookup_jobs": 0,
        "p2p_enabled": False,
        "p2p_state": "unregistered",
        "p2p_peer_count": 0,
        "p2p_peers": [],
        "worker_liveness": {
            "enabled": True,
            "reap_timeout_seconds": spec.reap_timeout_seconds,
            "registration_grace_seconds": spec.registration_grace_seconds,
            "tracked_instances": len(server.contexts),
        },
        "kv_events": {
            "enabled": True,
            "incarnation": int(server.started_at * 1e9),
            "log_depth": min(server.events, 32768),
            "log_capacity": 32768,
            "next_seq": server.events + 1,
            "lost_markers": 0,
            "unbound_stores": 0,
            "subscribers": 0,
        },
        **_contexts(server),
    }


def _l1_manager(server: CacheServer, healthy: bool) -> Json:
    l1 = server.l1
    return {
        "is_healthy": healthy,
        "total_object_count": len(l1),
        "write_locked_count": 0,
        "read_locked_count": 0,
        "temporary_count": 0,
        "staging_object_count": 0,
        "staging_bytes": 0,
        "memory_used_bytes": l1.used,
        "memory_total_bytes": l1.capacity,
        "memory_configured_bytes": l1.capacity,
        "capacity_bytes_by_backend": {"dram": l1.capacity},
        "memory_usage_ratio": l1.used / l1.capacity if l1.capacity else 0.0,
        "write_ttl_seconds": 600,
        "read_ttl_seconds": 300,
    }


def _adapter_status(server: CacheServer) -> Json:
    return {
        "is_healthy": True,
        "type": "FSL2Adapter",
        "base_path": str(server.store_path),
        "use_odirect": True,
        "event_loop_alive": True,
    }


def _contexts(server: CacheServer) -> Json:
    """Registered engines, in the keys of the transfer mode (`auto` shows both pairs)."""
    mode = server.spec.transfer_mode
    contexts = list(server.contexts.values())
    answer: Json = {}
    if mode != "engine_driven":
        answer["registered_gpu_ids"] = [c.instance_id for c in contexts]
        answer["cache_context_meta"] = {
            str(c.instance_id): {
                "model_name": c.model_name,
                "world_size": c.layout.world_size,
                "kv_cache_layout": kv_cache_layout(c.layout, c.num_blocks),
            }
            for c in contexts
        }
    if mode != "lmcache_driven":
        listed = contexts if mode == "engine_driven" else []
        answer["registered_non_cuda_instance_ids"] = [c.instance_id for c in listed]
        answer["non_cuda_context_meta"] = {
            str(c.instance_id): {
                "model_name": c.model_name,
                "world_size": c.layout.world_size,
                "block_size": c.layout.block_size,
                "use_mla": False,
            }
            for c in listed
        }
    return answer


def kv_cache_layout(layout: KVLayout, num_blocks: int) -> Json:
    """`kv_cache_layout` of one context."""
    groups = [
        {
            "kernel_group_idx": index,
            "engine_group_idx": index,
            "object_group_idx": index,
            "num_layers": len(layers),
            "layer_indices": layers,
            "tokens_per_block": layout.block_size,
            "slots_per_block": layout.block_size,
            "dtype": f"torch.{layout.dtype}",
            "engine_kv_concrete_shape": f"Unknown (EngineKVFormat.{layout.engine_kv_format})",
            "is_mla": False,
            "engine_kv_format": layout.engine_kv_format,
            "engine_kv_shape": layout.engine_kv_shape,
            "attention_backend": layout.attention_backend,
        }
        for index, layers in enumerate(layout.group_layers())
    ]
    return {
        "num_layers": layout.layers,
        "num_blocks": num_blocks,
        "cache_size_per_token": layout.token_bytes,
        "kernel_groups": groups,
    }


def metrics_text(server: CacheServer, now: float) -> str:
    """`GET /metrics`: gauges are taken now, counters as they stand."""
    metrics = server.metrics
    process_metrics(metrics, server.started_at, now)
    metrics.set(
        "target_info",
        1,
        service_instance_id=server.instance_id,
        service_name="unknown_service",
        telemetry_sdk_language="python",
        telemetry_sdk_name="opentelemetry",
        telemetry_sdk_version="1.40.0",
    )
    l1 = {"backend": "dram", "l1_tag": L1_TAG}
    metrics.set("lmcache_mp_event_bus_queue_depth", 0)
    metrics.set("lmcache_mp_event_bus_drain_lag_seconds", 0)
    metrics.touch("lmcache_mp_event_bus_dropped_events_total")
    metrics.set("lmcache_mp_l1_memory_usage_bytes", server.l1.used, **l1)
    metrics.set("lmcache_mp_l1_usage_ratio", server.l1.used / server.l1.capacity if server.l1.capacity else 0, **l1)
    metrics.set("lmcache_mp_l1_staging_bytes", 0, **l1)
    active = 1 if server.l2 is not None else 0
    for state, count in (("active", active), ("draining", 0)):
        metrics.set("lmcache_mp_l2_store_adapters", count, l1_tag=L1_TAG, state=state)
        metrics.set("lmcache_mp_l2_prefetch_adapters", count, state=state)
    if server.l2 is not None:
        metrics.set("lmcache_mp_l2_usage_bytes", server.l2_usage, l2_name=L2_NAME)
    metrics.set("lmcache_mp_active_prefetch_jobs", 0)
    metrics.set("lmcache_mp_active_p2p_lookup_jobs", 0)
    metrics.set("lmcache_mp_kv_events_log_depth", min(server.events, 32768))
    return hide(metrics.render(), server.faults.metrics_hidden)


def process_metrics(metrics: MetricSet, started_at: float, now: float) -> None:
    """What the Python client library exports of every process; only the start time matters to anybody."""
    for generation in "012":
        for name, value in (("objects_collected", 700), ("objects_uncollectable", 0), ("collections", 60)):
            metrics.set(f"python_gc_{name}_total", value // (int(generation) + 1), generation=generation)
    labels = {"implementation": "CPython", "major": "3", "minor": "11", "patchlevel": "7", "version": "3.11.7"}
    metrics.set("python_info", 1, **labels)
    metrics.set("process_virtual_memory_bytes", 2.4e9)
    metrics.set("process_resident_memory_bytes", 6.9e8)
    metrics.set("process_start_time_seconds", round(started_at, 2))
    metrics.set("process_cpu_seconds_total", round(3.5 + max(0.0, now - started_at) * 0.02, 2))
    metrics.set("process_open_fds", 40)
    metrics.set("process_max_fds", 20000)


def hide(text: str, prefixes: str) -> str:
    """Leave out the families that start with one of the comma-separated prefixes (`Faults.metrics_hidden`)."""
    if not prefixes:
        return text
    unwanted = tuple(prefixes.split(","))
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if not _family_of(line).startswith(unwanted))


def _family_of(line: str) -> str:
    return line.split(" ", 3)[2] if line.startswith("#") else line.split("{", 1)[0].split(" ", 1)[0]


def threads(server: CacheServer, now: float) -> Json:
    """`GET /periodic-threads`."""
    rows = []
    for name, level, interval, message, extra in (
        (
            "SessionManager-cleanup-thread-7f110d8ad190",
            "medium",
            60.0,
            "Removed 0 expired sessions",
            "removed_sessions",
        ),
        ("DeviceHostFuncDispatcher", "high", 0.005, "dispatched=0", ""),
        ("lmcache-mp-worker-reaper", "medium", 30.0, "reaped=0", ""),
    ):
        runs = int((now - server.started_at) // interval) + 1
        last = server.started_at + (runs - 1) * interval
        rows.append(
            {
                "name": name,
                "level": level,
                "interval": interval,
                "init_wait": 0.0,
                "is_running": True,
                "is_active": True,
                "last_run_time": last,
                "last_run_ago": now - last,
                "total_runs": runs,
                "failed_runs": 0,
                "success_rate": 100.0,
                "last_summary": {
                    "timestamp": last,
                    "duration_ms": 0.02,
                    "success": True,
                    "message": message,
                    "extra_info": {extra: "0"} if extra else {},
                },
            }
        )
    by_level = {level: sum(row["level"] == level for row in rows) for level in ("critical", "high", "medium", "low")}
    levels = {level: {"total": n, "running": n, "active": n} for level, n in by_level.items()}
    summary = {"total_count": len(rows), "running_count": len(rows), "active_count": len(rows), "by_level": levels}
    return {"summary": summary, "threads": rows}


def threads_health() -> Json:
    """`GET /periodic-threads-health`."""
    return {"healthy": True, "unhealthy_count": 0, "unhealthy_threads": []}
