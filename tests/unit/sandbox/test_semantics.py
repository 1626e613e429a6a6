"""What moves between the tiers and which counter says so: the numbers measured on the real servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from app.sandbox import EngineSpec, KVLayout, ServerSpec
from tests.unit.sandbox.support import Driver, prompt

LOOKED = ("lookup_requested_tokens", "lookup_hit_tokens", "lookup_hit_l1_tokens", "lookup_hit_l2_tokens")


class Delta(dict[str, float]):
    """Changes of the server's counters, by their short names; 0 for what did not move."""

    def __missing__(self, key: str) -> float:
        return 0.0

    def lookup(self) -> list[float]:
        return [self[name] for name in LOOKED]

    def l1(self) -> tuple[float, float, float]:
        return self["l1_write_chunks"], self["l1_read_chunks"], self["l1_evicted_chunks"]


@contextmanager
def counting(box: Driver) -> Iterator[Delta]:
    before, delta = box.server_metrics(), Delta()
    yield delta
    for name, value in box.server_metrics().items():
        if name.startswith("lmcache_mp_") and "{" not in name and value != before.get(name, 0.0):
            delta[name.removeprefix("lmcache_mp_").removesuffix("_total")] = value - before.get(name, 0.0)


def test_cold(box: Driver) -> None:
    with counting(box) as d:
        answer = box.ask(300)
    assert answer.stats == (0, 0, 0)
    assert d.lookup() == [256, 0, 0, 0]
    assert d.l1() == (4, 4, 0)
    assert d["l2_store_submitted_objects_chunks"] == d["l2_store_completed_objects_chunks"] == 4
    assert d["num_submitted_stores"] == d["num_finished_stores"] == 1
    assert d["l2_usage_bytes"] == 131072
    assert sorted(p.stat().st_size for p in box.files()) == [32768] * 4


def test_from_the_gpu(box: Driver) -> None:
    box.ask(300)
    with counting(box) as d:
        answer = box.ask(300)
    assert (answer.cached, answer.stats) == (288, (288, 256, 0))
    assert d.lookup() == [256, 256, 256, 0]  # a lookup hit, though nothing was retrieved
    assert d.l1() == (0, 4, 0)
    assert d["num_submitted_retrieves"] == 0


def test_from_l1(box: Driver) -> None:
    cold = box.ask(300)
    box.reset()
    with counting(box) as d:
        answer = box.ask(300)
    assert (answer.cached, answer.stats) == (256, (0, 256, 256))
    assert answer.logprobs == cold.logprobs
    assert d.lookup() == [256, 256, 256, 0]
    assert d.l1() == (0, 4, 0)
    assert d["num_finished_retrieves"] == 1
    assert d["num_chunks_loaded"] == 4


def test_from_l2_through_temporary_objects(box: Driver) -> None:
    cold = box.ask(300)
    box.only_l2()
    with counting(box) as d:
        answer = box.ask(300)
    assert (answer.cached, answer.stats) == (256, (0, 256, 256))
    assert answer.logprobs == cold.logprobs
    assert d.lookup() == [256, 256, 0, 256]
    assert d.l1() == (4, 4, 4)
    assert d["l2_prefetch_load_submitted_objects_chunks"] == d["l2_prefetch_load_completed_chunks"] == 4
    assert box.status()["storage_manager"]["l1_manager"]["total_object_count"] == 0
    assert box.sandbox.control.server().l2_usage == 131072


@pytest.mark.parametrize(
    ("length", "cached", "stats"),
    [
        (63, 0, (0, 0, 0)),
        (64, 63, (0, 64, 64)),
        (65, 64, (0, 64, 64)),
        (127, 64, (0, 64, 64)),
        (128, 127, (0, 128, 128)),
        (300, 256, (0, 256, 256)),
    ],
)
def test_external_tokens_by_length(box: Driver, length: int, cached: int, stats: tuple[int, int, int]) -> None:
    box.ask(length)
    box.reset()
    before = box.engine_metrics()["vllm:external_prefix_cache_hits_total"]
    answer = box.ask(length)
    assert (answer.cached, answer.stats) == (cached, stats)
    assert box.engine_metrics()["vllm:external_prefix_cache_hits_total"] - before == cached


def test_too_short_for_a_chunk_is_an_early_exit(box: Driver) -> None:
    with counting(box) as d:
        box.ask(63)
    assert d["lookup_early_exit_requests"] == 1
    assert d["lookups_requests"] == 1
    assert d["lookup_requested_tokens"] == 0


def test_partly_from_the_gpu(box: Driver) -> None:
    box.ask(300)
    box.reset()
    box.ask(63)  # fills one block
    answer = box.ask(128)
    assert (answer.cached, answer.stats) == (127, (32, 128, 96))
    again = box.ask(128)
    assert (again.cached, again.stats) == (127, (96, 128, 32))
    with counting(box) as d:
        assert box.ask(160).stats == (128, 128, 0)
    assert d["num_chunks_loaded"] == 0


def test_engine_counters_by_source(box: Driver) -> None:
    box.ask(300)
    box.ask(300)
    box.reset()
    box.ask(300)
    m = box.engine_metrics()
    source = 'vllm:prompt_tokens_by_source_total{{engine="0",model_name="tiny-llama",source="{}"}}'
    assert m["vllm:prompt_tokens_total"] == 900
    assert m[source.format("local_compute")] == 300 + 12 + 44
    assert m[source.format("local_cache_hit")] == 288
    assert m[source.format("external_kv_transfer")] == 256
    assert m["vllm:prefix_cache_queries_total"] == 900
    assert m["vllm:external_prefix_cache_queries_total"] == 300 + 12 + 300
    assert m["vllm:time_to_first_token_seconds_count"] == 3
    assert m["vllm:generation_tokens_total"] == 12


def test_l1_holds_only_the_end_of_the_prefix(box: Driver) -> None:
    box.ask(300)
    box.delete([box.chunk_file(0), box.chunk_file(1)])
    box.reset()
    with counting(box) as d:
        assert box.ask(300).stats == (0, 256, 256)
    assert d.lookup() == [256, 256, 0, 256]  # tokens count by the leading part …
    assert (d["lookup_hit_l1_keys"], d["lookup_hit_l2_keys"]) == (2, 2)  # … keys by where they were
    assert d.l1() == (2, 4, 2)


def test_l1_holds_only_the_beginning(box: Driver) -> None:
    box.ask(300)
    box.delete([box.chunk_file(2), box.chunk_file(3)])
    box.reset()
    with counting(box) as d:
        box.ask(300)
    assert d.lookup() == [256, 256, 128, 128]


def test_a_hole_at_the_start_ends_everything(box: Driver) -> None:
    box.ask(300)
    first = [box.chunk_file(0), box.chunk_file(1)]
    box.delete(first)
    for path in first:
        path.unlink()
    box.reset()
    with counting(box) as d:
        assert box.ask(300).stats == (0, 0, 0)
    assert d["l2_prefetch_load_submitted_objects_chunks"] == 0
    assert d["l2_store_submitted_objects_chunks"] == 4
    assert d["l2_usage_bytes"] == 65536  # two of the four paths existed


def test_generated_tokens_are_cached_by_the_engine_but_not_stored(box: Driver) -> None:
    answer = box.ask(300, max_tokens=30, ignore_eos=True)
    assert len(box.files()) == 4
    follow = prompt(300) + answer.tokens
    assert box.ask(prompt=follow).cached == 320


def test_the_gpu_stores_again_what_the_server_lost(box: Driver) -> None:
    box.ask(300)
    box.delete(box.files())
    for path in box.files():
        path.unlink()
    assert box.ask(300).stats == (288, 0, 0)
    assert len(box.files()) == 4


def test_prompt_logprobs_skip_every_cache(box: Driver) -> None:
    box.ask(100)
    before = box.engine_metrics()
    answer = box.ask(100, prompt_logprobs=1)
    assert (answer.cached, answer.stats) == (0, (0, 0, 0))
    rows = answer.body["choices"][0]["prompt_logprobs"]
    assert len(rows) == 100
    assert rows[0] is None
    after = box.engine_metrics()
    assert after["vllm:prefix_cache_queries_total"] == before["vllm:prefix_cache_queries_total"]
    assert after["vllm:external_prefix_cache_queries_total"] == before["vllm:external_prefix_cache_queries_total"] + 100


def test_a_new_salt_is_a_clean_miss_with_the_same_hash(box: Driver) -> None:
    first = box.ask(300)
    second = box.ask(300, cache_salt="other")
    assert second.stats == (0, 0, 0)
    assert second.logprobs == first.logprobs
    hashes = [{p.name.split("@")[3] for p in box.files(salt)} for salt in (box.salt, "other")]
    assert hashes[0] == hashes[1]


def test_a_full_l1_refuses_a_whole_store(make: Callable[..., Driver]) -> None:
    box = make(servers=[ServerSpec(l1_bytes=6 * 32768)])
    box.ask(300, 1)
    with counting(box) as d:
        box.ask(300, 2)
    assert d["l1_allocation_failure_chunks"] == 4
    assert d["l1_write_chunks"] == d["l2_store_submitted_objects_chunks"] == 0
    assert len(box.files()) == 4


def test_a_load_that_finds_no_room_in_l1_fails(make: Callable[..., Driver]) -> None:
    box = make(servers=[ServerSpec(l1_bytes=6 * 32768)])
    box.ask(300, 1)
    box.only_l2()
    box.ask(300, 2)
    box.reset()
    with counting(box) as d:
        assert box.ask(300, 1).stats == (0, 128, 128)
    assert d["l2_prefetch_failure_chunks"] == 2
    assert 'reason="l1_oom"' in box.client.get(box.sandbox.server_url + "/metrics").text


def test_eviction_at_the_watermark(make: Callable[..., Driver]) -> None:
    box = make(servers=[ServerSpec(l1_bytes=10 * 32768, eviction_ratio=0.25)])
    box.ask(300, 1)
    box.clock.pass_(5)
    box.ask(300, 2)
    assert box.status()["storage_manager"]["l1_manager"]["memory_usage_ratio"] == 0.8
    box.clock.pass_(1)
    with counting(box):
        pass
    m = box.server_metrics()
    assert m["lmcache_mp_l1_eviction_loop_triggered_total"] == 1
    assert m["lmcache_mp_l1_eviction_loop_ticks_total"] == 6
    assert m["lmcache_mp_l1_evicted_chunks_total"] == 2  # a quarter of 8, the oldest
    assert box.status()["storage_manager"]["l1_manager"]["total_object_count"] == 6
    box.reset()
    assert box.ask(300, 2).stats == (0, 256, 256)


def test_stores_wait_in_a_queue(make: Callable[..., Driver]) -> None:
    box = make(servers=[ServerSpec(l2_store_delay_seconds=3)])
    box.ask(300, 1)
    box.ask(300, 2)
    store = box.status()["storage_manager"]["store_controller"]
    assert (store["in_flight_task_count"], store["pending_keys_count"]) == (1, 4)
    assert box.files() == []
    box.clock.pass_(3)
    store = box.status()["storage_manager"]["store_controller"]
    assert (store["in_flight_task_count"], store["pending_keys_count"]) == (0, 0)
    assert len(box.files()) == 8


def test_without_l2_nothing_is_written(make: Callable[..., Driver]) -> None:
    box = make(servers=[ServerSpec(l2_enabled=False)])
    box.ask(300)
    assert not box.sandbox.store_path.exists()
    assert box.status()["storage_manager"]["l2_adapters"] == []
    assert box.client.get(box.sandbox.server_url + "/config/adapters").json() == {"adapters": []}
    assert not any("l2_store" in name for name in box.server_metrics() if "adapters" not in name)
    box.reset()
    assert box.ask(300).stats == (0, 256, 256)


# --- deleting ---


def test_delete_counts_found_in_l1_and_asked_in_l2(box: Driver) -> None:
    box.ask(300)
    files = box.files()
    assert box.delete(files[:1], "all")["deleted"] == 2
    assert not files[0].exists()
    assert box.delete(files[:1], "all")["deleted"] == 1
    assert box.delete(files[:1], "l1")["deleted"] == 0
    assert box.delete(files[:1], "l2")["deleted"] == 1
    assert box.delete(files[1:], "l1")["deleted"] == 3
    assert all(p.exists() for p in files[1:])
    assert box.sandbox.control.server().l2_usage == 3 * 32768


def test_too_many_keys_at_once(box: Driver) -> None:
    key = {"chunk_hash_hex": "ab", "model_name": "m", "kv_rank": 1}
    url = box.sandbox.server_url + "/cache/objects"
    answer = box.client.request("DELETE", url, json={"keys": [key] * 10_001})
    assert answer.status_code == 400
    assert answer.json()["detail"] == "too many keys in a single request (limit=10000, got=10001)"


def test_deleting_never_leaves_the_directory(box: Driver) -> None:
    outside = box.sandbox.store_path.parent / "victim@0x00000001@0@ab.data"
    outside.write_text("keep me")
    key = {"chunk_hash_hex": "ab", "model_name": "../victim", "kv_rank": 1}
    url = box.sandbox.server_url + "/cache/objects"
    assert box.client.request("DELETE", url, json={"keys": [key], "tier": "all"}).status_code == 200
    for salt in ("../../x", "a\\b", "a\0b"):
        answer = box.client.request("DELETE", url, json={"keys": [{**key, "cache_salt": salt}], "tier": "all"})
        assert answer.status_code == 400
    assert outside.read_text() == "keep me"


def test_reset_external_empties_the_whole_l1_but_not_l2(box: Driver) -> None:
    box.ask(300)
    assert box.reset(external=True)
    assert box.status()["storage_manager"]["l1_manager"]["total_object_count"] == 0
    assert len(box.files()) == 4


# --- layouts ---


@pytest.mark.parametrize(
    "layout",
    [
        KVLayout(world_size=2),
        KVLayout(layers=5, object_groups=2),
        KVLayout(layers=3, object_groups=2, world_size=2, dtype="float16", block_size=16),
        KVLayout(dtype="float32"),
        KVLayout(dtype="float8_e5m2"),
    ],
)
def test_other_layouts_store_and_load(make: Callable[..., Driver], layout: KVLayout) -> None:
    box = make(engines=[EngineSpec(layout=layout)])
    cold = box.ask(300)
    assert len(box.files()) == 4 * len(layout.parts())
    sizes = {int(p.name.split("@")[2], 16): p.stat().st_size for p in box.files()}
    assert sizes == {group: 64 * size for group, size in enumerate(layout.group_token_bytes())}
    box.only_l2()
    again = box.ask(300)
    assert again.stats == (0, 256, 256)
    assert again.logprobs == cold.logprobs
    status = box.status()
    assert len(status["registered_gpu_ids"]) == layout.world_size
    meta = status["cache_context_meta"][str(status["registered_gpu_ids"][0])]["kv_cache_layout"]
    assert meta["cache_size_per_token"] == layout.token_bytes
    assert [g["object_group_idx"] for g in meta["kernel_groups"]] == list(range(layout.object_groups))


def test_a_chunk_needs_all_its_ranks(make: Callable[..., Driver]) -> None:
    box = make(engines=[EngineSpec(layout=KVLayout(world_size=2))])
    box.ask(300)
    box.only_l2()
    next(p for p in box.files() if box.chunk_file(1).name.split("@")[3] in p.name and "0x02010201" in p.name).unlink()
    assert box.ask(300).stats == (0, 64, 64)


def test_chunk_sizes(make: Callable[..., Driver]) -> None:
    box = make(servers=[ServerSpec(chunk_size=128)])
    box.ask(300)
    assert [p.stat().st_size for p in box.files()] == [65536] * 2
    assert box.status()["chunk_size"] == 128


def test_a_chunk_must_be_whole_blocks(make: Callable[..., Driver]) -> None:
    with pytest.raises(ValueError, match="must be a multiple of the block size 48"):
        make(engines=[EngineSpec(layout=KVLayout(block_size=48))])


def test_engine_driven_mode(make: Callable[..., Driver]) -> None:
    box = make(servers=[ServerSpec(transfer_mode="engine_driven")])
    box.ask(300)
    box.reset()
    assert box.ask(300).stats == (0, 256, 256)
    status = box.status()
    assert "registered_gpu_ids" not in status
    assert "cache_context_meta" not in status
    (meta,) = status["non_cuda_context_meta"].values()
    assert meta == {"model_name": "/models/tiny-llama", "world_size": 1, "block_size": 32, "use_mla": False}
    m = box.server_metrics()
    assert "lmcache_mp_num_finished_retrieves_total" not in m
    assert "lmcache_mp_num_chunks_loaded_total" not in m
    assert m["lmcache_mp_lookup_hit_tokens_total"] == 256


def test_the_mode_auto_shows_both_pairs_of_keys(make: Callable[..., Driver]) -> None:
    box = make(servers=[ServerSpec(transfer_mode="auto")])
    status = box.status()
    assert len(status["cache_context_meta"]) == 1
    assert status["non_cuda_context_meta"] == {}
    assert status["registered_non_cuda_instance_ids"] == []


# --- several ---


def test_two_engines_share_what_one_of_them_stored(make: Callable[..., Driver]) -> None:
    box = make(engines=2)
    first = box.ask(300)
    second = box.ask(300, engine=1)
    assert second.stats == (0, 256, 256)
    assert second.logprobs == first.logprobs
    assert len(box.status()["cache_context_meta"]) == 2
    ids = box.status()["registered_gpu_ids"]
    text = box.client.get(box.sandbox.server_url + "/metrics").text
    assert f'store_throughput_GB_per_second_count{{device="cpu",engine_id="{ids[0]}"' in text
    assert f'load_throughput_GB_per_second_count{{device="cpu",engine_id="{ids[1]}"' in text


def test_two_models_on_one_server(make: Callable[..., Driver]) -> None:
    box = make(engines=[EngineSpec(), EngineSpec("/models/other", "other")])
    box.ask(300)
    assert box.ask(300, engine=1).stats == (0, 0, 0)
    assert {p.name.split("@")[0] for p in box.files()} == {"-SEP-models-SEP-tiny-llama", "-SEP-models-SEP-other"}


def test_two_servers_over_one_directory(make: Callable[..., Driver]) -> None:
    box = make(servers=2, engines=2)
    box.ask(300)
    assert box.ask(300, engine=1).stats == (0, 256, 256)
    assert box.server_metrics(1)["lmcache_mp_lookup_hit_l2_tokens_total"] == 256


def test_an_engine_without_the_connector(make: Callable[..., Driver]) -> None:
    box = make(engines=[EngineSpec(), EngineSpec(server=None)])
    plain = box.ask(300, engine=1)
    assert plain.body["kv_transfer_params"] is None
    assert plain.logprobs == box.ask(300).logprobs
    assert box.engine_metrics(1)["vllm:external_prefix_cache_queries_total"] == 0
    assert len(box.status()["cache_context_meta"]) == 1
