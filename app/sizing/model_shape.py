"""What of a model's ``config.json`` decides the size of its KV cache: layers by kind, heads, head size, states.

Kinds: `full` attention, `sliding` (keeps a window), `mla` (one latent vector for all heads), `linear` (a recurrent
state instead of tokens), `indexer` (keys of sparse attention). Names of fields are those of transformers; a
vision-language model's ``text_config`` is looked into.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.errors import InvalidInput
from app.wire import fields

_INNER = ("text_config", "llm_config", "language_config", "language_model_config", "thinker_config")
_FULL = ("full_attention", "attention", "full", "hybrid", "global")
_SLIDING = ("sliding_attention", "sliding", "local", "sliding_window")
_LINEAR = ("linear_attention", "mamba", "mamba2", "linear", "conv", "recurrent", "kda", "gdn", "ssm")
_NOTHING = ("mlp", "moe", "feed_forward", "identity")
_MAX_LAYERS = 2000
_MAX_SIZE = 10**7


@dataclass(frozen=True, slots=True)
class LinearState:
    """One layer's recurrent state before tensor parallelism: numbers of its convolution and of its memory."""

    conv_numbers: int
    ssm_numbers: int
    ssm_dtype: str | None


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers of one kind. `numbers_per_token`: of one layer for all heads, before tensor parallelism and dtype."""

    kind: str
    layers: int
    kv_heads: int = 0
    numbers_per_head: int = 0
    window: int | None = None
    state: LinearState | None = None

    @property
    def numbers_per_token(self) -> int:
        return self.kv_heads * self.numbers_per_head


@dataclass(frozen=True)
class ModelShape:
    """A model as far as its cache is concerned. `notes` are sentences about what was assumed."""

    name: str
    dtype: str
    groups: tuple[LayerGroup, ...]
    max_tokens: int | None
    notes: tuple[str, ...]

    @property
    def hybrid(self) -> bool:
        """Whether recurrent state stands beside attention."""
        kinds = {group.kind for group in self.groups}
        return "linear" in kinds and bool(kinds - {"linear"})

    @property
    def mla(self) -> bool:
        """Whether all attention is latent: then every rank holds the same bytes, and one copy is stored."""
        kinds = {group.kind for group in self.groups}
        return "mla" in kinds and kinds <= {"mla", "indexer"}


def read_config(config: Mapping[str, Any], *, field: str = "config") -> ModelShape:
    """The shape of a parsed Hugging Face ``config.json``. Raises InvalidInput naming `field` and what is missing."""
    if not isinstance(config, Mapping):
        raise InvalidInput.field(field, "is no JSON object; paste the model's config.json")
    outer = config
    for name in _INNER:
        inner = config.get(name)
        if isinstance(inner, Mapping):
            config = {**inner, **{key: config[key] for key in ("torch_dtype", "dtype") if key in config}}
            break
    layers = _count(config, field, "num_hidden_layers", "n_layer", "num_layers", "n_layers", most=_MAX_LAYERS)
    notes: list[str] = []
    kinds = _kinds(config, layers, field, notes)
    groups = [*_attention(config, kinds, field, notes), *_linear(config, kinds, field, notes)]
    if not groups:
        raise InvalidInput.field(field, "names no layer that keeps anything: no attention and no recurrent state")
    name = fields.text(outer.get("_name_or_path"), limit=300) or fields.text(config.get("model_type"), limit=100) or ""
    return ModelShape(
        name=name,
        dtype=_dtype(config, notes),
        groups=tuple(groups),
        max_tokens=fields.count(config.get("max_position_embeddings")),
        notes=tuple(notes),
    )


def _dtype(config: Mapping[str, Any], notes: list[str]) -> str:
    told = fields.text(config.get("dtype")) or fields.text(config.get("torch_dtype"))
    if told is None:
        notes.append("the configuration names no dtype: bfloat16 is assumed")
    return (told or "bfloat16").removeprefix("torch.")


def _kinds(config: Mapping[str, Any], layers: int, field: str, notes: list[str]) -> list[str]:
    """The kind of each layer, in order."""
    listed = config.get("layer_types") or config.get("layers_block_type") or config.get("block_types")
    if isinstance(listed, Sequence) and not isinstance(listed, str) and listed:
        names = [str(item).lower() for item in listed[:_MAX_LAYERS]]
        names = (names * (layers // len(names) + 1))[:layers]
        return [_kind(name, field) for name in names]
    pattern = fields.text(config.get("hybrid_override_pattern"))
    if pattern:
        return [{"*": "full", "M": "linear"}.get(char, "none") for char in pattern if char in "M*-E"]
    interval = fields.count(config.get("full_attention_interval"))
    if interval:
        return ["full" if (index + 1) % interval == 0 else "linear" for index in range(layers)]
    period, offset = fields.count(config.get("attn_layer_period")), fields.count(config.get("attn_layer_offset")) or 0
    if period:
        return ["full" if index % period == offset else "linear" for index in range(layers)]
    every = fields.count(config.get("sliding_window_pattern"))
    if every and fields.count(config.get("sliding_window")):
        return ["full" if (index + 1) % every == 0 else "sliding" for index in range(layers)]
    if fields.count(config.get("sliding_window")) and config.get("use_sliding_window", True) is True:
        most = fields.count(config.get("max_window_layers"))
        if most is not None and "use_sliding_window" in config:
            return ["full" if index < most else "sliding" for index in range(layers)]
        notes.append("all layers keep a sliding window, as the configuration says; vLLM may be told otherwise")
        return ["sliding"] * layers
    if config.get("model_type") in ("mamba", "mamba2", "falcon_mamba"):
        return ["linear"] * layers
    return ["full"] * layers


def _kind(name: str, field: str) -> str:
    for kind, words in (("full", _FULL), ("sliding", _SLIDING), ("linear", _LINEAR), ("none", _NOTHING)):
        if name in words:
            return kind
    if name == "chunked_attention":
        return "sliding"
    raise InvalidInput.field(field, f"has a layer of the kind {name[:60]!r}, whose cache is not known here")


def _attention(config: Mapping[str, Any], kinds: list[str], field: str, notes: list[str]) -> list[LayerGroup]:
    full, sliding = kinds.count("full"), kinds.count("sliding")
    if not full and not sliding:
        return []
    shared = fields.count(config.get("num_kv_shared_layers")) or 0
    if shared:
        notes.append(f"{shared} layers share the cache of others and keep nothing of their own")
        kept = kinds[: max(0, len(kinds) - shared)]
        full, sliding = kept.count("full"), kept.count("sliding")
    rank = fields.count(config.get("kv_lora_rank"))
    if rank:
        rope = _count(config, field, "qk_rope_head_dim")
        groups = [LayerGroup("mla", full + sliding, 1, rank + rope)]
        index_size = fields.count(config.get("index_head_dim"))
        if index_size:
            notes.append("sparse attention: an fp8 key and its scale per token and layer are kept besides")
            groups.append(LayerGroup("indexer", full + sliding, 1, index_size))
        return groups
    heads = _count(config, field, "num_attention_heads", "n_head", "n_heads")
    kv_heads = fields.count(config.get("num_key_value_heads"))
    if kv_heads is None:
        old = fields.count(config.get("num_kv_heads")) or fields.count(config.get("multi_query_group_num"))
        kv_heads = old or (1 if config.get("multi_query") is True else heads)
    head_dim = fields.count(config.get("head_dim")) or fields.count(config.get("attention_head_dim"))
    if not head_dim:
        hidden = _count(config, field, "hidden_size", "n_embd", "d_model")
        if hidden % heads:
            raise InvalidInput.field(field, f"hidden_size {hidden} is no multiple of {heads} heads; head_dim is needed")
        head_dim = hidden // heads
    value_dim = fields.count(config.get("v_head_dim")) or head_dim
    window = fields.count(config.get("sliding_window")) or fields.count(config.get("attention_chunk_size"))
    groups = []
    if full:
        groups.append(LayerGroup("full", full, kv_heads, head_dim + value_dim))
    if sliding:
        global_heads = fields.count(config.get("num_global_key_value_heads"))
        local = LayerGroup("sliding", sliding, kv_heads, head_dim + value_dim, window=window)
        if global_heads and full:
            global_dim = fields.count(config.get("global_head_dim")) or head_dim
            groups[0] = LayerGroup("full", full, global_heads, 2 * global_dim)
        groups.append(local)
    return groups


def _linear(config: Mapping[str, Any], kinds: list[str], field: str, notes: list[str]) -> list[LayerGroup]:
    layers = kinds.count("linear")
    if config.get("model_type") == "falcon_h1":
        layers = len(kinds)  # every layer has both
    if not layers:
        return []
    dtype = fields.text(config.get("mamba_ssm_dtype")) or fields.text(config.get("ssm_dtype"))
    if fields.count(config.get("linear_num_value_heads")):
        state = _gated_delta(config, field, dtype)
    elif fields.count(config.get("short_conv_kernel_size")) or config.get("linear_attn_config"):
        state = _kimi_delta(config, field, dtype)
    else:
        state = _mamba(config, field, dtype)
    if dtype is None:
        notes.append("the state's dtype is not told: that of the model is assumed (--mamba-ssm-cache-dtype changes it)")
    return [LayerGroup("linear", layers, state=state)]


def _gated_delta(config: Mapping[str, Any], field: str, dtype: str | None) -> LinearState:
    keys, values = _count(config, field, "linear_num_key_heads"), _count(config, field, "linear_num_value_heads")
    key_dim, value_dim = _count(config, field, "linear_key_head_dim"), _count(config, field, "linear_value_head_dim")
    kernel = fields.count(config.get("linear_conv_kernel_dim")) or 4
    return LinearState(
        conv_numbers=(2 * keys * key_dim + values * value_dim) * (kernel - 1),
        ssm_numbers=values * value_dim * key_dim,
        ssm_dtype=dtype,
    )


def _kimi_delta(config: Mapping[str, Any], field: str, dtype: str | None) -> LinearState:
    inner = config.get("linear_attn_config")
    source = inner if isinstance(inner, Mapping) else config
    heads, dim = _count(source, field, "num_heads"), _count(source, field, "head_dim")
    kernel = fields.count(source.get("short_conv_kernel_size")) or 4
    return LinearState(3 * heads * dim * (kernel - 1), heads * dim * dim, dtype)


def _mamba(config: Mapping[str, Any], field: str, dtype: str | None) -> LinearState:
    kernel = _count(config, field, "mamba_d_conv", "conv_kernel", "d_conv", "conv_dim")
    size = _count(config, field, "mamba_d_state", "ssm_state_size", "state_size", "d_state")
    hidden = _count(config, field, "hidden_size", "d_model")
    expand = fields.number(config.get("mamba_expand")) or fields.number(config.get("expand")) or 2
    heads = fields.count(config.get("mamba_n_heads")) or fields.count(config.get("mamba_num_heads"))
    if heads is None:  # Mamba 1
        inner = fields.count(config.get("intermediate_size")) or int(hidden * expand)
        inner = int(hidden * expand) if config.get("model_type") == "jamba" else inner
        return LinearState(inner * (kernel - 1), inner * size, dtype)
    dim = fields.count(config.get("mamba_d_head")) or fields.count(config.get("mamba_head_dim"))
    dim = dim or int(hidden * expand) // heads
    groups = fields.count(config.get("mamba_n_groups")) or fields.count(config.get("n_groups")) or 1
    return LinearState((heads * dim + 2 * groups * size) * (kernel - 1), heads * dim * size, dtype)


def _count(config: Mapping[str, Any], field: str, *names: str, most: int = _MAX_SIZE) -> int:
    for name in names:
        value = fields.count(config.get(name))
        if value:
            if value > most:
                raise InvalidInput.field(field, f"{name} is {value}, more than {most}")
            return value
    raise InvalidInput.field(field, f"has no {names[0]}; paste the whole config.json of the model")
