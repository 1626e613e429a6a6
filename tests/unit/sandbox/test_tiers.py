"""Tokens, hashes, names, bytes and the three tiers, without a server."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.sandbox import KVLayout, ObjectKey, ServerSpec, tokenizer
from app.sandbox.exposition import MetricSet
from app.sandbox.model import Block, Model, join_blocks, log_softmax, pack, read_block, round_to, split_chunk, unpack
from app.sandbox.tiers import Directory, Memory, PrefixCache, block_hashes, chunk_hashes
from tests.unit.sandbox.support import prompt

KEY = ObjectKey("/models/tiny-llama", 0x01000100, 0, "ab" * 32)


@given(st.text())
def test_tokenizer_loses_nothing(text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text.encode(errors="replace").decode()
    assert all(6 <= i < tokenizer.VOCABULARY for i in ids)


def test_words_are_one_token() -> None:
    assert len(tokenizer.encode(" cache server")) == 2
    assert tokenizer.token_text(tokenizer.EOS) == "</s>"
    assert tokenizer.token_text(6 + 0xC3) == ""  # half a character


def test_chat_template() -> None:
    ids = tokenizer.chat_tokens([("system", "a"), ("user", "b"), ("assistant", "c"), ("user", "d")])
    marks = [i for i in ids if i < 6]
    assert marks == [5, 2, 3, 2, 4, 2, 3, 2, 4]


# --- names and hashes ---


def test_record_names() -> None:
    assert KEY.file_name() == f"-SEP-models-SEP-tiny-llama@0x01000100@0@{'ab' * 32}.data"
    salted = ObjectKey("/models/a", 0x02010201, 11, "cd", "tenant-a")
    assert salted.file_name() == "-SEP-models-SEP-a@0x02010201@b@cd@tenant-a.data"


def test_ranks() -> None:
    assert KVLayout(world_size=2).kv_ranks() == [0x02000200, 0x02010201]
    assert KVLayout().kv_ranks() == [0x01000100]


def test_hashes_are_chained_and_do_not_know_the_salt() -> None:
    a, b = prompt(200, 1), prompt(200, 2)
    assert chunk_hashes(a, 64) == chunk_hashes(a[:199], 64) == chunk_hashes(a, 64)[:3]
    assert chunk_hashes(a[:64] + b, 64)[0] == chunk_hashes(a, 64)[0]
    assert chunk_hashes(b[:64] + a[64:], 64)[1] != chunk_hashes(a, 64)[1]
    assert all(len(h) == 64 for h in chunk_hashes(a, 64))
    assert chunk_hashes(a[:63], 64) == []


def test_block_hashes_know_the_salt() -> None:
    assert block_hashes(prompt(64), 32, "x") != block_hashes(prompt(64), 32, "y")


# --- bytes ---


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float8_e5m2"])
def test_packing_is_exact_for_rounded_numbers(dtype: str) -> None:
    values = round_to(dtype, [0.1, -1.7, 2.25, 1e-3, -0.3, 0.0, 1.0, 0.7])
    data = pack(dtype, values)
    assert len(data) == len(values) * KVLayoutSize[dtype]
    assert list(unpack(dtype, data)) == values
    assert pack(dtype, list(unpack(dtype, data))) == data


KVLayoutSize = {"bfloat16": 2, "float16": 2, "float32": 4, "float8_e5m2": 1}


def test_bfloat16_is_rounded_to_nearest_even() -> None:
    one, step = 1.0, 2.0**-7
    assert round_to("bfloat16", [one + step * 0.49, one + step * 0.5, one + step * 1.5]) == [1.0, 1.0, one + 2 * step]


def test_sizes_follow_the_layout() -> None:
    assert KVLayout().token_bytes == 512  # as captured: 2 layers, bfloat16
    grouped = KVLayout(layers=5, object_groups=2, world_size=2)
    assert grouped.group_layers() == [[0, 1, 2, 3], [4]]
    assert grouped.group_token_bytes() == [1024, 256]
    assert len(grouped.parts()) == 4
    assert KVLayout(layers=4, object_groups=4).group_layers() == [[0], [1], [2], [3]]


@pytest.mark.parametrize(
    "bad", [{"dtype": "int4"}, {"values_per_layer": 3}, {"object_groups": 3}, {"object_groups": 0}]
)
def test_impossible_layouts_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"must be|is not one of"):
        KVLayout(**bad)  # type: ignore[arg-type]


# --- the model ---


def prefill(model: Model, tokens: list[int], layout: KVLayout, known: list[Block] | None = None) -> list[Block]:
    blocks = list(known or [])
    while (position := sum(b.tokens for b in blocks)) < len(tokens):
        part = tokens[position : position + layout.block_size]
        blocks.append(model.compute(part, position, model.state(blocks, layout), layout))
    return blocks


@pytest.fixture(scope="module")
def model() -> Model:
    return Model("/models/tiny-llama")


def answer(model: Model, tokens: list[int], layout: KVLayout, known: list[Block] | None = None) -> list[float]:
    return log_softmax(model.logits(prefill(model, tokens, layout, known), tokens[-1], layout))


@pytest.mark.parametrize("layout", [KVLayout(), KVLayout(layers=3, object_groups=2, world_size=2, dtype="float16")])
def test_chunks_survive_the_way_through_records_bit_for_bit(model: Model, layout: KVLayout) -> None:
    tokens = prompt(300)
    blocks = prefill(model, tokens, layout)
    objects = join_blocks(blocks[:2])
    assert [len(o) for o in objects] == [64 * size for _, _, size in layout.parts()]
    assert split_chunk(objects, 64, layout) == blocks[:2]
    assert answer(model, tokens, layout, blocks[:4]) == answer(model, tokens, layout)


def test_the_answer_does_not_depend_on_where_computing_started(model: Model) -> None:
    tokens = prompt(300)
    layout = KVLayout()
    blocks = prefill(model, tokens, layout)
    answers = {tuple(answer(model, tokens, layout, blocks[:n])) for n in range(10)}
    assert len(answers) == 1


def changed(blocks: list[Block], which: range, layout: KVLayout, change: object) -> list[Block]:
    return [
        read_block(tuple(change(p) for p in b.parts), b.tokens, layout) if i in which else b  # type: ignore[operator]
        for i, b in enumerate(blocks)
    ]


def worst(a: list[float], b: list[float]) -> float:
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


def test_every_kind_of_damage_shows_with_its_own_size(model: Model) -> None:
    layout, tokens = KVLayout(), prompt(1000)
    blocks = prefill(model, tokens, layout)
    kept = blocks[:30]
    right = answer(model, tokens, layout)

    def damage(change: object, which: range = range(30)) -> float:
        return worst(right, answer(model, tokens, layout, changed(kept, which, layout, change)))

    zeros = damage(lambda p: bytes(len(p)))
    one_chunk = damage(lambda p: bytes(len(p)), range(2, 4))
    low_bits = damage(lambda p: bytes(x ^ (1 - i % 2) for i, x in enumerate(p)))
    exponent = damage(lambda p: p[:501] + bytes([p[501] ^ 0x40]) + p[502:], range(1))
    assert zeros > 1.0
    assert one_chunk > 0.2
    assert low_bits < 0.1 < one_chunk
    assert exponent > 0.2


def test_swapped_chunks_change_nothing(model: Model) -> None:
    layout, tokens = KVLayout(), prompt(300)
    b = prefill(model, tokens, layout)
    assert answer(model, tokens, layout, b[2:4] + b[:2] + b[4:8]) == answer(model, tokens, layout)


def test_another_dtype_is_near_when_computed_and_far_when_misread(model: Model) -> None:
    bf16, f16, tokens = KVLayout(), KVLayout(dtype="float16"), prompt(1000)
    right = answer(model, tokens, f16)
    assert worst(right, answer(model, tokens, bf16)) < 0.12
    misread = [read_block(b.parts, b.tokens, f16) for b in prefill(model, tokens, bf16)[:30]]
    assert worst(right, answer(model, tokens, f16, misread)) > 0.3


@pytest.mark.parametrize("pattern", [b"\xff\x7f", b"\x80\x7f", b"\xc0\xff"])
def test_nan_patterns_make_all_of_it_nan(model: Model, pattern: bytes) -> None:
    layout, tokens = KVLayout(), prompt(300)
    blocks = changed(prefill(model, tokens, layout)[:8], range(1), layout, lambda p: pattern * (len(p) // 2))
    assert all(math.isnan(x) for x in answer(model, tokens, layout, blocks))


def test_models_differ() -> None:
    layout, tokens = KVLayout(), prompt(100)
    assert worst(answer(Model("a"), tokens, layout), answer(Model("b"), tokens, layout)) > 0.5


# --- L0 ---


def block(n: int) -> Block:
    return Block((bytes([n]),), (0.0,) * 8, 32)


def test_prefix_cache_finds_prefixes_and_forgets_the_oldest() -> None:
    cache = PrefixCache(3)
    for n in range(3):
        assert cache.put(bytes([n]), block(n), float(n)) == []
    assert cache.match([b"\0", b"\1", rb"\9"], 5.0) == [block(0), block(1)]
    assert cache.match([rb"\9", b"\0"], 5.0) == []
    (gone,) = cache.put(b"\5", block(5), 10.0)
    assert (gone.lifetime, gone.idle) == (8.0, 8.0)  # number 2: stored at 2, never used
    assert len(cache) == 3
    assert cache.put(b"\5", block(6), 11.0) == []
    assert cache.match([b"\5"], 11.0) == [block(5)]


def test_a_prefix_cache_without_blocks_keeps_nothing() -> None:
    cache = PrefixCache(0)
    cache.put(b"x", block(1), 0.0)
    assert len(cache) == 0


# --- L1 ---


def test_memory_counts_aligned_bytes() -> None:
    memory = Memory(16384, 4096)
    memory.put(KEY, b"x" * 4097, 1.0)
    assert memory.used == 8192
    memory.put(KEY, b"x", 2.0)
    assert (memory.used, len(memory)) == (4096, 1)
    assert memory.fits([4096, 4096, 4096])
    assert not memory.fits([4096, 4096, 4096, 1])
    assert memory.get(KEY, 5.0) == (b"x", 3.0)
    gone = memory.delete(KEY, 9.0)
    assert gone is not None
    assert (gone.lifetime, gone.idle, memory.used) == (7.0, 4.0, 0)
    assert memory.delete(KEY, 9.0) is None
    assert memory.get(KEY, 9.0) is None


def test_memory_knows_its_oldest() -> None:
    memory = Memory(1 << 20, 1)
    keys = [ObjectKey("m", 1, 0, f"{n:02x}") for n in range(4)]
    for key in keys:
        memory.put(key, b"x", 0.0)
    memory.get(keys[0], 1.0)
    assert memory.oldest(2) == [keys[1], keys[2]]


# --- L2 ---


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    directory = Directory(tmp_path, ".tmp")
    directory.prepare()
    return directory


def test_a_store_skips_an_existing_path(directory: Directory) -> None:
    assert directory.store(KEY, b"first", 1e9) == 5
    assert directory.store(KEY, b"second", 1e9) == 0
    assert directory.load(KEY, 5) == b"first"
    assert (directory.path / KEY.file_name()).stat().st_mtime == 1e9
    assert list((directory.path / ".tmp").iterdir()) == []


def test_a_load_wants_exactly_its_size(directory: Directory) -> None:
    directory.store(KEY, b"0123456789", 1e9)
    assert directory.load(KEY, 10) == b"0123456789"
    assert directory.load(KEY, 8) == b"01234567"
    assert directory.load(KEY, 11) is None
    assert directory.load(ObjectKey("m", 1, 0, "aa"), 1) is None


def test_deleting_says_what_it_freed(directory: Directory) -> None:
    directory.store(KEY, b"01234", 1e9)
    assert directory.delete(KEY) == 5
    assert directory.delete(KEY) == 0


def test_temporary_names_of_both_forms(tmp_path: Path) -> None:
    inside = Directory(tmp_path, ".tmp").temporary_path(KEY)
    assert inside == tmp_path / ".tmp" / KEY.file_name()
    beside = Directory(tmp_path, None).temporary_path(KEY)
    assert beside == tmp_path / KEY.file_name().replace(".data", ".tmp")


def test_a_failed_store_leaves_nothing_behind(directory: Directory) -> None:
    long = ObjectKey("m" * 300, 1, 0, "aa")
    with pytest.raises(OSError, match="name too long"):
        directory.store(long, b"x", 1e9)
    assert [p.name for p in directory.path.rglob("*")] == [".tmp"]


# --- printing ---


def test_label_names_are_united_once_two_kinds_of_series_exist() -> None:
    metrics = MetricSet("server")
    metrics.inc("lmcache_mp_l1_write_chunks_total", 2, l1_tag="_default")
    assert 'lmcache_mp_l1_write_chunks_total{l1_tag="_default"} 2.0' in metrics.render()
    metrics.inc("lmcache_mp_l1_write_chunks_total", 3, l1_tag="_default", cache_salt='a"b')
    text = metrics.render()
    assert 'lmcache_mp_l1_write_chunks_total{cache_salt="",l1_tag="_default"} 2.0' in text
    assert 'lmcache_mp_l1_write_chunks_total{cache_salt="a\\"b",l1_tag="_default"} 3.0' in text


def test_histograms_are_cumulative() -> None:
    metrics = MetricSet("engine", 7.0)
    for value in (0.5, 2.0, 4.0, 9000.0):
        metrics.observe("vllm:request_prompt_tokens", value, engine="0", model_name="m")
    lines = metrics.render().splitlines()
    counts = [line.rsplit(" ", 1)[1] for line in lines if "_bucket" in line]
    assert counts[:3] == ["1.0", "2.0", "3.0"]
    assert counts[-1] == "4.0"
    assert 'vllm:request_prompt_tokens_created{engine="0",model_name="m"} 7.0' in lines


def test_specs_of_servers_are_values() -> None:
    assert ServerSpec() == ServerSpec()
    assert hash(KVLayout()) == hash(KVLayout())
