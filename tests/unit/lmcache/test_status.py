"""``/status`` of every captured and known generation; nothing counted twice, unknown never zero."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import TargetError
from app.lmcache.layouts import KVLayout, ObjectGroup
from app.lmcache.status import ServerStatus, parse_status
from tests.unit.lmcache import old_servers
from tests.unit.wire.raw_http import CAPTURES, capture
from tests.unit.wire.test_fields import json_values

STATUSES = sorted(CAPTURES.glob("*/*status.json"))
MIB = 2**20


def read(name: str, version: str | None = "0.5.6") -> ServerStatus:
    return parse_status(json.loads(capture(name)), version)


@pytest.mark.parametrize("path", STATUSES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_capture_tells_everything(path: Path) -> None:
    status = parse_status(json.loads(path.read_bytes()), "0.5.6")
    assert len(STATUSES) >= 6
    assert status.is_healthy is True
    assert status.unhealthy_parts == status.warnings == ()
    assert dict(status.absent) == {}
    assert status.eviction_policy == "LRU"
    assert (status.trigger_watermark, status.eviction_ratio) == (0.8, 0.99)
    assert status.l2_adapters[0].type == "fs"
    assert status.l2_adapters[0].base_path == "/srv/kv/l2"
    assert status.l2_adapters[0].use_odirect is True
    assert status.l2_adapters[0].used_bytes is None
    assert status.store_drained is True
    assert status.reap_timeout_seconds == 120


def test_a_busy_l1() -> None:
    status = read("server-busy/status.json")
    assert status.l1_used_bytes == 778_240
    assert status.l1_total_bytes == status.l1_configured_bytes == 1024 * MIB
    assert status.l1_object_count == 95
    assert status.l1_usage_ratio == pytest.approx(0.00072479248046875)
    assert status.chunk_size == 16
    assert status.engines_registered == 0
    assert status.contexts == {}


def test_the_layout_of_a_registered_engine() -> None:
    status = read("server-with-engine/after-traffic.status.json")
    assert status.context_ids == (old_servers.CONTEXT,)
    assert status.workers_registered == status.engines_registered == 1
    assert status.contexts[old_servers.CONTEXT] == KVLayout(
        model_name="/models/tiny-llama",
        world_size=1,
        chunk_size=64,
        dtype="bfloat16",
        bytes_per_token=512,
        tokens_per_block=32,
        groups=(ObjectGroup(0, 2, 32, 32, "bfloat16", False),),
        engine_kv_format="NL_X_NB_NH_BS_CS",
        engine_kv_shape="NL x [NB, NH, BS, CS]",
        attention_backend="vLLM non-MLA blocks-first, fused K/V (HND)",
        lmcache_version="0.5.6",
    )


def test_an_engine_driven_worker_tells_its_block_size_only() -> None:
    status = read("server-engine-driven/status.json")
    assert status.engines_registered == status.workers_registered == 1
    (layout,) = status.contexts.values()
    assert (layout.model_name, layout.world_size, layout.chunk_size) == ("/models/tiny-llama", 1, 64)
    assert (layout.tokens_per_block, layout.groups, layout.dtype) == (32, (), None)
    assert tuple(status.contexts) == status.context_ids


@pytest.mark.parametrize("body", [old_servers.status_046(), old_servers.status_052()], ids=["0.4.6", "0.5.2"])
def test_older_spellings_read_alike(body: dict[str, Any]) -> None:
    new = read("server-with-engine/after-traffic.status.json")
    old = parse_status(body, "0.5.6")
    same = ("is_healthy", "chunk_size", "hash_algorithm", "l1_used_bytes", "l1_total_bytes", "l1_object_count")
    same += ("trigger_watermark", "eviction_ratio", "eviction_policy", "store_pending", "engines_registered")
    assert {name: getattr(old, name) for name in same} == {name: getattr(new, name) for name in same}
    assert old.contexts[old_servers.CONTEXT].hard() == new.contexts[old_servers.CONTEXT].hard()
    assert old.l2_adapters == new.l2_adapters
    assert old.l1_configured_bytes is None
    assert "memory_configured_bytes" in old.absent["l1_configured_bytes"]


def test_the_oldest_server_tells_the_model_but_no_layout() -> None:
    status = parse_status(old_servers.status_042())
    layout = status.contexts[old_servers.CONTEXT]
    assert (layout.model_name, layout.chunk_size, layout.dtype, layout.groups) == ("/models/tiny-llama", 64, None, ())
    assert status.trigger_watermark == 0.8
    assert status.reap_timeout_seconds is None
    assert "worker_liveness" in status.absent["reap_timeout_seconds"]
    assert status.engines_registered == 1


def test_tagged_l1s_are_summed_and_the_single_one_is_not_counted_again() -> None:
    status = parse_status(old_servers.status_multi_l1())
    assert status.l1_used_bytes == 1024
    assert status.l1_total_bytes == 2 * 256 * MIB
    assert status.l1_object_count == 3
    assert status.l1_usage_ratio == pytest.approx(1024 / (512 * MIB))
    assert (status.store_pending, status.store_in_flight, status.store_drained) == (7, 1, False)
    assert status.trigger_watermark == 0.5
    single = read("server-busy/status.json")
    assert single.l1_used_bytes == 778_240


def test_one_silent_part_makes_a_sum_unknown() -> None:
    body = old_servers.status_multi_l1()
    del body["storage_manager"]["store_controllers"]["cxl"]["pending_keys_count"]
    status = parse_status(body)
    assert status.store_pending is None
    assert status.store_drained is None


def test_unhealthy_parts_are_the_innermost_and_each_is_named_once() -> None:
    body = old_servers.captured_status()
    storage = body["storage_manager"]
    for part in (body, storage, storage["l1_managers"]["_default"], storage["l1_manager"], storage["l2_adapters"][0]):
        part["is_healthy"] = False
    status = parse_status(body)
    assert status.is_healthy is False
    assert sorted(status.unhealthy_parts) == ["storage_manager.l1_managers._default", "storage_manager.l2_adapters[0]"]


def test_an_adapter_without_a_status_of_its_own_is_unknown_not_healthy() -> None:
    body = old_servers.captured_status()
    body["storage_manager"]["l2_adapters"] = [{"is_healthy": True, "extra_warning": "runs default impl"}]
    status = parse_status(body)
    assert status.l2_adapters[0].is_healthy is None
    assert status.warnings == ("storage_manager.l2_adapters[0]: runs default impl",)


def test_adapters_that_count_for_themselves() -> None:
    body = old_servers.captured_status()
    body["storage_manager"]["l2_adapters"] = [
        {"is_healthy": True, "type": "S3L2Adapter", "current_size_bytes": 10, "max_capacity_bytes": 0},
        {"is_healthy": True, "type": "FSNativeL2Adapter", "base_path": "/d", "serde_wrapped": True},
        {"is_healthy": False, "type": "valkey", "current_size_bytes": 7, "max_capacity_bytes": 100},
    ]
    body["storage_manager"]["l2_eviction_controller"]["adapters"] = [
        {"eviction_policy": "LRU", "trigger_watermark": 0.8, "total_bytes_used": 7, "total_capacity_bytes": 100}
    ]
    status = parse_status(body)
    assert [(a.type, a.used_bytes, a.capacity_bytes, a.serde_wrapped) for a in status.l2_adapters] == [
        ("s3", 10, None, False),
        ("fs_native", None, None, True),
        ("valkey", 7, 100, False),
    ]
    assert (status.l2_evictions[0].policy, status.l2_evictions[0].capacity_bytes) == ("LRU", 100)


def test_object_groups_are_merged_over_their_kernel_groups() -> None:
    group = old_servers.kernel_group
    body = old_servers.with_kernel_groups(
        group(0, num_layers=10, tokens_per_block=16, slots_per_block=16),
        group(0, num_layers=2, tokens_per_block=24, slots_per_block=8, dtype="torch.float32", is_mla=True),
        group(1, num_layers=4, tokens_per_block=784, dtype="torch.float32", engine_kv_format="OTHER"),
    )
    layout = parse_status(body).contexts[old_servers.CONTEXT]
    assert layout.groups == (
        ObjectGroup(0, 12, 48, 16, "bfloat16+float32", None),
        ObjectGroup(1, 4, 784, 32, "float32", False),
    )
    assert layout.dtype == "bfloat16+float32"
    assert layout.engine_kv_format == "NL_X_NB_NH_BS_CS+OTHER"
    assert layout.tokens_per_block == 48 * 49


def test_a_half_told_group_is_unknown_where_it_is_not_told() -> None:
    body = old_servers.with_kernel_groups(old_servers.kernel_group(0, dtype=None, num_layers="2"))
    layout = parse_status(body).contexts[old_servers.CONTEXT]
    assert layout.groups == (ObjectGroup(0, None, 32, 32, None, False),)
    assert layout.dtype is None


def test_workers_of_one_tensor_parallel_engine_are_one_engine() -> None:
    body = old_servers.with_kernel_groups(old_servers.kernel_group(0), world_size=2)
    meta = body["cache_context_meta"]
    meta["2"] = meta[old_servers.CONTEXT]
    body["registered_gpu_ids"].append(2)
    body["worker_liveness"]["tracked_instances"] = 2
    status = parse_status(body)
    assert (status.workers_registered, status.engines_registered) == (2, 1)
    meta["3"] = meta["2"]
    assert parse_status(body).engines_registered == 2  # one rank of another engine, its other ranks elsewhere


def test_an_old_and_a_new_context_side_by_side_are_both_listed() -> None:
    body = old_servers.captured_status()
    meta = body["cache_context_meta"]
    meta["99"] = json.loads(json.dumps(meta[old_servers.CONTEXT]).replace("bfloat16", "float16"))
    status = parse_status(body)
    assert sorted(layout.dtype or "" for layout in status.contexts.values()) == ["bfloat16", "float16"]
    assert status.engines_registered == 2


def test_registrations_are_told_by_whatever_the_server_has() -> None:
    base = {"is_healthy": True, "chunk_size": 64}
    assert parse_status(base).engines_registered is None
    assert "registered contexts" in parse_status(base).absent["engines_registered"]
    assert parse_status({**base, "cache_context_meta": {}}).engines_registered == 0
    assert (
        parse_status({**base, "cache_context_meta": {}, "worker_liveness": {"tracked_instances": 1}}).engines_registered
        == 1
    )
    assert parse_status({**base, "registered_non_cuda_instance_ids": [5, 6]}).engines_registered == 2
    assert parse_status({**base, "registered_gpu_ids": [2**64 - 1]}).context_ids == (str(2**64 - 1),)


def test_a_context_without_a_model_is_listed_and_explained() -> None:
    body = old_servers.captured_status()
    body["cache_context_meta"][old_servers.CONTEXT]["world_size"] = 0
    status = parse_status(body)
    assert status.contexts == {}
    assert status.context_ids == (old_servers.CONTEXT,)
    assert f"contexts.{old_servers.CONTEXT}" in status.absent


@pytest.mark.parametrize("body", [None, [], "x", 1, {}, {"status": "ok"}, {"detail": "Not Found"}, {"healthy": True}])
def test_what_is_no_status_is_refused(body: object) -> None:
    with pytest.raises(TargetError) as caught:
        parse_status(body)
    assert caught.value.kind == "unreadable"


@given(json_values)
def test_arbitrary_json_is_read_or_refused(value: object) -> None:
    try:
        parse_status(value, "1")
    except TargetError as error:
        assert error.kind == "unreadable"


def places(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    inner: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


CAPTURED = [old_servers.captured_status(), old_servers.status_046(), old_servers.status_multi_l1()]


@given(st.data(), json_values)
def test_a_capture_with_any_part_replaced_is_still_read(data: st.DataObject, value: object) -> None:
    body = json.loads(json.dumps(data.draw(st.sampled_from(CAPTURED))))
    path = data.draw(st.sampled_from(places(body)[1:]))
    target = body
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    status = parse_status(body, "0.5.6")
    for layout in status.contexts.values():
        assert KVLayout.from_json(layout.to_json()) == layout
        assert len(layout.fingerprint) == 16


@pytest.mark.parametrize("told", [-0.25, 1.5, 1e308, -5, float("nan"), float("inf")])
def test_a_ratio_that_cannot_be_is_unknown_with_the_reason(told: float) -> None:
    body = {"is_healthy": True, "storage_manager": {"l1_manager": {"memory_usage_ratio": told}}}
    status = parse_status(body)
    assert status.l1_usage_ratio is None
    if told == told and abs(told) != float("inf"):
        assert f"memory_usage_ratio is {told}, which is no ratio" in status.absent["l1_usage_ratio"]


def test_more_in_use_than_there_is_and_less_than_nothing() -> None:
    body = {"is_healthy": True, "storage_manager": {"l1_manager": {"memory_used_bytes": 30, "memory_total_bytes": 20}}}
    status = parse_status(body)
    assert status.l1_usage_ratio is None
    assert "30 of 20 bytes" in status.absent["l1_usage_ratio"]
    body["storage_manager"] = {
        "l1_manager": {"memory_used_bytes": -1, "memory_total_bytes": 20},
        "l1_eviction_controller": {"trigger_watermark": 80},
    }
    status = parse_status(body)
    assert (status.l1_used_bytes, status.l1_usage_ratio, status.trigger_watermark) == (None, None, None)
    assert "memory_used_bytes is -1, which cannot be" in status.absent["l1_used_bytes"]
    assert "trigger_watermark is 80, which cannot be" in status.absent["trigger_watermark"]
