"""What a cache server's ``/config`` (older: ``/conf``) says of its settings.

The adapter entries name no type (``/config/adapters`` does), and servers before 0.5.6 print the adapter objects as text
only; `with_adapter_types` and `with_adapter_status` fill the gaps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from app.errors import TargetError
from app.lmcache.layouts import NO_SERDE
from app.lmcache.status import L2AdapterStatus
from app.wire import fields

_MARKERS = ("mp", "storage_manager", "observability", "http")
_SECRET_WORDS = (
    "password",
    "passwd",
    "secret",
    "token",
    "credential",
    "api_key",
    "apikey",
    "access_key",
    "private_key",
)
_MAX_ADAPTERS = 200


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """One configured L2 adapter.

    `eviction`: True with an eviction block, False when the server says there is none, None when it does not say.
    `max_capacity_gb` is a declaration in LMCache's own GB (2**30 bytes), 0 means none; it bounds nothing without an
    eviction block. `serde` as in `KVLayout.serde`. `raw` are the raw values, secrets masked.
    """

    index: int
    type: str | None
    base_path: str | None
    relative_tmp_dir: str | None
    use_odirect: bool | None
    serde: str | None
    checksum: str | None
    max_capacity_gb: float | None
    eviction: bool | None
    eviction_policy: str | None
    shared: bool | None
    raw: Mapping[str, object]

    @property
    def max_capacity_bytes(self) -> int | None:
        """The declared capacity, None where none is declared."""
        return int(self.max_capacity_gb * 2**30) if self.max_capacity_gb else None


@dataclass(frozen=True, slots=True)
class AdapterEntry:
    """One line of ``/config/adapters``."""

    index: int
    type_name: str
    tier: str | None
    primary: bool | None
    reconfigurable: bool | None


@dataclass(frozen=True)
class ServerConfig:
    """One ``/config``. Bytes, seconds and ratios (0-1); None is what this server does not tell."""

    instance_id: str | None
    chunk_size: int | None
    hash_algorithm: str | None
    supported_transfer_mode: str | None
    separate_object_groups: bool | None
    engine_type: str | None
    isolated_ipc: bool | None
    max_workers: int | None
    worker_reap_timeout_seconds: float | None
    worker_registration_grace_seconds: float | None
    session_ttl_seconds: float | None
    l1_size_bytes: int | None
    l1_init_size_bytes: int | None
    l1_use_lazy: bool | None
    align_bytes: int | None
    eviction_policy: str | None
    trigger_watermark: float | None
    eviction_ratio: float | None
    adapters: tuple[AdapterConfig, ...]
    metrics_enabled: bool | None
    otlp_endpoint: str | None
    prometheus_port: int | None
    http_host: str | None
    http_port: int | None
    run_script_api_enabled: bool | None
    message_host: str | None = None
    message_port: int | None = None
    max_gpu_workers: int | None = None
    max_cpu_workers: int | None = None
    shm_name: str | None = None
    prefetch_load_timeout_seconds: float | None = None
    transport: str | None = None
    metrics_sample_rate: float | None = None
    store_policy: str | None = None

    def adapter_at(self, base_path: str) -> AdapterConfig | None:
        """The first adapter of this directory, as the server calls it."""
        return next((adapter for adapter in self.adapters if adapter.base_path == base_path), None)


def parse_config(body: object) -> ServerConfig:
    """Read a parsed ``/config``. Raises TargetError ``unreadable``."""
    if not isinstance(body, dict) or not any(isinstance(body.get(marker), dict) for marker in _MARKERS):
        raise TargetError("unreadable", "/config holds none of the sections of an LMCache server")
    server = fields.mapping(body.get("mp"))
    storage = fields.mapping(body.get("storage_manager"))
    watching = fields.mapping(body.get("observability"))
    http = fields.mapping(body.get("http"))
    managers = [fields.mapping(item) for item in fields.sequence(storage.get("l1_manager_configs"))]
    if not managers:
        managers = [fields.mapping(storage.get("l1_manager_config"))]
    memories = [fields.mapping(manager.get("memory_config")) for manager in managers]
    eviction = fields.mapping(storage.get("eviction_config")) or fields.mapping(managers[0].get("eviction"))
    adapters = fields.sequence(fields.mapping(storage.get("l2_adapter_config")).get("adapters"))
    return ServerConfig(
        instance_id=fields.text(server.get("instance_id")) or fields.text(watching.get("service_instance_id")),
        chunk_size=fields.count(server.get("chunk_size")),
        hash_algorithm=fields.text(server.get("hash_algorithm")),
        supported_transfer_mode=fields.text(server.get("supported_transfer_mode"))
        or _old_mode(fields.text(server.get("transfer_mode"))),
        separate_object_groups=fields.boolean(server.get("separate_object_groups")),
        engine_type=fields.text(server.get("engine_type")),
        isolated_ipc=fields.boolean(server.get("isolated_ipc")),
        max_workers=fields.count(server.get("max_workers")),
        worker_reap_timeout_seconds=fields.number(server.get("worker_reap_timeout_seconds")),
        worker_registration_grace_seconds=fields.number(server.get("worker_registration_grace_seconds")),
        session_ttl_seconds=fields.number(server.get("session_ttl_seconds")),
        l1_size_bytes=_sum(memories, "size_in_bytes"),
        l1_init_size_bytes=_sum(memories, "init_size_in_bytes"),
        l1_use_lazy=fields.boolean(memories[0].get("use_lazy")),
        align_bytes=fields.count(memories[0].get("align_bytes")),
        eviction_policy=fields.text(eviction.get("eviction_policy")),
        trigger_watermark=fields.ratio(eviction.get("trigger_watermark")),
        eviction_ratio=fields.ratio(eviction.get("eviction_ratio")),
        adapters=tuple(_adapter(index, item) for index, item in enumerate(adapters[:_MAX_ADAPTERS])),
        metrics_enabled=fields.boolean(watching.get("metrics_enabled")),
        otlp_endpoint=fields.text(watching.get("otlp_endpoint")),
        prometheus_port=fields.count(watching.get("prometheus_port")),
        http_host=fields.text(http.get("http_host")),
        http_port=fields.count(http.get("http_port")),
        run_script_api_enabled=fields.boolean(server.get("run_script_api_enabled")),
        message_host=fields.text(server.get("host")),
        message_port=fields.count(server.get("port")),
        max_gpu_workers=fields.count(server.get("max_gpu_workers")),
        max_cpu_workers=fields.count(server.get("max_cpu_workers")),
        shm_name=fields.text(server.get("shm_name")),
        prefetch_load_timeout_seconds=fields.number(storage.get("prefetch_load_timeout")),
        transport=fields.text(server.get("transport")),
        metrics_sample_rate=fields.number(watching.get("metrics_sample_rate")),
        store_policy=fields.text(storage.get("store_policy")),
    )


def parse_adapters(body: object) -> tuple[AdapterEntry, ...]:
    """Read a parsed ``/config/adapters``. Raises TargetError ``unreadable``."""
    if not isinstance(body, dict) or not isinstance(body.get("adapters"), list):
        raise TargetError("unreadable", "/config/adapters is not a list of adapters")
    found: list[AdapterEntry] = []
    for item in body["adapters"][:_MAX_ADAPTERS]:
        value = fields.mapping(item)
        index, name = fields.count(value.get("index")), fields.text(value.get("type_name"))
        if index is not None and name:
            found.append(
                AdapterEntry(
                    index=index,
                    type_name=name,
                    tier=fields.text(value.get("tier")),
                    primary=fields.boolean(value.get("primary")),
                    reconfigurable=fields.boolean(value.get("reconfigurable")),
                )
            )
    return tuple(found)


def with_adapter_types(config: ServerConfig, entries: Sequence[AdapterEntry]) -> ServerConfig:
    """The configuration with the adapters' types from ``/config/adapters``.

    The numbers there count the loaded adapters of L2 in the order of the configuration; where the counts differ
    (adapters added or removed while running) nothing is filled in.
    """
    l2 = sorted((entry for entry in entries if entry.tier in (None, "l2")), key=lambda entry: entry.index)
    if len(l2) != len(config.adapters):
        return config
    adapters = tuple(
        replace(adapter, type=adapter.type or entry.type_name)
        for adapter, entry in zip(config.adapters, l2, strict=True)
    )
    return replace(config, adapters=adapters)


def with_adapter_status(config: ServerConfig, reported: Sequence[L2AdapterStatus]) -> ServerConfig:
    """The configuration with what ``/status`` tells of the same adapters (same order): type, directory, O_DIRECT."""
    if len(reported) != len(config.adapters):
        return config
    adapters = tuple(
        replace(
            adapter,
            type=adapter.type or seen.type,
            base_path=adapter.base_path or seen.base_path,
            use_odirect=adapter.use_odirect if adapter.use_odirect is not None else seen.use_odirect,
        )
        for adapter, seen in zip(config.adapters, reported, strict=True)
    )
    return replace(config, adapters=adapters)


def _old_mode(mode: str | None) -> str | None:
    """0.4.x: ``gpu`` is today's ``lmcache_driven``, the others move data through the engine."""
    return None if mode is None else "lmcache_driven" if mode == "gpu" else "engine_driven"


def _adapter(index: int, item: object) -> AdapterConfig:
    value = fields.mapping(item)
    known = isinstance(item, dict)
    eviction = value.get("eviction_config", value.get("eviction"))
    settings = _masked(value) if known else {"printed": fields.text(item, limit=500) or ""}
    return AdapterConfig(
        index=index,
        type=fields.text(value.get("type")) or fields.text(value.get("type_name")),
        base_path=fields.text(value.get("base_path")),
        relative_tmp_dir=fields.text(value.get("relative_tmp_dir")),
        use_odirect=fields.boolean(value.get("use_odirect")),
        serde=canonical_serde(value.get("serde_config", value.get("serde"))) if known else None,
        checksum=_option(value.get("checksum")),
        max_capacity_gb=fields.number(value.get("max_capacity_gb")),
        eviction=_has(eviction) if known and ("eviction_config" in value or "eviction" in value) else None,
        eviction_policy=fields.text(fields.mapping(eviction).get("eviction_policy")),
        shared=fields.boolean(value.get("shared")),
        raw=settings,
    )


def canonical_serde(value: object) -> str:
    """``"none"`` for nothing, else the settings as canonical JSON (a server may print them as text already)."""
    if not _has(value):
        return NO_SERDE
    if isinstance(value, str):
        return fields.clean_text(value[:500])
    return json.dumps(value, sort_keys=True, separators=(",", ":"))[:2000]


def _has(value: object) -> bool:
    return not (
        value is None or value == {} or (isinstance(value, str) and value.strip().lower() in ("", "none", "null"))
    )


def _option(value: object) -> str | None:
    """A setting that may be absent, false, or a name."""
    text = fields.text(value)
    return None if text is None or not _has(text) else text


def _sum(parts: list[Mapping[str, object]], name: str) -> int | None:
    known = [value for part in parts if (value := fields.count(part.get(name))) is not None]
    total = sum(known)
    return total if known and len(known) == len(parts) and total < 2**63 else None


def _masked(value: Mapping[str, object], depth: int = 0) -> dict[str, object]:
    masked: dict[str, object] = {}
    for key, item in list(value.items())[:100]:
        name = fields.clean_text(key[:100])
        if any(word in name.lower() for word in _SECRET_WORDS) and item:
            masked[name] = "(hidden)"
        elif isinstance(item, dict):
            masked[name] = _masked(item, depth + 1) if depth < 3 else "…"
        elif isinstance(item, str):
            masked[name] = fields.clean_text(item[:1000])
        elif isinstance(item, list):
            masked[name] = (
                f"{len(item)} items" if len(item) > 20 or any(isinstance(part, (dict, list)) for part in item) else item
            )
        else:
            masked[name] = item if fields.number(item) is not None or isinstance(item, bool) or item is None else None
    return masked
