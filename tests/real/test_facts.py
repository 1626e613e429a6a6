"""What the product is built on, asked of the real servers. No product code runs here.

If one of these fails after an upgrade of LMCache or vLLM, a rule of the product rests on something that is no more.
"""

from __future__ import annotations

import subprocess
import threading

import pytest

from tests.real.stack.clients import drift, key_of, prompt, total, wait_until
from tests.real.stack.control import RealStack
from tests.real.stack.steps import contents, from_disk, rewrite, store

CHUNK = 64

# A prefill of which a part came from the cache is computed in other shapes; how it rounds differs by processor (nat).
ROUNDING = 0.06


# --- what a request tells about itself


@pytest.mark.parametrize(
    ("length", "external", "counted"),
    [(63, 0, 0), (64, 64, 63), (127, 64, 64), (128, 128, 127), (300, 256, 256)],
)
def test_an_external_hit_is_whole_chunks_and_the_statistics_name_it(
    stack: RealStack, length: int, external: int, counted: int
) -> None:
    engine = stack.ensure()
    tokens, salt = prompt(length, length), f"whole-{length}"
    cold = store(stack, tokens, salt)
    engine.empty_l0()
    l1 = engine.complete(tokens, salt=salt)
    l2 = from_disk(stack, tokens, salt)
    for answer in (l1, l2):
        assert (answer.external, answer.local, answer.cached) == (external, 0, counted)
        assert answer.tokens == cold.tokens
        assert drift(cold, answer) == 0.0


def test_what_the_engine_holds_itself_is_not_counted_as_supplied(stack: RealStack) -> None:
    engine = stack.ensure()
    tokens = prompt(300, 2)
    store(stack, tokens, "held")
    warm = engine.complete(tokens, salt="held")
    assert warm.stats == {
        "num_vllm_cached_tokens": 288,
        "num_lmcache_cached_tokens": 256,
        "num_lmcache_extra_cached_tokens": 0,
    }
    # A prompt of whole chunks: the last block is computed anew, so LMCache supplies one block although the engine
    # holds the rest.
    tokens = prompt(128, 3)
    store(stack, tokens, "held-whole")
    warm = engine.complete(tokens, salt="held-whole")
    assert warm.stats == {
        "num_vllm_cached_tokens": 96,
        "num_lmcache_cached_tokens": 128,
        "num_lmcache_extra_cached_tokens": 32,
    }


def test_a_streamed_answer_has_the_cached_count_but_not_the_split(stack: RealStack) -> None:
    engine = stack.ensure()
    tokens = prompt(300, 4)
    cold = store(stack, tokens, "streamed")
    engine.empty_l0()
    before = engine.metrics()
    streamed = engine.complete(tokens, salt="streamed", stream=True)
    after = engine.metrics()
    assert streamed.stats is None
    assert not any("kv_transfer_params" in event for event in streamed.body)
    assert streamed.cached == 256
    assert streamed.ttft is not None
    assert 0 < streamed.ttft <= streamed.seconds
    assert (streamed.tokens, drift(cold, streamed)) == (cold.tokens, 0.0)
    # The split of a streamed request has to come from the engine's counters.
    for name, moved in (("vllm:external_prefix_cache_hits_total", 256), ("vllm:prefix_cache_hits_total", 0)):
        assert (total(after, name) or 0) - (total(before, name) or 0) == moved, name


def test_the_answer_shows_the_split_only_where_it_was_asked_for(stack: RealStack) -> None:
    engine = stack.ensure()
    asked = engine.complete(prompt(20, 5), salt="asked")
    assert set(asked.body["kv_transfer_params"]) == {"cached_token_stats"}
    silent = engine.complete(prompt(20, 5), salt="asked", stats=False)
    assert silent.body["kv_transfer_params"] is None
    assert silent.cached == 0


def test_tokenize_exists(stack: RealStack) -> None:
    answer = stack.ensure().post("/tokenize", json={"model": "tiny-llama", "prompt": "hello world"})
    assert answer.status_code == 200
    assert answer.json()["count"] == len(answer.json()["tokens"]) > 0
    assert answer.json()["max_model_len"] == 4096


# --- records and their names


def test_a_salt_is_in_the_name_and_separates_records(stack: RealStack) -> None:
    engine = stack.ensure()
    tokens = prompt(130, 6)
    store(stack, tokens, "tk-run1-p0")
    other = engine.complete(tokens, salt="tk-run1-p1")
    assert other.stats == {
        "num_vllm_cached_tokens": 0,
        "num_lmcache_cached_tokens": 0,
        "num_lmcache_extra_cached_tokens": 0,
    }
    stack.wait_stored(2, salt="tk-run1-p1")
    first, second = sorted(stack.records(salt="tk-run1-p0")), sorted(stack.records(salt="tk-run1-p1"))
    assert [key_of(n)["chunk_hash_hex"] for n in first] == [key_of(n)["chunk_hash_hex"] for n in second]
    unsalted = set(stack.records())
    engine.complete(tokens)
    stack.wait_stored(len(unsalted) + 2)
    new = sorted(set(stack.records()) - unsalted)
    assert [n.removesuffix(".data") for n in new] == [n.removesuffix("@tk-run1-p0.data") for n in first]
    # LMCache knows the model by the path it was loaded from, not by its served name.
    model = str(stack.environment.model).replace("/", "-SEP-")
    assert all(n.startswith(f"{model}@0x01000100@0@") for n in [*first, *new])


def test_a_store_reaches_the_disk_soon_and_its_own_counter_says_so(stack: RealStack) -> None:
    """The pending count is 0 both before a store was noticed and after it: the counters of the run's own salt are the
    fact to wait for.
    """
    engine, server = stack.ensure(), stack.server
    engine.complete(prompt(1000, 7), salt="quick")
    written = "lmcache_mp_l2_store_completed_objects_chunks_total"
    took = wait_until(
        "stored", lambda: total(server.metrics(), written, having='cache_salt="quick"') == 15, 10, every=0.02
    )
    assert took < 5
    assert set(stack.records(salt="quick").values()) == {CHUNK * 512}
    assert len(stack.records(salt="quick")) == 15
    assert server.pending() == 0


def test_every_salt_adds_series_to_the_server_for_good(stack: RealStack) -> None:
    """Why a run salts sparingly and why metrics are summed over salts: the label stays until the server restarts."""
    stack.ensure()
    server = stack.server
    before = len(server.metrics())
    store(stack, prompt(130, 71), "one-more")
    labelled = [name for name in server.metrics() if 'cache_salt="one-more"' in name]
    assert 5 <= len(labelled) <= 25, labelled
    assert len(server.metrics()) <= before + len(labelled) + 2


def test_l1_is_emptied_by_key_and_the_answer_counts_what_was_there(stack: RealStack) -> None:
    stack.ensure()
    server = stack.server
    store(stack, prompt(300, 8), "by-key")
    before, names = server.l1_objects(), list(stack.records(salt="by-key"))
    assert server.delete(names) == {"deleted": 4, "skipped": 0, "ok": True}
    assert server.l1_objects() == before - 4
    assert server.delete(names) == {"deleted": 0, "skipped": 0, "ok": True}
    assert sorted(stack.records(salt="by-key")) == sorted(names), "L2 is untouched"


def test_a_reset_is_refused_while_blocks_are_in_use(stack: RealStack) -> None:
    engine = stack.ensure()
    long_one = threading.Thread(target=lambda: engine.complete(prompt(500, 9), salt="busy", max_tokens=600))
    long_one.start()
    try:
        wait_until(
            "the engine runs a request", lambda: total(engine.metrics(), "vllm:num_requests_running"), 10, every=0.01
        )
        refused = engine.reset()
    finally:
        long_one.join()
    assert (refused.status_code, refused.json()) == (200, {"success": False})
    engine.empty_l0()


# --- records that are not what they should be


@pytest.mark.parametrize("size", [0, 16384])
def test_a_short_record_stays_dead_until_it_is_removed(stack: RealStack, size: int) -> None:
    engine, server = stack.ensure(), stack.server
    tokens, salt = prompt(1000, 10 + size), f"short-{size}"
    cold = store(stack, tokens, salt)
    saved = contents(stack, salt)
    victim = sorted(saved)[0]
    (stack.l2 / victim).write_bytes(saved[victim][:size])
    failures = total(server.metrics(), "lmcache_mp_l2_prefetch_failure_chunks_total") or 0
    for _ in range(2):
        hurt = from_disk(stack, tokens, salt)
        assert hurt.external is not None
        assert hurt.external < 960, "the hit ends at the short record"
        assert drift(cold, hurt) < ROUNDING
    moved = "lmcache_mp_l2_prefetch_failure_chunks_total"
    wait_until("failures counted", lambda: (total(server.metrics(), moved) or 0) >= failures + 2, 10)
    assert (stack.l2 / victim).stat().st_size == size, "a store skips the path that exists"
    (stack.l2 / victim).unlink()
    from_disk(stack, tokens, salt)
    stack.wait_stored(15, salt=salt)
    healed = from_disk(stack, tokens, salt)
    assert healed.external == 960
    assert drift(cold, healed) < ROUNDING
    assert (stack.l2 / victim).stat().st_size == len(saved[victim]), "a whole record again"
    engine.empty_l0()


def test_overwritten_bytes_are_a_hit_and_a_wrong_answer(stack: RealStack) -> None:
    stack.ensure()
    tokens, salt = prompt(1000, 20), "spoilt"
    cold = store(stack, tokens, salt)
    saved = contents(stack, salt)

    rewrite(stack, saved, lambda raw: bytes(len(raw)))
    zeros = from_disk(stack, tokens, salt)
    assert (zeros.status, zeros.external) == (200, 960)
    assert drift(cold, zeros) > 2 * ROUNDING

    rewrite(stack, saved, lambda raw: b"\xff\x7f" * (len(raw) // 2))
    nan = from_disk(stack, tokens, salt)
    assert nan.status == 400
    assert "Out of range float values" in nan.body["error"]["message"]

    rewrite(stack, saved, lambda raw: bytes(b ^ 0x40 if i % 2 else b for i, b in enumerate(raw)))
    assert from_disk(stack, tokens, salt).status == 400, "exponents blown up: the answer is no longer a number"

    rewrite(stack, saved, lambda raw: raw + bytes(4096))
    longer = from_disk(stack, tokens, salt)
    assert (longer.external, drift(cold, longer)) == (960, 0.0), "of a longer file the expected part is read"

    rewrite(stack, saved, lambda raw: raw)
    again = from_disk(stack, tokens, salt)
    assert (again.external, drift(cold, again)) == (960, 0.0)


def test_records_of_any_shape_can_be_written_without_an_engine(stack: RealStack) -> None:
    stack.ensure()
    before = set(stack.records())
    bench = [
        stack.environment.program("lmcache"),
        "bench",
        "server",
        "--mode",
        "cpu",
        "--transfer-mode",
        "lmcache_driven",
    ]
    bench += ["--rpc-url", f"tcp://127.0.0.1:{stack.zmq_port}", "--url", stack.server.url, "--start", "0", "--end", "2"]
    bench += [
        "--kvcache-shape-spec",
        "(2,256,16,2,32):float32:2",
        "--num-blocks",
        "256",
        "--block-size",
        "16",
        "--interval",
        "0.1",
    ]
    done = subprocess.run(bench, capture_output=True, text=True, timeout=360, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    stack.wait_stored(len(before) + 16)
    new = {name: size for name, size in stack.records().items() if name not in before}
    assert {key_of(name)["model_name"] for name in new} == {"test-model"}
    assert set(new.values()) == {CHUNK * 1024}
