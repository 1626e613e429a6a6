"""``/config`` of every capture; adapters that older servers print as text; secrets stay hidden."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import TargetError
from app.lmcache.configuration import (
    canonical_serde,
    parse_adapters,
    parse_config,
    with_adapter_status,
    with_adapter_types,
)
from app.lmcache.status import parse_status
from tests.unit.lmcache import old_servers
from tests.unit.lmcache.test_status import places
from tests.unit.wire.raw_http import CAPTURES, capture
from tests.unit.wire.test_fields import json_values

CONFIGS = sorted(path for path in CAPTURES.glob("server-*/*config.json"))


def captured() -> dict[str, Any]:
    body: dict[str, Any] = json.loads(capture("server-with-engine/after-traffic.config.json"))
    return body


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_capture(path: Path) -> None:
    assert len(CONFIGS) >= 4
    config = parse_config(json.loads(path.read_bytes()))
    assert config.instance_id is not None
    assert len(config.instance_id) == 36
    assert config.hash_algorithm == "blake3"
    assert config.separate_object_groups is False
    assert (config.eviction_policy, config.trigger_watermark, config.eviction_ratio) == ("LRU", 0.8, 0.99)
    assert config.align_bytes == 4096
    assert config.otlp_endpoint is None
    assert (config.prometheus_port, config.http_host) == (9090, "127.0.0.1")
    assert config.worker_reap_timeout_seconds == 120
    assert config.run_script_api_enabled is False
    (adapter,) = config.adapters
    assert (adapter.base_path, adapter.relative_tmp_dir, adapter.use_odirect) == ("/srv/kv/l2", ".tmp", True)
    assert (adapter.serde, adapter.checksum, adapter.eviction, adapter.max_capacity_bytes) == (
        "none",
        None,
        False,
        None,
    )
    assert config.adapter_at("/srv/kv/l2") is adapter
    assert config.adapter_at("/other") is None


def test_types_come_from_the_adapter_list() -> None:
    config = parse_config(captured())
    entries = parse_adapters(json.loads(capture("server-with-engine/config_adapters.json")))
    assert config.adapters[0].type is None
    assert with_adapter_types(config, entries).adapters[0].type == "fs"
    assert with_adapter_types(config, (*entries, *entries)).adapters[0].type is None
    assert (entries[0].tier, entries[0].primary, entries[0].reconfigurable) == ("l2", True, False)


def test_a_native_adapter_with_capacity_and_eviction() -> None:
    body = captured()
    body["storage_manager"]["l2_adapter_config"]["adapters"] = [
        {
            "base_path": "/d",
            "relative_tmp_dir": "",
            "use_odirect": False,
            "max_capacity_gb": 1.5,
            "eviction_config": {"eviction_policy": "LRU", "trigger_watermark": 0.8},
            "serde_config": {"type": "fp8", "kwargs": {"max_workers": 1}},
            "checksum": "crc32",
            "shared": True,
        },
        {"base_path": "/e", "max_capacity_gb": 0, "eviction_config": None, "serde_config": None},
        {"base_path": "/f"},
    ]
    first, second, third = parse_config(body).adapters
    assert (first.max_capacity_bytes, first.eviction, first.eviction_policy) == (1_610_612_736, True, "LRU")
    assert (first.serde, first.checksum, first.shared) == ('{"kwargs":{"max_workers":1},"type":"fp8"}', "crc32", True)
    assert (second.max_capacity_bytes, second.eviction, second.serde) == (None, False, "none")
    assert (third.eviction, third.serde, third.use_odirect) == (None, "none", None)


def test_adapters_printed_as_text_are_completed_from_status() -> None:
    """Before 0.5.6 the adapter objects are printed with str()."""
    body = captured()
    body["storage_manager"]["l2_adapter_config"]["adapters"] = ["<lmcache…FSL2AdapterConfig object at 0x7f>"]
    body["storage_manager"].pop("l1_manager_configs")
    body["mp"].pop("instance_id")
    config = parse_config(body)
    assert config.l1_size_bytes == 256 * 2**20
    assert config.instance_id == body["observability"]["service_instance_id"]
    (adapter,) = config.adapters
    assert (adapter.base_path, adapter.type, adapter.serde, adapter.eviction) == (None, None, None, None)
    status = parse_status(old_servers.captured_status())
    (adapter,) = with_adapter_status(config, status.l2_adapters).adapters
    assert (adapter.base_path, adapter.type, adapter.use_odirect) == ("/srv/kv/l2", "fs", True)
    assert with_adapter_status(config, ()) is config


def test_the_transfer_mode_of_0_4() -> None:
    body = captured()
    body["mp"].pop("supported_transfer_mode")
    body["mp"]["transfer_mode"] = "gpu"
    assert parse_config(body).supported_transfer_mode == "lmcache_driven"
    body["mp"]["transfer_mode"] = "cpu"
    assert parse_config(body).supported_transfer_mode == "engine_driven"


def test_several_l1s_are_summed() -> None:
    body = captured()
    managers = body["storage_manager"]["l1_manager_configs"]
    managers.append(json.loads(json.dumps(managers[0])))
    assert parse_config(body).l1_size_bytes == 512 * 2**20
    managers[1]["memory_config"].pop("size_in_bytes")
    assert parse_config(body).l1_size_bytes is None


def test_secrets_are_hidden() -> None:
    body = captured()
    adapter = body["storage_manager"]["l2_adapter_config"]["adapters"][0]
    adapter |= {"password": "p1", "s3": {"secret_access_key": "p2", "region": "eu"}, "auth_token": "p3", "tokens": None}
    raw = parse_config(body).adapters[0].raw
    assert "p1" not in str(raw)
    assert "p2" not in str(raw)
    assert "p3" not in str(raw)
    assert raw["s3"] == {"secret_access_key": "(hidden)", "region": "eu"}


@pytest.mark.parametrize(("value", "wanted"), [(None, "none"), ({}, "none"), ("None", "none"), ("kivi", "kivi")])
def test_no_serde_has_one_name(value: object, wanted: str) -> None:
    assert canonical_serde(value) == wanted


@pytest.mark.parametrize("body", [None, [], {}, {"mp": 1}, {"detail": "Not Found"}])
def test_what_is_no_configuration_is_refused(body: object) -> None:
    for parse in (parse_config, parse_adapters):
        with pytest.raises(TargetError) as caught:
            parse(body)
        assert caught.value.kind == "unreadable"


@given(json_values)
def test_arbitrary_json_is_read_or_refused(value: object) -> None:
    for parse in (parse_config, parse_adapters):
        try:
            parse(value)
        except TargetError as error:
            assert error.kind == "unreadable"


@given(st.data(), json_values)
def test_a_capture_with_any_part_replaced_is_still_read(data: st.DataObject, value: object) -> None:
    body = captured()
    path = data.draw(st.sampled_from(places(body)[1:]))
    target: Any = body
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    if any(isinstance(body.get(section), dict) for section in ("mp", "storage_manager", "observability", "http")):
        json.dumps([adapter.raw for adapter in parse_config(body).adapters])
