"""What runs at a registered pair, in the places of the form that were left open. Pure.

A value that these commands could not repeat (a watermark of 1, a chunk size that does not fit) is left out, and a note
says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from app.launch.plan import block_of
from app.launch.schemas import EngineInput, LaunchInput, ServerInput, StoreInput
from app.lmcache.client import ServerReading
from app.lmcache.layouts import KVLayout, common_multiple
from app.vllm.client import EngineReading
from app.wording import plain

_GIB = 2**30
#: A directory that these commands offered before.
_OFFERED = re.compile(r"(?P<root>/.+)/[^/]+-[0-9a-f]{16}")


def filled(
    body: LaunchInput, server: ServerReading | None, engine: EngineReading | None
) -> tuple[LaunchInput, list[str]]:
    """The form with what runs at the registered pair in the places that were left open, and sentences about it."""
    notes: list[str] = []
    store = body.server.store
    changes: dict[str, Any] = {}
    engine_changes = _taken(EngineInput, body.engine, notes, "engine", _of_engine(engine, server, body.engine.model))
    own_engine = body.engine.model_copy(update=engine_changes)
    server_changes = _taken(ServerInput, body.server, notes, "server", _of_server(server))
    chunk, block = server_changes.get("chunk_size"), block_of(own_engine)
    if chunk is not None and chunk % block:
        del server_changes["chunk_size"]
        notes.append(f"server.chunk_size = {chunk} as it runs now is not repeated: it is no multiple of {block}")
    if store is not None:
        store_changes = _taken(StoreInput, store, notes, "server.store", _of_store(server, notes))
        server_changes["store"] = store.model_copy(update=store_changes)
    facts = engine.facts if engine is not None else None
    if facts is not None and (facts.device or "").startswith("cpu") and "device" not in body.model_fields_set:
        changes["device"] = "cpu"
        notes.append("device = cpu as it runs now")
    # what was taken counts as given: the plan puts no default of its own over it
    own_server = body.server.model_copy(update=server_changes)
    return body.model_copy(update={"server": own_server, "engine": own_engine, **changes}), notes


def _of_server(server: ServerReading | None) -> dict[str, Any]:
    config = server.config if server is not None else None
    if config is None:
        return {}
    return {
        "l1_gib": None if not config.l1_size_bytes else config.l1_size_bytes / _GIB,
        "chunk_size": config.chunk_size,
        "transfer_mode": config.supported_transfer_mode,
        "watermark": config.trigger_watermark,
        "eviction_ratio": config.eviction_ratio,
        "workers": config.max_workers,
        "port": config.message_port,
        "http_port": config.http_port,
    }


def _of_store(server: ServerReading | None, notes: list[str]) -> dict[str, Any]:
    config = server.config if server is not None else None
    adapter = next((item for item in config.adapters if item.base_path), None) if config is not None else None
    if adapter is None or adapter.base_path is None:
        return {}
    offered = _OFFERED.fullmatch(adapter.base_path)
    if offered is None:
        notes.append(
            f"the running server keeps its records in {adapter.base_path}; these commands begin with a directory of "
            "their own, give that one as base_path with per_layout off to go on with it"
        )
    kind = adapter.type if adapter.type in ("fs", "fs_native") else None
    return {
        "base_path": None if offered is None else offered["root"],
        "adapter": kind,
        "use_odirect": adapter.use_odirect,
        "temp_dir": adapter.relative_tmp_dir,
        # only with an eviction block it bounds anything, and only fs_native has one
        "capacity_gib": adapter.max_capacity_gb if kind == "fs_native" and adapter.eviction else None,
    }


def _of_engine(engine: EngineReading | None, server: ServerReading | None, model: str | None) -> dict[str, Any]:
    facts = engine.facts if engine is not None else None
    found: dict[str, Any] = {}
    if facts is not None:
        found = {
            "model": facts.model,
            "dtype": facts.dtype,
            "kv_cache_dtype": facts.kv_cache_dtype,
            "max_model_len": facts.max_model_len,
            "max_num_seqs": facts.max_num_seqs,
            "block_size": facts.block_size,
            "tensor_parallel": facts.tensor_parallel_size,
            "served_model_name": facts.served_model_name,
            "heartbeat_seconds": facts.connector_options.get("lmcache.mp.heartbeat_interval"),
            "mq_timeout_seconds": facts.connector_options.get("lmcache.mp.mq_timeout"),
        }
    cards = engine.models if engine is not None and engine.models else ()
    found["model"] = found.get("model") or next((card.root for card in cards if card.parent is None), None)
    own = _layouts(server, model or found["model"])
    if model is None and found["model"] is None and len({layout.model_name for layout in own}) == 1:
        found["model"] = own[0].model_name
    block = common_multiple(group.tokens_per_block for layout in own for group in layout.groups)
    if facts is not None and facts.mamba_cache_mode not in (None, "none"):
        found["block_size"] = None
        found["hybrid_block_tokens"] = block
    elif facts is not None and facts.block_size is None:
        found["block_size"] = block  # as its registered layout says; without it the chunk size could not be judged
    return found


def _layouts(server: ServerReading | None, model: str | None) -> list[KVLayout]:
    layouts = server.layouts().values() if server is not None else ()
    return [layout for layout in layouts if model in (None, layout.model_name)]


def _taken(
    shape: type[BaseModel], given: BaseModel, notes: list[str], side: str, values: Mapping[str, Any]
) -> dict[str, Any]:
    """Those of `values` that were not given and that the form takes."""
    taken: dict[str, Any] = {}
    for name, value in values.items():
        if value is None or name in given.model_fields_set:
            continue
        try:
            shape.model_validate({name: value})
        except ValidationError as error:
            why = plain(error.errors()[0])
            notes.append(f"{side}.{name} = {str(value)[:80]} as it runs now is not repeated: it {why}")
            continue
        taken[name] = value
        notes.append(f"{side}.{name} = {str(value)[:200]} as it runs now")
    return taken


def registered_fingerprint(body: LaunchInput, server: ServerReading | None) -> str | None:
    """The fingerprint of the live layout of this model, where these commands would keep it."""
    found = [layout for layout in _layouts(server, body.engine.model) if layout.model_name == body.engine.model]
    if len({layout.fingerprint for layout in found}) != 1:
        return None
    layout = found[0]
    same_chunk = body.server.chunk_size in (None, layout.chunk_size)
    same_dtype = body.engine.dtype in ("auto", layout.dtype)
    return layout.fingerprint if same_chunk and same_dtype else None
