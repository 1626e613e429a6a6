"""What a sandbox is made of: layouts, cache servers, engines, latencies.

All values are immutable; a running component takes another layout by being restarted with another spec
(`app.sandbox.control`), as the real ones do. Sizes are bytes, durations seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

#: Bytes of one number, by the dtype names that `torch.<name>` knows.
ITEM_SIZE = {"bfloat16": 2, "float16": 2, "float32": 4, "float8_e5m2": 1}


@dataclass(frozen=True)
class KVLayout:
    """What decides the bytes of a record (the chunk size is the server's: `ServerSpec.chunk_size`).

    `values_per_layer` is heads times head size: so many numbers for K, and again for V, per layer and token.
    With several `object_groups` the layers are dealt out unevenly, so that the groups' records differ in size.
    """

    dtype: str = "bfloat16"
    layers: int = 2
    values_per_layer: int = 64
    block_size: int = 32
    world_size: int = 1
    object_groups: int = 1
    engine_kv_format: str = "NL_X_NB_NH_BS_CS"
    engine_kv_shape: str = "NL x [NB, NH, BS, CS]"
    attention_backend: str = "vLLM non-MLA blocks-first, fused K/V (HND)"

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_SIZE:
            raise ValueError(f"dtype {self.dtype!r} is not one of {', '.join(ITEM_SIZE)}")
        if self.values_per_layer % 4:
            raise ValueError(f"values_per_layer {self.values_per_layer} must be a multiple of 4")
        if not 1 <= self.object_groups <= self.layers:
            raise ValueError(f"object_groups {self.object_groups} must be from 1 to the number of layers")

    def group_layers(self) -> list[list[int]]:
        """Layer indices of each object group: the first group takes what is left over."""
        share = max(1, self.layers // (self.object_groups + 1)) if self.object_groups > 1 else self.layers
        first = self.layers - share * (self.object_groups - 1)
        cuts = [0, *(first + share * i for i in range(self.object_groups))]
        return [list(range(cuts[i], cuts[i + 1])) for i in range(self.object_groups)]

    def group_token_bytes(self) -> list[int]:
        """Bytes of one token in a record of each object group, on one rank."""
        size = 2 * self.values_per_layer * ITEM_SIZE[self.dtype]
        return [size * len(layers) for layers in self.group_layers()]

    @property
    def token_bytes(self) -> int:
        """`cache_size_per_token` of `/status`: one rank, all groups."""
        return sum(self.group_token_bytes())

    def kv_ranks(self) -> list[int]:
        """world<<24 | rank<<16 | local_world<<8 | local_rank, one per worker on this machine."""
        return [(self.world_size << 24) | (r << 16) | (self.world_size << 8) | r for r in range(self.world_size)]

    def parts(self) -> list[tuple[int, int, int]]:
        """(kv rank, object group, bytes per token) of every object that one chunk is stored as."""
        return [(rank, group, size) for rank in self.kv_ranks() for group, size in enumerate(self.group_token_bytes())]


@dataclass(frozen=True)
class ServerSpec:
    """One LMCache multi-process server."""

    chunk_size: int = 64
    l1_bytes: int = 268_435_456
    trigger_watermark: float = 0.8
    eviction_ratio: float = 0.99
    eviction_policy: str = "LRU"
    align_bytes: int = 4096
    version: str = "0.5.6"
    commit: str = "g3e11e108"
    relative_tmp_dir: str | None = ".tmp"
    l2_enabled: bool = True
    l2_store_delay_seconds: float = 0.0
    reap_timeout_seconds: float = 120.0
    registration_grace_seconds: float = 3600.0
    transfer_mode: str = "lmcache_driven"
    metrics_sample_rate: float = 0.01
    started_at: float | None = None


@dataclass(frozen=True)
class EngineSpec:
    """One vLLM instance. `server` is the index of its cache server, None for an engine without the connector.

    LMCache knows the model by `model_path`, clients by `served_model_name`. `reset_answers` is ``json`` or, as older
    versions do, ``empty``. With an `api_key` everything below ``/v1`` wants it as bearer token.
    """

    model_path: str = "/models/tiny-llama"
    served_model_name: str = "tiny-llama"
    server: int | None = 0
    layout: KVLayout = field(default_factory=KVLayout)
    l0_blocks: int = 512
    max_model_len: int = 4096
    max_num_seqs: int = 8
    dev_mode: bool = True
    version: str = "0.32.0"
    kv_cache_dtype: str = "auto"
    revision: str | None = None
    prompt_tokens_details: bool = True
    cached_token_stats: bool = True
    reset_answers: str = "json"
    api_key: str | None = None
    heartbeat_seconds: float = 10.0
    started_at: float | None = None


@dataclass(frozen=True)
class Latency:
    """Seconds that a request takes. All zero by default: fast tests measure nothing they did not ask for."""

    base: float = 0.0
    compute_per_token: float = 0.0
    l1_per_token: float = 0.0
    l2_per_token: float = 0.0
    decode_per_token: float = 0.0
    prefill_cap: float = 3.0
    server_gone: float = 0.0

    @classmethod
    def realistic(cls) -> Latency:
        """About 1 ms per computed token; disk is five times, memory twenty times faster."""
        return cls(0.004, 0.001, 0.000_05, 0.000_2, 0.004, 3.0, 16.0)

    def prefill(self, computed: int, from_l1: int, from_l2: int) -> float:
        """Seconds until the first token."""
        seconds = computed * self.compute_per_token + from_l1 * self.l1_per_token + from_l2 * self.l2_per_token
        return min(self.base + seconds, self.prefill_cap)


@dataclass(frozen=True)
class SandboxConfig:
    """How the whole sandbox behaves; `server` and `engine` are the templates for counts given as numbers."""

    server: ServerSpec = field(default_factory=ServerSpec)
    engine: EngineSpec = field(default_factory=EngineSpec)
    latency: Latency = field(default_factory=Latency)
    seed: int = 1
    pump_seconds: float = 0.25
    control: bool = True
