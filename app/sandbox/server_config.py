"""The configuration a cache server reports about itself, shaped as LMCache 0.5.6 shapes it."""

from __future__ import annotations

from typing import Any

from app.sandbox.server import CacheServer
from app.sandbox.server_counters import L1_TAG, L2_NAME

Json = dict[str, Any]


def config(server: CacheServer, port: int) -> Json:
    """`GET /config`."""
    spec = server.spec
    eviction = {
        "eviction_policy": spec.eviction_policy,
        "trigger_watermark": spec.trigger_watermark,
        "eviction_ratio": spec.eviction_ratio,
        "extra_logging_enabled": False,
        "extra_logging_interval": 10.0,
    }
    l1: Json = {
        "memory_config": {
            "size_in_bytes": spec.l1_bytes,
            "use_lazy": False,
            "init_size_in_bytes": spec.l1_bytes,
            "align_bytes": spec.align_bytes,
            "shm_name": "",
            "use_hugepages": False,
            "devdax_path": None,
            "devdax_size_in_bytes": 0,
        },
        "gds_l1_config": None,
        "write_ttl_seconds": 600,
        "read_ttl_seconds": 300,
        "tag": L1_TAG,
        "eviction": eviction,
    }
    adapter = {
        "base_path": str(server.store_path),
        "relative_tmp_dir": spec.relative_tmp_dir,
        "read_ahead_size": None,
        "use_odirect": True,
        "affinity_tag": L1_TAG,
        "shared": False,
        "eviction_config": None,
        "persist_config": "PersistConfig(persist_enabled=True)",
        "serde_config": None,
    }
    return {
        "mp": _mp_config(server),
        "storage_manager": {
            "l1_manager_config": l1,
            "eviction_config": eviction,
            "l2_adapter_config": {"adapters": [adapter] if server.l2 is not None else []},
            "store_policy": "default",
            "prefetch_policy": "default",
            "prefetch_max_in_flight": 8,
            "periodic_notifier_interval_ms": 5,
            "l1_manager_configs": [l1],
        },
        "observability": _observability_config(server),
        "http": {"http_host": "127.0.0.1", "http_port": port},
        "coordinator": {
            "url": "",
            "advertise_ip": "",
            "heartbeat_interval": 5.0,
            "event_reporting": False,
            "event_flush_interval": 1.0,
            "event_sink_config": {},
            "blend_timeout": 1.0,
            "blend_match_concurrency": 8,
        },
    }


def _mp_config(server: CacheServer) -> Json:
    spec = server.spec
    return {
        "transport": "zmq",
        "host": "127.0.0.1",
        "port": 5555,
        "chunk_size": spec.chunk_size,
        "max_workers": 1,
        "max_gpu_workers": 1,
        "max_cpu_workers": 1,
        "grpc_server_workers": 32,
        "hash_algorithm": "blake3",
        "engine_type": "default",
        "separate_object_groups": any(c.layout.object_groups > 1 for c in server.contexts.values()),
        "enable_segmented_prefix": False,
        "enable_dedup_content": False,
        "enable_blend_reorder": False,
        "supported_transfer_mode": spec.transfer_mode,
        "isolated_ipc": False,
        "runtime_plugin_config": {"locations": [], "extra_config": {}},
        "p2p_config": {
            "advertise_url": "",
            "listen_url": "",
            "lookup_timeout": 30.0,
            "load_timeout": 30.0,
            "transfer_engine": "nixl",
        },
        "shm_name": "",
        "script_allowed_imports": [],
        "run_script_api_enabled": False,
        "instance_id": server.instance_id,
        "worker_reap_timeout_seconds": spec.reap_timeout_seconds,
        "session_ttl_seconds": 600.0,
        "worker_registration_grace_seconds": spec.registration_grace_seconds,
        "enable": [],
        "kv_event_log_size": 32768,
        "null_block_id": 0,
        "server_modules": [],
    }


def _observability_config(server: CacheServer) -> Json:
    return {
        "enabled": True,
        "max_queue_size": 10000,
        "metrics_enabled": True,
        "grpc_metrics_enabled": False,
        "logging_enabled": True,
        "tracing_enabled": False,
        "otlp_endpoint": None,
        "prometheus_port": 9090,
        "metrics_sample_rate": server.spec.metrics_sample_rate,
        "lookup_hash_log": {
            "output_dir": "",
            "rotation_interval_sec": 21600,
            "rotation_max_size": 104857600,
            "max_files": 100,
        },
        "gc_monitor": {"enabled": False, "min_pause_ms": 1.0, "top_objects": 0},
        "extra_logging_enabled": False,
        "extra_logging_interval": 10.0,
        "trace_level": None,
        "trace_output": None,
        "service_instance_id": server.instance_id,
    }


def adapters(server: CacheServer) -> Json:
    """`GET /config/adapters`."""
    row = {"index": 0, "type_name": L2_NAME, "tier": "l2", "primary": True, "reconfigurable": False}
    return {"adapters": [row] if server.l2 is not None else []}
