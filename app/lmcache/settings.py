"""A cache server's settings by name, as plain values that can be kept and compared: what it was started with.

`none` stands for a setting that the server says is unset; a name that is missing was not told. What is new with every
boot (ids, addresses of objects) is no setting.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields

from app.lmcache.configuration import AdapterConfig, ServerConfig
from app.lmcache.status import L2AdapterStatus, ServerStatus

UNSET = "none"
_NOT_SETTINGS = frozenset({"instance_id", "adapters"})
_ADAPTER_FIELDS = (
    "type",
    "base_path",
    "relative_tmp_dir",
    "use_odirect",
    "serde",
    "checksum",
    "max_capacity_gb",
    "eviction",
    "eviction_policy",
    "shared",
)
#: Fields of the configuration under which the status tells the same.
_BY_STATUS = ("chunk_size", "hash_algorithm", "eviction_policy", "trigger_watermark", "eviction_ratio")
_OBJECT = re.compile(r" at 0x[0-9a-f]+")  # servers before 0.5.6 print adapters as objects
_DEPTH = 4


def server_settings(config: ServerConfig | None, status: ServerStatus | None = None) -> dict[str, object]:
    """Every setting of a server that its ``/config`` tells, else what its ``/status`` tells of them."""
    found: dict[str, object] = {}
    if status is not None:
        found |= {name: getattr(status, name) for name in _BY_STATUS}
        found["l2_adapters"] = len(status.l2_adapters)
        for index, seen in enumerate(status.l2_adapters):
            found |= {f"l2_adapter[{index}].{name}": value for name, value in _reported(seen)}
    if config is not None:
        found |= {
            item.name: value
            for item in fields(config)
            if item.name not in _NOT_SETTINGS and (value := getattr(config, item.name)) is not None
        }
        if config.metrics_enabled is not None and config.otlp_endpoint is None:
            found["otlp_endpoint"] = UNSET
        found.setdefault("l2_adapters", len(config.adapters))
        for adapter in config.adapters:
            found |= {f"l2_adapter[{adapter.index}].{name}": value for name, value in _configured(adapter)}
    return {name: value for name, value in found.items() if value is not None}


def _reported(adapter: L2AdapterStatus) -> Iterator[tuple[str, object]]:
    yield from (("type", adapter.type), ("base_path", adapter.base_path), ("use_odirect", adapter.use_odirect))


def _configured(adapter: AdapterConfig) -> Iterator[tuple[str, object]]:
    for name in _ADAPTER_FIELDS:
        value = getattr(adapter, name)
        if value is not None:
            yield name, value
    for name, value in _flat(adapter.raw):
        if name not in _ADAPTER_FIELDS and not (isinstance(value, str) and _OBJECT.search(value)):
            yield name, value
        elif value == UNSET and getattr(adapter, name, None) is None:
            yield name, UNSET


def _flat(value: Mapping[str, object], head: str = "", depth: int = 0) -> Iterator[tuple[str, object]]:
    """``a.b`` → plain value of nested settings; lists as one text."""
    for key, item in value.items():
        name = f"{head}{key}"
        if isinstance(item, Mapping) and item and depth < _DEPTH:
            yield from _flat(item, f"{name}.", depth + 1)
        elif item is None or item == {}:
            yield name, UNSET
        elif isinstance(item, list):
            yield name, ", ".join(map(str, item)) or UNSET
        elif isinstance(item, (str, int, float, bool)):
            yield name, item
