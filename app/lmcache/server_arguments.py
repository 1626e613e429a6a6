"""The command line of ``lmcache server`` as the configuration that such a server would report.

Options that are not given take the defaults of LMCache 0.5.6. For judging a command before it is started.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from app.lmcache.configuration import ServerConfig, parse_config
from app.wire.arguments import Options, read_options

GIB = 2**30
#: Defaults of LMCache 0.5.6.
DEFAULTS = {
    "chunk_size": 256,
    "hash_algorithm": "blake3",
    "supported_transfer_mode": "lmcache_driven",
    "max_workers": 1,
    "worker_reap_timeout_seconds": 120.0,
    "worker_registration_grace_seconds": 3600.0,
    "session_ttl_seconds": 600.0,
    "engine_type": "default",
}


def server_options(tokens: Sequence[str]) -> Options:
    """The options after ``lmcache server``."""
    return read_options(tokens)


def planned_config(options: Options) -> tuple[ServerConfig, tuple[str, ...]]:
    """(the configuration, sentences about what of it cannot be read)."""
    problems: list[str] = []
    adapters = [_adapter(text, problems) for text in options.values.get("l2_adapter", ())]
    l1 = options.number("l1_size_gb")
    init = options.number("l1_init_size_gb")
    size = None if l1 is None else int(l1 * GIB)
    workers = options.count("max_workers") or 1
    init_bytes = int((20 if init is None else init) * GIB)
    eviction = {
        "eviction_policy": options.text("eviction_policy"),
        "trigger_watermark": _or(options.number("eviction_trigger_watermark"), 0.8),
        "eviction_ratio": _or(options.number("eviction_ratio"), 0.2),
    }
    body: dict[str, object] = {
        "mp": {
            **{name: _or(_typed(options, name, default), default) for name, default in DEFAULTS.items()},
            "host": options.text("host") or "localhost",
            "port": options.count("port") or 5555,
            "transport": options.text("transport") or "zmq",
            "instance_id": options.text("instance_id"),
            "isolated_ipc": options.flag("isolated_ipc") or False,
            "separate_object_groups": options.flag("separate_object_groups") or False,
            "max_gpu_workers": options.count("max_gpu_workers") or workers,
            "max_cpu_workers": options.count("max_cpu_workers") or workers,
            "shm_name": options.text("shm_name") or "",
            "run_script_api_enabled": options.flag("run_script_api_enabled") or False,
        },
        "storage_manager": {
            "l1_manager_config": {
                "memory_config": {
                    "size_in_bytes": size,
                    "use_lazy": True if options.flag("l1_use_lazy") is None else options.flag("l1_use_lazy"),
                    "init_size_in_bytes": min(init_bytes, size) if size is not None else None,
                    "align_bytes": options.count("l1_align_bytes") or 4096,
                },
                "eviction": eviction,
            },
            "eviction_config": eviction,
            "l2_adapter_config": {"adapters": [adapter for adapter in adapters if adapter is not None]},
            "store_policy": options.text("l2_store_policy") or "default",
            "prefetch_load_timeout": options.number("l2_prefetch_load_timeout"),
        },
        "observability": {
            "metrics_enabled": not (options.flag("disable_metrics") or options.flag("disable_observability")),
            "otlp_endpoint": options.text("otlp_endpoint"),
            "prometheus_port": options.count("prometheus_port") or 9090,
        },
        "http": {
            "http_host": options.text("http_host") or "127.0.0.1",
            "http_port": options.count("http_port") or 8080,
        },
    }
    if size is None:
        problems.append("--l1-size-gb is not given: lmcache server does not start without it")
    if options.text("eviction_policy") is None:
        problems.append("--eviction-policy is not given: lmcache server does not start without it")
    return parse_config(body), tuple(problems)


def _adapter(text: str, problems: list[str]) -> dict[str, object] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        problems.append(f"--l2-adapter is not valid JSON: {text[:80]!r}")
        return None
    if not isinstance(value, dict):
        problems.append("--l2-adapter is JSON but no object")
        return None
    # /config prints the parsed blocks under these names, null where there is none
    value.setdefault("eviction_config", value.pop("eviction", None))
    value.setdefault("serde_config", value.pop("serde", None))
    value.setdefault("use_odirect", False)
    return value


def _typed(options: Options, name: str, default: object) -> object:
    if isinstance(default, str):
        return options.text(name)
    return options.count(name) if isinstance(default, int) else options.number(name)


def _or(value: object, default: object) -> object:  # 0 is a value
    return default if value is None else value
