"""Bytes of a token against models whose numbers are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.errors import InvalidInput
from app.lmcache.layouts import expected_object_bytes
from app.lmcache.status import parse_status
from app.sizing.kv_bytes import KVBytes, Parallel, kv_bytes
from app.sizing.model_shape import read_config

CAPTURES = Path(__file__).parents[2] / "fixtures" / "captures"

QWEN25_7B = {
    "model_type": "qwen2", "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
    "hidden_size": 3584, "torch_dtype": "bfloat16", "sliding_window": 131072, "use_sliding_window": False,
    "max_window_layers": 28, "max_position_embeddings": 32768,
}  # fmt: skip
LLAMA31_8B = {
    "model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "hidden_size": 4096, "torch_dtype": "bfloat16",
}  # fmt: skip
LLAMA31_70B = {**LLAMA31_8B, "num_hidden_layers": 80, "num_attention_heads": 64, "hidden_size": 8192}
LLAMA1_7B = {
    "model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096,
    "torch_dtype": "float16",
}  # fmt: skip
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
    "kv_lora_rank": 512, "qk_rope_head_dim": 64, "v_head_dim": 128, "hidden_size": 7168, "torch_dtype": "bfloat16",
}  # fmt: skip
GEMMA3_27B = {
    "model_type": "gemma3",
    "text_config": {
        "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128,
        "hidden_size": 5376, "sliding_window": 1024, "sliding_window_pattern": 6,
    },
    "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN3_NEXT = {
    "model_type": "qwen3_next", "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2,
    "head_dim": 256, "hidden_size": 2048, "full_attention_interval": 4, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN36_27B = {
    "model_type": "qwen3_5",
    "text_config": {
        "num_hidden_layers": 64, "num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256,
        "hidden_size": 5120, "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 48,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
        "mamba_ssm_dtype": "float32",
    },
    "dtype": "bfloat16",
}  # fmt: skip
JAMBA = {
    "model_type": "jamba", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "hidden_size": 4096, "attn_layer_period": 8, "attn_layer_offset": 4, "mamba_d_conv": 4, "mamba_d_state": 16,
    "mamba_expand": 2, "torch_dtype": "bfloat16",
}  # fmt: skip
NEMOTRON_H = {
    "model_type": "nemotron_h", "num_hidden_layers": 8, "hybrid_override_pattern": "M-M*M-M-",
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "hidden_size": 4096,
    "mamba_num_heads": 128, "mamba_head_dim": 64, "ssm_state_size": 128, "conv_kernel": 4, "n_groups": 8,
    "torch_dtype": "bfloat16",
}  # fmt: skip


def sizes(config: dict[str, Any], tensor: int = 1, pipeline: int = 1, **more: Any) -> KVBytes:
    return kv_bytes(read_config(config), Parallel(tensor, pipeline), **more)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (QWEN25_7B, 57_344),
        (LLAMA31_8B, 131_072),
        (LLAMA31_70B, 327_680),
        (LLAMA1_7B, 524_288),
        (DEEPSEEK_V3, 70_272),
        (GEMMA3_27B, 507_904),
    ],
    ids=["qwen2.5-7b", "llama-3.1-8b", "llama-3.1-70b", "llama-7b-mha", "deepseek-v3", "gemma-3-27b"],
)
def test_known_models(config: dict[str, Any], expected: int) -> None:
    found = sizes(config)
    assert found.stored_token_bytes == expected
    assert found.rank_token_bytes == expected


def test_the_layout_of_the_real_stack() -> None:
    """The tiny model's configuration says what the server that runs it reports."""
    config = {
        "model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 32, "hidden_size": 128, "dtype": "bfloat16",
    }  # fmt: skip
    status = parse_status(json.loads((CAPTURES / "server-with-engine" / "status.json").read_text()))
    (layout,) = status.contexts.values()
    assert sizes(config).rank_token_bytes == layout.bytes_per_token == 512


TINY_LLAMA = {
    "model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 32, "hidden_size": 128,
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    ["server-with-engine/status.json", "server-with-engine/after-traffic.status.json",
     "server-with-engine/restarted-float16.status.json"],
)  # fmt: skip
def test_every_layout_that_the_real_stack_registered(name: str) -> None:
    """To the byte: a token, and a record on disk, from the model's configuration and from the server's own figures."""
    layouts = list(parse_status(json.loads((CAPTURES / name).read_text())).contexts.values())
    assert layouts
    for layout in layouts:
        computed = sizes({**TINY_LLAMA, "dtype": layout.dtype})
        assert computed.stored_token_bytes == layout.bytes_per_token == 512
        assert layout.chunk_size is not None
        assert expected_object_bytes(layout, 0) == layout.chunk_size * computed.stored_token_bytes == 32_768


@pytest.mark.parametrize(
    ("dtype", "factor"), [("auto", 2), ("fp8", 1), ("fp8_e5m2", 1), ("float32", 4), ("bfloat16", 2)]
)
def test_dtypes_of_the_cache(dtype: str, factor: int) -> None:
    assert sizes(QWEN25_7B, kv_cache_dtype=dtype).stored_token_bytes == 28_672 * factor


class TestParallel:
    def test_heads_are_dealt_out(self) -> None:
        found = sizes(LLAMA31_70B, tensor=4)
        assert (found.rank_token_bytes, found.stored_token_bytes, found.record_ranks) == (81_920, 327_680, 4)

    def test_more_ranks_than_heads_repeat_them(self) -> None:
        found = sizes(QWEN25_7B, tensor=8)
        assert (found.rank_token_bytes, found.stored_token_bytes) == (14_336, 114_688)

    def test_latent_caches_are_stored_once(self) -> None:
        found = sizes(DEEPSEEK_V3, tensor=8)
        assert (found.rank_token_bytes, found.stored_token_bytes, found.record_ranks) == (70_272, 70_272, 1)
        assert sizes(DEEPSEEK_V3, kv_cache_dtype="fp8_ds_mla").stored_token_bytes == 61 * 656

    def test_sparse_attention_keeps_keys_besides(self) -> None:
        found = sizes({**DEEPSEEK_V3, "index_head_dim": 128})
        assert found.stored_token_bytes == 61 * (1152 + 132)

    def test_what_does_not_divide_is_refused(self) -> None:
        with pytest.raises(InvalidInput, match="tensor_parallel"):
            sizes(LLAMA31_8B, tensor=3)

    def test_pipeline_stages_split_records_not_bytes(self) -> None:
        found = sizes(LLAMA31_8B, pipeline=2)
        assert (found.stored_token_bytes, found.record_ranks) == (131_072, 2)


class TestHybrid:
    @pytest.mark.parametrize(("config", "block"), [(QWEN3_NEXT, 544), (QWEN36_27B, 784)], ids=["544", "784"])
    def test_the_block_that_vllm_logs(self, config: dict[str, Any], block: int) -> None:
        assert sizes(config).block_tokens == block

    def test_attention_and_state_are_told_apart(self) -> None:
        found = sizes(QWEN3_NEXT)
        kinds = {part.kind: part for part in found.parts}
        assert (kinds["full"].layers, kinds["linear"].layers) == (12, 36)
        assert found.rank_token_bytes == 12 * 2048
        assert kinds["linear"].state_bytes == 36 * (8192 * 3 * 2 + 32 * 128 * 128 * 2)
        assert found.stored_token_bytes == 48 * 2048  # every layer has pages of one size

    def test_a_vision_model_is_looked_into(self) -> None:
        assert read_config(QWEN36_27B).hybrid
        assert read_config(QWEN36_27B).dtype == "bfloat16"

    def test_mamba_of_both_generations(self) -> None:
        jamba = sizes(JAMBA)
        assert [(part.kind, part.layers) for part in jamba.parts] == [("full", 4), ("linear", 28)]
        assert jamba.state_bytes == 28 * (8192 * 3 + 8192 * 16) * 2
        nemotron = sizes(NEMOTRON_H)
        assert [(part.kind, part.layers) for part in nemotron.parts] == [("full", 1), ("linear", 4)]
        assert nemotron.state_bytes == 4 * ((8192 + 2 * 8 * 128) * 3 + 128 * 64 * 128) * 2


class TestReading:
    def test_layer_types(self) -> None:
        kinds = ["sliding_attention", "full_attention"] * 2
        shape = read_config({**LLAMA31_8B, "num_hidden_layers": 4, "layer_types": kinds, "sliding_window": 128})
        assert [(group.kind, group.layers, group.window) for group in shape.groups] == [
            ("full", 2, None),
            ("sliding", 2, 128),
        ]

    def test_shared_layers_keep_nothing(self) -> None:
        shape = read_config({**LLAMA31_8B, "num_kv_shared_layers": 12})
        assert shape.groups[0].layers == 20

    @pytest.mark.parametrize(
        ("config", "word"),
        [
            ({}, "num_hidden_layers"),
            ({"num_hidden_layers": 2}, "num_attention_heads"),
            ({"num_hidden_layers": 2, "num_attention_heads": 3, "hidden_size": 128}, "head_dim"),
            ({"num_hidden_layers": 10**9}, "more than"),
            ({**LLAMA31_8B, "layer_types": ["quantum"] * 32}, "quantum"),
            ({**LLAMA31_8B, "torch_dtype": "int3"}, "int3"),
            ({**QWEN3_NEXT, "linear_num_key_heads": None}, "linear_num_key_heads"),
            ([], "JSON object"),
        ],
    )
    def test_what_is_missing_is_named(self, config: Any, word: str) -> None:
        with pytest.raises(InvalidInput, match=word):
            sizes(config)

    def test_hostile_values_are_no_crash(self) -> None:
        for value in ("x", -1, 1e308, True, [], {}, None, "9" * 400):
            for key in ("num_hidden_layers", "num_attention_heads", "head_dim", "layer_types", "sliding_window"):
                try:
                    sizes({**LLAMA31_8B, key: value})
                except InvalidInput as error:
                    assert error.errors
