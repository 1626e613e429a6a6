"""The registered contexts in ``/status``: one per engine worker, with the KV layout it registered.

Field names by generation: ``cache_context_meta`` (0.5.1+), ``gpu_context_meta`` with a flat layout (0.4.6, 0.5.0) or
with no layout at all (0.4.2), ``non_cuda_context_meta`` for workers in ``engine_driven`` mode (they tell block size and
MLA only).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.lmcache.kv_layout import KVLayout, ObjectGroup, common_multiple, join_dtypes, normalise_dtype
from app.wire import fields

_META = ("cache_context_meta", "gpu_context_meta", "non_cuda_context_meta", "non_gpu_context_meta")
_IDS = ("registered_gpu_ids", "registered_non_cuda_instance_ids")
_MAX_CONTEXTS = 10_000


@dataclass(frozen=True, slots=True)
class Registered:
    """Layouts by context id, all ids, counts (None: the server does not tell), and what could not be read."""

    layouts: Mapping[str, KVLayout]
    ids: tuple[str, ...]
    workers: int | None
    engines: int | None
    absent: Mapping[str, str]


def parse_contexts(body: Mapping[str, object], chunk_size: int | None, lmcache_version: str | None) -> Registered:
    """Read all contexts of one ``/status`` body.

    Engines are counted as one per `world_size` workers of one model (rounded up: the other ranks of an engine may use
    another server); where no context is described, by ``worker_liveness.tracked_instances`` or the registered ids.
    """
    layouts: dict[str, KVLayout] = {}
    ids: dict[str, None] = {}
    absent: dict[str, str] = {}
    for key in _META:
        for context_id, meta in list(fields.mapping(body.get(key)).items())[:_MAX_CONTEXTS]:
            name = fields.clean_text(context_id[: fields.MAX_TEXT])
            ids[name] = None
            layout = _layout(fields.mapping(meta), chunk_size, lmcache_version)
            if layout is None:
                absent[f"contexts.{name}"] = f"{key} names no model or world size for this context"
            else:
                layouts[name] = layout
    for key in _IDS:
        for item in fields.sequence(body.get(key))[:_MAX_CONTEXTS]:
            if isinstance(item, (int, str)) and not isinstance(item, bool):
                ids[_id_text(item)] = None
    tracked = fields.count(fields.mapping(body.get("worker_liveness")).get("tracked_instances"))
    told = tracked is not None or any(key in body for key in (*_META, *_IDS))
    workers = max(tracked or 0, len(ids)) if told else None
    return Registered(layouts, tuple(ids), workers, _engines(layouts, workers), absent)


def _id_text(item: int | str) -> str:
    # ids may exceed 64 bits; Python refuses to print absurdly long integers
    if isinstance(item, int):
        return str(item) if -(2**128) < item < 2**128 else "?"
    return fields.clean_text(item[: fields.MAX_TEXT])


def _engines(layouts: Mapping[str, KVLayout], workers: int | None) -> int | None:
    if workers is None:
        return None
    per_model: dict[tuple[str, int], int] = {}
    for layout in layouts.values():
        key = (layout.model_name, layout.world_size)
        per_model[key] = per_model.get(key, 0) + 1
    described = sum(-(-count // world_size) for (_, world_size), count in per_model.items())
    return described + max(0, workers - len(layouts))


def _layout(meta: Mapping[str, object], chunk_size: int | None, lmcache_version: str | None) -> KVLayout | None:
    model = fields.text(meta.get("model_name"))
    world_size = fields.integer(meta.get("world_size"))
    if not model or world_size is None or world_size < 1:
        return None
    told = meta.get("kv_cache_layout")
    layout = fields.mapping(told) if isinstance(told, dict) else meta
    kernel_groups = [fields.mapping(item) for item in fields.sequence(layout.get("kernel_groups"))]
    if kernel_groups:
        groups = _object_groups(kernel_groups)
    elif isinstance(told, dict) and "dtype" in layout:
        groups = (_flat_group(layout),)
    else:
        groups = ()
    block = common_multiple(group.tokens_per_block for group in groups)
    labelled = kernel_groups or [layout]
    return KVLayout(
        model_name=model,
        world_size=world_size,
        chunk_size=chunk_size or None,
        dtype=join_dtypes(group.dtype for group in groups),
        bytes_per_token=fields.count(layout.get("cache_size_per_token")),
        tokens_per_block=block if groups else fields.count(meta.get("block_size")),
        groups=groups,
        engine_kv_format=_joined(labelled, "engine_kv_format", "gpu_kv_format"),
        engine_kv_shape=_joined(labelled, "engine_kv_shape", "gpu_kv_shape"),
        attention_backend=_joined(labelled, "attention_backend"),
        lmcache_version=lmcache_version,
    )


def _object_groups(kernel_groups: list[Mapping[str, object]]) -> tuple[ObjectGroup, ...]:
    by_index: dict[int, list[Mapping[str, object]]] = {}
    for group in kernel_groups:
        by_index.setdefault(fields.count(group.get("object_group_idx")) or 0, []).append(group)
    return tuple(
        ObjectGroup(
            index=index,
            layers=_sum([fields.count(part.get("num_layers")) for part in parts]),
            tokens_per_block=common_multiple(fields.integer(part.get("tokens_per_block")) for part in parts),
            slots_per_block=common_multiple(fields.integer(part.get("slots_per_block")) for part in parts),
            dtype=join_dtypes(fields.text(part.get("dtype")) for part in parts),
            is_mla=_agreed([fields.boolean(part.get("is_mla")) for part in parts]),
        )
        for index, parts in sorted(by_index.items())
    )


def _flat_group(layout: Mapping[str, object]) -> ObjectGroup:
    """Before kernel groups a context had one layout, its physical block sizes listed per engine group."""
    physical = [fields.integer(item) for item in fields.sequence(layout.get("group_physical_block_sizes"))]
    return ObjectGroup(
        index=0,
        layers=fields.count(layout.get("num_layers")),
        tokens_per_block=fields.count(layout.get("inference_engine_logical_block_size"))
        or fields.count(layout.get("block_size")),
        slots_per_block=common_multiple(physical),
        dtype=normalise_dtype(fields.text(layout.get("dtype"))),
        is_mla=fields.boolean(layout.get("is_mla")),
    )


def _sum(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    total = sum(known)
    return total if len(known) == len(values) and total < 2**63 else None


def _agreed(values: list[bool | None]) -> bool | None:
    return values[0] if len(set(values)) == 1 else None


def _joined(parts: list[Mapping[str, object]], *names: str) -> str | None:
    """The distinct texts of all parts under the first name that is there, sorted and joined with ``+``."""
    found: set[str] = set()
    for part in parts:
        said = next((value for name in names if (value := fields.text(part.get(name)))), None)
        if said:
            found.add(said)
    return "+".join(sorted(found)) or None
