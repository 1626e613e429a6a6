"""Layouts compared by RULES C1: different only on proof, labels only within one version, unknown proves nothing."""

from __future__ import annotations

from dataclasses import fields as dataclass_fields
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import TargetError
from app.lmcache.layouts import (
    Difference,
    FieldKind,
    KVLayout,
    ObjectGroup,
    Verdict,
    compare_layouts,
    expected_object_bytes,
    join_dtypes,
    merge_engine_facts,
    normalise_dtype,
    normalise_kv_cache_dtype,
)

GROUP = ObjectGroup(0, 2, 32, 32, "bfloat16", False)
FULL = KVLayout(
    model_name="/models/tiny-llama",
    world_size=1,
    chunk_size=64,
    dtype="bfloat16",
    kv_cache_dtype="auto",
    bytes_per_token=512,
    tokens_per_block=32,
    groups=(GROUP,),
    serde="none",
    draft_layers=0,
    engine_kv_format="F",
    engine_kv_shape="S",
    attention_backend="A",
    lmcache_version="0.5.6",
    engine_version="0.32.0",
)
ENGINE_DRIVEN = KVLayout("/models/tiny-llama", 1, chunk_size=64, tokens_per_block=32, lmcache_version="0.5.6")


def verdict(**changes: Any) -> Verdict:
    return compare_layouts(FULL, replace(FULL, **changes)).verdict


@pytest.mark.parametrize(
    ("changes", "field", "old", "new"),
    [
        ({"dtype": "float16"}, "dtype", "bfloat16", "float16"),
        ({"chunk_size": 256}, "chunk_size", 64, 256),
        ({"serde": '{"type":"fp8"}'}, "serde", "none", '{"type":"fp8"}'),
        ({"draft_layers": 1}, "draft_layers", 0, 1),
        ({"groups": (replace(GROUP, layers=4),)}, "groups[0].layers", 2, 4),
        ({"groups": (replace(GROUP, tokens_per_block=64),)}, "groups[0].tokens_per_block", 32, 64),
        ({"groups": (replace(GROUP, slots_per_block=8),)}, "groups[0].slots_per_block", 32, 8),
        ({"groups": (GROUP, replace(GROUP, index=1))}, "object_groups", [0], [0, 1]),
    ],
)
def test_a_hard_field_that_differs_is_proof(changes: dict[str, Any], field: str, old: object, new: object) -> None:
    other = replace(FULL, **changes)
    found = compare_layouts(FULL, other)
    assert found.verdict is Verdict.DIFFERENT
    assert Difference(field, old, new, FieldKind.HARD) in found.hard
    assert FULL.fingerprint != other.fingerprint
    # neither another LMCache version nor anything soft takes that proof away
    assert compare_layouts(FULL, replace(other, lmcache_version="0.5.5")).different


@pytest.mark.parametrize(
    "changes",
    [
        {"lmcache_version": "0.5.5"},
        {"engine_version": "0.31"},
        {"model_revision": "abc"},
        {"tokenizer": "/t"},
        {"checksum": "crc32"},
        {"bytes_per_token": 511},
        {"kv_cache_dtype": "bfloat16"},
        {"kv_cache_dtype": None},
        {"draft_layers": None},
        {"serde": None},
        {"groups": ()},
        {"groups": (replace(GROUP, layers=None, slots_per_block=None, is_mla=True),)},
        {"groups": (), "tokens_per_block": 128},
        {"engine_kv_format": None, "attention_backend": None},
    ],
)
def test_what_never_decides_bytes_alone(changes: dict[str, Any]) -> None:
    assert verdict(**changes) is Verdict.SAME


def test_versions_are_soft_and_listed() -> None:
    found = compare_layouts(FULL, replace(FULL, lmcache_version="0.5.7", engine_version="0.33"))
    assert found.same
    assert [(item.field, item.kind) for item in found.differences] == [
        ("lmcache_version", FieldKind.SOFT),
        ("engine_version", FieldKind.SOFT),
    ]


@pytest.mark.parametrize("label", ["engine_kv_format", "engine_kv_shape", "attention_backend"])
def test_labels_are_hard_only_within_one_known_version(label: str) -> None:
    renamed = replace(FULL, **{label: "other"})
    assert compare_layouts(FULL, renamed).different
    assert compare_layouts(FULL, replace(renamed, lmcache_version="0.5.2")).verdict is Verdict.UNKNOWN
    assert compare_layouts(FULL, replace(renamed, lmcache_version=None)).verdict is Verdict.UNKNOWN
    both_unknown = replace(FULL, lmcache_version=None)
    assert compare_layouts(both_unknown, replace(renamed, lmcache_version=None)).verdict is Verdict.UNKNOWN
    assert FULL.fingerprint == renamed.fingerprint


@pytest.mark.parametrize("changes", [{"dtype": None, "kv_cache_dtype": None}, {"chunk_size": None}])
def test_without_dtype_and_chunk_size_nothing_is_the_same(changes: dict[str, Any]) -> None:
    assert verdict(**changes) is Verdict.UNKNOWN
    assert not replace(FULL, **changes).proves_current


def test_auto_means_the_kernel_groups_dtype() -> None:
    kernel = replace(FULL, dtype="uint8", kv_cache_dtype="auto", groups=(replace(GROUP, dtype="uint8"),))
    explicit = replace(kernel, kv_cache_dtype="fp8_e4m3")
    assert compare_layouts(kernel, explicit).same
    assert compare_layouts(explicit, replace(explicit, kv_cache_dtype="fp8_e5m2")).different
    assert FULL.hard()["kv_cache_dtype"] is None
    assert explicit.hard()["kv_cache_dtype"] == "fp8_e4m3"


def test_an_fp8_cache_differs_from_a_float_cache_whoever_tells_it() -> None:
    plain = merge_engine_facts(ENGINE_DRIVEN, dtype="torch.bfloat16", kv_cache_dtype="auto")
    fp8 = merge_engine_facts(ENGINE_DRIVEN, dtype="torch.bfloat16", kv_cache_dtype="fp8")
    assert (plain.dtype, plain.kv_cache_dtype) == ("bfloat16", "auto")
    assert (fp8.dtype, fp8.kv_cache_dtype) == (None, "fp8_e4m3")
    assert compare_layouts(plain, fp8).different
    assert compare_layouts(FULL, fp8).different
    assert fp8.proves_current


def test_one_8_bit_cache_under_two_names_is_no_proof() -> None:
    """The kernel groups say uint8 where the engine says fp8; other releases may say float8_e4m3fn."""
    kernel = replace(FULL, dtype="uint8", kv_cache_dtype=None, groups=(replace(GROUP, dtype="uint8"),))
    engine = merge_engine_facts(ENGINE_DRIVEN, dtype="bfloat16", kv_cache_dtype="fp8")
    assert not compare_layouts(kernel, engine).different
    renamed = replace(
        kernel, dtype="float8_e4m3fn", groups=(replace(GROUP, dtype="float8_e4m3fn"),), lmcache_version="0.5.7"
    )
    assert not compare_layouts(kernel, renamed).different
    assert compare_layouts(kernel, replace(renamed, lmcache_version="0.5.6")).different
    assert compare_layouts(FULL, renamed).different


def test_the_engine_fills_only_what_the_server_left_unknown() -> None:
    filled = merge_engine_facts(FULL, dtype="float32", kv_cache_dtype="fp8", chunk_size=1, tokens_per_block=1)
    assert filled == FULL
    bare = KVLayout("/m", 1)
    filled = merge_engine_facts(
        bare,
        dtype="torch.float16",
        kv_cache_dtype="auto",
        chunk_size=256,
        tokens_per_block=16,
        draft_layers=0,
        engine_version="0.32.0",
        model_revision="r",
        tokenizer="t",
    )
    assert (filled.dtype, filled.chunk_size, filled.tokens_per_block, filled.draft_layers) == ("float16", 256, 16, 0)
    assert filled.soft() == {
        "lmcache_version": None,
        "engine_version": "0.32.0",
        "model_revision": "r",
        "tokenizer": "t",
        "checksum": None,
    }


@pytest.mark.parametrize(
    ("facts", "dtype"),
    [
        ({"dtype": "bfloat16"}, None),  # the KV dtype is not told: it might be fp8
        ({"dtype": "bfloat16", "kv_cache_dtype": "auto"}, "bfloat16"),
        ({"dtype": "auto", "kv_cache_dtype": "auto"}, None),
        ({"dtype": "bfloat16", "kv_cache_dtype": "float16"}, "float16"),
        ({"dtype": "bfloat16", "kv_cache_dtype": "auto", "quantization": "compressed-tensors"}, None),
        ({"dtype": "bfloat16", "kv_cache_dtype": "auto", "quantization": "awq"}, "bfloat16"),
        ({"dtype": "None", "kv_cache_dtype": "none"}, None),
    ],
)
def test_the_model_dtype_is_the_cache_dtype_only_when_that_is_certain(facts: dict[str, str], dtype: str | None) -> None:
    assert merge_engine_facts(ENGINE_DRIVEN, **facts).dtype == dtype  # type: ignore[arg-type]


def test_learning_more_of_the_same_layout_never_makes_it_another() -> None:
    first = replace(FULL, kv_cache_dtype=None, serde=None, draft_layers=None, engine_version=None)
    assert first.fingerprint == FULL.fingerprint
    assert compare_layouts(first, FULL).same


def test_names_are_normalised() -> None:
    assert [normalise_dtype(name) for name in ("torch.bfloat16", "BFloat16", "None", "", "null", None)] == [
        "bfloat16",
        "bfloat16",
        None,
        None,
        None,
        None,
    ]
    assert [normalise_kv_cache_dtype(name) for name in ("fp8", "auto", "fp8_e5m2", "none")] == [
        "fp8_e4m3",
        "auto",
        "fp8_e5m2",
        None,
    ]
    assert join_dtypes(["torch.float32", "bfloat16", "float32"]) == "bfloat16+float32"
    assert join_dtypes(["float32", None]) is None
    assert join_dtypes([]) is None


def test_expected_bytes_only_where_they_are_proven() -> None:
    assert expected_object_bytes(FULL, 0) == 32_768
    assert expected_object_bytes(replace(FULL, serde=None), 0) == 32_768
    assert expected_object_bytes(FULL, 1) is None
    assert expected_object_bytes(replace(FULL, groups=(GROUP, replace(GROUP, index=1))), 0) is None
    assert expected_object_bytes(replace(FULL, serde='{"type":"fp8"}'), 0) is None
    assert expected_object_bytes(replace(FULL, bytes_per_token=None), 0) is None
    assert expected_object_bytes(ENGINE_DRIVEN, 0) is None


groups = st.builds(
    ObjectGroup,
    index=st.integers(0, 3),
    layers=st.none() | st.integers(1, 3),
    tokens_per_block=st.none() | st.sampled_from([16, 32]),
    slots_per_block=st.none() | st.sampled_from([16, 32]),
    dtype=st.none() | st.sampled_from(["bfloat16", "float16", "uint8"]),
    is_mla=st.none() | st.booleans(),
)
names = st.none() | st.sampled_from(["a", "b"])
layouts = st.builds(
    KVLayout,
    model_name=st.just("/m"),
    world_size=st.just(1),
    chunk_size=st.none() | st.sampled_from([16, 64]),
    dtype=st.none() | st.sampled_from(["bfloat16", "float16", "uint8", "float8_e4m3fn"]),
    kv_cache_dtype=st.none() | st.sampled_from(["auto", "fp8_e4m3", "fp8_e5m2", "bfloat16"]),
    bytes_per_token=st.none() | st.integers(1, 3),
    tokens_per_block=st.none() | st.sampled_from([16, 32]),
    groups=st.lists(groups, max_size=2, unique_by=lambda group: group.index).map(
        lambda found: tuple(sorted(found, key=lambda group: group.index))
    ),
    serde=st.none() | st.sampled_from(["none", '{"type":"fp8"}']),
    draft_layers=st.none() | st.integers(0, 1),
    engine_kv_format=names,
    engine_kv_shape=names,
    attention_backend=names,
    lmcache_version=names,
    engine_version=names,
)


@given(layouts)
def test_a_layout_is_never_different_from_itself_and_survives_storage(layout: KVLayout) -> None:
    assert compare_layouts(layout, layout).verdict is (Verdict.SAME if layout.proves_current else Verdict.UNKNOWN)
    assert KVLayout.from_json(layout.to_json()) == layout
    assert KVLayout.from_json(layout.to_dict()) == layout
    assert KVLayout.from_json(layout.to_json()).fingerprint == layout.fingerprint


@given(layouts, layouts)
def test_comparison_is_symmetric(a: KVLayout, b: KVLayout) -> None:
    there, back = compare_layouts(a, b), compare_layouts(b, a)
    assert there.verdict is back.verdict
    assert {(item.field, item.kind) for item in there.differences} == {
        (item.field, item.kind) for item in back.differences
    }
    assert set(there.unknown_fields) == set(back.unknown_fields)


FORGETTABLE = [item.name for item in dataclass_fields(KVLayout) if item.name not in ("model_name", "world_size")]


def _in_itself_true(layout: KVLayout) -> bool:
    """A kernel does not keep one dtype where the cache is said to be of another (8-bit types have several names)."""
    kernel, kv = layout.dtype, normalise_kv_cache_dtype(layout.kv_cache_dtype)
    in_bytes = [name.startswith(("fp8", "float8", "uint8", "int8")) for name in (kernel or "", kv or "")]
    return kernel is None or kv in (None, "auto", "none", kernel) or all(in_bytes)


true_layouts = layouts.filter(_in_itself_true)


@given(true_layouts, true_layouts, st.sets(st.sampled_from(FORGETTABLE)))
def test_forgetting_a_field_never_proves_a_difference(a: KVLayout, b: KVLayout, forgotten: set[str]) -> None:
    """What is not different does not become different when one side knows less."""
    if "groups" in forgotten:
        forgotten = forgotten | {"tokens_per_block"}  # with groups it is only their summary
    blank: dict[str, Any] = {name: () if name == "groups" else None for name in forgotten}
    if not compare_layouts(a, b).different:
        assert not compare_layouts(a, replace(b, **blank)).different


@given(layouts, layouts)
def test_proof_of_a_difference_means_another_fingerprint(a: KVLayout, b: KVLayout) -> None:
    if compare_layouts(a, b).hard:
        assert a.fingerprint != b.fingerprint


@pytest.mark.parametrize("stored", ["", "[", b"\xff"])
def test_a_damaged_stored_layout_is_refused(stored: str | bytes) -> None:
    with pytest.raises(TargetError):
        KVLayout.from_json(stored)


def test_a_stored_layout_of_another_release_is_read_as_far_as_it_goes() -> None:
    layout = KVLayout.from_json(
        '{"model_name":"/m","world_size":2,"dtype":"float16","new_field":1,"groups":[{"index":1},3]}'
    )
    assert (layout.model_name, layout.world_size, layout.dtype) == ("/m", 2, "float16")
    assert layout.groups[0] == ObjectGroup(1, None, None, None, None, None)
