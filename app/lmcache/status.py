"""What a cache server's ``/status`` says, whatever its version (field names of LMCache 0.4.2 to 0.5.6 are known).

Newer servers report each L1 under ``l1_managers{tag}`` and repeat the only one as ``l1_manager``; here the tagged ones
are summed and the single one is read only where there are none. What a server does not tell is None, and `absent` says
which field was looked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from app.errors import TargetError
from app.lmcache.contexts import parse_contexts
from app.lmcache.layouts import KVLayout
from app.wire import fields

_MAX_PARTS = 200
_MAX_KEY = 80
_LISTED_TWICE = (
    ("l1_manager", "l1_managers"),
    ("store_controller", "store_controllers"),
    ("l1_eviction_controller", "l1_eviction_controllers"),
)
_MARKERS = ("is_healthy", "storage_manager", "chunk_size", "engine_type", "registered_gpu_ids")
ADAPTER_TYPES = {"FSL2Adapter": "fs", "FSNativeL2Adapter": "fs_native", "S3L2Adapter": "s3", "P2PL2Adapter": "p2p"}


@dataclass(frozen=True, slots=True)
class L2AdapterStatus:
    """One L2 adapter. `type` is LMCache's configuration name where known (``fs``), else the class name as reported.

    `used_bytes` and `capacity_bytes` are the adapter's own count: the file adapters report none.
    """

    type: str | None
    base_path: str | None
    is_healthy: bool | None
    use_odirect: bool | None
    serde_wrapped: bool
    used_bytes: int | None
    capacity_bytes: int | None


@dataclass(frozen=True, slots=True)
class L2Eviction:
    """One adapter that evicts by itself, as the L2 eviction controller lists it (it does not name the adapter)."""

    policy: str | None
    trigger_watermark: float | None
    eviction_ratio: float | None
    used_bytes: int | None
    capacity_bytes: int | None


@dataclass(frozen=True)
class ServerStatus:
    """One ``/status``. Bytes, seconds and ratios (0-1) as reported; sums run over all L1 managers and controllers.

    `unhealthy_parts` are the JSON paths of the innermost parts with ``is_healthy: false``; `warnings` those that report
    an ``extra_warning`` (their health is unknown, not good). `contexts` holds one layout per registered context id;
    `context_ids` also those whose layout is not told. `workers_registered` counts worker instances (a tensor parallel
    engine has several), `engines_registered` engines; None means the server does not say, 0 that none is attached.
    """

    is_healthy: bool | None
    unhealthy_parts: tuple[str, ...]
    warnings: tuple[str, ...]
    chunk_size: int | None
    hash_algorithm: str | None
    engine_type: str | None
    active_sessions: int | None
    l1_used_bytes: int | None
    l1_total_bytes: int | None
    l1_configured_bytes: int | None
    l1_object_count: int | None
    l1_temporary_count: int | None
    l1_locked_count: int | None
    l1_usage_ratio: float | None
    trigger_watermark: float | None
    eviction_ratio: float | None
    eviction_policy: str | None
    l2_adapters: tuple[L2AdapterStatus, ...]
    l2_evictions: tuple[L2Eviction, ...]
    store_pending: int | None
    store_in_flight: int | None
    prefetch_in_flight: int | None
    contexts: Mapping[str, KVLayout]
    context_ids: tuple[str, ...]
    workers_registered: int | None
    engines_registered: int | None
    reap_timeout_seconds: float | None
    registration_grace_seconds: float | None
    liveness_enabled: bool | None
    absent: Mapping[str, str] = field(default_factory=dict)

    @property
    def store_drained(self) -> bool | None:
        """Whether the store controllers' queues are empty (RULES C2), None where they do not tell."""
        if self.store_pending is None or self.store_in_flight is None:
            return None
        return self.store_pending == 0 and self.store_in_flight == 0


def parse_status(body: object, lmcache_version: str | None = None) -> ServerStatus:
    """Read a parsed ``/status``; `lmcache_version` is noted in the layouts. Raises TargetError ``unreadable``."""
    if not isinstance(body, dict):
        raise TargetError("unreadable", "/status is not a JSON object")
    if not any(marker in body for marker in _MARKERS):
        raise TargetError("unreadable", "/status holds none of the fields of an LMCache server")
    storage = fields.mapping(body.get("storage_manager"))
    l1 = _parts(storage, "l1_managers", "l1_manager")
    stores = _parts(storage, "store_controllers", "store_controller")
    evictions = _parts(storage, "l1_eviction_controllers", "l1_eviction_controller", "eviction_controller")
    chunk_size = fields.count(body.get("chunk_size"))
    liveness = fields.mapping(body.get("worker_liveness"))
    registered = parse_contexts(body, chunk_size, lmcache_version)
    used, total = _sum(l1, "memory_used_bytes"), _sum(l1, "memory_total_bytes")
    values: dict[str, object] = {
        "is_healthy": fields.boolean(body.get("is_healthy")),
        "chunk_size": chunk_size,
        "hash_algorithm": fields.text(body.get("hash_algorithm")),
        "active_sessions": fields.count(body.get("active_sessions")),
        "l1_used_bytes": used,
        "l1_total_bytes": total,
        "l1_configured_bytes": _sum(l1, "memory_configured_bytes"),
        "l1_object_count": _sum(l1, "total_object_count"),
        "trigger_watermark": _lowest(evictions, "trigger_watermark"),
        "eviction_ratio": _lowest(evictions, "eviction_ratio"),
        "eviction_policy": _common_text(evictions, "eviction_policy"),
        "store_pending": _sum(stores, "pending_keys_count"),
        "store_in_flight": _sum(stores, "in_flight_task_count"),
        "engines_registered": registered.engines,
        "reap_timeout_seconds": fields.number(liveness.get("reap_timeout_seconds")),
    }
    absent = _absent(values, {"l1_manager": l1, "l1_eviction_controller": evictions, "store_controller": stores})
    usage = _ratio(l1, used, total)
    if usage is None and used is not None and total:
        absent["l1_usage_ratio"] = f"this server's /status says {used} of {total} bytes of L1 are used, which cannot be"
    elif usage is None and any(fields.number(part.get("memory_usage_ratio")) is not None for part in l1):
        told = l1[0].get("memory_usage_ratio")
        absent["l1_usage_ratio"] = f"this server's /status says memory_usage_ratio is {told}, which is no ratio"
    absent.update(registered.absent)
    return ServerStatus(
        unhealthy_parts=tuple(_unhealthy(body)),
        warnings=tuple(_warnings(body)),
        engine_type=fields.text(body.get("engine_type")),
        l1_temporary_count=_sum(l1, "temporary_count"),
        l1_locked_count=_locked(l1),
        l1_usage_ratio=usage,
        l2_adapters=tuple(_adapter(item) for item in fields.sequence(storage.get("l2_adapters"))),
        l2_evictions=tuple(_l2_evictions(fields.mapping(storage.get("l2_eviction_controller")))),
        prefetch_in_flight=fields.count(
            fields.mapping(storage.get("prefetch_controller")).get("in_flight_request_count")
        ),
        contexts=registered.layouts,
        context_ids=registered.ids,
        workers_registered=registered.workers,
        registration_grace_seconds=fields.number(liveness.get("registration_grace_seconds")),
        liveness_enabled=fields.boolean(liveness.get("enabled")),
        absent=absent,
        **values,  # type: ignore[arg-type]
    )


_SOURCES = {
    "is_healthy": "is_healthy",
    "chunk_size": "chunk_size",
    "hash_algorithm": "hash_algorithm",
    "active_sessions": "active_sessions",
    "l1_used_bytes": "l1_manager.memory_used_bytes",
    "l1_total_bytes": "l1_manager.memory_total_bytes",
    "l1_configured_bytes": "l1_manager.memory_configured_bytes",
    "l1_object_count": "l1_manager.total_object_count",
    "trigger_watermark": "l1_eviction_controller.trigger_watermark",
    "eviction_ratio": "l1_eviction_controller.eviction_ratio",
    "eviction_policy": "l1_eviction_controller.eviction_policy (or the L1s differ)",
    "store_pending": "store_controller.pending_keys_count",
    "store_in_flight": "store_controller.in_flight_task_count",
    "engines_registered": "registered contexts (cache_context_meta, non_cuda_context_meta, worker_liveness)",
    "reap_timeout_seconds": "worker_liveness.reap_timeout_seconds",
}


def _parts(storage: Mapping[str, object], tagged: str, *single: str) -> list[Mapping[str, object]]:
    """The parts of one kind: the tagged ones, or the single one under the first name that is there."""
    many = [item for item in fields.mapping(storage.get(tagged)).values() if isinstance(item, dict)]
    if many:
        return list(many)
    for name in single:
        one = storage.get(name)
        if isinstance(one, dict):
            return [one]
    return []


def _sum(parts: list[Mapping[str, object]], name: str) -> int | None:
    """The sum over all parts; unknown as soon as one part does not tell it."""
    total = 0
    for part in parts:
        value = fields.count(part.get(name))
        if value is None:
            return None
        total += value
    return total if parts and total < 2**63 else None


def _locked(parts: list[Mapping[str, object]]) -> int | None:
    read, write = _sum(parts, "read_locked_count"), _sum(parts, "write_locked_count")
    return None if read is None or write is None else read + write


def _ratio(parts: list[Mapping[str, object]], used: int | None, total: int | None) -> float | None:
    if used is not None and total:
        return fields.share(used / total)
    return fields.ratio(parts[0].get("memory_usage_ratio")) if len(parts) == 1 else None


def _absent(values: Mapping[str, object], parts: Mapping[str, list[Mapping[str, object]]]) -> dict[str, str]:
    """Why each value that is not known is not: it is not told, or what is told cannot be."""
    found: dict[str, str] = {}
    for name, value in values.items():
        if value is not None:
            continue
        part, _, key = _SOURCES[name].partition(" ")[0].rpartition(".")
        told = [p[key] for p in parts.get(part, ()) if p.get(key) is not None]
        found[name] = (
            f"this server's /status says {_SOURCES[name]} is {str(told[0])[:40]}, which cannot be"
            if any(isinstance(item, int | float) for item in told)
            else f"this server's /status has no {_SOURCES[name]}"
        )
    return found


def _lowest(parts: list[Mapping[str, object]], name: str) -> float | None:
    """With several L1s the lowest setting acts first."""
    known = [value for part in parts if (value := fields.ratio(part.get(name))) is not None]
    return min(known, default=None)


def _common_text(parts: list[Mapping[str, object]], name: str) -> str | None:
    known = {fields.text(part.get(name)) for part in parts}
    return known.pop() if len(known) == 1 else None


def _adapter(item: object) -> L2AdapterStatus:
    value = fields.mapping(item)
    kind = fields.text(value.get("type"))
    capacity = _first_count(value, "max_capacity_bytes", "max_dax_size_bytes", "total_capacity_bytes", "capacity_bytes")
    return L2AdapterStatus(
        type=ADAPTER_TYPES.get(kind, kind) if kind else None,
        base_path=fields.text(value.get("base_path")),
        is_healthy=None if "extra_warning" in value else fields.boolean(value.get("is_healthy")),
        use_odirect=fields.boolean(value.get("use_odirect")),
        serde_wrapped=value.get("serde_wrapped") is True,
        used_bytes=_first_count(value, "current_size_bytes", "total_bytes_used", "used_bytes"),
        capacity_bytes=capacity or None,  # 0 is LMCache's "no limit declared"
    )


def _l2_evictions(controller: Mapping[str, object]) -> Iterator[L2Eviction]:
    for item in fields.sequence(controller.get("adapters")):
        value = fields.mapping(item)
        yield L2Eviction(
            policy=fields.text(value.get("eviction_policy")),
            trigger_watermark=fields.ratio(value.get("trigger_watermark")),
            eviction_ratio=fields.ratio(value.get("eviction_ratio")),
            used_bytes=fields.count(value.get("total_bytes_used")),
            capacity_bytes=fields.count(value.get("total_capacity_bytes")) or None,
        )


def _first_count(value: Mapping[str, object], *names: str) -> int | None:
    for name in names:
        found = fields.count(value.get(name))
        if found is not None:
            return found
    return None


def _walk(value: object, path: str = "") -> Iterator[tuple[str, Mapping[str, object]]]:
    """(path, object) of every JSON object, outer before inner; what newer servers list twice comes once."""
    pending: list[tuple[str, object]] = [(path, value)]
    while pending:
        where, current = pending.pop()
        if isinstance(current, dict):
            yield where, current
            doubles = {single for single, tagged in _LISTED_TWICE if tagged in current}
            inner = [
                (f"{where}.{key[:_MAX_KEY]}" if where else key[:_MAX_KEY], item)
                for key, item in current.items()
                if key not in doubles
            ]
        elif isinstance(current, list):
            inner = [(f"{where}[{index}]", item) for index, item in enumerate(current)]
        else:
            continue
        pending.extend(reversed([pair for pair in inner if isinstance(pair[1], (dict, list))]))


def _unhealthy(body: Mapping[str, object]) -> list[str]:
    """Innermost unhealthy parts; a part whose own parts are named is only their sum. The whole body is not a part."""
    found = [path for path, value in _walk(body) if path and value.get("is_healthy") is False][:_MAX_PARTS]
    return [
        fields.clean_text(path)
        for path in found
        if not any(other.startswith((f"{path}.", f"{path}[")) for other in found)
    ]


def _warnings(body: Mapping[str, object]) -> Iterator[str]:
    for path, value in _walk(body):
        if "extra_warning" in value:
            said = fields.text(value.get("extra_warning"), limit=500)
            yield fields.clean_text(path) + (f": {said}" if said else "")
