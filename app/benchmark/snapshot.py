"""What was in force at a scenario's engine and server, taken before and after, and what differs. Pure but for reading.

A snapshot is JSON: {"engine": {...}, "server": {...} | None, "labels": {...}, "readers": [{...}]}; a reader looks like
an engine. Two snapshots of one scenario must agree (else the run is invalid); those of A and B should differ in the
connector only (else each difference is listed).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from app.acceptance.facts import Facts
from app.lmcache.polling import ServerReading
from app.vllm.facts import CHECKED_SETTINGS
from app.vllm.polling import EngineReading

#: Settings of the engine that are the connector's: the only ones in which A and B should differ.
CONNECTOR: Final = frozenset({"kv_connector", "kv_role", "connector_options", "engine_id"})
SETTINGS: Final = (*CHECKED_SETTINGS, "num_gpu_blocks")
#: What is different from start to start, or belongs to one process only: told, never compared between scenarios.
_IDENTITY: Final = frozenset({"name", "process_start", "instance_id", "served_model", "cpu_seconds"})
_ENGINE_CHANGES: Final = ("process_start", "version", "model_root", "l0_tokens", "layout_fingerprint", "settings")
_SERVER_CHANGES: Final = (
    "process_start",
    "instance_id",
    "version",
    "chunk_size",
    "l1_bytes",
    "trigger_watermark",
    "eviction_ratio",
    "eviction_policy",
    "separate_object_groups",
    "adapters",
)
#: Facts of an engine or a server in words.
WORDS: Final[Mapping[str, str]] = {
    "process_start": "the process was restarted",
    "instance_id": "the process was restarted",
    "layout_fingerprint": "the KV layout changed",
}


def take(
    engine_name: str,
    server_name: str | None,
    facts: Facts,
    engine: EngineReading,
    server: ServerReading | None,
    labels: Mapping[str, str | None],
) -> dict[str, Any]:
    """The snapshot of one scenario from one poll of each target. `labels`: hardware and image, as the operator says."""
    told = {} if engine.facts is None else asdict(engine.facts)
    settings = {name: told.get(name) for name in SETTINGS} if told else dict(facts.settings)
    found: dict[str, Any] = {
        "engine": {
            "name": engine_name,
            "version": facts.engine_version,
            "served_model": facts.model,
            "model_root": facts.model_root,
            "process_start": facts.engine_start,
            "prefix_caching": facts.prefix_caching,
            "hybrid": facts.hybrid,
            "block_size": facts.block_size,
            "l0_tokens": facts.l0_tokens,
            "layout_fingerprint": None if facts.layout is None else facts.layout.fingerprint,
            "dtype": None if facts.layout is None else facts.layout.dtype,
            "bytes_per_token": None if facts.layout is None else facts.layout.bytes_per_token,
            "world_size": None if facts.layout is None else facts.layout.world_size,
            "object_groups": None if facts.layout is None else len(facts.layout.groups),
            "settings": settings,
            "settings_known": bool(told),
        },
        "server": None,
        "labels": dict(labels),
    }
    if server is not None:
        status, config = server.status, server.config
        found["server"] = {
            "name": server_name,
            "version": facts.server_version,
            "process_start": facts.server_start,
            "instance_id": facts.server_instance,
            "chunk_size": facts.chunk_size,
            "l1_bytes": facts.l1_bytes,
            "trigger_watermark": facts.l1_watermark,
            "eviction_ratio": status.eviction_ratio if status is not None else None,
            "eviction_policy": facts.eviction_policy,
            "separate_object_groups": config.separate_object_groups if config is not None else None,
            "transfer_mode": config.supported_transfer_mode if config is not None else None,
            "adapters": [
                {
                    "type": a.type,
                    "base_path": a.base_path,
                    "use_odirect": a.use_odirect,
                    "max_capacity_gb": a.max_capacity_gb,
                }
                for a in (config.adapters if config is not None else ())
            ]
            or list(facts.l2_adapters),
        }
    return found


def changes(before: Mapping[str, Any], after: Mapping[str, Any], *, restarts: bool = False) -> list[str]:
    """Sentences on what changed between two snapshots of one scenario; empty when nothing did.

    A fact that one of them could not read proves no change. `restarts`: new processes are no change.
    """
    found: list[str] = []
    later = {reader["name"]: reader for reader in after.get("readers") or ()}
    looks = [
        ("engine", _ENGINE_CHANGES, before.get("engine"), after.get("engine")),
        ("cache server", _SERVER_CHANGES, before.get("server"), after.get("server")),
        *(("engine", _ENGINE_CHANGES, old, later.get(old["name"])) for old in before.get("readers") or ()),
    ]
    for word, names, old, new in looks:
        if not old or not new:
            continue
        who = f"{word} {old['name']}"
        for name in names:
            if restarts and name in ("process_start", "instance_id"):
                continue
            for key, a, b in _pairs(name, old.get(name), new.get(name)):
                text = WORDS.get(key) or f"{key} changed from {a!r} to {b!r}"
                sentence = f"{who}: {text}"
                if sentence not in found:
                    found.append(sentence)
    return found


def _pairs(name: str, a: Any, b: Any) -> list[tuple[str, Any, Any]]:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return [(k, a[k], b[k]) for k in a if k in b and a[k] is not None and b[k] is not None and a[k] != b[k]]
    return [(name, a, b)] if a is not None and b is not None and a != b else []


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What differs between two scenarios: [{part, field, a, b, connector}].

    `connector` marks what belongs to the connector and the cache server, which is meant to differ. A fact that only
    one side tells is listed too: "not told" is no proof of being equal.
    """
    found: list[dict[str, Any]] = []

    def note(part: str, field: str, x: Any, y: Any, connector: bool) -> None:
        if x != y:
            found.append({"part": part, "field": field, "a": x, "b": y, "connector": connector})

    one, two = a["engine"], b["engine"]
    for field in one:
        if field in _IDENTITY or field in ("settings", "settings_known"):
            continue
        # The layout is registered at a cache server: an engine without one tells none.
        through_server = field in ("layout_fingerprint", "dtype", "bytes_per_token", "world_size", "object_groups")
        if through_server and (a.get("server") is None or b.get("server") is None):
            continue
        note("engine", field, one[field], two.get(field), False)
    for field in dict.fromkeys((*one["settings"], *two["settings"])):
        note("engine", field, one["settings"].get(field), two["settings"].get(field), field in CONNECTOR)
    for field in dict.fromkeys((*a["labels"], *b["labels"])):
        note("label", field, a["labels"].get(field), b["labels"].get(field), False)
    server_a, server_b = a.get("server"), b.get("server")
    if (server_a is None) != (server_b is None):
        names = [None if s is None else s["name"] for s in (server_a, server_b)]
        note("server", "cache server", names[0], names[1], True)
    elif server_a is not None and server_b is not None:
        for field in server_a:
            if field not in _IDENTITY:
                note("server", field, server_a[field], server_b.get(field), False)
    return found


def only_the_connector(found: list[dict[str, Any]], a: Mapping[str, Any], b: Mapping[str, Any]) -> bool | None:
    """Whether A and B differ in the connector alone; None where an engine tells too little to say so."""
    if any(not d["connector"] for d in found):
        return False
    return True if a["engine"]["settings_known"] and b["engine"]["settings_known"] else None
