"""Answers of older LMCache servers, in the shapes that their released sources build (0.4.2, 0.4.6, 0.5.2).

Their values are those of the captured 0.5.6 server, so that a test can say: another spelling, the same reading.
"""

from __future__ import annotations

import copy
import json
from typing import Any

from tests.unit.wire.raw_http import capture

STATUS = "server-with-engine/after-traffic.status.json"
CONTEXT = "3920467449677063747"


def captured_status() -> dict[str, Any]:
    """The 0.5.6 capture."""
    body: dict[str, Any] = json.loads(capture(STATUS))
    return body


def _single(storage: dict[str, Any]) -> dict[str, Any]:
    """Before tagged L1s: only the single parts."""
    kept = ("is_healthy", "l1_manager", "store_controller", "prefetch_controller", "l2_adapters", "num_l2_adapters")
    single = {key: copy.deepcopy(storage[key]) for key in kept}
    for key in ("memory_configured_bytes", "capacity_bytes_by_backend", "staging_object_count", "staging_bytes"):
        single["l1_manager"].pop(key)
    return single


def status_042() -> dict[str, Any]:
    """0.4.2: no layouts, no liveness, ``eviction_controller``."""
    new = captured_status()
    storage = _single(new["storage_manager"])
    storage["eviction_controller"] = new["storage_manager"]["l1_eviction_controller"]
    return {
        "is_healthy": True,
        "engine_type": "MPCacheEngine",
        "chunk_size": 64,
        "hash_algorithm": "blake3",
        "registered_gpu_ids": [int(CONTEXT)],
        "gpu_context_meta": {CONTEXT: {"model_name": "/models/tiny-llama", "world_size": 1}},
        "active_sessions": 0,
        "storage_manager": storage,
    }


def status_046() -> dict[str, Any]:
    """0.4.6 and 0.5.0: ``gpu_context_meta`` with one flat layout."""
    body = status_042()
    storage = body["storage_manager"]
    storage["l1_eviction_controller"] = storage.pop("eviction_controller")
    storage["l2_eviction_controller"] = {"is_healthy": True, "thread_alive": True, "adapters": []}
    body["gpu_context_meta"][CONTEXT]["kv_cache_layout"] = {
        "num_layers": 2,
        "inference_engine_logical_block_size": 32,
        "group_physical_block_sizes": [32],
        "group_compress_ratios": [1],
        "hidden_dim_sizes": "[64]",
        "dtype": "torch.bfloat16",
        "is_mla": False,
        "num_blocks": 512,
        "gpu_kv_format": "NL_X_TWO_NB_BS_NH_HS",
        "gpu_kv_shape": "NL x [2, NB, BS, NH, HS]",
        "gpu_kv_concrete_shape": "[2, 512, 32, 2, 32]",
        "attention_backend": "vLLM non-MLA flash attention",
        "cache_size_per_token": 512,
    }
    return body


def status_052() -> dict[str, Any]:
    """0.5.2: kernel groups, liveness, single L1."""
    new = captured_status()
    storage = _single(new["storage_manager"])
    storage["l1_eviction_controller"] = new["storage_manager"]["l1_eviction_controller"]
    storage["l2_eviction_controller"] = new["storage_manager"]["l2_eviction_controller"]
    return {**new, "storage_manager": storage}


def status_multi_l1() -> dict[str, Any]:
    """Two tagged L1s: the single forms are left out then."""
    body = captured_status()
    storage = body["storage_manager"]
    for single, tagged in (
        ("l1_manager", "l1_managers"),
        ("store_controller", "store_controllers"),
        ("l1_eviction_controller", "l1_eviction_controllers"),
    ):
        second = copy.deepcopy(storage.pop(single))
        storage[tagged]["cxl"] = second
    storage["l1_managers"]["_default"]["memory_used_bytes"] = 1000
    storage["l1_managers"]["cxl"]["memory_used_bytes"] = 24
    storage["l1_managers"]["cxl"]["total_object_count"] = 3
    storage["store_controllers"]["_default"]["pending_keys_count"] = 2
    storage["store_controllers"]["cxl"]["pending_keys_count"] = 5
    storage["store_controllers"]["cxl"]["in_flight_task_count"] = 1
    storage["l1_eviction_controllers"]["cxl"]["trigger_watermark"] = 0.5
    return body


def kernel_group(index: int, **changes: Any) -> dict[str, Any]:
    """One kernel group as 0.5.x prints it."""
    group = copy.deepcopy(captured_status()["cache_context_meta"][CONTEXT]["kv_cache_layout"]["kernel_groups"][0])
    return {**group, "object_group_idx": index, **changes}


def with_kernel_groups(*groups: dict[str, Any], world_size: int = 1) -> dict[str, Any]:
    """The captured status with other kernel groups."""
    body = captured_status()
    body["cache_context_meta"][CONTEXT]["kv_cache_layout"]["kernel_groups"] = list(groups)
    body["cache_context_meta"][CONTEXT]["world_size"] = world_size
    return body
