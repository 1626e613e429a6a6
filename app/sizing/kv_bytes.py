"""Bytes of a token: of one rank in the engine, and of all ranks together in L1 and L2. Pure.

Rules taken from vLLM 0.32 and LMCache 0.5.6: heads are dealt out over tensor parallel ranks and repeated where there
are more ranks than heads; a latent (MLA) cache is the same on every rank and stored once; a hybrid model's pages have
one size, so its attention block is lengthened until it holds one recurrent state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from app.errors import InvalidInput
from app.sizing.model_shape import LayerGroup, ModelShape

#: Bytes of one number. fp8 and int8 KV caches keep their scales beside, which are not counted.
ITEM_BYTES = {
    "bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "float": 4, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1,
    "fp8_inc": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "int8": 1, "uint8": 1,
}  # fmt: skip
#: DeepSeek's own fp8 layout: 512 fp8 values, 4 float32 scales, 64 bfloat16 rope values.
DS_MLA_BYTES = 656
_INDEXER_SCALE_BYTES = 4
_KERNEL_BLOCK = 16


@dataclass(frozen=True)
class Parallel:
    """How the model is split."""

    tensor: int = 1
    pipeline: int = 1

    @property
    def ranks(self) -> int:
        return self.tensor * self.pipeline


@dataclass(frozen=True, slots=True)
class Part:
    """One group of layers: bytes per token of all its layers on one rank, and bytes of one request's states."""

    kind: str
    layers: int
    token_bytes: int
    window: int | None
    state_bytes: int


@dataclass(frozen=True)
class KVBytes:
    """`rank_token_bytes`: one rank, all layers (over all pipeline stages). `stored_token_bytes`: what L1 and L2 keep
    of a token, all ranks together. `block_tokens`: N of a hybrid model, None otherwise. `state_bytes`: one request's
    recurrent states on one rank. `record_ranks`: into how many records a chunk is split.
    """

    parts: tuple[Part, ...]
    rank_token_bytes: int
    stored_token_bytes: int
    block_tokens: int | None
    state_bytes: int
    record_ranks: int


def kv_bytes(
    shape: ModelShape, parallel: Parallel, *, kv_cache_dtype: str = "auto", block_alignment: int = _KERNEL_BLOCK
) -> KVBytes:
    """Sizes of `shape` under `parallel`. Raises InvalidInput naming ``kv_cache_dtype`` or ``tensor_parallel``."""
    parts = tuple(_part(group, shape, parallel, kv_cache_dtype) for group in shape.groups)
    attention = sum(part.token_bytes for part in parts)
    state = sum(part.state_bytes for part in parts)
    block: int | None = None
    stored_of_rank = attention
    if shape.hybrid:
        block = _hybrid_block(parts, block_alignment)
        page_token = max(part.token_bytes // part.layers for part in parts if part.kind != "linear")
        # every layer has pages of one size: a state costs as much as one attention block
        stored_of_rank += sum(part.layers * page_token for part in parts if part.kind == "linear")
    pieces = 1 if shape.mla else parallel.tensor
    return KVBytes(
        parts=parts,
        rank_token_bytes=attention,
        stored_token_bytes=stored_of_rank * pieces,
        block_tokens=block,
        state_bytes=state,
        record_ranks=pieces * parallel.pipeline,
    )


def _part(group: LayerGroup, shape: ModelShape, parallel: Parallel, kv_cache_dtype: str) -> Part:
    if group.kind == "linear" and group.state is not None:
        item, state = _item(shape.dtype), group.state
        ssm_item = _item(state.ssm_dtype or shape.dtype)
        whole = state.conv_numbers * item + state.ssm_numbers * ssm_item
        if whole % parallel.tensor:
            raise InvalidInput.field(
                "tensor_parallel", f"{parallel.tensor} ranks do not divide the recurrent state of {shape.name or 'it'}"
            )
        return Part("linear", group.layers, 0, None, group.layers * whole // parallel.tensor)
    if group.kind == "indexer":
        return Part("indexer", group.layers, group.layers * (group.numbers_per_head + _INDEXER_SCALE_BYTES), None, 0)
    if group.kind == "mla":
        per_layer = (
            DS_MLA_BYTES
            if kv_cache_dtype == "fp8_ds_mla"
            else group.numbers_per_head * _kv_item(kv_cache_dtype, shape.dtype)
        )
        return Part("mla", group.layers, group.layers * per_layer, None, 0)
    heads = group.kv_heads
    if heads >= parallel.tensor and heads % parallel.tensor:
        raise InvalidInput.field("tensor_parallel", f"{parallel.tensor} ranks do not divide {heads} key-value heads")
    own = max(1, heads // parallel.tensor)
    per_layer = own * group.numbers_per_head * _kv_item(kv_cache_dtype, shape.dtype)
    return Part(group.kind, group.layers, group.layers * per_layer, group.window, 0)


def _hybrid_block(parts: tuple[Part, ...], alignment: int) -> int:
    """N: the attention block that vLLM lengthens until its page holds one layer's state."""
    page_token = max(part.token_bytes // part.layers for part in parts if part.kind != "linear")
    state = max(part.state_bytes // part.layers for part in parts if part.kind == "linear")
    return alignment * math.ceil(state / (alignment * page_token))


def _kv_item(kv_cache_dtype: str, dtype: str) -> int:
    return _item(dtype if kv_cache_dtype in ("auto", "") else kv_cache_dtype, "kv_cache_dtype")


def _item(dtype: str, field: str = "dtype") -> int:
    name = dtype.removeprefix("torch.").lower()
    if name not in ITEM_BYTES:
        raise InvalidInput.field(field, f"{dtype[:40]!r} is not known here; known: {', '.join(sorted(ITEM_BYTES))}")
    return ITEM_BYTES[name]
