"""Lines as LMCache's own format strings print them (0.3.9 to 0.5.6), with the values they are to be read as."""

from __future__ import annotations

import pytest

from app.lmcache.in_process_log import parse_in_process_log

GIB = 1024**3
START = (
    "\x1b[32;20m[2026-11-30 10:00:00,001] LMCache INFO:\x1b[0m LMCache Configuration: {'chunk_size': 256, "
    "'local_cpu': True, 'max_local_cpu_size': 5.0} (config.py:797:lmcache.v1.config)"
)
SHAPE = (
    "[2026-11-30 10:00:01,001] LMCache INFO: num_layer: 28, chunk_size: 256, num_kv_head (per gpu): 8, head_size: 128, "
    "hidden_dim (D) for KV (per gpu): 1024, use mla: False, kv shape: (28, 2, 256, 8, 128), num_draft_layers: 0"
)
READY = (
    "[2026-11-30 10:00:02,001] LMCache INFO: LMCache initialized for role KVConnectorRole.WORKER with version "
    "0.4.7-gabc, vllm version 0.20.0, lmcache cache_engine metadata: None"
)
LOOKUP = (
    "[2026-11-30 10:01:00,001] LMCache INFO: Reqid: cmpl-1, Total tokens 1000, Inference Engine computed tokens: 0, "
    "LMCache hit tokens: 768, need to load: 768"
)
STORED = (
    "(EngineCore pid=9) [2026-11-30 10:01:01,001] LMCache INFO: [req_id=cmpl-1] Stored 1000 out of total 1024 tokens. "
    "size: 0.5000 GB, cost 250.0000 ms, throughput: 2.0000 GB/s; offload_time: 240.0000 ms, put_time: 1.0000 ms"
)
RETRIEVED = (
    "[2026-11-30 10:01:02,001] LMCache INFO: [req_id=cmpl-2] Retrieved 768 out of 768 required tokens (from 1000 total "
    "tokens). size: 0.2500 gb, cost 50.0000 ms, throughput: 5.0000 GB/s;"
)


def test_transfers_lookups_and_the_chunk_size() -> None:
    slower = STORED.replace("cost 250.0000", "cost 500.0000")
    found = parse_in_process_log("\n".join((START, SHAPE, READY, LOOKUP, STORED, slower, RETRIEVED)))
    assert (found.version, found.chunk_size, found.chunk_size_origin, found.starts) == (
        "0.4.7-gabc",
        256,
        "KV shape at start",
        1,
    )
    assert (found.stored.lines, found.stored.tokens, found.stored.wanted_tokens) == (2, 2000, 2048)
    assert (found.stored.bytes, found.stored.seconds) == (1.0 * GIB, 0.75)
    assert found.stored.bytes_per_second == GIB / 0.75
    assert (found.stored.slowest, found.stored.fastest) == (GIB, 2.0 * GIB)
    assert (found.retrieved.tokens, found.retrieved.wanted_tokens, found.retrieved.bytes) == (768, 768, 0.25 * GIB)
    assert found.retrieved.bytes_per_second == 5 * GIB
    assert (found.lookups, found.prompt_tokens, found.computed_tokens, found.hit_tokens) == (1, 1000, 0, 768)
    assert found.hit_rate == 0.768


@pytest.mark.parametrize(
    ("line", "tokens", "wanted", "timed"),
    [
        # layer by layer
        (
            "[req_id=a] Stored 512 out of total 600 tokens. size: 0.1000 GB, cost 10.0 ms, throughput: 10.0 GB/s",
            512,
            600,
            1,
        ),
        # before sizes were printed
        ("Reqid: a, Stored 512 out of total 600 tokens", 512, 600, 0),
    ],
)
def test_store_lines_of_other_kinds(line: str, tokens: int, wanted: int, timed: int) -> None:
    found = parse_in_process_log(line).stored
    assert (found.tokens, found.wanted_tokens, found.timed) == (tokens, wanted, timed)


@pytest.mark.parametrize(
    "line",
    [
        "[req_id=a] Retrieved 512 out of 600 out of total 1000 tokens",
        "[req_id=a] Retrieved 512 out of 600 tokens",
        "Retrieved 512 out of total 600 tokens. size: 0.1 gb, cost 10.0 ms, throughput: 10.0 GB/s",
        "[req_id=a] Retrieved 512 out of 600 required tokens (from 1000 total tokens).  size: 0.1 gb, cost 10 ms, "
        "throughput: 10.0 GB/s;",
    ],
)
def test_retrieve_lines_of_other_kinds(line: str) -> None:
    found = parse_in_process_log(line).retrieved
    assert (found.lines, found.tokens, found.wanted_tokens) == (1, 512, 600)


def test_a_hit_that_is_too_small_to_load() -> None:
    line = LOOKUP.replace("need to load: 768", "but need to load: 100 < min_retrieve 512, skip retrieve but record")
    found = parse_in_process_log(line)
    assert (found.lookups, found.hit_tokens, found.needed_tokens, found.below_minimum) == (1, 768, 100, 1)


def test_an_older_lookup_line_and_a_negative_need() -> None:
    found = parse_in_process_log("Reqid: a, Total tokens 1000, LMCache hit tokens: 256, need to load: -1")
    assert (found.prompt_tokens, found.hit_tokens, found.needed_tokens) == (1000, 256, 0)


def test_only_the_last_start_counts() -> None:
    other = START.replace("256", "512")
    found = parse_in_process_log("\n".join((START, STORED, RETRIEVED, LOOKUP, other, STORED)))
    assert (found.starts, found.chunk_size, found.stored.lines, found.retrieved.lines, found.lookups) == (
        2,
        512,
        1,
        0,
        0,
    )


def test_the_two_ranks_of_one_start_are_one_start() -> None:
    found = parse_in_process_log("\n".join((START, START, STORED)))
    assert (found.stored.lines, found.chunk_size) == (1, 256)


def test_a_log_that_misses_the_directory_for_its_counters() -> None:
    found = parse_in_process_log("WARNING: PROMETHEUS_MULTIPROC_DIR is not set, LMCache metrics will be incomplete")
    assert found.multiproc_missing


@pytest.mark.parametrize(
    "text", ["", "hello tokens", "Stored x out of total y tokens", "\x00" * 10, "LMCache " * 20_000]
)
def test_a_text_about_something_else_is_not_seen(text: str) -> None:
    found = parse_in_process_log(text)
    assert not found.seen
    assert found.hit_rate is None
    assert found.stored.bytes_per_second is None
