"""Settings by name: complete, flat, the same for one configuration, another for any change of it."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import fields
from typing import Any

import pytest

from app.lmcache.configuration import (
    ServerConfig,
    parse_adapters,
    parse_config,
    with_adapter_status,
    with_adapter_types,
)
from app.lmcache.settings import server_settings
from app.lmcache.status import parse_status
from tests.unit.wire.raw_http import capture


def body() -> dict[str, Any]:
    told: dict[str, Any] = json.loads(capture("server-with-engine/after-traffic.config.json"))
    return told


def settings(told: dict[str, Any], adapters: list[dict[str, Any]] | None = None) -> dict[str, object]:
    config = parse_config(told)
    if adapters is not None:
        config = with_adapter_types(config, parse_adapters({"adapters": adapters}))
    return server_settings(config)


FS = [{"index": 0, "type_name": "fs", "tier": "l2"}]


def test_everything_that_the_configuration_tells() -> None:
    found = settings(body(), FS)
    told = parse_config(body())
    for item in fields(ServerConfig):
        if item.name not in ("instance_id", "adapters") and getattr(told, item.name) is not None:
            assert found[item.name] == getattr(told, item.name), item.name
    assert found["l2_adapters"] == 1
    adapter = {k.removeprefix("l2_adapter[0]."): v for k, v in found.items() if k.startswith("l2_adapter[0].")}
    assert adapter == {
        "type": "fs",
        "base_path": "/srv/kv/l2",
        "relative_tmp_dir": ".tmp",
        "read_ahead_size": "none",
        "use_odirect": True,
        "affinity_tag": "_default",
        "shared": False,
        "eviction": False,
        "eviction_config": "none",
        "persist_config": "PersistConfig(persist_enabled=True)",
        "serde": "none",
        "serde_config": "none",
    }
    assert json.loads(json.dumps(found)) == found


def test_what_is_new_with_every_boot_is_no_setting() -> None:
    again = deepcopy(body())
    again["mp"]["instance_id"] = again["observability"]["service_instance_id"] = "another"
    assert settings(again, FS) == settings(body(), FS)
    for address in ("0x7f2bb0af9f50", "0x7fb913f8de10"):
        old = body()
        printed = f"<lmcache.v1.distributed.l2_adapters.fs_l2_adapter.FSL2AdapterConfig object at {address}>"
        old["storage_manager"]["l2_adapter_config"]["adapters"] = [printed]
        assert not [v for v in settings(old, FS).values() if "0x" in str(v)]
        assert settings(old, FS)["l2_adapter[0].type"] == "fs"


@pytest.mark.parametrize(
    ("name", "value", "changed"),
    [
        ("base_path", "/srv/other", {"base_path"}),
        ("relative_tmp_dir", None, {"relative_tmp_dir"}),
        ("read_ahead_size", 4096, {"read_ahead_size"}),
        ("use_odirect", False, {"use_odirect"}),
        ("shared", True, {"shared"}),
        ("checksum", "crc32", {"checksum"}),
        ("affinity_tag", "fast", {"affinity_tag"}),
        ("max_capacity_gb", 20.0, {"max_capacity_gb"}),
        ("hash_subdir_levels", 2, {"hash_subdir_levels"}),
        ("serde_config", {"type": "fp8"}, {"serde", "serde_config", "serde_config.type"}),
        (
            "eviction_config",
            {"eviction_policy": "LRU", "trigger_watermark": 0.9},
            {
                "eviction",
                "eviction_policy",
                "eviction_config",
                "eviction_config.eviction_policy",
                "eviction_config.trigger_watermark",
            },
        ),
    ],
)
def test_every_flag_of_an_adapter(name: str, value: object, changed: set[str]) -> None:
    before, told = settings(body(), FS), body()
    told["storage_manager"]["l2_adapter_config"]["adapters"][0][name] = value
    after = settings(told, FS)
    moved = {n for n in set(before) | set(after) if before.get(n) != after.get(n)}
    assert {n.removeprefix("l2_adapter[0].") for n in moved} == changed


def test_another_type_and_another_number_of_adapters() -> None:
    before = settings(body(), FS)
    native = settings(body(), [{"index": 0, "type_name": "fs_native", "tier": "l2"}])
    assert {n for n in before if before[n] != native[n]} == {"l2_adapter[0].type"}
    none = body()
    none["storage_manager"]["l2_adapter_config"]["adapters"] = []
    assert settings(none)["l2_adapters"] == 0


def test_the_status_tells_some_where_there_is_no_configuration() -> None:
    status = parse_status(json.loads(capture("server-with-engine/after-traffic.status.json")))
    alone, config = server_settings(None, status), with_adapter_status(parse_config(body()), status.l2_adapters)
    assert alone["l2_adapter[0].type"] == "fs"
    assert alone["l2_adapters"] == 1
    whole = server_settings(config, status)
    assert {name: whole[name] for name in alone} == alone  # the two never contradict each other
    assert server_settings(None, None) == {}


def test_secrets_of_an_adapter_are_not_kept() -> None:
    told = body()
    told["storage_manager"]["l2_adapter_config"]["adapters"][0]["secret_access_key"] = "hunter2"
    assert "hunter2" not in json.dumps(settings(told, FS))


def test_a_metrics_push_that_is_switched_on() -> None:
    told = body()
    assert settings(told)["otlp_endpoint"] == "none"
    told["observability"]["otlp_endpoint"] = "http://collector:4317"
    assert settings(told)["otlp_endpoint"] == "http://collector:4317"
