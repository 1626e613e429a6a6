"""The failures of caches that the product exists for, one test each: they must happen here as they did for real."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from app.sandbox import Latency, SandboxConfig, ServerSpec
from tests.unit.sandbox.support import Answer, Driver


def cold_reference(box: Driver, salt: str) -> Answer:
    """The same prompt where nothing can be cached: what is right."""
    return box.ask(300, cache_salt=salt)


def overwrite(files: list[Path], data: bytes) -> None:
    for path in files:
        path.write_bytes((data * 32768)[:32768])


def test_records_of_another_dtype_are_hit_and_wrong(box: Driver) -> None:
    box.ask(300)
    sizes = [p.stat().st_size for p in box.files()]
    box.delete(box.files())
    box.sandbox.control.restart("engine", dtype="float16")
    wrong = box.ask(300)
    right = cold_reference(box, "fresh")
    assert wrong.status == 200
    assert wrong.stats == (0, 256, 256)
    assert wrong.distance(right) > 0.3
    assert [p.stat().st_size for p in box.files()] == sizes  # nothing on disk tells


def test_without_the_old_records_the_new_dtype_is_right_and_near_the_old(box: Driver) -> None:
    bfloat16 = box.ask(300)
    box.delete(box.files(), "all")
    box.sandbox.control.restart("engine", dtype="float16")
    again = box.ask(300)
    assert again.stats == (0, 0, 0)
    assert again.logprobs == cold_reference(box, "fresh").logprobs
    assert 0 < again.distance(bfloat16) < 0.12


def test_back_to_the_first_dtype_makes_its_records_good_again(box: Driver) -> None:
    first = box.ask(300)
    box.delete(box.files())
    box.sandbox.control.restart("engine", dtype="float16")
    box.sandbox.control.restart("engine", dtype="bfloat16")
    again = box.ask(300)
    assert (again.stats, again.logprobs) == ((0, 256, 256), first.logprobs)


def test_a_longer_record_is_read_as_its_beginning(box: Driver) -> None:
    first = box.ask(300)
    path = box.chunk_file(1)
    path.write_bytes(path.read_bytes() + b"x" * 4096)
    box.only_l2()
    again = box.ask(300)
    assert (again.stats, again.logprobs) == ((0, 256, 256), first.logprobs)


def test_a_longer_record_of_another_layout_is_wrong(box: Driver) -> None:
    box.sandbox.control.restart("engine", layers=4)
    box.ask(300)
    assert {p.stat().st_size for p in box.files()} == {65536}
    box.delete(box.files())
    box.sandbox.control.restart("engine", layers=2)
    wrong = box.ask(300)
    assert wrong.stats == (0, 256, 256)
    assert wrong.distance(cold_reference(box, "fresh")) >= 0.1


@pytest.mark.parametrize("size", [0, 16384, 32767])
def test_a_short_record_ends_the_hit_and_never_heals(box: Driver, size: int) -> None:
    first = box.ask(300)
    path = box.chunk_file(2)
    path.write_bytes(path.read_bytes()[:size])
    for _ in range(2):
        before = box.server_metrics()
        box.only_l2()
        answer = box.ask(300)
        after = box.server_metrics()
        assert answer.stats == (0, 128, 128)
        assert answer.logprobs == first.logprobs
        assert path.stat().st_size == size
        failures = "lmcache_mp_l2_prefetch_failure_chunks_total"
        assert after[failures] - before.get(failures, 0) == 1
        completed = "lmcache_mp_l2_store_completed_objects_chunks_total"
        assert after[completed] - before[completed] == 2  # stored, it says; the path existed
    box.only_l2()
    path.unlink()
    box.ask(300)
    assert path.stat().st_size == 32768
    box.only_l2()
    assert box.ask(300).stats == (0, 256, 256)


def test_zeroed_bytes_are_hit_and_wrong(box: Driver) -> None:
    right = box.ask(300)
    overwrite(box.files(), b"\0")
    box.only_l2()
    wrong = box.ask(300)
    assert wrong.stats == (0, 256, 256)
    assert wrong.distance(right) > 0.5


def test_one_bad_chunk_of_fifteen_is_wrong_too(box: Driver) -> None:
    right = box.ask(1000)
    overwrite([box.chunk_file(7, 1000)], b"\0")
    box.only_l2()
    wrong = box.ask(1000)
    assert wrong.stats == (0, 960, 960)
    assert wrong.distance(right) > 0.05


def test_one_flipped_exponent_bit_is_visible(box: Driver) -> None:
    right = box.ask(300)
    path = box.chunk_file(0)
    data = bytearray(path.read_bytes())
    position = next(i for i in range(1, len(data), 2) if data[i] & 0x40 == 0)
    data[position] ^= 0x40  # the highest bit of the exponent
    path.write_bytes(data)
    box.only_l2()
    assert box.ask(300).distance(right) > 0.1


def test_lowest_bits_are_below_what_logits_show(box: Driver) -> None:
    right = box.ask(1000)
    for path in box.files():
        path.write_bytes(bytes(b ^ (1 - i % 2) for i, b in enumerate(path.read_bytes())))
    box.only_l2()
    assert box.ask(1000).distance(right) < 0.06


def test_nan_bytes_are_a_400_and_a_null_in_a_stream(box: Driver) -> None:
    box.ask(300)
    overwrite(box.files(), b"\xff\x7f")
    box.only_l2()
    answer = box.ask(300)
    assert answer.status == 400
    assert answer.body["error"]["message"] == "Out of range float values are not JSON compliant"
    box.only_l2()
    without = box.ask(300, logprobs=None)
    assert (without.status, without.tokens) == (200, [0, 0, 0, 0])
    box.only_l2()
    body = {"model": "tiny-llama", "prompt": without.body["choices"][0]["prompt_token_ids"], "stream": True}
    body |= {"max_tokens": 1, "logprobs": 1, "temperature": 0, "cache_salt": box.salt}
    stream = box.client.post(box.sandbox.engine_url + "/v1/completions", json=body)
    assert stream.status_code == 200
    assert '"token_logprobs":[null],"tokens":["<unk>"],"top_logprobs":[{"<unk>":null}]' in stream.text


def test_a_record_of_another_prompt_is_wrong(box: Driver) -> None:
    right = box.ask(300)
    box.ask(300, which=6)
    box.chunk_file(0).write_bytes(box.chunk_file(0, which=6).read_bytes())
    box.only_l2()
    assert box.ask(300).distance(right) > 0.1


def test_swapped_chunks_change_nothing(box: Driver) -> None:
    right = box.ask(300)
    a, b = box.chunk_file(0), box.chunk_file(1)
    left, other = a.read_bytes(), b.read_bytes()
    a.write_bytes(other)
    b.write_bytes(left)
    box.only_l2()
    again = box.ask(300)
    assert (again.stats, again.logprobs) == ((0, 256, 256), right.logprobs)


def test_removing_wrong_files_alone_launders_them(box: Driver) -> None:
    """Wrong KV stays in the engine's GPU cache, answers from there, and is written to disk anew."""
    right = box.ask(300)
    overwrite(box.files(), b"\0")
    box.only_l2()
    wrong = box.ask(300)
    for path in box.files():
        path.unlink()
    box.delete(box.files())
    still = box.ask(300)
    assert still.stats == (288, 0, 0)
    assert still.logprobs == wrong.logprobs
    assert len(box.files()) == 4
    box.only_l2()
    laundered = box.ask(300)
    assert laundered.stats == (0, 256, 256)
    assert laundered.distance(right) > 0.3


def test_chunks_computed_behind_a_wrong_prefix_stay_wrong(box: Driver) -> None:
    right = box.ask(600)
    good = {n: box.chunk_file(n, 600).read_bytes() for n in range(9)}
    for n in range(4, 9):
        box.chunk_file(n, 600).unlink()
    overwrite([box.chunk_file(n, 600) for n in range(4)], b"\0")
    box.only_l2()
    box.delete([box.sandbox.store_path / box.chunk_file(n, 600).name for n in range(4, 9)])
    assert box.ask(600).stats == (0, 256, 256)
    assert box.chunk_file(5, 600).read_bytes() != good[5]
    for n in range(4):
        box.chunk_file(n, 600).write_bytes(good[n])  # the prefix is healed
    box.only_l2()
    assert box.ask(600).distance(right) > 0.1


def test_l1_keeps_serving_what_was_removed_from_disk(box: Driver) -> None:
    box.ask(300)
    for path in box.files():
        path.unlink()
    box.reset()
    assert box.ask(300).stats == (0, 256, 256)
    assert box.files() == []


def test_one_deleted_file_is_a_shorter_hit_and_stored_again(box: Driver) -> None:
    right = box.ask(300)
    path = box.chunk_file(1)
    data = path.read_bytes()
    path.unlink()
    box.only_l2()
    box.delete([path])
    answer = box.ask(300)
    assert (answer.stats, answer.logprobs) == ((0, 64, 64), right.logprobs)
    assert path.read_bytes() == data


def test_a_restarted_server_counts_no_bytes_but_hits_its_files(box: Driver) -> None:
    right = box.ask(300)
    box.sandbox.control.kill("server")
    box.clock.pass_(25)
    box.sandbox.control.start("server")
    box.clock.pass_(10)
    assert box.sandbox.control.server().l2_usage == 0
    box.reset()
    answer = box.ask(300)
    assert (answer.stats, answer.logprobs) == ((0, 256, 256), right.logprobs)
    assert box.server_metrics()["lmcache_mp_l2_usage_bytes"] == 0


def test_a_server_that_is_away_long_enough_is_noticed(make: Callable[..., Driver]) -> None:
    box = make(config=SandboxConfig(latency=Latency(server_gone=0.05)))
    box.ask(300)
    box.sandbox.control.kill("server")
    box.reset()
    first = box.ask(300)  # this one waits (16 s for real), then the engine goes on without the cache
    assert first.stats == (0, 0, 0)
    assert box.engine_metrics()["vllm:time_to_first_token_seconds_sum"] == 0.05
    box.clock.pass_(25)
    box.sandbox.control.start("server")
    assert box.status()["cache_context_meta"] == {}
    box.clock.pass_(10)
    assert len(box.status()["cache_context_meta"]) == 1
    box.reset()
    assert box.ask(300).stats == (0, 256, 256)


def test_a_server_restarted_within_a_heartbeat_is_never_noticed(box: Driver) -> None:
    box.ask(300)
    box.sandbox.control.restart("server")
    for _ in range(5):
        box.clock.pass_(30)
        box.reset()
        assert box.ask(300).stats == (0, 0, 0)
    status = box.status()
    assert status["is_healthy"] is True
    assert status["cache_context_meta"] == {}
    assert box.client.get(box.sandbox.server_url + "/healthcheck").status_code == 200
    m = box.server_metrics()
    assert m["lmcache_mp_lookup_early_exit_requests_total"] == 5
    assert 'reason="no_gpu_context"' in box.client.get(box.sandbox.server_url + "/metrics").text
    assert "lmcache_mp_l1_write_chunks_total" not in m


def test_engine_driven_requests_hang_behind_a_server_that_forgot_them(make: Callable[..., Driver]) -> None:
    import httpx

    box = make(servers=[ServerSpec(transfer_mode="engine_driven")])
    box.ask(300)
    box.sandbox.control.restart("server")
    body = {"model": "tiny-llama", "prompt": [9] * 300, "max_tokens": 1}
    for more in ({}, {"stream": True}):
        with pytest.raises(httpx.ReadTimeout):
            box.client.post(box.sandbox.engine_url + "/v1/completions", json={**body, **more}, timeout=0.2)
    assert box.client.get(box.sandbox.engine_url + "/health").status_code == 200


def test_a_dead_message_queue_leaves_every_light_green(box: Driver) -> None:
    """A stray message on the ZMQ port ends its thread: HTTP stays well, the engine works without the cache."""
    box.ask(300)
    box.sandbox.control.misbehave("server", mq_dead=True)
    box.clock.pass_(15)
    box.reset()
    assert box.ask(300).stats == (0, 0, 0)
    assert box.client.get(box.sandbox.server_url + "/healthcheck").json() == {"status": "healthy"}
    assert len(box.status()["cache_context_meta"]) == 1
    box.clock.pass_(130)
    assert box.status()["cache_context_meta"] == {}  # reaped


def test_a_full_disk_shows_only_as_a_growing_difference(box: Driver) -> None:
    store = box.sandbox.store_path
    box.ask(300, 1)
    (store / ".tmp").rmdir()
    (store / ".tmp").write_text("in the way")  # every store fails now, as on a full device
    box.ask(300, 2)
    m = box.server_metrics()
    submitted = m["lmcache_mp_l2_store_submitted_objects_chunks_total"]
    assert submitted - m["lmcache_mp_l2_store_completed_objects_chunks_total"] == 4
    assert box.status()["is_healthy"] is True
    assert len(list(store.glob("*.data"))) == 4
